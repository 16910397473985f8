/* SPDX-License-Identifier: MIT */
/* A stable radix sort of 64-bit words, from the lowest digit up. */
#ifndef S2_RADIX_H
#define S2_RADIX_H

#include "internal.h"

/* Bits that it takes to write the numbers below n; 0 for n up to 1. */
static inline int s2_bits_below(int64_t n)
{
    return n > 1 ? 64 - __builtin_clzll((uint64_t)n - 1) : 0;
}

/*
 * Sorts words[0, n) by the bits that `varying` covers from its lowest to its highest set bit: those
 * in which words differ.  `other` is as long.  Returns the one of the two arrays that holds the
 * result; what the other holds then means nothing.
 */
uint64_t *s2_radix_sort(uint64_t *words, uint64_t *other, int64_t n, uint64_t varying);

#endif /* S2_RADIX_H */
