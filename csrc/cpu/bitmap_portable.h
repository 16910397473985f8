/* SPDX-License-Identifier: MIT */
/* A block's state by 64-bit words: the portable kernel, and short blocks and tails of the others.
 */
#ifndef S2_BITMAP_PORTABLE_H
#define S2_BITMAP_PORTABLE_H

#include <string.h>

#include "kernels.h"

static inline uint64_t s2_load8(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* 1 to 8 bytes as the first ones of a word, zeros behind them. */
static inline uint64_t s2_load_up_to_8(const uint8_t *p, int64_t nbytes)
{
    uint64_t word = 0;
    memcpy(&word, p, (size_t)nbytes);
    return word;
}

static inline enum s2_block_state s2_block_state_from_or(uint64_t any, uint64_t magnitude_mask)
{
    if ((any & magnitude_mask) != 0) return S2_BLOCK_LIVE;
    return any != 0 ? S2_BLOCK_NEGATIVE_ZERO : S2_BLOCK_ZERO;
}

/*
 * Four words a round, and out at the first round that is not zero.  The last word may overlap what
 * was read before: OR does not mind, and since 8 is a multiple of the width its elements are still
 * where the mask expects them.
 */
static inline enum s2_block_state s2_block_state_portable(const uint8_t *p, int64_t nbytes,
                                                          uint64_t magnitude_mask)
{
    uint64_t any = 0;
    int64_t i = 0;

    if (nbytes < 8) return s2_block_state_from_or(s2_load_up_to_8(p, nbytes), magnitude_mask);
    for (; i + 32 <= nbytes; i += 32) {
        any |=
            (s2_load8(p + i) | s2_load8(p + i + 8)) | (s2_load8(p + i + 16) | s2_load8(p + i + 24));
        if ((any & magnitude_mask) != 0) return S2_BLOCK_LIVE;
    }
    for (; i + 8 <= nbytes; i += 8)
        any |= s2_load8(p + i);
    any |= s2_load8(p + nbytes - 8);
    return s2_block_state_from_or(any, magnitude_mask);
}

#endif /* S2_BITMAP_PORTABLE_H */
