/* SPDX-License-Identifier: MIT */
/*
 * Rows between a segment and their packed form.
 *
 * Short rows would drown in calls of the kernels, one a row.  They are staged: some rows are copied
 * together into a buffer on the stack, and the kernel runs over all of them at once.
 */
#include "rows.h"

/* Rows up to this size are staged: two vectors of 64 bytes, since a call costs as much as a few. */
#define STAGED_ROW_NBYTES 128

/* ---------------------------------------------------------------------------------------------- */
/* Rows between the values and a dense array                                                      */
/* ---------------------------------------------------------------------------------------------- */

static inline uint8_t *row_at(const struct s2_rows *rows, int64_t i)
{
    return rows->values + (rows->positions[i] - rows->first_bit) * rows->row_nbytes;
}

/* A copy whose size is a constant is a few instructions and no call, which short rows need. */
#define COPY_ROWS(to, from, nbytes)                                                                \
    for (int64_t i = begin; i < end; i++, dense += (nbytes))                                       \
    memcpy(to, from, nbytes)

static void rows_to_dense(const struct s2_rows *rows, int64_t begin, int64_t end, uint8_t *dense)
{
    switch (rows->row_nbytes) {
    case 2:
        COPY_ROWS(dense, row_at(rows, i), 2);
        break;
    case 4:
        COPY_ROWS(dense, row_at(rows, i), 4);
        break;
    case 8:
        COPY_ROWS(dense, row_at(rows, i), 8);
        break;
    case 16:
        COPY_ROWS(dense, row_at(rows, i), 16);
        break;
    case 32:
        COPY_ROWS(dense, row_at(rows, i), 32);
        break;
    default:
        rows->kernels->gather_rows(rows->values, rows->positions + begin, rows->first_bit,
                                   end - begin, rows->row_nbytes, dense, rows->stream);
    }
}

static void rows_from_dense(const struct s2_rows *rows, int64_t begin, int64_t end,
                            const uint8_t *dense)
{
    switch (rows->row_nbytes) {
    case 2:
        COPY_ROWS(row_at(rows, i), dense, 2);
        break;
    case 4:
        COPY_ROWS(row_at(rows, i), dense, 4);
        break;
    case 8:
        COPY_ROWS(row_at(rows, i), dense, 8);
        break;
    case 16:
        COPY_ROWS(row_at(rows, i), dense, 16);
        break;
    case 32:
        COPY_ROWS(row_at(rows, i), dense, 32);
        break;
    default:
        rows->kernels->scatter_rows(rows->values, rows->positions + begin, rows->first_bit,
                                    end - begin, rows->row_nbytes, dense, rows->stream);
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* The three bodies                                                                               */
/* ---------------------------------------------------------------------------------------------- */

static void gather_range(void *arg, int64_t begin, int64_t end)
{
    const struct s2_rows *rows = arg;
    uint8_t *packed = rows->packed + begin * rows->packed_row_nbytes;

    if (rows->convert == NULL) {
        rows_to_dense(rows, begin, end, packed);
    } else if (rows->row_nbytes > STAGED_ROW_NBYTES) {
        for (int64_t i = begin; i < end; i++, packed += rows->packed_row_nbytes) {
            if (i + rows->ahead < end)
                s2_prefetch_row(row_at(rows, i + rows->ahead), rows->row_nbytes);
            rows->convert(row_at(rows, i), packed, rows->block, rows->divisor);
        }
    } else {
        union s2_stage stage;
        int64_t nrows = S2_STAGE_NBYTES / rows->row_nbytes;
        for (int64_t i = begin; i < end; i += nrows) {
            int64_t n = s2_min(nrows, end - i);
            rows_to_dense(rows, i, i + n, stage.bytes);
            rows->convert(&stage, packed, n * rows->block, rows->divisor);
            packed += n * rows->packed_row_nbytes;
        }
    }
}

static void scatter_range(void *arg, int64_t begin, int64_t end)
{
    const struct s2_rows *rows = arg;
    const uint8_t *packed = rows->packed + begin * rows->packed_row_nbytes;

    if (rows->convert == NULL) {
        rows_from_dense(rows, begin, end, packed);
    } else if (rows->row_nbytes > STAGED_ROW_NBYTES) {
        for (int64_t i = begin; i < end; i++, packed += rows->packed_row_nbytes) {
            if (i + rows->ahead < end)
                s2_prefetch_row(row_at(rows, i + rows->ahead), rows->row_nbytes);
            rows->convert(packed, row_at(rows, i), rows->block, rows->divisor);
        }
    } else {
        union s2_stage stage;
        int64_t nrows = S2_STAGE_NBYTES / rows->row_nbytes;
        for (int64_t i = begin; i < end; i += nrows) {
            int64_t n = s2_min(nrows, end - i);
            rows->convert(packed, &stage, n * rows->block, rows->divisor);
            rows_from_dense(rows, i, i + n, stage.bytes);
            packed += n * rows->packed_row_nbytes;
        }
    }
}

static void add_range(void *arg, int64_t begin, int64_t end)
{
    const struct s2_rows *rows = arg;
    const uint8_t *packed = rows->packed + begin * rows->packed_row_nbytes;

    if (rows->positions[end - 1] - rows->positions[begin] == end - 1 - begin) /* they are one run */
        rows->add(packed, row_at(rows, begin), (end - begin) * rows->block, rows->divisor);
    else
        rows->add_rows(packed, rows->positions + begin, rows->first_bit, end - begin, rows->block,
                       rows->values, rows->divisor, rows->cached ? 0 : rows->ahead);
}

/* The short block behind `n` full ones. */
static void gather_tail(const struct s2_rows *rows, int64_t n)
{
    uint8_t *packed = rows->packed + n * rows->packed_row_nbytes;
    int64_t nbytes = rows->tail * rows->packed_width;

    if (rows->convert == NULL)
        memcpy(packed, row_at(rows, n), (size_t)nbytes);
    else
        rows->convert(row_at(rows, n), packed, rows->tail, rows->divisor);
    memset(packed + nbytes, 0, (size_t)(rows->packed_row_nbytes - nbytes));
}

static void scatter_tail(const struct s2_rows *rows, int64_t n)
{
    const uint8_t *packed = rows->packed + n * rows->packed_row_nbytes;

    if (rows->convert == NULL)
        memcpy(row_at(rows, n), packed, (size_t)(rows->tail * rows->value_width));
    else
        rows->convert(packed, row_at(rows, n), rows->tail, rows->divisor);
}

static void add_tail(const struct s2_rows *rows, int64_t n)
{
    rows->add(rows->packed + n * rows->packed_row_nbytes, row_at(rows, n), rows->tail,
              rows->divisor);
}

/* ---------------------------------------------------------------------------------------------- */
/* A run of rows                                                                                  */
/* ---------------------------------------------------------------------------------------------- */

/* Copies of `n` whole rows whose lines begin where rows do. */
static bool can_stream(const struct s2_rows *rows, int64_t n)
{
    uintptr_t addresses = (uintptr_t)rows->values | (uintptr_t)rows->packed;

    return rows->convert == NULL && rows->add == NULL && addresses % S2_CACHE_LINE_NBYTES == 0 &&
           rows->row_nbytes % S2_CACHE_LINE_NBYTES == 0 && n >= S2_STREAM_NBYTES / rows->row_nbytes;
}

/* Full rows by `body`, cut among threads; then the short one, if there is one, by `body_tail`. */
static void run(struct s2_rows *rows, int64_t n, s2_range_body body,
                void (*body_tail)(const struct s2_rows *rows, int64_t n),
                const s2_executor *executor)
{
    int64_t nfull = n - (rows->tail != 0);

    rows->kernels = s2_kernels_current();
    rows->row_nbytes = rows->block * rows->value_width;
    rows->packed_row_nbytes = rows->block * rows->packed_width;
    rows->ahead = s2_rows_ahead(rows->row_nbytes);
    rows->stream = can_stream(rows, n);
    if (nfull != 0)
        s2_run(executor, nfull, s2_grain(rows->row_nbytes / 2 + rows->packed_row_nbytes / 2), body,
               rows);
    if (nfull != n) body_tail(rows, nfull);
}

void s2_rows_gather(struct s2_rows rows, int64_t n, const s2_executor *executor)
{
    run(&rows, n, gather_range, gather_tail, executor);
}

void s2_rows_scatter(struct s2_rows rows, int64_t n, const s2_executor *executor)
{
    run(&rows, n, scatter_range, scatter_tail, executor);
}

void s2_rows_add(struct s2_rows rows, int64_t n, const s2_executor *executor)
{
    run(&rows, n, add_range, add_tail, executor);
}
