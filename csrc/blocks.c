/* SPDX-License-Identifier: MIT */
/*
 * Live blocks between a bucket and their packed form.
 *
 * Gather, scatter and add are one walk with three bodies.  The positions ascend, so those of a
 * segment are a run of the list, and the packed blocks of a run have one length: a run is a loop
 * over rows at computable addresses, which can be cut anywhere.  Only the last block of a segment
 * can be short; it is the last of its run and is done by itself.
 *
 * Short rows would drown in calls of the kernels, one a row.  They are staged: some rows are copied
 * together into a buffer on the stack, and the kernel runs over all of them at once.
 */
#include "internal.h"

#define STAGE_NBYTES 4096

/* Rows up to this size are staged: a call should have a few vectors to work on. */
#define STAGED_ROW_NBYTES 128

/*
 * Rows that come from memory are asked for before it is their turn: the hardware follows a row once
 * it is in it, but it cannot guess the next one, takes some lines to start and stops at the end of
 * a page.  So all lines of a row are asked for (of a longer one the beginning, since by then the
 * hardware has caught up), as many rows ahead as make up the time that memory takes to answer.
 */
#define PREFETCH_AHEAD_NBYTES 16384
#define PREFETCH_ROW_NBYTES   4096
#define PREFETCH_MAX_ROWS     16
#define CACHE_LINE_NBYTES     64

/* An output of this size will not be read back from the caches, whatever we do: stream it. */
#define STREAM_NBYTES (INT64_C(8) * 1024 * 1024)

/* The blocks of one segment that are named, and where they go or come from. */
struct rows {
    const int64_t *positions; /* those of the segment */
    int64_t first_bit;
    int64_t block;       /* elements */
    int64_t tail;        /* elements of the last block, if the run ends with it and it is short */
    uint8_t *values;     /* of the segment; only read by a gather */
    int64_t value_width; /* bytes of an element */
    int64_t row_nbytes;  /* of a block among the values */
    uint8_t *packed;     /* of the run; only written by a gather */
    int64_t packed_width;
    int64_t packed_row_nbytes;
    int64_t ahead; /* rows that are asked for before their turn */
    bool stream;   /* copies go past the caches */
    const struct s2_kernels *kernels;
    s2_convert_kernel convert; /* gather: values to packed, scatter: packed to values; NULL: copy */
    s2_add_kernel add;
    double divisor;
};

/* ---------------------------------------------------------------------------------------------- */
/* Rows between the values and a dense array                                                      */
/* ---------------------------------------------------------------------------------------------- */

static inline uint8_t *row_at(const struct rows *rows, int64_t i)
{
    return rows->values + (rows->positions[i] - rows->first_bit) * rows->row_nbytes;
}

/* Inlined by force: gcc takes a function that does nothing but prefetch for one without effects,
 * and drops the calls. */
static inline __attribute__((always_inline)) void prefetch_row(const struct rows *rows, int64_t i,
                                                               int64_t end)
{
    if (i >= end) return;
    const uint8_t *row = row_at(rows, i);
    int64_t nbytes = s2_min(rows->row_nbytes, PREFETCH_ROW_NBYTES);
    for (int64_t at = 0; at < nbytes; at += CACHE_LINE_NBYTES)
        __builtin_prefetch(row + at, 0, 2);
}

/* A copy whose size is a constant is a few instructions and no call, which short rows need. */
#define COPY_ROWS(to, from, nbytes)                                                                \
    for (int64_t i = begin; i < end; i++, dense += (nbytes))                                       \
        memcpy(to, from, nbytes);                                                                  \
    break

static void rows_to_dense(const struct rows *rows, int64_t begin, int64_t end, uint8_t *dense)
{
    switch (rows->row_nbytes) {
    case 2:
        COPY_ROWS(dense, row_at(rows, i), 2);
    case 4:
        COPY_ROWS(dense, row_at(rows, i), 4);
    case 8:
        COPY_ROWS(dense, row_at(rows, i), 8);
    case 16:
        COPY_ROWS(dense, row_at(rows, i), 16);
    case 32:
        COPY_ROWS(dense, row_at(rows, i), 32);
    default:
        for (int64_t i = begin; i < end; i++, dense += rows->row_nbytes) {
            prefetch_row(rows, i + rows->ahead, end);
            (rows->stream ? rows->kernels->stream_row
                          : rows->kernels->copy_row)(dense, row_at(rows, i), rows->row_nbytes);
        }
        if (rows->stream) s2_stream_fence();
    }
}

static void rows_from_dense(const struct rows *rows, int64_t begin, int64_t end,
                            const uint8_t *dense)
{
    switch (rows->row_nbytes) {
    case 2:
        COPY_ROWS(row_at(rows, i), dense, 2);
    case 4:
        COPY_ROWS(row_at(rows, i), dense, 4);
    case 8:
        COPY_ROWS(row_at(rows, i), dense, 8);
    case 16:
        COPY_ROWS(row_at(rows, i), dense, 16);
    case 32:
        COPY_ROWS(row_at(rows, i), dense, 32);
    default:
        for (int64_t i = begin; i < end; i++, dense += rows->row_nbytes) {
            if (!rows->stream) prefetch_row(rows, i + rows->ahead, end);
            (rows->stream ? rows->kernels->stream_row
                          : rows->kernels->copy_row)(row_at(rows, i), dense, rows->row_nbytes);
        }
        if (rows->stream) s2_stream_fence();
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* The three bodies                                                                               */
/* ---------------------------------------------------------------------------------------------- */

static void gather_range(void *arg, int64_t begin, int64_t end)
{
    const struct rows *rows = arg;
    uint8_t *packed = rows->packed + begin * rows->packed_row_nbytes;

    if (rows->convert == NULL) {
        rows_to_dense(rows, begin, end, packed);
    } else if (rows->row_nbytes > STAGED_ROW_NBYTES) {
        for (int64_t i = begin; i < end; i++, packed += rows->packed_row_nbytes) {
            prefetch_row(rows, i + rows->ahead, end);
            rows->convert(row_at(rows, i), packed, rows->block, rows->divisor);
        }
    } else {
        double stage[STAGE_NBYTES / sizeof(double)];
        int64_t nrows = STAGE_NBYTES / rows->row_nbytes;
        for (int64_t i = begin; i < end; i += nrows) {
            int64_t n = s2_min(nrows, end - i);
            rows_to_dense(rows, i, i + n, (uint8_t *)stage);
            rows->convert(stage, packed, n * rows->block, rows->divisor);
            packed += n * rows->packed_row_nbytes;
        }
    }
}

static void scatter_range(void *arg, int64_t begin, int64_t end)
{
    const struct rows *rows = arg;
    const uint8_t *packed = rows->packed + begin * rows->packed_row_nbytes;

    if (rows->convert == NULL) {
        rows_from_dense(rows, begin, end, packed);
    } else if (rows->row_nbytes > STAGED_ROW_NBYTES) {
        for (int64_t i = begin; i < end; i++, packed += rows->packed_row_nbytes) {
            prefetch_row(rows, i + rows->ahead, end);
            rows->convert(packed, row_at(rows, i), rows->block, rows->divisor);
        }
    } else {
        double stage[STAGE_NBYTES / sizeof(double)];
        int64_t nrows = STAGE_NBYTES / rows->row_nbytes;
        for (int64_t i = begin; i < end; i += nrows) {
            int64_t n = s2_min(nrows, end - i);
            rows->convert(packed, stage, n * rows->block, rows->divisor);
            rows_from_dense(rows, i, i + n, (const uint8_t *)stage);
            packed += n * rows->packed_row_nbytes;
        }
    }
}

static void add_range(void *arg, int64_t begin, int64_t end)
{
    const struct rows *rows = arg;
    const uint8_t *packed = rows->packed + begin * rows->packed_row_nbytes;

    if (rows->row_nbytes > STAGED_ROW_NBYTES) {
        for (int64_t i = begin; i < end; i++, packed += rows->packed_row_nbytes) {
            prefetch_row(rows, i + rows->ahead, end);
            rows->add(packed, row_at(rows, i), rows->block);
        }
    } else {
        /* Positions are distinct, so no row is twice in the buffer. */
        double stage[STAGE_NBYTES / sizeof(double)];
        int64_t nrows = STAGE_NBYTES / rows->row_nbytes;
        for (int64_t i = begin; i < end; i += nrows) {
            int64_t n = s2_min(nrows, end - i);
            rows_to_dense(rows, i, i + n, (uint8_t *)stage);
            rows->add(packed, stage, n * rows->block);
            rows_from_dense(rows, i, i + n, (const uint8_t *)stage);
            packed += n * rows->packed_row_nbytes;
        }
    }
}

/* The short block behind `n` full ones. */
static void gather_tail(const struct rows *rows, int64_t n)
{
    uint8_t *packed = rows->packed + n * rows->packed_row_nbytes;
    int64_t nbytes = rows->tail * rows->packed_width;

    if (rows->convert == NULL)
        memcpy(packed, row_at(rows, n), (size_t)nbytes);
    else
        rows->convert(row_at(rows, n), packed, rows->tail, rows->divisor);
    memset(packed + nbytes, 0, (size_t)(rows->packed_row_nbytes - nbytes));
}

static void scatter_tail(const struct rows *rows, int64_t n)
{
    const uint8_t *packed = rows->packed + n * rows->packed_row_nbytes;

    if (rows->convert == NULL)
        memcpy(row_at(rows, n), packed, (size_t)(rows->tail * rows->value_width));
    else
        rows->convert(packed, row_at(rows, n), rows->tail, rows->divisor);
}

static void add_tail(const struct rows *rows, int64_t n)
{
    rows->add(rows->packed + n * rows->packed_row_nbytes, row_at(rows, n), rows->tail);
}

/* ---------------------------------------------------------------------------------------------- */
/* The walk over segments                                                                         */
/* ---------------------------------------------------------------------------------------------- */

/* How many of the ascending positions lie below `bit`. */
static int64_t count_below(const int64_t *positions, int64_t npositions, int64_t bit)
{
    int64_t low = 0, high = npositions;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (positions[middle] < bit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Checks the layout and the positions, and sets *numel to what they take when packed. */
s2_status s2_blocks_packed_numel(const s2_layout *layout, const int64_t *positions,
                                 int64_t npositions, int64_t *numel)
{
    int64_t total = 0, done = 0;

    S2_RETURN_IF_ERROR(s2_layout_check(layout));
    if (npositions < 0) return S2_BAD_SIZE;
    if (s2_is_null(positions, npositions) || numel == NULL) return S2_NULL_POINTER;
    for (int64_t i = 1; i < npositions; i++) {
        if (positions[i - 1] >= positions[i]) return S2_BAD_POSITION;
    }
    for (int64_t i = 0; i < layout->nsegments && done < npositions; i++) {
        const s2_segment *segment = &layout->segments[i];
        int64_t end_bit = segment->first_bit + s2_segment_nblocks(segment);
        int64_t n = count_below(positions + done, npositions - done, end_bit);

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

static s2_status check_packed(const s2_layout *layout, const int64_t *positions, int64_t npositions,
                              const void *packed, int64_t packed_numel)
{
    int64_t numel;

    S2_RETURN_IF_ERROR(s2_blocks_packed_numel(layout, positions, npositions, &numel));
    if (packed_numel != numel) return S2_BAD_SIZE;
    return s2_is_null(packed, packed_numel) ? S2_NULL_POINTER : S2_OK;
}

/* Copies of `n` whole rows whose lines begin where rows do. */
static bool can_stream(const struct rows *rows, int64_t n)
{
    uintptr_t addresses = (uintptr_t)rows->values | (uintptr_t)rows->packed;

    return rows->convert == NULL && rows->add == NULL && addresses % CACHE_LINE_NBYTES == 0 &&
           rows->row_nbytes % CACHE_LINE_NBYTES == 0 && n >= STREAM_NBYTES / rows->row_nbytes;
}

/*
 * Runs `body` over the full blocks and `body_tail` over the short one of every segment's run.
 * `rows` brings the arrays' beginnings, their widths and the kernel.
 */
static void walk(struct rows rows, const s2_layout *layout, const int64_t *positions,
                 int64_t npositions, s2_range_body body,
                 void (*body_tail)(const struct rows *rows, int64_t n), const s2_executor *executor)
{
    uint8_t *values = rows.values;
    int64_t done = 0;

    rows.kernels = s2_kernels_current();
    for (int64_t i = 0; i < layout->nsegments && done < npositions; i++) {
        const s2_segment *segment = &layout->segments[i];
        int64_t nblocks = s2_segment_nblocks(segment);
        int64_t n = count_below(positions + done, npositions - done, segment->first_bit + nblocks);
        if (n == 0) continue;

        rows.positions = positions + done;
        rows.first_bit = segment->first_bit;
        rows.block = segment->block;
        rows.tail = segment->numel % segment->block;
        rows.values = values + segment->offset * rows.value_width;
        rows.row_nbytes = rows.block * rows.value_width;
        rows.packed_row_nbytes = rows.block * rows.packed_width;
        rows.ahead = s2_max(1, s2_min(PREFETCH_MAX_ROWS, PREFETCH_AHEAD_NBYTES / rows.row_nbytes));
        rows.stream = can_stream(&rows, n);

        bool ends_short =
            rows.tail != 0 && rows.positions[n - 1] == segment->first_bit + nblocks - 1;
        int64_t nfull = n - ends_short;
        int64_t grain = s2_grain(rows.row_nbytes / 2 + rows.packed_row_nbytes / 2);
        if (nfull != 0) s2_run(executor, nfull, grain, body, &rows);
        if (ends_short) body_tail(&rows, nfull);

        rows.packed += n * rows.packed_row_nbytes;
        done += n;
    }
}

s2_status s2_blocks_gather(const s2_layout *layout, const void *values, s2_dtype dtype,
                           const int64_t *positions, int64_t npositions, void *packed,
                           s2_dtype packed_dtype, int64_t packed_numel, double divisor,
                           const s2_executor *executor)
{
    struct rows rows = {.values = (uint8_t *)(uintptr_t)values,
                        .value_width = s2_dtype_nbytes(dtype),
                        .packed = packed,
                        .packed_width = s2_dtype_nbytes(packed_dtype),
                        .divisor = divisor};

    S2_RETURN_IF_ERROR(s2_layout_check_values(layout, values, dtype));
    S2_RETURN_IF_ERROR(s2_convert_kernel_find(dtype, packed_dtype, divisor, &rows.convert));
    S2_RETURN_IF_ERROR(check_packed(layout, positions, npositions, packed, packed_numel));
    walk(rows, layout, positions, npositions, gather_range, gather_tail, executor);
    return S2_OK;
}

s2_status s2_blocks_scatter(const s2_layout *layout, const void *packed, s2_dtype packed_dtype,
                            int64_t packed_numel, const int64_t *positions, int64_t npositions,
                            void *values, s2_dtype dtype, double divisor,
                            const s2_executor *executor)
{
    struct rows rows = {.values = values,
                        .value_width = s2_dtype_nbytes(dtype),
                        .packed = (uint8_t *)(uintptr_t)packed,
                        .packed_width = s2_dtype_nbytes(packed_dtype),
                        .divisor = divisor};

    S2_RETURN_IF_ERROR(s2_layout_check_values(layout, values, dtype));
    S2_RETURN_IF_ERROR(s2_convert_kernel_find(packed_dtype, dtype, divisor, &rows.convert));
    S2_RETURN_IF_ERROR(check_packed(layout, positions, npositions, packed, packed_numel));
    walk(rows, layout, positions, npositions, scatter_range, scatter_tail, executor);
    return S2_OK;
}

s2_status s2_blocks_add(const s2_layout *layout, const void *packed, s2_dtype packed_dtype,
                        int64_t packed_numel, const int64_t *positions, int64_t npositions,
                        void *accumulator, s2_dtype accumulator_dtype, const s2_executor *executor)
{
    struct rows rows = {.values = accumulator,
                        .value_width = s2_dtype_nbytes(accumulator_dtype),
                        .packed = (uint8_t *)(uintptr_t)packed,
                        .packed_width = s2_dtype_nbytes(packed_dtype)};

    S2_RETURN_IF_ERROR(s2_layout_check_values(layout, accumulator, accumulator_dtype));
    if (rows.packed_width == 0) return S2_BAD_DTYPE;
    rows.add = s2_kernels_current()->add[packed_dtype][accumulator_dtype];
    if (rows.add == NULL) return S2_BAD_DTYPE;
    S2_RETURN_IF_ERROR(check_packed(layout, positions, npositions, packed, packed_numel));
    walk(rows, layout, positions, npositions, add_range, add_tail, executor);
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
