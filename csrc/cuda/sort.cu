/* SPDX-License-Identifier: MIT */
/*
 * For each digit, tiles count how many of their words have which; sums of the counts say where each
 * tile's words with a digit begin; and the tile moves its words there, in the order in which it has
 * them.  So the sort is stable, and no thread waits for another thread block.
 */
#include "sort.h"

#include "block.cuh"

/* As many digits as a thread block has threads: where digits are counted and placed, each has a
 * thread to itself. */
#define DIGIT_BITS 8
#define NDIGITS    (1 << DIGIT_BITS)

/* Words of a tile that each thread has: the more, the fewer counts there are beside the words, here
 * one for eight; the fewer, the more thread blocks share a short list. */
#define WORDS_EACH 8
#define TILE       (S2_THREADS * WORDS_EACH)

static_assert(NDIGITS == S2_THREADS, "each digit has a thread");

/* One digit's turn. */
struct digit_pass {
    const uint64_t *from;
    uint64_t *to;
    int64_t n, ntiles;
    int shift;
    int64_t
        *in_tile;   /* by tile and digit: words with that digit, and then those in earlier tiles */
    int64_t *below; /* by digit: words with a lower one */
};

/* ---------------------------------------------------------------------------------------------- */
/* Kernels                                                                                        */
/* ---------------------------------------------------------------------------------------------- */

static __device__ inline unsigned digit_of(const digit_pass &p, uint64_t word)
{
    return (unsigned)(word >> p.shift) & (NDIGITS - 1);
}

static __global__ void count_digits(digit_pass p)
{
    S2_SHARED(unsigned, counts, NDIGITS);

    for (int64_t tile = blockIdx.x; tile < p.ntiles; tile += gridDim.x) {
        const int64_t end = s2_min(p.n, (tile + 1) * TILE);
        counts[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t i = tile * TILE + threadIdx.x; i < end; i += S2_THREADS)
            atomicAdd(&counts[digit_of(p, p.from[i])], 1u);
        __syncthreads();
        p.in_tile[tile * NDIGITS + threadIdx.x] = counts[threadIdx.x];
    }
}

/* By one thread block. */
static __global__ void add_up_digits(digit_pass p)
{
    int64_t before = 0, total;

    for (int64_t tile = 0; tile < p.ntiles; tile++) {
        const int64_t count = p.in_tile[tile * NDIGITS + threadIdx.x];
        p.in_tile[tile * NDIGITS + threadIdx.x] = before;
        before += count;
    }
    p.below[threadIdx.x] = s2_block_prefix(before, &total);
}

/*
 * How many words with this digit the warp had before this one, those of earlier calls and of lower
 * lanes; `counts` has those of earlier calls.  Of the lanes with the same digit the lowest adds all
 * of them.  No barrier stands between two calls, and none is needed: the count goes from the atomic
 * operation through the shuffle, so that it has been changed before any lane comes back.
 */
static __device__ inline unsigned rank_in_warp(unsigned *counts, unsigned digit)
{
    const unsigned peers = __match_any_sync(S2_ALL_LANES, digit);
    const unsigned lower = peers & ((1u << s2_lane()) - 1);
    unsigned earlier = 0;

    if (lower == 0 && digit < NDIGITS) earlier = atomicAdd(&counts[digit], (unsigned)__popc(peers));
    return __shfl_sync(S2_ALL_LANES, earlier, __ffsll(peers) - 1) + (unsigned)__popc(lower);
}

/* A warp takes consecutive words, 32 at a time; behind the last word lanes have no digit. */
static __global__ void move_words(digit_pass p)
{
    S2_SHARED(unsigned, counts, S2_WARPS *NDIGITS);
    S2_SHARED(int64_t, places, NDIGITS);
    const int warp = (int)(threadIdx.x / S2_WARP);
    unsigned *of_warp = counts + warp * NDIGITS;

    for (int64_t tile = blockIdx.x; tile < p.ntiles; tile += gridDim.x) {
        const int64_t first = tile * TILE + warp * S2_WARP * WORDS_EACH + s2_lane();
        uint64_t words[WORDS_EACH];
        unsigned ranks[WORDS_EACH], before = 0;
        for (int i = 0; i < S2_WARPS; i++)
            counts[i * NDIGITS + threadIdx.x] = 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < WORDS_EACH; i++) {
            const bool is_there = first + i * S2_WARP < p.n;
            words[i] = is_there ? p.from[first + i * S2_WARP] : 0;
            ranks[i] = rank_in_warp(of_warp, is_there ? digit_of(p, words[i]) : NDIGITS);
        }
        __syncthreads();
        for (int i = 0; i < S2_WARPS; i++) { /* words of earlier warps, in place of the counts */
            const unsigned count = counts[i * NDIGITS + threadIdx.x];
            counts[i * NDIGITS + threadIdx.x] = before;
            before += count;
        }
        places[threadIdx.x] = p.below[threadIdx.x] + p.in_tile[tile * NDIGITS + threadIdx.x];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < WORDS_EACH; i++) {
            const unsigned digit = digit_of(p, words[i]);
            if (first + i * S2_WARP < p.n)
                p.to[places[digit] + of_warp[digit] + ranks[i]] = words[i];
        }
        __syncthreads();
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

static int64_t ntiles_of(int64_t n) { return s2_ceil_div(n, TILE); }
static int npasses_of(int nbits) { return (nbits + DIGIT_BITS - 1) / DIGIT_BITS; }

int64_t s2_sort_nbytes(int64_t n)
{
    return (ntiles_of(n) + 1) * NDIGITS * (int64_t)sizeof(int64_t);
}

uint64_t *s2_sort_begin(uint64_t *sorted, uint64_t *other, int nbits)
{
    return npasses_of(nbits) % 2 == 0 ? sorted : other;
}

void s2_sort_words(uint64_t *sorted, uint64_t *other, int64_t n, int shift, int nbits,
                   int64_t *scratch, cudaStream_t stream)
{
    const int64_t ntiles = ntiles_of(n), grid = s2_grid(ntiles, S2_THREADS);
    const int npasses = npasses_of(nbits);

    for (int i = 0; i < npasses; i++) {
        const bool is_back = (npasses - i) % 2 == 1; /* the last pass is one */
        const digit_pass p = {is_back ? other : sorted, is_back ? sorted : other, n,      ntiles,
                              shift + i * DIGIT_BITS,   scratch + NDIGITS,        scratch};
        S2_LAUNCH(count_digits, grid, S2_THREADS, stream, p);
        S2_LAUNCH(add_up_digits, 1, S2_THREADS, stream, p);
        S2_LAUNCH(move_words, grid, S2_THREADS, stream, p);
    }
}
