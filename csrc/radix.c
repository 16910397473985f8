/* SPDX-License-Identifier: MIT */
#include "radix.h"

/*
 * A wider digit means fewer passes, and more places that a pass writes to in turn.  Of 8, 10, 11
 * and 12 bits, 10 were measured to be the quickest for 2^20 words and numbers of 20 or 30 bits: the
 * counters and the lines that are written to then fit into a second-level cache.
 */
#define DIGIT_BITS 10
#define NDIGITS    (1 << DIGIT_BITS)

/* One stable pass by the digit whose lowest bit is `shift`. */
static void sort_by_digit(const uint64_t *from, uint64_t *to, int64_t n, int shift)
{
    int64_t next[NDIGITS] = {0}; /* how many words have a digit; then where the next one goes */
    int64_t total = 0;

    for (int64_t i = 0; i < n; i++)
        next[from[i] >> shift & (NDIGITS - 1)]++;
    for (int64_t digit = 0; digit < NDIGITS; digit++) {
        int64_t count = next[digit];
        next[digit] = total;
        total += count;
    }
    for (int64_t i = 0; i < n; i++)
        to[next[from[i] >> shift & (NDIGITS - 1)]++] = from[i];
}

uint64_t *s2_radix_sort(uint64_t *words, uint64_t *other, int64_t n, uint64_t varying)
{
    /* Each digit begins at a bit that varies, so that none is constant. */
    while (varying != 0) {
        int shift = s2_lowest_bit(varying);
        sort_by_digit(words, other, n, shift);
        varying = shift + DIGIT_BITS < 64 ? varying & (~UINT64_C(0) << (shift + DIGIT_BITS)) : 0;

        uint64_t *sorted = other;
        other = words;
        words = sorted;
    }
    return words;
}
