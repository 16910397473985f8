/* SPDX-License-Identifier: MIT */
/*
 * Prefix sums.  Not in one pass, in which thread blocks wait for each other: an array is cut into
 * tiles of S2_THREADS numbers, whose sums are so few that one thread block takes them in turn.
 */
#include "scan.h"

#include "block.cuh"

/* ---------------------------------------------------------------------------------------------- */
/* Kernels                                                                                        */
/* ---------------------------------------------------------------------------------------------- */

static __global__ void scan_row(int64_t *numbers, int64_t n, int64_t *totals)
{
    int64_t *row = numbers + (int64_t)blockIdx.x * n;
    int64_t carry = 0;

    for (int64_t begin = 0; begin < n; begin += S2_THREADS) {
        const int64_t i = begin + threadIdx.x;
        int64_t total;
        const int64_t before = s2_block_prefix(i < n ? row[i] : 0, &total);
        if (i < n) row[i] = carry + before;
        carry += total;
    }
    if (totals != nullptr && threadIdx.x == 0) totals[blockIdx.x] = carry;
}

static __global__ void count_tiles(const uint64_t *words, int64_t n, int64_t ntiles, int64_t *tiles)
{
    for (int64_t tile = blockIdx.x; tile < ntiles; tile += gridDim.x) {
        const int64_t i = tile * S2_THREADS + threadIdx.x;
        int64_t total;
        s2_block_prefix(i < n ? __popcll(words[i]) : 0, &total);
        if (threadIdx.x == 0) tiles[tile] = total;
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

void s2_scan_rows(int64_t *numbers, int64_t nrows, int64_t n, int64_t *totals, cudaStream_t stream)
{
    S2_LAUNCH(scan_row, nrows, S2_THREADS, stream, numbers, n, totals);
}

void s2_scan_bits(const uint64_t *words, int64_t nwords, int64_t *tiles, int64_t *total,
                  cudaStream_t stream)
{
    const int64_t ntiles = s2_ntiles(nwords);

    if (ntiles != 0)
        S2_LAUNCH(count_tiles, s2_grid(nwords, 1), S2_THREADS, stream, words, nwords, ntiles,
                  tiles);
    s2_scan_rows(tiles, 1, ntiles, total, stream);
}
