/* SPDX-License-Identifier: MIT */
/* The inner loops of blocks.c: the blocks of one segment that are named, as rows of one length. */
#ifndef S2_ROWS_H
#define S2_ROWS_H

#include "internal.h"

/* An output of this size will not be read back from the caches, whatever we do: stream it.  It is
 * several second-level caches (1 to 2 MB), and a core's share of a third-level one is less. */
#define S2_STREAM_NBYTES (INT64_C(8) * 1024 * 1024)

struct s2_rows {
    const int64_t *positions; /* ascending, all of one segment */
    int64_t first_bit;        /* of the segment */
    int64_t block;            /* elements of a row */
    int64_t tail;             /* elements of the last row, if that is a short one; else 0 */
    uint8_t *values;          /* of the segment; only read by a gather */
    int64_t value_width;      /* bytes of an element */
    uint8_t *packed;          /* the rows, one behind the other; only written by a gather */
    int64_t packed_width;
    s2_convert_kernel convert; /* gather: values to packed, scatter: packed to values; NULL: copy */
    s2_add_kernel add;
    s2_add_rows_kernel add_rows;
    double divisor; /* of what is moved; for an add, of what is added */
    bool cached;    /* an add: the values are in a cache */

    /* Derived from the above by rows.c. */
    const struct s2_kernels *kernels;
    int64_t row_nbytes; /* of a row among the values */
    int64_t packed_row_nbytes;
    int64_t ahead; /* rows that are asked for before their turn */
    bool stream;   /* copies go past the caches */
};

/* Moves `n` rows, at least one, the way that the function of s2.h with the same verb says. */
typedef void (*s2_rows_function)(struct s2_rows rows, int64_t n, const s2_executor *executor);

void s2_rows_gather(struct s2_rows rows, int64_t n, const s2_executor *executor);
void s2_rows_scatter(struct s2_rows rows, int64_t n, const s2_executor *executor);
void s2_rows_add(struct s2_rows rows, int64_t n, const s2_executor *executor);

#endif /* S2_ROWS_H */
