/* SPDX-License-Identifier: MIT */
/*
 * What the two halves of the owner plan share; s2.h has the rule.
 *
 * Positions are cut into tiles of S2_THREADS, one a thread.  What depends on the order of positions
 * for each rank by itself is done by a thread for each rank, which walks over the tile as the C
 * core walks over all: the same few lines, and nothing to prove.  What a tile needs of those before
 * it are prefix sums of what is counted in them, a row of tiles for each rank.
 */
#ifndef S2_PLAN_CUH
#define S2_PLAN_CUH

#include "block.cuh"

static_assert(S2_MAX_RANKS <= S2_THREADS, "a thread for each rank");

/* What all functions of the section are given. */
struct plan {
    const s2_segment *segments;
    int64_t nsegments;
    const uint8_t *bitmaps;
    int64_t nranks;
    int64_t nbytes; /* of each bitmap */
    const int64_t *positions;
    int64_t capacity;
    int64_t ntiles; /* of as many positions */
    const s2_cuda_run *runs;
};

static __device__ inline int64_t s2_plan_npositions(const plan &p)
{
    return s2_length(&p.runs[p.nsegments].first, p.capacity);
}

/* Whether a rank has a block. */
static __device__ inline bool s2_plan_touches(const plan &p, int64_t rank, int64_t position)
{
    return position >= 0 && position < 8 * p.nbytes &&
           (p.bitmaps[rank * p.nbytes + position / 8] >> position % 8 & 1) != 0;
}

static inline int64_t s2_plan_ntiles(int64_t capacity) { return s2_ceil_div(capacity, S2_THREADS); }

/* Checks everything but the outputs, and sets *p. */
static inline s2_status s2_plan_check(const s2_cuda_layout *layout, const uint8_t *bitmaps,
                                      int64_t nranks, int64_t nbytes, const int64_t *positions,
                                      int64_t capacity, const s2_cuda_run *runs, plan *p)
{
    S2_RETURN_IF_ERROR(s2_check_layout_bitmap(layout, bitmaps, nbytes));
    if (nranks < 1 || nranks > S2_MAX_RANKS || nbytes > S2_MAX_NUMEL / nranks) return S2_BAD_SIZE;
    S2_RETURN_IF_ERROR(s2_check_positions(positions, capacity));
    if (runs == nullptr) return S2_NULL_POINTER;
    *p = {layout->segments, layout->host->nsegments,  bitmaps, nranks, nbytes, positions,
          capacity,         s2_plan_ntiles(capacity), runs};
    return S2_OK;
}

/* The size of scratch for so many numbers for each tile, and so many others. */
static inline s2_status s2_plan_scratch(int64_t capacity, int64_t nranks, int64_t for_each_tile,
                                        int64_t others, int64_t *nbytes)
{
    if (nbytes == nullptr) return S2_NULL_POINTER;
    if (capacity < 0 || capacity > S2_MAX_NUMEL || nranks < 1 || nranks > S2_MAX_RANKS)
        return S2_BAD_SIZE;
    const int64_t ntiles = s2_plan_ntiles(capacity);
    if (ntiles > (S2_MAX_NUMEL - others) / for_each_tile) return S2_BAD_SIZE;
    *nbytes = (ntiles * for_each_tile + others) * (int64_t)sizeof(int64_t);
    return S2_OK;
}

#endif /* S2_PLAN_CUH */
