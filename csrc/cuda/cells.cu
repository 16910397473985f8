/* SPDX-License-Identifier: MIT */
#include "cells.h"

#include "block.cuh"
#include "scan.h"

/* ---------------------------------------------------------------------------------------------- */
/* Kernels                                                                                        */
/* ---------------------------------------------------------------------------------------------- */

/* The loop over the places of all blocks, one thread a block. */
template <typename Visit>
static __device__ inline void for_each_place(const s2_sketch_call &call, Visit visit)
{
    const int64_t n = s2_length(call.count, call.capacity);
    const s2_sketch &sketch = call.sketch;

    for (int64_t i = s2_thread(); i < n; i += s2_nthreads()) {
        const uint64_t block_hash = s2_hash(sketch.seed, (uint64_t)call.ids[i]);
        for (int64_t row = 0; row < sketch.rows; row++) {
            const s2_place place = s2_place_of(block_hash, (uint32_t)row, (uint32_t)sketch.width);
            visit(row * sketch.width + place.cell, (uint32_t)i << 1 | place.sign >> 31);
        }
    }
}

static __global__ void count_members(s2_sketch_call call, s2_cells cells)
{
    for_each_place(call, [&](int64_t cell, uint32_t) { atomicAdd(&cells.counts[cell], 1u); });
}

static __global__ void sum_tiles(s2_cells cells, int64_t ncells, int64_t ntiles)
{
    for (int64_t tile = blockIdx.x; tile < ntiles; tile += gridDim.x) {
        const int64_t cell = tile * S2_THREADS + threadIdx.x;
        int64_t total;
        s2_block_prefix(cell < ncells ? cells.counts[cell] : 0, &total);
        if (threadIdx.x == 0) cells.tiles[tile] = total;
    }
}

/* `tiles` holds what comes before each. */
static __global__ void place_lists(s2_cells cells, int64_t ncells, int64_t ntiles)
{
    for (int64_t tile = blockIdx.x; tile < ntiles; tile += gridDim.x) {
        const int64_t cell = tile * S2_THREADS + threadIdx.x;
        int64_t total;
        const int64_t before = s2_block_prefix(cell < ncells ? cells.counts[cell] : 0, &total);
        if (cell < ncells) cells.starts[cell] = cells.tiles[tile] + before;
    }
}

/* From the end of each list to its beginning, in any order. */
static __global__ void enter_members(s2_sketch_call call, s2_cells cells)
{
    for_each_place(call, [&](int64_t cell, uint32_t member) {
        cells.members[cells.starts[cell] + atomicSub(&cells.counts[cell], 1u) - 1] = member;
    });
}

/* Shell's sort (Communications of the ACM 2(7), 1959) with Ciura's gaps: with up to four members it
 * is one by insertion, and of thousands, in tables that are far too small, it still has an end. */
static __device__ inline void sort_members(uint32_t *members, int64_t n)
{
    const int64_t gaps[] = {701, 301, 132, 57, 23, 10, 4, 1};

    for (int64_t gap : gaps) {
        for (int64_t i = gap; i < n; i++) {
            const uint32_t member = members[i];
            int64_t at = i;
            for (; at >= gap && members[at - gap] > member; at -= gap)
                members[at] = members[at - gap];
            members[at] = member;
        }
    }
}

static __global__ void sort_lists(s2_cells cells, int64_t ncells)
{
    for (int64_t cell = s2_thread(); cell < ncells; cell += s2_nthreads()) {
        const int64_t start = cells.starts[cell];
        sort_members(cells.members + start, cells.starts[cell + 1] - start);
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

s2_status s2_cells_check(const s2_sketch *sketch, const void *table, const int64_t *ids,
                         int64_t capacity, const int64_t *count, const void *values,
                         s2_sketch_call *call)
{
    int64_t numel;

    S2_RETURN_IF_ERROR(s2_sketch_numel(sketch, &numel));
    S2_RETURN_IF_ERROR(s2_check_positions(ids, capacity));
    if (capacity >= S2_MAX_BLOCKS || capacity > S2_MAX_NUMEL / sketch->block) return S2_BAD_SIZE;
    if (table == nullptr || s2_is_null(values, capacity)) return S2_NULL_POINTER;
    if (!s2_is_aligned(table, 4) || !s2_is_aligned(values, 4)) return S2_BAD_ADDRESS;
    *call = {*sketch, sketch->rows * sketch->width, ids, capacity, count};
    return S2_OK;
}

static int64_t ntiles_of(int64_t ncells) { return s2_ceil_div(ncells, S2_THREADS); }

s2_status s2_cells_nbytes(const s2_sketch *sketch, int64_t capacity, int64_t *nbytes)
{
    int64_t numel;

    S2_RETURN_IF_ERROR(s2_sketch_numel(sketch, &numel));
    if (nbytes == nullptr) return S2_NULL_POINTER;
    if (capacity < 0 || capacity >= S2_MAX_BLOCKS || capacity > S2_MAX_NUMEL / sketch->block)
        return S2_BAD_SIZE;
    const int64_t ncells = sketch->rows * sketch->width;
    *nbytes = (ncells + 1 + ntiles_of(ncells)) * (int64_t)sizeof(int64_t) +
              (ncells + capacity * sketch->rows) * (int64_t)sizeof(uint32_t);
    *nbytes = s2_ceil_div(*nbytes, 16) * 16;
    return S2_OK;
}

s2_cells s2_cells_in(const s2_sketch_call &call, void *memory)
{
    s2_cells cells;
    cells.starts = (int64_t *)memory;
    cells.tiles = cells.starts + call.ncells + 1;
    cells.counts = (uint32_t *)(cells.tiles + ntiles_of(call.ncells));
    cells.members = cells.counts + call.ncells;
    return cells;
}

void s2_cells_make(const s2_sketch_call &call, const s2_cells &cells, cudaStream_t stream)
{
    const int64_t ncells = call.ncells, ntiles = ntiles_of(ncells);
    const int64_t grid = s2_grid(ncells, 1);

    cudaMemsetAsync(cells.counts, 0, (size_t)ncells * sizeof(uint32_t), stream);
    if (call.capacity != 0)
        S2_LAUNCH(count_members, s2_grid(call.capacity, 1), S2_THREADS, stream, call, cells);
    S2_LAUNCH(sum_tiles, grid, S2_THREADS, stream, cells, ncells, ntiles);
    s2_scan_rows(cells.tiles, 1, ntiles, &cells.starts[ncells], stream);
    S2_LAUNCH(place_lists, grid, S2_THREADS, stream, cells, ncells, ntiles);
    if (call.capacity != 0)
        S2_LAUNCH(enter_members, s2_grid(call.capacity, 1), S2_THREADS, stream, call, cells);
    S2_LAUNCH(sort_lists, grid, S2_THREADS, stream, cells, ncells);
}
