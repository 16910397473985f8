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

#endif /* S2_SCAN_H */
