/* SPDX-License-Identifier: MIT */
/*
 * One hash for everything that all ranks must decide alike: which of the ranks that touched a block
 * sums it, which cell of a sketch it goes to, and which blocks are chosen at random.  Compiled by
 * C, C++ and CUDA compilers, written again in s2reducer/reference.py and reference_sketch.py, and
 * held together by tests/vectors.
 */
#ifndef S2_HASH_H
#define S2_HASH_H

#include <stdint.h>

#include "inline.h"

/*
 * SplitMix64: the state after `number` + 1 steps from `seed`, finalised (Steele, Lea, Flood: Fast
 * Splittable Pseudorandom Number Generators, OOPSLA 2014; the finaliser's constants are Stafford's
 * variant 13).  All arithmetic is modulo 2^64.
 */
S2_INLINE uint64_t s2_hash(uint64_t seed, uint64_t number)
{
    uint64_t z = seed + (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/*
 * A number below n from a hash, for n up to 2^32: its upper half as a fraction of n.  Quicker than
 * a remainder, and as fair: each number has floor or ceil of 2^32 / n of the hashes.
 */
S2_INLINE uint32_t s2_hash_below(uint64_t hash, uint32_t n)
{
    return (uint32_t)(((hash >> 32) * n) >> 32);
}

/*
 * The same for n up to 2^64, from the whole hash: floor(hash n / 2^64).  The product's upper half
 * from those of 32 bits; none of the sums can overflow.
 */
S2_INLINE uint64_t s2_hash_below_wide(uint64_t hash, uint64_t n)
{
    const uint64_t high = hash >> 32, low = hash & UINT32_MAX;
    const uint64_t n_high = n >> 32, n_low = n & UINT32_MAX;
    const uint64_t middle = high * n_low + ((low * n_low) >> 32);
    const uint64_t other = low * n_high + (middle & UINT32_MAX);
    return high * n_high + (middle >> 32) + (other >> 32);
}

/* Where a row of a sketch has a block, and with which sign. */
typedef struct s2_place {
    uint32_t cell; /* of the row */
    uint32_t sign; /* the sign bit of a float32, or 0 */
} s2_place;

/*
 * `block_hash` is s2_hash(seed, id): one for a block, then one more for each row.  The cell is made
 * of the upper half and the sign of the lowest bit, so that neither tells of the other.
 */
S2_INLINE s2_place s2_place_of(uint64_t block_hash, uint32_t row, uint32_t width)
{
    s2_place place;
    uint64_t hash = s2_hash(block_hash, row);
    place.cell = s2_hash_below(hash, width);
    place.sign = (uint32_t)hash << 31;
    return place;
}

#endif /* S2_HASH_H */
