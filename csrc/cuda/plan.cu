/* SPDX-License-Identifier: MIT */
/* Who owns which block of the union: see s2.h, csrc/plan.c and plan.cuh. */
#include "../hash.h"
#include "plan.cuh"
#include "scan.h"

#define LEFT_OVER (-1)

/* Numbers that lie in scratch. */
struct owner_scratch {
    int64_t *live;       /* by rank: elements that it has */
    int64_t *caps;       /* by rank */
    int64_t *owned;      /* by rank: elements of the candidates that it keeps */
    int64_t *left_over;  /* by tile: elements left over in it, and then in those before it */
    int64_t *candidates; /* by rank and tile: elements of its candidates, and then before it */
};

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: caps                                                                                  */
/* ---------------------------------------------------------------------------------------------- */

static __global__ void count_live(plan p, int64_t *live)
{
    const int64_t nwords = p.nbytes / 8;

    for (int64_t first = s2_warp() * S2_WARP; first < nwords; first += s2_nwarps() * S2_WARP) {
        const int64_t word = first + s2_lane();
        const int64_t s = s2_segment_of(p.segments, p.nsegments, 64 * word);
        const bool is_there = word < nwords && s >= 0;
        for (int64_t rank = 0; rank < p.nranks; rank++) {
            const uint64_t *words = (const uint64_t *)(p.bitmaps + rank * p.nbytes);
            int64_t count = is_there ? __popcll(words[word]) * p.segments[s].block : 0;
            count = s2_warp_sum(count);
            if (s2_lane() == 0 && count != 0)
                atomicAdd((s2_counter *)&live[rank], (s2_counter)count);
        }
    }
}

/* See csrc/plan.c. */
static __device__ inline int64_t cap_at(int64_t level, int64_t live, int64_t nranks)
{
    return live < level ? (level - live) / (nranks - 1) + 1 : 0;
}

/* The least level at which the caps have room for `numel` elements, a thread for each rank.  What a
 * rank could own beyond all that there is does not matter, and could overflow. */
static __device__ inline int64_t find_level(const plan &p, int64_t live, int64_t numel)
{
    int64_t low = 0, high = 2 * numel + p.nranks;

    while (low < high) {
        const int64_t level = low + (high - low) / 2;
        const bool is_rank = threadIdx.x < p.nranks;
        int64_t room;
        s2_block_prefix(is_rank ? s2_min(cap_at(level, live, p.nranks), numel) : 0, &room);
        if (room < numel)
            low = level + 1;
        else
            high = level;
    }
    return low;
}

/* By one thread block. */
static __global__ void find_caps(plan p, const int64_t *live, int64_t *caps)
{
    const int64_t numel = p.runs[p.nsegments].packed, rank = threadIdx.x;
    const int64_t share = (numel + numel / 20) / p.nranks + 1;
    const int64_t mine = rank < p.nranks ? live[rank] : 0;
    int64_t longest = 1, level = 0;
    bool even = true;

    for (int64_t s = threadIdx.x; s < p.nsegments; s += S2_THREADS) {
        if (p.runs[s].first != p.runs[s + 1].first && p.segments[s].block > longest)
            longest = p.segments[s].block;
    }
    longest = s2_block_max(longest);
    if (p.nranks >= 3) {
        const int64_t most = s2_block_max(mine);
        level = find_level(p, mine, numel);
        even = most + (p.nranks - 2) * share <= level + level / 10;
    }
    if (rank >= p.nranks) return;
    const int64_t cap = even ? share : cap_at(level, mine, p.nranks);
    caps[rank] = (cap + longest - 1) / longest * longest;
}

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: steps 1 and 2                                                                         */
/* ---------------------------------------------------------------------------------------------- */

/* Of the ranks that touched the block, the one that the hash picks; LEFT_OVER if none did. */
static __device__ inline int16_t candidate_of(const plan &p, uint64_t seed, int64_t position)
{
    uint32_t ntouched = 0;
    for (int64_t rank = 0; rank < p.nranks; rank++)
        ntouched += s2_plan_touches(p, rank, position);

    uint32_t skip = s2_hash_below(s2_hash(seed, (uint64_t)position), ntouched);
    for (int64_t rank = 0; rank < p.nranks; rank++) {
        if (s2_plan_touches(p, rank, position) && skip-- == 0) return (int16_t)rank;
    }
    return LEFT_OVER;
}

/* The length of the block at number j of the positions; 0 behind the last. */
static __device__ inline int64_t length_of(const plan &p, int64_t j)
{
    if (j >= s2_plan_npositions(p)) return 0;
    const int64_t s = s2_segment_of(p.segments, p.nsegments, p.positions[j]);
    return s < 0 ? 0 : p.segments[s].block;
}

static __global__ void pick_candidates(plan p, uint64_t seed, int16_t *owners, owner_scratch at)
{
    S2_SHARED(int64_t, lengths, S2_THREADS);
    S2_SHARED(int, picked, S2_THREADS);
    const int64_t rank = threadIdx.x;

    for (int64_t tile = blockIdx.x; tile < p.ntiles; tile += gridDim.x) {
        const int64_t j = tile * S2_THREADS + threadIdx.x;
        const bool is_there = j < s2_plan_npositions(p);
        const int16_t owner = is_there ? candidate_of(p, seed, p.positions[j]) : LEFT_OVER;
        if (is_there) owners[j] = owner;
        picked[threadIdx.x] = owner;
        lengths[threadIdx.x] = length_of(p, j);
        __syncthreads();
        if (rank < p.nranks) {
            int64_t candidates = 0;
            for (int i = 0; i < S2_THREADS; i++)
                candidates += picked[i] == rank ? lengths[i] : 0;
            at.candidates[rank * p.ntiles + tile] = candidates;
        }
        __syncthreads();
    }
}

/* Each rank keeps its candidates up to its cap; the others are left over. */
static __global__ void keep_within_caps(plan p, int16_t *owners, owner_scratch at)
{
    S2_SHARED(int64_t, lengths, S2_THREADS);
    S2_SHARED(int, picked, S2_THREADS);
    S2_SHARED(int, kept, S2_THREADS);
    const int64_t rank = threadIdx.x;

    for (int64_t tile = blockIdx.x; tile < p.ntiles; tile += gridDim.x) {
        const int64_t j = tile * S2_THREADS + threadIdx.x;
        const bool is_there = j < s2_plan_npositions(p);
        int64_t left_over;
        picked[threadIdx.x] = is_there ? owners[j] : LEFT_OVER;
        lengths[threadIdx.x] = length_of(p, j);
        kept[threadIdx.x] = 0;
        __syncthreads();
        if (rank < p.nranks) {
            int64_t candidates = at.candidates[rank * p.ntiles + tile], owned = 0;
            for (int i = 0; i < S2_THREADS; i++) {
                if (picked[i] != rank) continue;
                candidates += lengths[i];
                if (candidates > at.caps[rank]) break;
                owned = candidates;
                kept[i] = 1;
            }
            if (owned != 0) atomicMax((s2_counter *)&at.owned[rank], (s2_counter)owned);
        }
        __syncthreads();
        if (is_there && !kept[threadIdx.x]) owners[j] = LEFT_OVER;
        s2_block_prefix(kept[threadIdx.x] ? 0 : lengths[threadIdx.x], &left_over);
        if (threadIdx.x == 0) at.left_over[tile] = left_over;
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: step 3                                                                                */
/* ---------------------------------------------------------------------------------------------- */

static __global__ void place_left_over(plan p, int16_t *owners, owner_scratch at)
{
    S2_SHARED(int64_t, room_ends, S2_THREADS);
    const int64_t rank = threadIdx.x;
    int64_t total;

    const int64_t room = rank < p.nranks ? at.caps[rank] - at.owned[rank] : 0;
    room_ends[rank] = room + s2_block_prefix(room, &total);
    __syncthreads();
    for (int64_t tile = blockIdx.x; tile < p.ntiles; tile += gridDim.x) {
        const int64_t j = tile * S2_THREADS + threadIdx.x;
        const bool is_left = j < s2_plan_npositions(p) && owners[j] == LEFT_OVER;
        int64_t first = s2_block_prefix(is_left ? length_of(p, j) : 0, &total);
        first += at.left_over[tile];
        if (is_left) owners[j] = (int16_t)s2_below(room_ends, p.nranks - 1, first + 1);
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

s2_status s2_cuda_plan_owners_scratch_nbytes(int64_t capacity, int64_t nranks, int64_t *nbytes)
{
    return s2_plan_scratch(capacity, nranks, nranks + 1, 3 * S2_MAX_RANKS, nbytes);
}

s2_status s2_cuda_plan_owners(const s2_cuda_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                              int64_t nbytes, uint64_t seed, const int64_t *positions,
                              int64_t capacity, const s2_cuda_run *runs, int16_t *owners,
                              void *scratch, int64_t scratch_nbytes, cudaStream_t stream)
{
    plan p;
    int64_t wanted;

    S2_RETURN_IF_ERROR(
        s2_plan_check(layout, bitmaps, nranks, nbytes, positions, capacity, runs, &p));
    if (s2_is_null(owners, capacity)) return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(s2_cuda_plan_owners_scratch_nbytes(capacity, nranks, &wanted));
    S2_RETURN_IF_ERROR(s2_check_scratch(scratch, scratch_nbytes, wanted));
    if (capacity == 0 || nbytes == 0) return s2_launched();

    int64_t *numbers = (int64_t *)scratch, *tiles = numbers + 3 * S2_MAX_RANKS;
    const owner_scratch at = {numbers, numbers + S2_MAX_RANKS, numbers + 2 * S2_MAX_RANKS, tiles,
                              tiles + p.ntiles};
    const int64_t grid = s2_grid(capacity, 1);
    cudaMemsetAsync(numbers, 0, 3 * S2_MAX_RANKS * sizeof(int64_t), stream);
    S2_LAUNCH(count_live, s2_grid(nbytes / 8, 1), S2_THREADS, stream, p, at.live);
    S2_LAUNCH(find_caps, 1, S2_THREADS, stream, p, at.live, at.caps);
    S2_LAUNCH(pick_candidates, grid, S2_THREADS, stream, p, seed, owners, at);
    s2_scan_rows(at.candidates, nranks, p.ntiles, nullptr, stream);
    S2_LAUNCH(keep_within_caps, grid, S2_THREADS, stream, p, owners, at);
    s2_scan_rows(at.left_over, 1, p.ntiles, nullptr, stream);
    S2_LAUNCH(place_left_over, grid, S2_THREADS, stream, p, owners, at);
    return s2_launched();
}
