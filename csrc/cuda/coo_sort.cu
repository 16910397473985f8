/* SPDX-License-Identifier: MIT */
/*
 * Rows by number, sorted and united: see s2.h and csrc/coo.c.  Words are as there: a row's number
 * above, and where it stands, or whose it is, below.
 */
#include "block.cuh"
#include "scan.h"
#include "sort.h"

#define RANK_BITS 8 /* S2_MAX_RANKS is 256 */

/* What is known of words once they are sorted. */
struct sorted_rows {
    const uint64_t *words;
    int64_t n, ntiles;
    int low_bits;   /* of the words, below the number of the row */
    int64_t *tiles; /* distinct rows that begin in each tile, and then before it */
};

/* Where each rank's list ends.  It is an argument of a kernel, of which there is room for 4 KB: so
 * the lengths get to the device without a copy that somebody has to wait for. */
struct list_ends {
    int64_t of[S2_MAX_RANKS];
};

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: words                                                                                 */
/* ---------------------------------------------------------------------------------------------- */

/* By one thread: what is true of no rows. */
static __global__ void begin_empty(int64_t *nrows, int64_t *starts, int *valid)
{
    *nrows = 0;
    *valid = 1;
    if (starts != nullptr) *starts = 0;
}

static __global__ void make_words(const int64_t *indices, int64_t n, int64_t nrows, int place_bits,
                                  uint64_t *words, int *valid)
{
    bool good = true;

    for (int64_t i = s2_thread(); i < n; i += s2_nthreads()) {
        good &= indices[i] >= 0 && indices[i] < nrows;
        words[i] = (uint64_t)indices[i] << place_bits | (uint64_t)i;
    }
    if (!good) atomicAnd(valid, 0);
}

static __global__ void join_lists(const int64_t *lists, int64_t n, list_ends list_ends,
                                  int64_t nranks, int64_t nrows, uint64_t *words, int *valid)
{
    S2_SHARED(int64_t, ends, S2_MAX_RANKS);
    bool good = true;

    if (threadIdx.x < nranks) ends[threadIdx.x] = list_ends.of[threadIdx.x];
    __syncthreads();
    for (int64_t i = s2_thread(); i < n; i += s2_nthreads()) {
        const int64_t rank = s2_below(ends, nranks, i + 1);
        const bool is_first = i == (rank == 0 ? 0 : ends[rank - 1]);
        good &= lists[i] >= 0 && lists[i] < nrows && (is_first || lists[i - 1] < lists[i]);
        words[i] = (uint64_t)lists[i] << RANK_BITS | (uint64_t)rank;
    }
    if (!good) atomicAnd(valid, 0);
}

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: distinct rows                                                                         */
/* ---------------------------------------------------------------------------------------------- */

static __device__ inline bool begins_row(const sorted_rows &s, int64_t i)
{
    return i < s.n && (i == 0 || s.words[i - 1] >> s.low_bits != s.words[i] >> s.low_bits);
}

static __global__ void count_rows(sorted_rows s)
{
    for (int64_t tile = blockIdx.x; tile < s.ntiles; tile += gridDim.x) {
        int64_t total;
        s2_block_prefix(begins_row(s, tile * S2_THREADS + threadIdx.x), &total);
        if (threadIdx.x == 0) s.tiles[tile] = total;
    }
}

/* visit(i, k, begins): the row of word i is number k of the distinct ones, and may begin there. */
template <typename Visit>
static __device__ inline void for_each_word(const sorted_rows &s, Visit visit)
{
    for (int64_t tile = blockIdx.x; tile < s.ntiles; tile += gridDim.x) {
        const int64_t i = tile * S2_THREADS + threadIdx.x;
        const bool begins = begins_row(s, i);
        int64_t total;
        const int64_t upto = s.tiles[tile] + s2_block_prefix(begins, &total) + begins;
        if (i < s.n) visit(i, upto - 1, begins);
    }
}

static __global__ void list_sorted(sorted_rows s, int64_t *order, int64_t *rows, int64_t *starts)
{
    const uint64_t place_mask = (UINT64_C(1) << s.low_bits) - 1;

    for_each_word(s, [&](int64_t i, int64_t k, bool begins) {
        order[i] = (int64_t)(s.words[i] & place_mask);
        if (begins) rows[k] = (int64_t)(s.words[i] >> s.low_bits);
        if (begins) starts[k] = i;
        if (i == s.n - 1) starts[k + 1] = s.n;
    });
}

static __global__ void list_united(sorted_rows s, int64_t *rows, int64_t *entries)
{
    for_each_word(s, [&](int64_t i, int64_t k, bool begins) {
        entries[i] = k * S2_MAX_RANKS + (int64_t)(s.words[i] & (S2_MAX_RANKS - 1));
        if (begins) rows[k] = (int64_t)(s.words[i] >> s.low_bits);
    });
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

static int64_t words_nbytes(int64_t n) { return s2_ceil_div(n, 2) * 16; }

s2_status s2_cuda_coo_scratch_nbytes(int64_t n, int64_t *nbytes)
{
    if (n < 0 || n > S2_MAX_NUMEL / 2) return S2_BAD_SIZE; /* so that it is a number */
    if (nbytes == nullptr) return S2_NULL_POINTER;
    *nbytes = words_nbytes(n) + s2_sort_nbytes(n);
    return S2_OK;
}

/* Where words that begin in `words` or `other` are sorted, and their rows counted: the scratch has
 * the words, and behind them what is needed to sort them and then to count. */
static sorted_rows sort_rows(void *scratch, int64_t *other, int64_t n, int low_bits, int row_bits,
                             int64_t *nrows, cudaStream_t stream)
{
    uint64_t *words = (uint64_t *)scratch;
    int64_t *tiles = (int64_t *)((uint8_t *)scratch + words_nbytes(n));
    const sorted_rows s = {words, n, s2_ceil_div(n, S2_THREADS), low_bits, tiles};

    s2_sort_words(words, (uint64_t *)other, n, low_bits, row_bits, tiles, stream);
    S2_LAUNCH(count_rows, s2_grid(n, 1), S2_THREADS, stream, s);
    s2_scan_rows(tiles, 1, s.ntiles, nrows, stream);
    return s;
}

static s2_status check_scratch(int64_t n, void *scratch, int64_t scratch_nbytes)
{
    int64_t wanted;

    S2_RETURN_IF_ERROR(s2_cuda_coo_scratch_nbytes(n, &wanted));
    return s2_check_scratch(scratch, scratch_nbytes, wanted);
}

s2_status s2_cuda_coo_sort(const int64_t *indices, int64_t n, int64_t nrows, int64_t *order,
                           int64_t *rows, int64_t *starts, int64_t *nunique, int *valid,
                           void *scratch, int64_t scratch_nbytes, cudaStream_t stream)
{
    if (n < 0 || n > S2_MAX_NUMEL || nrows < 0 || nrows > S2_MAX_ROWS) return S2_BAD_SIZE;
    const int place_bits = s2_bits_below(n), row_bits = s2_bits_below(nrows);
    if (place_bits + row_bits > 64) return S2_BAD_SIZE;
    if (s2_is_null(indices, n) || s2_is_null(order, n) || s2_is_null(rows, n) ||
        starts == nullptr || nunique == nullptr || valid == nullptr)
        return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(check_scratch(n, scratch, scratch_nbytes));

    S2_LAUNCH(begin_empty, 1, 1, stream, nunique, starts, valid);
    if (n == 0) return s2_launched();
    uint64_t *words = s2_sort_begin((uint64_t *)scratch, (uint64_t *)order, row_bits);
    S2_LAUNCH(make_words, s2_grid(n, 1), S2_THREADS, stream, indices, n, nrows, place_bits, words,
              valid);
    const sorted_rows s = sort_rows(scratch, order, n, place_bits, row_bits, nunique, stream);
    S2_LAUNCH(list_sorted, s2_grid(n, 1), S2_THREADS, stream, s, order, rows, starts);
    return s2_launched();
}

/* Sets *n to what the lists have together. */
static s2_status find_ends(const int64_t *lengths, int64_t nranks, list_ends *ends, int64_t *n)
{
    *n = 0;
    if (nranks < 1 || nranks > S2_MAX_RANKS) return S2_BAD_SIZE;
    if (lengths == nullptr) return S2_NULL_POINTER;
    for (int64_t rank = 0; rank < nranks; rank++) {
        if (lengths[rank] < 0 || lengths[rank] > S2_MAX_NUMEL - *n) return S2_BAD_SIZE;
        ends->of[rank] = *n += lengths[rank];
    }
    return S2_OK;
}

s2_status s2_cuda_coo_unite(const int64_t *lists, const int64_t *host_lengths, int64_t nranks,
                            int64_t nrows, int64_t *rows, int64_t *entries, int64_t *nunion,
                            int *valid, void *scratch, int64_t scratch_nbytes, cudaStream_t stream)
{
    list_ends ends = {};
    int64_t n;

    S2_RETURN_IF_ERROR(find_ends(host_lengths, nranks, &ends, &n));
    if (nrows < 0 || nrows > S2_MAX_ROWS) return S2_BAD_SIZE;
    if (s2_is_null(lists, n) || s2_is_null(rows, n) || s2_is_null(entries, n) ||
        nunion == nullptr || valid == nullptr)
        return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(check_scratch(n, scratch, scratch_nbytes));

    S2_LAUNCH(begin_empty, 1, 1, stream, nunion, nullptr, valid);
    if (n == 0) return s2_launched();
    const int row_bits = s2_bits_below(nrows);
    uint64_t *words = s2_sort_begin((uint64_t *)scratch, (uint64_t *)entries, row_bits);
    S2_LAUNCH(join_lists, s2_grid(n, 1), S2_THREADS, stream, lists, n, ends, nranks, nrows, words,
              valid);
    const sorted_rows s = sort_rows(scratch, entries, n, RANK_BITS, row_bits, nunion, stream);
    S2_LAUNCH(list_united, s2_grid(n, 1), S2_THREADS, stream, s, rows, entries);
    return s2_launched();
}
