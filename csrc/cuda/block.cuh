/* SPDX-License-Identifier: MIT */
/* What kernels share: who a thread is, and sums over the threads of a block. */
#ifndef S2_BLOCK_CUH
#define S2_BLOCK_CUH

#include "launch.h"

#define S2_WARP      32
#define S2_ALL_LANES 0xffffffffu
#define S2_WARPS     (S2_THREADS / S2_WARP)

/* The signed integers of s2.h as those that CUDA has atomic operations for. */
typedef unsigned long long s2_counter;

/* ---------------------------------------------------------------------------------------------- */
/* Threads and warps of the grid                                                                  */
/* ---------------------------------------------------------------------------------------------- */

static __device__ inline int64_t s2_thread()
{
    return (int64_t)blockIdx.x * S2_THREADS + threadIdx.x;
}
static __device__ inline int64_t s2_nthreads() { return (int64_t)gridDim.x * S2_THREADS; }

static __device__ inline int s2_lane() { return (int)(threadIdx.x % S2_WARP); }
static __device__ inline int64_t s2_warp() { return s2_thread() / S2_WARP; }
static __device__ inline int64_t s2_nwarps() { return s2_nthreads() / S2_WARP; }

/* ---------------------------------------------------------------------------------------------- */
/* Sums                                                                                           */
/* ---------------------------------------------------------------------------------------------- */

static __device__ inline int64_t s2_warp_sum(int64_t value)
{
    for (int bit = S2_WARP / 2; bit != 0; bit /= 2)
        value += __shfl_xor_sync(S2_ALL_LANES, value, bit);
    return value;
}

/*
 * The sum of `value` over the threads of the block before this one; sets *total to that over all.
 * The second barrier is for the next call, which writes where others may still read.
 */
static __device__ inline int64_t s2_block_prefix(int64_t value, int64_t *total)
{
    S2_SHARED(int64_t, warp_sums, S2_WARPS);
    const int lane = s2_lane(), warp = (int)(threadIdx.x / S2_WARP);
    int64_t upto = value, before = 0, all = 0;

    for (int delta = 1; delta < S2_WARP; delta *= 2) {
        const int64_t below = __shfl_up_sync(S2_ALL_LANES, upto, delta);
        if (lane >= delta) upto += below;
    }
    if (lane == S2_WARP - 1) warp_sums[warp] = upto;
    __syncthreads();
    for (int i = 0; i < S2_WARPS; i++) {
        if (i < warp) before += warp_sums[i];
        all += warp_sums[i];
    }
    __syncthreads();
    *total = all;
    return before + upto - value;
}

/* The largest `value` of the block's threads, and 0 at least. */
static __device__ inline int64_t s2_block_max(int64_t value)
{
    S2_SHARED(int64_t, values, S2_THREADS);
    int64_t most = 0;

    values[threadIdx.x] = value;
    __syncthreads();
    for (int i = 0; i < S2_THREADS; i++)
        most = values[i] > most ? values[i] : most;
    __syncthreads();
    return most;
}

/* ---------------------------------------------------------------------------------------------- */
/* Lists whose length lies on the device                                                          */
/* ---------------------------------------------------------------------------------------------- */

static __device__ inline int64_t s2_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Entries of a list with room for `capacity`. */
static __device__ inline int64_t s2_length(const int64_t *count, int64_t capacity)
{
    return count == nullptr ? capacity : s2_min(*count, capacity);
}

/* How many of the ascending numbers lie below `end`. */
static __device__ inline int64_t s2_below(const int64_t *numbers, int64_t n, int64_t end)
{
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (numbers[middle] < end)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---------------------------------------------------------------------------------------------- */
/* Segments                                                                                       */
/* ---------------------------------------------------------------------------------------------- */

/* The last segment that begins at this bit or before; -1 where none does. */
static __device__ inline int64_t s2_segment_of(const s2_segment *segments, int64_t nsegments,
                                               int64_t bit)
{
    int64_t low = 0, high = nsegments;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (segments[middle].first_bit <= bit)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

/* Whether a segment has a block of this number, by a product of 128 bits: a division would cost as
 * much as moving a short row. */
static __device__ inline bool s2_has_block(const s2_segment &segment, int64_t number)
{
    return __umul64hi((uint64_t)number, (uint64_t)segment.block) == 0 &&
           (uint64_t)number * (uint64_t)segment.block < (uint64_t)segment.numel;
}

#endif /* S2_BLOCK_CUH */
