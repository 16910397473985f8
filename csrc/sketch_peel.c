/* SPDX-License-Identifier: MIT */
/*
 * The peeling decoder: see s2.h.
 *
 * A cell need not list its undecoded blocks.  It keeps how many they are and the XOR of their
 * numbers, from which a decoded one is XORed away: once one is left, the XOR is its number.  (Biff
 * codes and invertible Bloom lookup tables do the same: Goodrich, Mitzenmacher, Allerton 2011.)
 *
 * A round walks over the blocks that it decodes three times: all are taken before any is counted
 * off, since both sides of "alone" are those of the round's start, and all are counted off before
 * any is subtracted, since cells that become empty need no subtraction.  That spares at least one
 * move a cell: of three rows, with 1.3 cells a block, two moves in five.
 *
 * The blocks that a cell gives up are marked in a bitmap, which is drained in ascending order.  It
 * costs n / 64 words a round, and everything else is proportional to the blocks of the round.
 */
#include <math.h>

#include "peel_bound.h"
#include "sketch.h"

/* ---------------------------------------------------------------------------------------------- */
/* State                                                                                          */
/* ---------------------------------------------------------------------------------------------- */

struct cell {
    uint32_t count;   /* its undecoded blocks */
    uint32_t numbers; /* XOR of their numbers, 0 .. n - 1 */
    uint32_t load;    /* its blocks at the start */
    float bound;      /* on the error in it, but for that of blocks that are still in it */
};

struct peeling {
    const s2_sketch *sketch;
    const struct s2_kernels *kernels;
    float *table;
    const int64_t *ids;
    int64_t n;
    int64_t nranks;
    const float *magnitudes; /* by cell, or NULL */
    float *values;
    uint8_t *decoded;
    float *bounds;
    float *norms;

    struct cell *cells; /* those of row 0, of row 1 .. */
    uint64_t *marks;    /* a bit a block: found alone, and not decoded yet */
    uint32_t *round;    /* the blocks of this round, ascending */
};

static int64_t ncells(const s2_sketch *sketch) { return sketch->rows * sketch->width; }

static int64_t nwords(int64_t n) { return (n + 63) / 64; }

s2_status s2_sketch_scratch_nbytes(const s2_sketch *sketch, int64_t n, int64_t *nbytes)
{
    int64_t numel;

    S2_RETURN_IF_ERROR(s2_sketch_numel(sketch, &numel));
    if (nbytes == NULL) return S2_NULL_POINTER;
    if (n < 0 || n > UINT32_MAX || n > S2_MAX_NUMEL / sketch->block) return S2_BAD_SIZE;
    *nbytes = nwords(n) * 8 + ncells(sketch) * (int64_t)sizeof(struct cell) + n * 4;
    return S2_OK;
}

static void divide_scratch(struct peeling *p, void *scratch)
{
    p->marks = scratch;
    p->cells = (struct cell *)(p->marks + nwords(p->n));
    p->round = (uint32_t *)(p->cells + ncells(p->sketch));
}

/*
 * Blocks that a walk looks at together.  All their cells are asked for before the first is touched:
 * what a cell decides is anybody's guess, and a wrong guess ends all looking ahead, so that each
 * would have to be waited for.  Of short blocks this halved the time.
 */
#define GROUP 64

/* The moves of `n` blocks, those in `numbers`, one behind the other. */
static void moves_of_group(const struct peeling *p, const uint32_t *numbers, int64_t n,
                           uint32_t flip, struct s2_move *moves)
{
    const int64_t rows = p->sketch->rows;

    for (int64_t k = 0; k < n; k++) {
        s2_sketch_moves(p->sketch, p->ids[numbers[k]], numbers[k], flip, moves + k * rows);
        for (int64_t row = 0; row < rows; row++)
            __builtin_prefetch(&p->cells[moves[k * rows + row].cell], 1, 3);
    }
}

static void mark(struct peeling *p, uint32_t number)
{
    p->marks[number / 64] |= UINT64_C(1) << number % 64;
}

/* What roundings in `cell` can have made of a block whose largest magnitude is 1, squared. */
static double roundings(const struct peeling *p, const struct cell *cell)
{
    return s2_peel_roundings(cell->load, p->nranks);
}

/* Before any block is read. */
static void start_cell(struct peeling *p, int64_t c)
{
    struct cell *cell = &p->cells[c];

    cell->load = cell->count;
    if (cell->count == 1) mark(p, cell->numbers);
    if (p->magnitudes != NULL && cell->load != 0)
        cell->bound = (float)sqrt(s2_peel_error(roundings(p, cell), p->magnitudes[c]) / cell->load);
}

/* Fills the cells and marks the blocks that are alone in one. */
static void count_blocks(struct peeling *p)
{
    struct s2_move moves[GROUP * S2_MAX_SKETCH_ROWS];

    memset(p->marks, 0, (size_t)nwords(p->n) * 8);
    memset(p->cells, 0, (size_t)ncells(p->sketch) * sizeof(struct cell));
    for (int64_t i = 0; i < p->n; i++)
        p->round[i] = (uint32_t)i;
    for (int64_t begin = 0; begin < p->n; begin += GROUP) {
        const int64_t n = s2_min(GROUP, p->n - begin);
        moves_of_group(p, p->round + begin, n, 0, moves);
        for (int64_t m = 0; m < n * p->sketch->rows; m++) {
            struct cell *cell = &p->cells[moves[m].cell];
            cell->count++;
            cell->numbers ^= (uint32_t)moves[m].index;
        }
    }
    for (int64_t c = 0; c < ncells(p->sketch); c++)
        start_cell(p, c);
}

/* ---------------------------------------------------------------------------------------------- */
/* A round                                                                                        */
/* ---------------------------------------------------------------------------------------------- */

/* Moves the marks to p->round, and returns how many there were. */
static int64_t drain_marks(struct peeling *p)
{
    int64_t count = 0;

    for (int64_t i = 0; i < nwords(p->n); i++) {
        for (uint64_t word = p->marks[i]; word != 0; word &= word - 1)
            p->round[count++] = (uint32_t)(64 * i + s2_lowest_bit(word));
        p->marks[i] = 0;
    }
    return count;
}

static void take(struct peeling *p, const struct s2_move *moves, int64_t n)
{
    p->kernels->sketch_take(p->table, p->values, p->sketch->block, moves, n, p->norms);
    for (int64_t k = 0; k < n; k++) {
        const struct cell *cell = &p->cells[moves[k].cell];
        int64_t i = moves[k].index;
        p->bounds[i] = (float)sqrt(s2_peel_square(cell->bound) +
                                   s2_peel_error(roundings(p, cell), p->norms[i]));
        p->decoded[i] = 1;
    }
}

/* Every block of the round out of the first of its cells that it has to itself. */
static void take_blocks(struct peeling *p, int64_t count)
{
    struct s2_move moves[GROUP * S2_MAX_SKETCH_ROWS];

    for (int64_t begin = 0; begin < count; begin += GROUP) {
        const int64_t n = s2_min(GROUP, count - begin);
        const struct s2_move *move = moves;
        moves_of_group(p, p->round + begin, n, 0, moves);
        for (int64_t k = 0; k < n; k++, move += p->sketch->rows) {
            int64_t row = 0;
            while (p->cells[move[row].cell].count != 1)
                row++;
            moves[k] = move[row];
        }
        take(p, moves, n);
    }
}

/* Marks who is alone for the next round. */
static void count_off_blocks(struct peeling *p, int64_t count)
{
    struct s2_move moves[GROUP * S2_MAX_SKETCH_ROWS];

    for (int64_t begin = 0; begin < count; begin += GROUP) {
        const int64_t n = s2_min(GROUP, count - begin);
        moves_of_group(p, p->round + begin, n, 0, moves);
        for (int64_t m = 0; m < n * p->sketch->rows; m++) {
            struct cell *cell = &p->cells[moves[m].cell];
            cell->count--;
            cell->numbers ^= (uint32_t)moves[m].index;
            if (cell->count == 1 && !p->decoded[cell->numbers]) mark(p, cell->numbers);
        }
    }
}

/* Sets to zero what may be nothing but the errors of neighbours: see s2.h. */
static void clear(struct peeling *p, const uint32_t *numbers, int64_t n)
{
    const int64_t block = p->sketch->block;
    const double root = sqrt((double)block);

    for (int64_t k = 0; k < n; k++) {
        const int64_t i = numbers[k];
        const float threshold = (float)((double)p->bounds[i] / root);
        p->kernels->sketch_clear(p->values + i * block, block, threshold);
        if (p->norms[i] <= threshold) p->norms[i] = 0;
    }
}

/* Who had a cell to itself from the start is in the first round, and nobody else is.  Others are
 * cleared on the way, while they are in a cache. */
static void subtract_blocks(struct peeling *p, int64_t count, bool were_alone)
{
    struct s2_move moves[GROUP * S2_MAX_SKETCH_ROWS];

    for (int64_t begin = 0; begin < count; begin += GROUP) {
        const int64_t n = s2_min(GROUP, count - begin);
        int64_t nleft = 0; /* moves into cells that are not empty */
        moves_of_group(p, p->round + begin, n, S2_SKETCH_NEGATE, moves);
        for (int64_t m = 0; m < n * p->sketch->rows; m++) {
            struct cell *cell = &p->cells[moves[m].cell];
            int64_t i = moves[m].index;
            if (cell->count == 0) continue;
            cell->bound = (float)sqrt(
                s2_peel_square(cell->bound) +
                (s2_peel_square(p->bounds[i]) + s2_peel_error(roundings(p, cell), p->norms[i])));
            moves[nleft++] = moves[m];
        }
        p->kernels->sketch_add(p->table, p->values, p->sketch->block, moves, nleft);
        if (!were_alone) clear(p, p->round + begin, n);
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* The decoder                                                                                    */
/* ---------------------------------------------------------------------------------------------- */

static void forget_stuck_blocks(struct peeling *p)
{
    const int64_t block = p->sketch->block;

    for (int64_t i = 0; i < p->n; i++) {
        if (p->decoded[i]) continue;
        p->bounds[i] = INFINITY;
        p->norms[i] = 0;
        memset(p->values + i * block, 0, (size_t)block * sizeof(float));
    }
}

s2_status s2_sketch_peel(const s2_sketch *sketch, float *table, const int64_t *ids, int64_t n,
                         int64_t nranks, const float *magnitudes, int64_t max_rounds, float *values,
                         uint8_t *decoded, float *bounds, float *norms, void *scratch,
                         int64_t scratch_nbytes, int64_t *ndecoded, int64_t *nrounds)
{
    struct peeling p = {.sketch = sketch,
                        .kernels = s2_kernels_current(),
                        .table = table,
                        .ids = ids,
                        .n = n,
                        .nranks = nranks,
                        .magnitudes = magnitudes,
                        .values = values,
                        .decoded = decoded,
                        .bounds = bounds,
                        .norms = norms};
    int64_t nbytes, count;

    S2_RETURN_IF_ERROR(s2_sketch_scratch_nbytes(sketch, n, &nbytes));
    if (scratch_nbytes != nbytes || nranks < 1 || nranks > S2_MAX_RANKS || max_rounds < 0)
        return S2_BAD_SIZE;
    if (s2_is_null(decoded, n) || s2_is_null(bounds, n) || s2_is_null(norms, n) ||
        scratch == NULL || ndecoded == NULL || nrounds == NULL)
        return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(s2_sketch_check(sketch, table, ids, n, values));

    divide_scratch(&p, scratch);
    if (n != 0) memset(decoded, 0, (size_t)n);
    count_blocks(&p);
    *ndecoded = *nrounds = 0;
    while ((max_rounds == 0 || *nrounds < max_rounds) && (count = drain_marks(&p)) != 0) {
        take_blocks(&p, count);
        count_off_blocks(&p, count);
        subtract_blocks(&p, count, *nrounds == 0);
        *ndecoded += count;
        ++*nrounds;
    }
    forget_stuck_blocks(&p);
    return S2_OK;
}
