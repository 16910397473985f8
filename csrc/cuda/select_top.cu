/* SPDX-License-Identifier: MIT */
/*
 * The largest `keep` of n scores, exactly.
 *
 * The threshold, the magnitude of number `keep` from the top, is found digit by digit from the
 * highest down: how many scores have each digit, of those whose higher digits are the threshold's,
 * says in which of them it lies.  Three passes for 31 bits.  A fourth selects what is above the
 * threshold, and marks what is equal to it in a bitmap of the same size, of which the first bits,
 * as many as are missing, are added.
 *
 * The C core does with one pass where a sample has told it enough.  Here the passes are enqueued
 * before any is done, and none depends on the scores.
 */
#include "scan.h"
#include "select.cuh"

#define NDIGITS 2048 /* of the widest digit */

/* Scores that a thread counts, if there are enough: many for each counter that it clears and adds
 * to the others' in the end. */
#define COUNTED_EACH 64

/* Bits of a magnitude: `nbits` from number `shift` on. */
struct digit {
    int shift, nbits;
};
static const digit digits[] = {{20, 11}, {10, 10}, {0, 10}};

/* Lies in scratch. */
struct threshold_search {
    int64_t keep;   /* scores to be selected among those with the known bits */
    int32_t prefix; /* the bits of the threshold that are known: in the end all of them */
    int32_t unused;
};

struct top_scratch {
    threshold_search *search;
    s2_counter *counts; /* by digit */
    uint8_t *equal;     /* a bitmap */
    int64_t *tiles;     /* set bits of `equal` before each */
};

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: the threshold                                                                         */
/* ---------------------------------------------------------------------------------------------- */

static __global__ void start_search(threshold_search *search, int64_t keep, s2_counter *counts)
{
    for (int i = (int)threadIdx.x; i < NDIGITS; i += S2_THREADS)
        counts[i] = 0;
    if (threadIdx.x == 0) *search = {keep, 0, 0};
}

/* Counts the digits of a warp, those of -1 not.  Most may be alike, of zeros say, and would wait
 * for each other: so one lane counts all that are as its own. */
static __device__ inline void count_warp(uint32_t *counts, int digit)
{
    const uint32_t counted = __ballot_sync(S2_ALL_LANES, digit >= 0);
    if (counted == 0) return;

    const int first = __ffsll((long long)counted) - 1;
    const int common = __shfl_sync(S2_ALL_LANES, digit, first);
    const uint32_t alike = __ballot_sync(S2_ALL_LANES, digit == common);
    if (s2_lane() == first)
        atomicAdd(&counts[common], (uint32_t)__popc(alike));
    else if (digit >= 0 && digit != common)
        atomicAdd(&counts[digit], 1u);
}

/* A thread block counts no more than its share of S2_MAX_SELECT_SCORES, for which 32 bits do. */
static __global__ void count_digits(const float *scores, int64_t n, digit d,
                                    const threshold_search *search, s2_counter *counts)
{
    S2_SHARED(uint32_t, own, NDIGITS);
    const int32_t prefix = search->prefix, mask = (1 << d.nbits) - 1;

    for (int i = (int)threadIdx.x; i < NDIGITS; i += S2_THREADS)
        own[i] = 0;
    __syncthreads();
    for (int64_t first = s2_warp() * S2_WARP; first < n; first += s2_nwarps() * S2_WARP) {
        const int32_t magnitude = s2_magnitude_at(scores, n, first + s2_lane());
        const bool is_counted = magnitude >> (d.shift + d.nbits) == prefix;
        count_warp(own, is_counted ? magnitude >> d.shift & mask : -1);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < NDIGITS; i += S2_THREADS) {
        if (own[i] != 0) atomicAdd(&counts[i], (s2_counter)own[i]);
    }
}

/* By one thread block: each thread has some digits, the first one the largest.  Leaves the counts
 * at zero. */
static __global__ void choose_digit(threshold_search *search, digit d, s2_counter *counts)
{
    const int each = NDIGITS / S2_THREADS, begin = (S2_THREADS - 1 - (int)threadIdx.x) * each;
    const int64_t keep = search->keep;
    const int32_t prefix = search->prefix;
    int64_t own = 0, total;

    for (int i = begin; i < begin + each; i++)
        own += (int64_t)counts[i];
    int64_t larger = s2_block_prefix(own, &total);
    for (int i = begin + each - 1; i >= begin; i--) {
        const int64_t count = (int64_t)counts[i];
        if (larger < keep && keep <= larger + count)
            *search = {keep - larger, prefix << d.nbits | i, 0};
        counts[i] = 0;
        larger += count;
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: the bitmap                                                                            */
/* ---------------------------------------------------------------------------------------------- */

static __global__ void select_larger(const float *scores, int64_t n, const threshold_search *search,
                                     uint32_t *larger, uint32_t *equal, int64_t nwords,
                                     float *threshold)
{
    const int32_t limit = search->prefix;

    for (int64_t word = s2_warp(); word < nwords; word += s2_nwarps()) {
        const int32_t magnitude = s2_magnitude_at(scores, n, word * S2_WARP + s2_lane());
        const uint32_t larger_bits = __ballot_sync(S2_ALL_LANES, magnitude > limit);
        const uint32_t equal_bits = __ballot_sync(S2_ALL_LANES, magnitude == limit);
        if (s2_lane() != 0) continue;
        larger[word] = larger_bits;
        equal[word] = equal_bits;
    }
    if (s2_thread() == 0) *threshold = s2_float_from_bits((uint32_t)limit);
}

static __device__ inline uint64_t lowest_bits(uint64_t word, int64_t count)
{
    uint64_t rest = word;

    for (; count > 0 && rest != 0; count--)
        rest &= rest - 1;
    return word & ~rest;
}

/* Of the equal ones the first, as many as are missing. */
static __global__ void select_equal(const uint64_t *equal, int64_t nwords, int64_t ntiles,
                                    const int64_t *tiles, const threshold_search *search,
                                    uint64_t *selected)
{
    for (int64_t tile = blockIdx.x; tile < ntiles; tile += gridDim.x) {
        const int64_t i = tile * S2_THREADS + threadIdx.x;
        const uint64_t word = i < nwords ? equal[i] : 0;
        int64_t total, before = s2_block_prefix(__popcll(word), &total) + tiles[tile];
        if (word != 0) selected[i] |= lowest_bits(word, search->keep - before);
    }
}

static __global__ void select_none(float *threshold) { *threshold = s2_float_from_bits(INT32_MAX); }

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

s2_status s2_cuda_select_top_scratch_nbytes(int64_t n, int64_t *nbytes)
{
    if (n < 0 || n > S2_MAX_SELECT_SCORES) return S2_BAD_SIZE;
    if (nbytes == nullptr) return S2_NULL_POINTER;
    const int64_t nwords = s2_ceil_div(n, 64);
    *nbytes = (int64_t)sizeof(threshold_search) + 8 * (NDIGITS + nwords + s2_ntiles(nwords));
    return S2_OK;
}

static top_scratch scratch_of(void *scratch, int64_t nbytes)
{
    threshold_search *search = (threshold_search *)scratch;
    s2_counter *counts = (s2_counter *)(search + 1);
    uint8_t *equal = (uint8_t *)(counts + NDIGITS);
    return {search, counts, equal, (int64_t *)(equal + nbytes)};
}

static void find_threshold(const float *scores, int64_t n, int64_t keep, const top_scratch &at,
                           cudaStream_t stream)
{
    S2_LAUNCH(start_search, 1, S2_THREADS, stream, at.search, keep, at.counts);
    for (const digit d : digits) {
        S2_LAUNCH(count_digits, s2_grid(s2_ceil_div(n, COUNTED_EACH), 1), S2_THREADS, stream,
                  scores, n, d, at.search, at.counts);
        S2_LAUNCH(choose_digit, 1, S2_THREADS, stream, at.search, d, at.counts);
    }
}

s2_status s2_cuda_select_top(const float *scores, int64_t n, int64_t keep, uint8_t *bitmap,
                             int64_t nbytes, float *threshold, void *scratch,
                             int64_t scratch_nbytes, cudaStream_t stream)
{
    int64_t wanted;

    S2_RETURN_IF_ERROR(s2_cuda_select_top_scratch_nbytes(n, &wanted));
    S2_RETURN_IF_ERROR(s2_check_selected(n, bitmap, nbytes));
    if (keep < 0 || keep > n) return S2_BAD_SIZE;
    S2_RETURN_IF_ERROR(s2_check_scratch(scratch, scratch_nbytes, wanted));
    S2_RETURN_IF_ERROR(s2_check_scores(scores, n));
    if (threshold == nullptr) return S2_NULL_POINTER;
    if (!s2_is_aligned(threshold, sizeof(float))) return S2_BAD_ADDRESS;

    if (keep == 0) {
        if (nbytes != 0) cudaMemsetAsync(bitmap, 0, (size_t)nbytes, stream);
        S2_LAUNCH(select_none, 1, 1, stream, threshold);
        return s2_launched();
    }
    const top_scratch at = scratch_of(scratch, nbytes);
    const int64_t nwords = nbytes / 8;
    find_threshold(scores, n, keep, at, stream);
    S2_LAUNCH(select_larger, s2_grid(2 * nwords, S2_WARP), S2_THREADS, stream, scores, n, at.search,
              (uint32_t *)bitmap, (uint32_t *)at.equal, 2 * nwords, threshold);
    s2_scan_bits((const uint64_t *)at.equal, nwords, at.tiles, nullptr, stream);
    S2_LAUNCH(select_equal, s2_grid(nwords, 1), S2_THREADS, stream, (const uint64_t *)at.equal,
              nwords, s2_ntiles(nwords), at.tiles, at.search, (uint64_t *)bitmap);
    return s2_launched();
}
