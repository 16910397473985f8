/* SPDX-License-Identifier: MIT */
/* A stable radix sort of 64-bit words, from the lowest digit up: the twin of csrc/radix.h. */
#ifndef S2_SORT_H
#define S2_SORT_H

#include "launch.h"

/* Bits that it takes to write the numbers below n; 0 for n up to 1. */
static inline int s2_bits_below(int64_t n)
{
    int bits = 0;
    while ((n - 1) >> bits > 0)
        bits++;
    return bits;
}

/* Bytes of the scratch that sorting n words needs beside the two arrays; a multiple of 16, and
 * n / 32 at least. */
int64_t s2_sort_nbytes(int64_t n);

/*
 * Sorts n > 0 words by `nbits` bits, the lowest of which is number `shift`.  They pass from one
 * array to the other and back.  They must begin in the one that s2_sort_begin() names, and end up
 * in `sorted`; what `other` holds then means nothing.
 */
uint64_t *s2_sort_begin(uint64_t *sorted, uint64_t *other, int nbits);
void s2_sort_words(uint64_t *sorted, uint64_t *other, int64_t n, int shift, int nbits,
                   int64_t *scratch, cudaStream_t stream);

#endif /* S2_SORT_H */
