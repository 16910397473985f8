/* SPDX-License-Identifier: MIT */
/* Elements of blocks and cells, by lanes: a cell or a block belongs to some lanes of one warp. */
#ifndef S2_SKETCH_CUH
#define S2_SKETCH_CUH

#include "../cpu/half.h"
#include "block.cuh"
#include "cells.h"

#define S2_MAGNITUDE 0x7fffffffu
#define S2_NEGATE    0x80000000u

/* Lanes of a block, one for each element up to a warp: a power of two. */
static inline int s2_block_lanes(int64_t block)
{
    int lanes = 1;
    while (lanes < S2_WARP && lanes < block)
        lanes *= 2;
    return lanes;
}

/* A member's number, and its sign with `flip`, as the bit of a float. */
static __device__ inline int64_t s2_member_number(uint32_t member) { return member >> 1; }
static __device__ inline uint32_t s2_member_sign(uint32_t member, uint32_t flip)
{
    return member << 31 ^ flip;
}

static __device__ inline float s2_signed(float value, uint32_t sign)
{
    return s2_float_from_bits(s2_float_bits(value) ^ sign);
}

/* The largest of the lanes that share a block, by all lanes of the warp. */
static __device__ inline uint32_t s2_lanes_max(uint32_t value, int lanes)
{
    for (int bit = lanes / 2; bit != 0; bit /= 2) {
        const uint32_t other = __shfl_xor_sync(S2_ALL_LANES, value, bit);
        value = other > value ? other : value;
    }
    return value;
}

#endif /* S2_SKETCH_CUH */
