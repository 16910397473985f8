/* SPDX-License-Identifier: MIT */
/* Prefix sums of arrays, in two steps: tiles of a thread block each, and this. */
#ifndef S2_SCAN_H
#define S2_SCAN_H

#include "launch.h"

/*
 * In each of `nrows` rows of `n` numbers, replaces every number by the sum of those before it, and
 * sets totals[row] to the sum of all; `totals` may be NULL.  By one thread block a row.
 */
void s2_scan_rows(int64_t *numbers, int64_t nrows, int64_t n, int64_t *totals, cudaStream_t stream);

/* Tiles of S2_THREADS words. */
static inline int64_t s2_ntiles(int64_t nwords) { return s2_ceil_div(nwords, S2_THREADS); }

/* Sets each of the tiles' numbers to how many bits are set before it, and *total to how many there
 * are; `total` may be NULL. */
void s2_scan_bits(const uint64_t *words, int64_t nwords, int64_t *tiles, int64_t *total,
                  cudaStream_t stream);

#endif /* S2_SCAN_H */
