/* SPDX-License-Identifier: MIT */
/* What select.cu and select_top.cu share. */
#ifndef S2_SELECT_CUH
#define S2_SELECT_CUH

#include "../cpu/half.h"
#include "block.cuh"

/* The magnitude of score i as a whole number, whose order is that of s2.h; -1 behind the last. */
static __device__ inline int32_t s2_magnitude_at(const float *scores, int64_t n, int64_t i)
{
    return i < n ? (int32_t)(s2_float_bits(scores[i]) & 0x7fffffff) : -1;
}

/* A bitmap of n bits. */
static inline s2_status s2_check_selected(int64_t n, const uint8_t *bitmap, int64_t nbytes)
{
    if (n < 0 || n > S2_MAX_NUMEL || nbytes != s2_ceil_div(n, 64) * 8) return S2_BAD_SIZE;
    return s2_check_bitmap(bitmap, nbytes);
}

static inline s2_status s2_check_scores(const float *scores, int64_t n)
{
    if (s2_is_null(scores, n)) return S2_NULL_POINTER;
    return s2_is_aligned(scores, sizeof(float)) ? S2_OK : S2_BAD_ADDRESS;
}

#endif /* S2_SELECT_CUH */
