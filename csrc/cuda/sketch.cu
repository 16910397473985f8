/* SPDX-License-Identifier: MIT */
/* Count sketches of blocks: made, added up, and estimated from.  peel.cu decodes them. */
#include "scan.h"
#include "sketch.cuh"

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: insert, weigh, merge                                                                  */
/* ---------------------------------------------------------------------------------------------- */

/* A cell takes its blocks one after the other, each element in a register. */
static __global__ void add_members(s2_sketch_call call, s2_cells cells, float *table,
                                   const float *values, uint32_t flip, int lanes)
{
    const int64_t block = call.sketch.block;

    for (int64_t c = s2_thread() / lanes; c < call.ncells; c += s2_nthreads() / lanes) {
        const int64_t start = cells.starts[c], end = cells.starts[c + 1];
        float *cell = table + c * block;
        if (start == end) continue;
        for (int64_t e = threadIdx.x & (lanes - 1); e < block; e += lanes) {
            float sum = cell[e];
            for (int64_t k = start; k < end; k++) {
                const uint32_t member = cells.members[k];
                const float value = values[s2_member_number(member) * block + e];
                sum += s2_signed(value, s2_member_sign(member, flip));
            }
            cell[e] = sum;
        }
    }
}

/* The largest magnitudes of blocks.  All lanes of a warp take part in every turn. */
static __global__ void find_norms(s2_sketch_call call, const float *values, float *norms, int lanes)
{
    const int64_t n = s2_length(call.count, call.capacity), block = call.sketch.block;
    const int64_t together = S2_WARP / lanes;

    for (int64_t first = s2_warp() * together; first < n; first += s2_nwarps() * together) {
        const int64_t i = first + s2_lane() / lanes;
        uint32_t largest = 0;
        for (int64_t e = s2_lane() % lanes; i < n && e < block; e += lanes) {
            const uint32_t magnitude = s2_float_bits(values[i * block + e]) & S2_MAGNITUDE;
            largest = magnitude > largest ? magnitude : largest;
        }
        largest = s2_lanes_max(largest, lanes);
        if (i < n && s2_lane() % lanes == 0) norms[i] = s2_float_from_bits(largest);
    }
}

static __global__ void add_norms(s2_cells cells, int64_t ncells, const float *norms,
                                 float *magnitudes)
{
    for (int64_t c = s2_thread(); c < ncells; c += s2_nthreads()) {
        float sum = magnitudes[c];
        for (int64_t k = cells.starts[c]; k < cells.starts[c + 1]; k++)
            sum += norms[s2_member_number(cells.members[k])];
        magnitudes[c] = sum;
    }
}

static __global__ void add_table(float *table, const float *other, int64_t numel)
{
    for (int64_t i = s2_thread(); i < numel; i += s2_nthreads())
        table[i] += other[i];
}

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: estimate                                                                              */
/* ---------------------------------------------------------------------------------------------- */

/*
 * Floats as integers of the same order, -0.0 below +0.0 and NaNs at the ends: of a negative number
 * all bits but the sign are flipped.  The way back is the same.
 */
static __device__ inline uint32_t ordered(uint32_t bits)
{
    return bits ^ ((0 - (bits >> 31)) >> 1);
}

/* Sorted by insertion.  All indices are constants once the loops are unrolled, so that the keys
 * stay in registers. */
static __device__ inline void insert_key(int32_t *keys, int row)
{
#pragma unroll
    for (int s = S2_MAX_SKETCH_ROWS - 1; s > 0; s--) {
        if (s > row || keys[s - 1] <= keys[s]) continue;
        const int32_t key = keys[s];
        keys[s] = keys[s - 1];
        keys[s - 1] = key;
    }
}

/* The key of this number among the sorted ones as a float. */
static __device__ inline float key_at(const int32_t *keys, int number)
{
    int32_t key = keys[0];
#pragma unroll
    for (int r = 1; r < S2_MAX_SKETCH_ROWS; r++)
        key = r == number ? keys[r] : key;
    return s2_float_from_bits(ordered((uint32_t)key));
}

/* The additions of 0.0f make a zero +0.0.  Two are halved before they are added, so that the sum
 * cannot overflow. */
static __device__ inline float median_of(const int32_t *keys, int rows)
{
    const float upper = key_at(keys, rows / 2);

    if (rows % 2 == 1) return upper + 0.0f;
    const float a = 0.5f * key_at(keys, (rows - 1) / 2), b = 0.5f * upper;
    return a + b + 0.0f;
}

static __global__ void estimate(s2_sketch_call call, const float *table, float *values, int lanes)
{
    const int64_t n = s2_length(call.count, call.capacity), block = call.sketch.block;
    const int rows = (int)call.sketch.rows;
    const float *cells[S2_MAX_SKETCH_ROWS];
    uint32_t signs[S2_MAX_SKETCH_ROWS];

    for (int64_t i = s2_thread() / lanes; i < n; i += s2_nthreads() / lanes) {
        const uint64_t block_hash = s2_hash(call.sketch.seed, (uint64_t)call.ids[i]);
#pragma unroll
        for (int r = 0; r < S2_MAX_SKETCH_ROWS; r++) {
            const s2_place place =
                s2_place_of(block_hash, (uint32_t)r, (uint32_t)call.sketch.width);
            cells[r] = r < rows ? table + (r * call.sketch.width + place.cell) * block : table;
            signs[r] = place.sign;
        }
        for (int64_t e = threadIdx.x & (lanes - 1); e < block; e += lanes) {
            int32_t keys[S2_MAX_SKETCH_ROWS] = {};
#pragma unroll
            for (int r = 0; r < S2_MAX_SKETCH_ROWS; r++) {
                if (r >= rows) continue;
                keys[r] = (int32_t)ordered(s2_float_bits(cells[r][e]) ^ signs[r]);
                insert_key(keys, r);
            }
            values[i * block + e] = median_of(keys, rows);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

/* The lists of the cells, and behind them the norms of the blocks. */
s2_status s2_cuda_sketch_scratch_nbytes(const s2_sketch *sketch, int64_t capacity, int64_t *nbytes)
{
    S2_RETURN_IF_ERROR(s2_cells_nbytes(sketch, capacity, nbytes));
    *nbytes += s2_ceil_div(capacity, 4) * 16;
    return S2_OK;
}

static s2_status make_cells(const s2_sketch_call &call, void *scratch, int64_t scratch_nbytes,
                            s2_cells *cells, cudaStream_t stream)
{
    int64_t wanted;

    S2_RETURN_IF_ERROR(s2_cuda_sketch_scratch_nbytes(&call.sketch, call.capacity, &wanted));
    S2_RETURN_IF_ERROR(s2_check_scratch(scratch, scratch_nbytes, wanted));
    *cells = s2_cells_in(call, scratch);
    s2_cells_make(call, *cells, stream);
    return S2_OK;
}

static s2_status add_blocks(const s2_sketch *sketch, float *table, const int64_t *ids,
                            int64_t capacity, const int64_t *count, const float *values,
                            uint32_t flip, void *scratch, int64_t scratch_nbytes,
                            cudaStream_t stream)
{
    s2_sketch_call call;
    s2_cells cells;

    S2_RETURN_IF_ERROR(s2_cells_check(sketch, table, ids, capacity, count, values, &call));
    S2_RETURN_IF_ERROR(make_cells(call, scratch, scratch_nbytes, &cells, stream));
    const int lanes = s2_block_lanes(sketch->block);
    S2_LAUNCH(add_members, s2_grid(call.ncells, lanes), S2_THREADS, stream, call, cells, table,
              values, flip, lanes);
    return s2_launched();
}

s2_status s2_cuda_sketch_insert(const s2_sketch *sketch, float *table, const int64_t *ids,
                                int64_t capacity, const int64_t *count, const float *values,
                                void *scratch, int64_t scratch_nbytes, cudaStream_t stream)
{
    return add_blocks(sketch, table, ids, capacity, count, values, 0, scratch, scratch_nbytes,
                      stream);
}

s2_status s2_cuda_sketch_subtract(const s2_sketch *sketch, float *table, const int64_t *ids,
                                  int64_t capacity, const int64_t *count, const float *values,
                                  void *scratch, int64_t scratch_nbytes, cudaStream_t stream)
{
    return add_blocks(sketch, table, ids, capacity, count, values, S2_NEGATE, scratch,
                      scratch_nbytes, stream);
}

s2_status s2_cuda_sketch_weigh(const s2_sketch *sketch, float *magnitudes, const int64_t *ids,
                               int64_t capacity, const int64_t *count, const float *values,
                               void *scratch, int64_t scratch_nbytes, cudaStream_t stream)
{
    s2_sketch_call call;
    s2_cells cells;
    int64_t cells_nbytes;

    S2_RETURN_IF_ERROR(s2_cells_check(sketch, magnitudes, ids, capacity, count, values, &call));
    S2_RETURN_IF_ERROR(s2_cells_nbytes(sketch, capacity, &cells_nbytes));
    S2_RETURN_IF_ERROR(make_cells(call, scratch, scratch_nbytes, &cells, stream));
    if (capacity == 0) return s2_launched();
    const int lanes = s2_block_lanes(sketch->block);
    float *norms = (float *)((uint8_t *)scratch + cells_nbytes);
    S2_LAUNCH(find_norms, s2_grid(capacity, lanes), S2_THREADS, stream, call, values, norms, lanes);
    S2_LAUNCH(add_norms, s2_grid(call.ncells, 1), S2_THREADS, stream, cells, call.ncells, norms,
              magnitudes);
    return s2_launched();
}

s2_status s2_cuda_sketch_merge(const s2_sketch *sketch, float *table, const s2_sketch *other,
                               const float *other_table, cudaStream_t stream)
{
    int64_t numel, other_numel;

    S2_RETURN_IF_ERROR(s2_sketch_numel(sketch, &numel));
    S2_RETURN_IF_ERROR(s2_sketch_numel(other, &other_numel));
    if (table == nullptr || other_table == nullptr) return S2_NULL_POINTER;
    if (sketch->rows != other->rows || sketch->width != other->width ||
        sketch->block != other->block || sketch->seed != other->seed)
        return S2_BAD_SKETCH;
    if (!s2_is_aligned(table, 4) || !s2_is_aligned(other_table, 4)) return S2_BAD_ADDRESS;
    S2_LAUNCH(add_table, s2_grid(numel, 1), S2_THREADS, stream, table, other_table, numel);
    return s2_launched();
}

s2_status s2_cuda_sketch_estimate(const s2_sketch *sketch, const float *table, const int64_t *ids,
                                  int64_t capacity, const int64_t *count, float *values,
                                  cudaStream_t stream)
{
    s2_sketch_call call;

    S2_RETURN_IF_ERROR(s2_cells_check(sketch, table, ids, capacity, count, values, &call));
    const int lanes = s2_block_lanes(sketch->block);
    if (capacity != 0)
        S2_LAUNCH(estimate, s2_grid(capacity, lanes), S2_THREADS, stream, call, table, values,
                  lanes);
    return s2_launched();
}
