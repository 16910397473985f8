/* SPDX-License-Identifier: MIT */
/*
 * cases.h - inputs for the tests: layouts and values of the kinds that break kernels.
 */
#ifndef S2_CASES_H
#define S2_CASES_H

#include <stdint.h>

#include "s2.h"
#include "test_util.h"

enum { CASE_SEGMENTS = 8 };

/* Block lengths around every width of a vector and every unrolling of a loop. */
extern const int64_t block_lengths[];
extern const int64_t nblock_lengths;

/* A layout whose segments end at an unmapped page. */
typedef struct case_layout {
    s2_layout layout;
    int64_t bitmap_nbytes;
    int64_t nblocks;
    guarded memory;
} case_layout;

case_layout case_layout_new(void);
void case_layout_delete(case_layout *c);

/* One segment, which begins behind a gap of `gap` elements and is followed by as many. */
void case_layout_single(case_layout *c, int64_t block, int64_t numel, int64_t gap);

/* Up to CASE_SEGMENTS segments, empty ones among them, with gaps in elements and in bits. */
void case_layout_random(case_layout *c, int64_t max_numel);

/*
 * Blocks that are dead, with and without a -0.0, and blocks that are live by a single element or a
 * single bit: first, last, NaN, infinity, subnormal.  What lies in gaps is not zero.
 */
void case_values(const s2_layout *layout, s2_dtype dtype, void *values);

/* Random elements without a NaN: finite numbers of all sizes, subnormals and zeros. */
void case_finite(s2_dtype dtype, void *values, int64_t numel);

/* Any bits, and now and then an infinity, a NaN, a zero or a subnormal. */
void case_any(s2_dtype dtype, void *values, int64_t numel);

/* Sets about `percent` of the bits that belong to blocks, and none of the others. */
void case_bitmap(const s2_layout *layout, int percent, uint8_t *bitmap, int64_t nbytes);

/* Scores to select from, of which many are equal, special or in order. */
typedef enum case_scores {
    CASE_ANY,
    CASE_NORMAL,
    CASE_EQUAL,
    CASE_ZEROS,
    CASE_SIGNED_ZEROS,
    CASE_TWO_VALUES,
    CASE_FEW_VALUES,
    CASE_ASCENDING,
    CASE_DESCENDING,
    CASE_SUBNORMAL,
    CASE_MOSTLY_ZERO,
    CASE_SPECIAL,
    CASE_SCORE_KINDS
} case_scores;

/* Score i of n. */
float case_score(case_scores kind, int64_t i, int64_t n);

#endif /* S2_CASES_H */
