/* SPDX-License-Identifier: MIT */
/*
 * Live blocks between a bucket and their packed form.
 *
 * Gather, scatter and add are one walk.  The positions ascend, so those of a segment are a run of
 * the list, and the packed blocks of a run have one length: a run is a loop over rows at computable
 * addresses, which can be cut anywhere.  Only the last block of a segment can be short; it is the
 * last of its run.
 */
#include "rows.h"

/* ---------------------------------------------------------------------------------------------- */
/* The walk over segments                                                                         */
/* ---------------------------------------------------------------------------------------------- */

/* Checks the layout and the positions, and sets *numel to what they take when packed. */
s2_status s2_blocks_packed_numel(const s2_layout *layout, const int64_t *positions,
                                 int64_t npositions, int64_t *numel)
{
    int64_t total = 0, done = 0;

    S2_RETURN_IF_ERROR(s2_layout_check(layout));
    if (npositions < 0 || npositions > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (s2_is_null(positions, npositions) || numel == NULL) return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(s2_positions_check(positions, npositions, INT64_MAX));
    for (int64_t i = 0; i < layout->nsegments && done < npositions; i++) {
        const s2_segment *segment = &layout->segments[i];
        int64_t end_bit = segment->first_bit + s2_segment_nblocks(segment);
        int64_t n = s2_positions_below(positions + done, npositions - done, end_bit);

        if (n == 0) continue;
        if (positions[done] < segment->first_bit) return S2_BAD_POSITION;
        if (segment->block > (S2_MAX_NUMEL - total) / n) return S2_BAD_SIZE;
        total += n * segment->block;
        done += n;
    }
    if (done != npositions) return S2_BAD_POSITION;
    *numel = total;
    return S2_OK;
}

s2_status s2_blocks_check_packed(const s2_layout *layout, const int64_t *positions,
                                 int64_t npositions, const void *packed, int64_t packed_numel)
{
    int64_t numel;

    S2_RETURN_IF_ERROR(s2_blocks_packed_numel(layout, positions, npositions, &numel));
    if (packed_numel != numel) return S2_BAD_SIZE;
    return s2_is_null(packed, packed_numel) ? S2_NULL_POINTER : S2_OK;
}

/* Hands the run of each segment to `function`; `rows` brings the arrays, their widths, the kernel.
 */
static void walk(struct s2_rows rows, const s2_layout *layout, const int64_t *positions,
                 int64_t npositions, s2_rows_function function, const s2_executor *executor)
{
    uint8_t *values = rows.values;
    int64_t done = 0;

    for (int64_t i = 0; i < layout->nsegments && done < npositions; i++) {
        const s2_segment *segment = &layout->segments[i];
        int64_t end_bit = segment->first_bit + s2_segment_nblocks(segment);
        int64_t n = s2_positions_below(positions + done, npositions - done, end_bit);
        if (n == 0) continue;

        rows.positions = positions + done;
        rows.first_bit = segment->first_bit;
        rows.block = segment->block;
        rows.tail = rows.positions[n - 1] == end_bit - 1 ? segment->numel % segment->block : 0;
        rows.values = values + segment->offset * rows.value_width;
        function(rows, n, executor);
        rows.packed += n * rows.block * rows.packed_width;
        done += n;
    }
}

s2_status s2_blocks_gather(const s2_layout *layout, const void *values, s2_dtype dtype,
                           const int64_t *positions, int64_t npositions, void *packed,
                           s2_dtype packed_dtype, int64_t packed_numel, double divisor,
                           const s2_executor *executor)
{
    struct s2_rows rows = {.values = (uint8_t *)(uintptr_t)values,
                           .value_width = s2_dtype_nbytes(dtype),
                           .packed = packed,
                           .packed_width = s2_dtype_nbytes(packed_dtype),
                           .divisor = divisor};

    S2_RETURN_IF_ERROR(s2_layout_check_values(layout, values, dtype));
    S2_RETURN_IF_ERROR(s2_convert_kernel_find(dtype, packed_dtype, divisor, &rows.convert));
    S2_RETURN_IF_ERROR(s2_blocks_check_packed(layout, positions, npositions, packed, packed_numel));
    walk(rows, layout, positions, npositions, s2_rows_gather, executor);
    return S2_OK;
}

s2_status s2_blocks_scatter(const s2_layout *layout, const void *packed, s2_dtype packed_dtype,
                            int64_t packed_numel, const int64_t *positions, int64_t npositions,
                            void *values, s2_dtype dtype, double divisor,
                            const s2_executor *executor)
{
    struct s2_rows rows = {.values = values,
                           .value_width = s2_dtype_nbytes(dtype),
                           .packed = (uint8_t *)(uintptr_t)packed,
                           .packed_width = s2_dtype_nbytes(packed_dtype),
                           .divisor = divisor};

    S2_RETURN_IF_ERROR(s2_layout_check_values(layout, values, dtype));
    S2_RETURN_IF_ERROR(s2_convert_kernel_find(packed_dtype, dtype, divisor, &rows.convert));
    S2_RETURN_IF_ERROR(s2_blocks_check_packed(layout, positions, npositions, packed, packed_numel));
    walk(rows, layout, positions, npositions, s2_rows_scatter, executor);
    return S2_OK;
}

s2_status s2_blocks_add(const s2_layout *layout, const void *packed, s2_dtype packed_dtype,
                        int64_t packed_numel, const int64_t *positions, int64_t npositions,
                        void *accumulator, s2_dtype accumulator_dtype, const s2_executor *executor)
{
    struct s2_rows rows = {.values = accumulator,
                           .value_width = s2_dtype_nbytes(accumulator_dtype),
                           .packed = (uint8_t *)(uintptr_t)packed,
                           .packed_width = s2_dtype_nbytes(packed_dtype),
                           .divisor = 1.0};

    S2_RETURN_IF_ERROR(s2_layout_check_values(layout, accumulator, accumulator_dtype));
    if (rows.packed_width == 0) return S2_BAD_DTYPE;
    rows.add = s2_kernels_current()->add[packed_dtype][accumulator_dtype];
    rows.add_rows = s2_kernels_current()->add_rows[packed_dtype][accumulator_dtype];
    if (rows.add == NULL) return S2_BAD_DTYPE;
    S2_RETURN_IF_ERROR(s2_blocks_check_packed(layout, positions, npositions, packed, packed_numel));
    walk(rows, layout, positions, npositions, s2_rows_add, executor);
    return S2_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Dead blocks                                                                                    */
/* ---------------------------------------------------------------------------------------------- */

struct clearing {
    const uint8_t *bitmap; /* of the segment */
    int64_t nblocks;
    uint8_t *values; /* of the segment */
    int64_t nbytes;
    int64_t block_nbytes;
};

static void clear_words(void *arg, int64_t begin, int64_t end)
{
    const struct clearing *c = arg;

    for (int64_t word = begin; word < end; word++) {
        int64_t n = s2_min(64, c->nblocks - 64 * word);
        uint64_t dead = ~s2_load_word(c->bitmap + 8 * word) & (~UINT64_C(0) >> (64 - n));
        for (; dead != 0; dead &= dead - 1) {
            int64_t at = (64 * word + s2_lowest_bit(dead)) * c->block_nbytes;
            memset(c->values + at, 0, (size_t)s2_min(c->block_nbytes, c->nbytes - at));
        }
    }
}

s2_status s2_blocks_clear_dead(const s2_layout *layout, const uint8_t *bitmap, int64_t nbytes,
                               void *values, s2_dtype dtype, const s2_executor *executor)
{
    S2_RETURN_IF_ERROR(s2_layout_check_values(layout, values, dtype));
    S2_RETURN_IF_ERROR(s2_layout_check_bitmap(layout, bitmap, nbytes));

    int64_t width = s2_dtype_nbytes(dtype);
    for (int64_t i = 0; i < layout->nsegments; i++) {
        const s2_segment *segment = &layout->segments[i];
        if (segment->numel == 0) continue;
        struct clearing c = {.bitmap = bitmap + segment->first_bit / 8,
                             .nblocks = s2_segment_nblocks(segment),
                             .values = (uint8_t *)values + segment->offset * width,
                             .nbytes = segment->numel * width,
                             .block_nbytes = s2_min(segment->block, segment->numel) * width};
        int64_t nwords = (c.nblocks + 63) / 64;
        int64_t word_nbytes = nwords > 1 ? 64 * c.block_nbytes : c.nbytes;
        s2_run(executor, nwords, s2_grain(word_nbytes), clear_words, &c);
    }
    return S2_OK;
}
