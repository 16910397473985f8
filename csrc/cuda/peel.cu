/* SPDX-License-Identifier: MIT */
/*
 * The peeling decoder: see s2.h.
 *
 * A round is three launches.  Blocks look for a cell that they have to themselves and take
 * themselves out of it; cells subtract what has been taken from them, in the order of their lists,
 * unless they are left empty; blocks are cleared.  In between, `decoded` is TAKEN.  The rounds are
 * enqueued all at once: how many are needed only the device knows, so that those behind the last
 * find that the one before them took nothing, and return.
 *
 * Lanes that share a block or a cell leave its flags and counts to the first among them: no thread
 * reads what another writes in the same launch.
 */
#include <cmath>

#include "../peel_bound.h"
#include "sketch.cuh"

enum { STUCK = 0, DECODED = 1, TAKEN = 2 };

/* What all kernels of this file are given. */
struct peeling {
    s2_sketch_call call;
    s2_cells cells;
    int64_t nranks;
    const float *magnitudes; /* by cell, or NULL */
    float *table, *values;
    uint8_t *decoded;
    float *bounds, *norms;
    float *cell_bounds; /* on the errors in cells, but for those of blocks that are in them */
    s2_counter *taken;  /* how many blocks rounds took: of even number, and of odd number */
    int64_t *ndecoded, *nrounds;
    int lanes;
};

static __device__ inline int64_t nblocks_of(const peeling &p)
{
    return s2_length(p.call.count, p.call.capacity);
}

/* Blocks that its cell has not given up yet: the counts, which made the lists, have gone to zero.
 */
static __device__ inline uint32_t &left_in(const peeling &p, int64_t cell)
{
    return p.cells.counts[cell];
}

static __device__ inline uint32_t load_of(const peeling &p, int64_t cell)
{
    return (uint32_t)(p.cells.starts[cell + 1] - p.cells.starts[cell]);
}

static __device__ inline bool is_over(const peeling &p, int64_t round)
{
    return round > 0 && p.taken[(round - 1) % 2] == 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: before the first round                                                                */
/* ---------------------------------------------------------------------------------------------- */

static __global__ void start_cells(peeling p)
{
    for (int64_t c = s2_thread(); c < p.call.ncells; c += s2_nthreads()) {
        const uint32_t load = load_of(p, c);
        double squares = 0;
        if (p.magnitudes != nullptr && load != 0)
            squares = s2_peel_error(s2_peel_roundings(load, p.nranks), p.magnitudes[c]) / load;
        left_in(p, c) = load;
        p.cell_bounds[c] = (float)sqrt(squares);
    }
}

static __global__ void start_blocks(peeling p)
{
    const int64_t n = nblocks_of(p);

    for (int64_t i = s2_thread(); i < n; i += s2_nthreads())
        p.decoded[i] = STUCK;
    if (s2_thread() != 0) return;
    p.taken[0] = p.taken[1] = 0;
    *p.ndecoded = *p.nrounds = 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: a round                                                                               */
/* ---------------------------------------------------------------------------------------------- */

/* The first of a block's cells that it has to itself, as a member of it: cell << 1 | sign; -1 where
 * there is none. */
static __device__ inline int64_t find_own_cell(const peeling &p, int64_t i)
{
    const s2_sketch &sketch = p.call.sketch;
    const uint64_t block_hash = s2_hash(sketch.seed, (uint64_t)p.call.ids[i]);

    for (int64_t row = 0; row < sketch.rows; row++) {
        const s2_place place = s2_place_of(block_hash, (uint32_t)row, (uint32_t)sketch.width);
        const int64_t cell = row * sketch.width + place.cell;
        if (left_in(p, cell) == 1) return cell << 1 | place.sign >> 31;
    }
    return -1;
}

/* What the first of the lanes that share a block says. */
static __device__ inline int64_t from_first_lane(const peeling &p, int64_t value)
{
    return __shfl_sync(S2_ALL_LANES, value, s2_lane() & ~(p.lanes - 1));
}

static __device__ inline void set_taken(const peeling &p, int64_t i, int64_t cell, float norm)
{
    const double roundings = s2_peel_roundings(load_of(p, cell), p.nranks);

    p.norms[i] = norm;
    p.bounds[i] = (float)sqrt(s2_peel_square(p.cell_bounds[cell]) + s2_peel_error(roundings, norm));
    p.decoded[i] = TAKEN;
}

/* All lanes of a warp take part in every turn. */
static __global__ void take_blocks(peeling p, int64_t round)
{
    const int64_t n = nblocks_of(p), block = p.call.sketch.block, together = S2_WARP / p.lanes;
    const int lane = s2_lane() % p.lanes;
    int64_t ntaken = 0;

    if (is_over(p, round)) return;
    for (int64_t first = s2_warp() * together; first < n; first += s2_nwarps() * together) {
        const int64_t i = first + s2_lane() / p.lanes;
        const bool looks = lane == 0 && i < n && p.decoded[i] == STUCK;
        const int64_t own = from_first_lane(p, looks ? find_own_cell(p, i) : -1);
        const float *cell = p.table + (own >> 1) * block;
        uint32_t norm = 0;
        for (int64_t e = lane; own >= 0 && e < block; e += p.lanes) {
            const uint32_t bits = s2_float_bits(cell[e]) ^ (uint32_t)own << 31;
            const uint32_t magnitude = bits & S2_MAGNITUDE;
            norm = magnitude > norm ? magnitude : norm;
            p.values[i * block + e] = s2_float_from_bits(bits) + 0.0f; /* a zero as +0.0 */
        }
        norm = s2_lanes_max(norm, p.lanes);
        if (lane != 0 || own < 0) continue;
        set_taken(p, i, own >> 1, s2_float_from_bits(norm));
        ntaken++;
    }
    ntaken = s2_warp_sum(ntaken);
    if (s2_lane() == 0 && ntaken != 0) atomicAdd(&p.taken[round % 2], (s2_counter)ntaken);
}

/* The blocks of a cell that were taken in this round, and those that are still in it. */
static __device__ inline void count_members(const peeling &p, int64_t cell, int64_t *taken,
                                            uint32_t *left)
{
    *taken = *left = 0;
    for (int64_t k = p.cells.starts[cell]; k < p.cells.starts[cell + 1]; k++) {
        const uint8_t state = p.decoded[s2_member_number(p.cells.members[k])];
        *taken += state == TAKEN;
        *left += state == STUCK;
    }
}

static __device__ inline void subtract_taken(const peeling &p, int64_t c, int lane)
{
    const int64_t block = p.call.sketch.block, end = p.cells.starts[c + 1];
    float *cell = p.table + c * block;

    for (int64_t e = lane; e < block; e += p.lanes) {
        float sum = cell[e];
        for (int64_t k = p.cells.starts[c]; k < end; k++) {
            const uint32_t member = p.cells.members[k];
            const int64_t i = s2_member_number(member);
            if (p.decoded[i] != TAKEN) continue;
            sum += s2_signed(p.values[i * block + e], s2_member_sign(member, S2_NEGATE));
        }
        cell[e] = sum;
    }
}

/* Rounded after each block, as the C core does it. */
static __device__ inline void widen_bound(const peeling &p, int64_t c)
{
    const double roundings = s2_peel_roundings(load_of(p, c), p.nranks);
    float bound = p.cell_bounds[c];

    for (int64_t k = p.cells.starts[c]; k < p.cells.starts[c + 1]; k++) {
        const int64_t i = s2_member_number(p.cells.members[k]);
        if (p.decoded[i] != TAKEN) continue;
        bound = (float)sqrt(s2_peel_square(bound) +
                            (s2_peel_square(p.bounds[i]) + s2_peel_error(roundings, p.norms[i])));
    }
    p.cell_bounds[c] = bound;
}

static __global__ void subtract_blocks(peeling p, int64_t round)
{
    const int lane = (int)threadIdx.x & (p.lanes - 1);

    if (p.taken[round % 2] == 0) return;
    for (int64_t c = s2_thread() / p.lanes; c < p.call.ncells; c += s2_nthreads() / p.lanes) {
        int64_t ntaken;
        uint32_t nleft;
        count_members(p, c, &ntaken, &nleft);
        if (ntaken == 0) continue;
        if (lane == 0) left_in(p, c) = nleft;
        if (nleft == 0) continue;
        subtract_taken(p, c, lane);
        if (lane == 0) widen_bound(p, c);
    }
}

/*
 * Sets to zero what may be nothing but the errors of neighbours, in all rounds but the first: who
 * had a cell to itself from the start is in that, and nobody else is.
 */
static __global__ void clear_blocks(peeling p, int64_t round)
{
    const int64_t n = nblocks_of(p), block = p.call.sketch.block, together = S2_WARP / p.lanes;
    const int lane = s2_lane() % p.lanes;
    const int64_t ntaken = (int64_t)p.taken[round % 2];

    if (s2_thread() == 0) {
        p.taken[(round + 1) % 2] = 0;
        *p.ndecoded += ntaken;
        *p.nrounds += ntaken != 0;
    }
    if (ntaken == 0) return;
    for (int64_t first = s2_warp() * together; first < n; first += s2_nwarps() * together) {
        const int64_t i = first + s2_lane() / p.lanes;
        const bool looks = lane == 0 && i < n;
        const bool is_taken = from_first_lane(p, looks && p.decoded[i] == TAKEN) != 0;
        if (!is_taken) continue;
        const float threshold = (float)((double)p.bounds[i] / sqrt((double)block));
        for (int64_t e = lane; round > 0 && e < block; e += p.lanes) {
            const float value = p.values[i * block + e];
            if (fabsf(value) <= threshold) p.values[i * block + e] = 0;
        }
        if (lane != 0) continue;
        if (round > 0 && p.norms[i] <= threshold) p.norms[i] = 0;
        p.decoded[i] = DECODED;
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: behind the last round                                                                 */
/* ---------------------------------------------------------------------------------------------- */

static __global__ void forget_stuck_blocks(peeling p)
{
    const int64_t n = nblocks_of(p), block = p.call.sketch.block;
    const int lane = (int)threadIdx.x & (p.lanes - 1);

    for (int64_t i = s2_thread() / p.lanes; i < n; i += s2_nthreads() / p.lanes) {
        if (p.decoded[i] != STUCK) continue;
        for (int64_t e = lane; e < block; e += p.lanes)
            p.values[i * block + e] = 0;
        if (lane != 0) continue;
        p.bounds[i] = INFINITY;
        p.norms[i] = 0;
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

/* The lists of the cells, the two counters, and the bounds of the cells. */
s2_status s2_cuda_sketch_peel_scratch_nbytes(const s2_sketch *sketch, int64_t capacity,
                                             int64_t *nbytes)
{
    S2_RETURN_IF_ERROR(s2_cells_nbytes(sketch, capacity, nbytes));
    *nbytes += 2 * (int64_t)sizeof(s2_counter);
    *nbytes += s2_ceil_div(sketch->rows * sketch->width, 4) * 16;
    return S2_OK;
}

static void launch_round(const peeling &p, int64_t round, cudaStream_t stream)
{
    const int64_t blocks_grid = s2_grid(p.call.capacity, p.lanes);

    S2_LAUNCH(take_blocks, blocks_grid, S2_THREADS, stream, p, round);
    S2_LAUNCH(subtract_blocks, s2_grid(p.call.ncells, p.lanes), S2_THREADS, stream, p, round);
    S2_LAUNCH(clear_blocks, blocks_grid, S2_THREADS, stream, p, round);
}

s2_status s2_cuda_sketch_peel(const s2_sketch *sketch, float *table, const int64_t *ids,
                              int64_t capacity, const int64_t *count, int64_t nranks,
                              const float *magnitudes, int64_t max_rounds, float *values,
                              uint8_t *decoded, float *bounds, float *norms, void *scratch,
                              int64_t scratch_nbytes, int64_t *ndecoded, int64_t *nrounds,
                              cudaStream_t stream)
{
    peeling p = {};
    int64_t cells_nbytes, wanted;

    S2_RETURN_IF_ERROR(s2_cells_check(sketch, table, ids, capacity, count, values, &p.call));
    if (nranks < 1 || nranks > S2_MAX_RANKS || max_rounds < 1) return S2_BAD_SIZE;
    if (s2_is_null(decoded, capacity) || s2_is_null(bounds, capacity) ||
        s2_is_null(norms, capacity) || ndecoded == nullptr || nrounds == nullptr)
        return S2_NULL_POINTER;
    if (!s2_is_aligned(magnitudes, 4) || !s2_is_aligned(bounds, 4) || !s2_is_aligned(norms, 4))
        return S2_BAD_ADDRESS;
    S2_RETURN_IF_ERROR(s2_cells_nbytes(sketch, capacity, &cells_nbytes));
    S2_RETURN_IF_ERROR(s2_cuda_sketch_peel_scratch_nbytes(sketch, capacity, &wanted));
    S2_RETURN_IF_ERROR(s2_check_scratch(scratch, scratch_nbytes, wanted));

    p.cells = s2_cells_in(p.call, scratch);
    p.taken = (s2_counter *)((uint8_t *)scratch + cells_nbytes);
    p.cell_bounds = (float *)(p.taken + 2);
    p.nranks = nranks;
    p.magnitudes = magnitudes;
    p.table = table;
    p.values = values;
    p.decoded = decoded;
    p.bounds = bounds;
    p.norms = norms;
    p.ndecoded = ndecoded;
    p.nrounds = nrounds;
    p.lanes = s2_block_lanes(sketch->block);
    s2_cells_make(p.call, p.cells, stream);
    S2_LAUNCH(start_cells, s2_grid(p.call.ncells, 1), S2_THREADS, stream, p);
    S2_LAUNCH(start_blocks, s2_grid(capacity + 1, 1), S2_THREADS, stream, p);
    for (int64_t round = 0; round < max_rounds && capacity != 0; round++)
        launch_round(p, round, stream);
    if (capacity != 0)
        S2_LAUNCH(forget_stuck_blocks, s2_grid(capacity, p.lanes), S2_THREADS, stream, p);
    return s2_launched();
}
