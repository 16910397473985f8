/* SPDX-License-Identifier: MIT */
/* Count sketches of blocks: made, added up, and estimated from.  sketch_peel.c decodes them. */
#include "sketch.h"

/* Moves that are handed to a kernel together: they stay in a first-level cache, and the wait for
 * the first cell is one of many. */
#define MOVES 256

/* ---------------------------------------------------------------------------------------------- */
/* Checks                                                                                         */
/* ---------------------------------------------------------------------------------------------- */

s2_status s2_sketch_numel(const s2_sketch *sketch, int64_t *numel)
{
    if (sketch == NULL || numel == NULL) return S2_NULL_POINTER;
    if (sketch->rows < 1 || sketch->rows > S2_MAX_SKETCH_ROWS || sketch->width < 1 ||
        sketch->width > S2_MAX_SKETCH_WIDTH || sketch->block < 1)
        return S2_BAD_SKETCH;
    const int64_t ncells = sketch->rows * sketch->width;
    if (sketch->block > S2_MAX_NUMEL / ncells) return S2_BAD_SKETCH;
    *numel = ncells * sketch->block;
    return S2_OK;
}

s2_status s2_sketch_check(const s2_sketch *sketch, const float *table, const int64_t *ids,
                          int64_t n, const float *values)
{
    int64_t numel;

    S2_RETURN_IF_ERROR(s2_sketch_numel(sketch, &numel));
    if (n < 0 || n > S2_MAX_NUMEL / sketch->block) return S2_BAD_SIZE;
    if (table == NULL || s2_is_null(ids, n) || s2_is_null(values, n)) return S2_NULL_POINTER;
    return s2_positions_check(ids, n, INT64_MAX);
}

/* ---------------------------------------------------------------------------------------------- */
/* Insert, subtract, weigh, merge                                                                 */
/* ---------------------------------------------------------------------------------------------- */

static void add_blocks(const s2_sketch *sketch, float *table, const int64_t *ids, int64_t n,
                       const float *values, uint32_t flip)
{
    const struct s2_kernels *kernels = s2_kernels_current();
    const int64_t together = MOVES / sketch->rows;
    struct s2_move moves[MOVES];

    for (int64_t begin = 0; begin < n; begin += together) {
        const int64_t end = s2_min(n, begin + together);
        for (int64_t i = begin; i < end; i++)
            s2_sketch_moves(sketch, ids[i], i, flip, moves + (i - begin) * sketch->rows);
        kernels->sketch_add(table, values, sketch->block, moves, (end - begin) * sketch->rows);
    }
}

s2_status s2_sketch_insert(const s2_sketch *sketch, float *table, const int64_t *ids, int64_t n,
                           const float *values)
{
    S2_RETURN_IF_ERROR(s2_sketch_check(sketch, table, ids, n, values));
    add_blocks(sketch, table, ids, n, values, 0);
    return S2_OK;
}

s2_status s2_sketch_subtract(const s2_sketch *sketch, float *table, const int64_t *ids, int64_t n,
                             const float *values)
{
    S2_RETURN_IF_ERROR(s2_sketch_check(sketch, table, ids, n, values));
    add_blocks(sketch, table, ids, n, values, S2_SKETCH_NEGATE);
    return S2_OK;
}

s2_status s2_sketch_weigh(const s2_sketch *sketch, float *magnitudes, const int64_t *ids, int64_t n,
                          const float *values)
{
    S2_RETURN_IF_ERROR(s2_sketch_check(sketch, magnitudes, ids, n, values));

    const struct s2_kernels *kernels = s2_kernels_current();
    const int64_t block = sketch->block;
    struct s2_move moves[S2_MAX_SKETCH_ROWS];
    for (int64_t i = 0; i < n; i++) {
        const float largest = kernels->sketch_largest(values + i * block, block);
        s2_sketch_moves(sketch, ids[i], i, 0, moves);
        for (int64_t row = 0; row < sketch->rows; row++)
            magnitudes[moves[row].cell] += largest;
    }
    return S2_OK;
}

s2_status s2_sketch_merge(const s2_sketch *sketch, float *table, const s2_sketch *other,
                          const float *other_table)
{
    int64_t numel, other_numel;

    S2_RETURN_IF_ERROR(s2_sketch_numel(sketch, &numel));
    S2_RETURN_IF_ERROR(s2_sketch_numel(other, &other_numel));
    if (table == NULL || other_table == NULL) return S2_NULL_POINTER;
    if (sketch->rows != other->rows || sketch->width != other->width ||
        sketch->block != other->block || sketch->seed != other->seed)
        return S2_BAD_SKETCH;
    s2_kernels_current()->add[S2_FLOAT32][S2_FLOAT32](other_table, table, numel, 1.0);
    return S2_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Estimate                                                                                       */
/* ---------------------------------------------------------------------------------------------- */

s2_status s2_sketch_estimate(const s2_sketch *sketch, const float *table, const int64_t *ids,
                             int64_t n, float *values)
{
    S2_RETURN_IF_ERROR(s2_sketch_check(sketch, table, ids, n, values));

    const struct s2_kernels *kernels = s2_kernels_current();
    const int64_t together = MOVES / sketch->rows;
    struct s2_move moves[MOVES];
    for (int64_t begin = 0; begin < n; begin += together) {
        const int64_t end = s2_min(n, begin + together);
        for (int64_t i = begin; i < end; i++)
            s2_sketch_moves(sketch, ids[i], i, 0, moves + (i - begin) * sketch->rows);
        kernels->sketch_median(table, values, sketch->block, moves, end - begin, sketch->rows);
    }
    return S2_OK;
}
