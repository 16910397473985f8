/* SPDX-License-Identifier: MIT */
/* Magnitudes one by one: the portable kernel, and the ends of arrays of the others. */
#ifndef S2_SELECT_PORTABLE_H
#define S2_SELECT_PORTABLE_H

#include "half.h"
#include "kernels.h"

static inline int32_t s2_magnitude(float score)
{
    return (int32_t)(s2_float_bits(score) & 0x7fffffff);
}

/* ABOVE_64 of select_template.h, for n of 1 to 64; bits from n on are zero. */
static inline uint64_t s2_above_portable(const float *scores, int64_t n, int32_t most)
{
    uint64_t word = 0;
    for (int64_t i = 0; i < n; i++)
        word |= (uint64_t)(s2_magnitude(scores[i]) > most) << i;
    return word;
}

/*
 * An element as a number of its own: those of larger keys come first.  The magnitude stands above
 * the position, which counts backwards, so that of equal magnitudes the first one is the largest.
 */
#define S2_SELECT_POSITION_BITS 33

static inline uint64_t s2_select_key(float score, int64_t position)
{
    const uint64_t last = (UINT64_C(1) << S2_SELECT_POSITION_BITS) - 1;
    return (uint64_t)s2_magnitude(score) << S2_SELECT_POSITION_BITS | (last - (uint64_t)position);
}

static inline int64_t s2_select_position(uint64_t key)
{
    const uint64_t last = (UINT64_C(1) << S2_SELECT_POSITION_BITS) - 1;
    return (int64_t)(last - (key & last));
}

#endif /* S2_SELECT_PORTABLE_H */
