/* SPDX-License-Identifier: MIT */
/*
 * Live blocks between a bucket and their packed form.
 *
 * A block is moved by some lanes together, as many as the longest block of the bucket has units.
 * Each finds by itself where: the segment of the position by bisection, the place among the packed
 * elements from the runs, which s2_cuda_blocks_runs() makes once for a list of positions.
 */
#include "block.cuh"
#include "convert.cuh"
#include "units.cuh"

/* Lanes that move a block together, at most. */
#define MOST_LANES S2_THREADS

/* What all kernels of this file are given. */
struct rows {
    const s2_segment *segments;
    int64_t nsegments;
    const int64_t *positions;
    int64_t capacity;
    const s2_cuda_run *runs;
    int64_t packed_numel;
    int lanes;
};

/* A block that is to be moved; counted in elements. */
struct row {
    int64_t value;   /* of the bucket, its first */
    int64_t packed;  /* of the packed elements, its first */
    int64_t present; /* in the bucket */
    int64_t length;  /* when packed */
};

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: where blocks are                                                                      */
/* ---------------------------------------------------------------------------------------------- */

/* By one thread block, since there are few segments. */
static __global__ void find_runs(const s2_segment *segments, int64_t nsegments,
                                 const int64_t *positions, int64_t capacity, const int64_t *count,
                                 s2_cuda_run *runs)
{
    const int64_t n = s2_length(count, capacity);
    int64_t carry = 0;

    for (int64_t begin = 0; begin < nsegments; begin += S2_THREADS) {
        const int64_t s = begin + threadIdx.x;
        int64_t first = 0, numel = 0, total;
        if (s < nsegments) {
            const bool is_last = s + 1 == nsegments;
            first = s2_below(positions, n, segments[s].first_bit);
            const int64_t end = is_last ? n : s2_below(positions, n, segments[s + 1].first_bit);
            numel = (end - first) * segments[s].block;
        }
        const int64_t before = s2_block_prefix(numel, &total);
        if (s < nsegments) runs[s] = {first, carry + before};
        carry += total;
    }
    if (threadIdx.x == 0) runs[nsegments] = {n, carry};
}

/* False for a position that names no block, and for one whose elements have no room. */
static __device__ inline bool find_row(const rows &r, int64_t i, row *found)
{
    const int64_t position = r.positions[i];
    const int64_t s = s2_segment_of(r.segments, r.nsegments, position);
    if (s < 0) return false;

    const s2_segment segment = r.segments[s];
    const int64_t number = position - segment.first_bit;
    if (!s2_has_block(segment, number)) return false;
    const int64_t at = number * segment.block;
    found->value = segment.offset + at;
    found->packed = r.runs[s].packed + (i - r.runs[s].first) * segment.block;
    found->present = s2_min(segment.block, segment.numel - at);
    found->length = segment.block;
    return found->packed >= 0 && found->packed <= r.packed_numel - found->length;
}

/* The loop over blocks of all kernels that move them. */
#define FOR_EACH_ROW(r, i)                                                                         \
    const int64_t nrows = s2_length(&(r).runs[(r).nsegments].first, (r).capacity);                 \
    for (int64_t i = s2_thread() / (r).lanes; i < nrows; i += s2_nthreads() / (r).lanes)

static __device__ inline int lane_of(const rows &r) { return (int)threadIdx.x & (r.lanes - 1); }

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: moves                                                                                 */
/* ---------------------------------------------------------------------------------------------- */

static __global__ void gather_copies(rows r, const uint8_t *values, uint8_t *packed, int64_t width)
{
    const int lane = lane_of(r);
    FOR_EACH_ROW(r, i)
    {
        row at;
        if (!find_row(r, i, &at)) continue;
        uint8_t *to = packed + at.packed * width;
        s2_copy_bytes(to, values + at.value * width, at.present * width, lane, r.lanes);
        if (at.present != at.length)
            s2_zero_bytes(to + at.present * width, (at.length - at.present) * width, lane, r.lanes);
    }
}

static __global__ void scatter_copies(rows r, const uint8_t *packed, uint8_t *values, int64_t width)
{
    FOR_EACH_ROW(r, i)
    {
        row at;
        if (!find_row(r, i, &at)) continue;
        s2_copy_bytes(values + at.value * width, packed + at.packed * width, at.present * width,
                      lane_of(r), r.lanes);
    }
}

template <typename Division>
static __global__ void gather_divided(rows r, Division divide,
                                      const typename Division::source *values,
                                      typename Division::target *packed)
{
    FOR_EACH_ROW(r, i)
    {
        row at;
        if (!find_row(r, i, &at)) continue;
        for (int64_t e = lane_of(r); e < at.length; e += r.lanes) {
            if (e < at.present)
                divide(values[at.value + e], &packed[at.packed + e]);
            else
                packed[at.packed + e] = {};
        }
    }
}

template <typename Division>
static __global__ void scatter_divided(rows r, Division divide,
                                       const typename Division::source *packed,
                                       typename Division::target *values)
{
    FOR_EACH_ROW(r, i)
    {
        row at;
        if (!find_row(r, i, &at)) continue;
        for (int64_t e = lane_of(r); e < at.present; e += r.lanes)
            divide(packed[at.packed + e], &values[at.value + e]);
    }
}

/* No block is there twice, so no two lanes meet. */
template <typename Packed, typename Sum>
static __global__ void add_rows(rows r, const Packed *packed, Sum *accumulator)
{
    FOR_EACH_ROW(r, i)
    {
        row at;
        if (!find_row(r, i, &at)) continue;
        for (int64_t e = lane_of(r); e < at.present; e += r.lanes)
            accumulator[at.value + e] += s2_number(packed[at.packed + e]);
    }
}

static __global__ void clear_dead(const s2_segment *segments, int64_t nsegments,
                                  const uint8_t *bitmap, int64_t nbits, uint8_t *values,
                                  int64_t width, int lanes)
{
    for (int64_t bit = s2_thread() / lanes; bit < nbits; bit += s2_nthreads() / lanes) {
        if (bitmap[bit / 8] >> bit % 8 & 1) continue;
        const int64_t s = s2_segment_of(segments, nsegments, bit);
        if (s < 0) continue;
        const s2_segment segment = segments[s];
        const int64_t number = bit - segment.first_bit;
        if (!s2_has_block(segment, number)) continue;
        const int64_t at = number * segment.block;
        s2_zero_bytes(values + (segment.offset + at) * width,
                      s2_min(segment.block, segment.numel - at) * width,
                      (int)threadIdx.x & (lanes - 1), lanes);
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

s2_status s2_cuda_blocks_runs(const s2_cuda_layout *layout, const int64_t *positions,
                              int64_t capacity, const int64_t *count, s2_cuda_run *runs,
                              cudaStream_t stream)
{
    S2_RETURN_IF_ERROR(s2_check_layout(layout));
    S2_RETURN_IF_ERROR(s2_check_positions(positions, capacity));
    if (runs == nullptr) return S2_NULL_POINTER;

    S2_LAUNCH(find_runs, 1, S2_THREADS, stream, layout->segments, layout->host->nsegments,
              positions, capacity, count, runs);
    return s2_launched();
}

/* What a move is given: the bucket, the positions, the packed elements. */
static s2_status check_move(const s2_cuda_layout *layout, const void *values, s2_dtype dtype,
                            const int64_t *positions, int64_t capacity, const s2_cuda_run *runs,
                            const void *packed, s2_dtype packed_dtype, int64_t packed_numel)
{
    const int64_t width = s2_dtype_nbytes(packed_dtype);

    S2_RETURN_IF_ERROR(s2_check_values(layout, values, dtype));
    if (width == 0) return S2_BAD_DTYPE;
    S2_RETURN_IF_ERROR(s2_check_positions(positions, capacity));
    if (packed_numel < 0 || packed_numel > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (runs == nullptr || s2_is_null(packed, packed_numel)) return S2_NULL_POINTER;
    return s2_is_aligned(packed, (uint64_t)width) ? S2_OK : S2_BAD_ADDRESS;
}

static rows rows_of(const s2_cuda_layout *layout, const int64_t *positions, int64_t capacity,
                    const s2_cuda_run *runs, int64_t packed_numel, int64_t width)
{
    const int lanes = s2_lanes(s2_longest_block(layout->host) * width, 1, MOST_LANES);
    return {
        layout->segments, layout->host->nsegments, positions, capacity, runs, packed_numel, lanes};
}

s2_status s2_cuda_blocks_gather(const s2_cuda_layout *layout, const void *values, s2_dtype dtype,
                                const int64_t *positions, int64_t capacity, const s2_cuda_run *runs,
                                void *packed, s2_dtype packed_dtype, int64_t packed_numel,
                                double divisor, cudaStream_t stream)
{
    const int64_t width = s2_dtype_nbytes(dtype);
    bool copy;

    S2_RETURN_IF_ERROR(check_move(layout, values, dtype, positions, capacity, runs, packed,
                                  packed_dtype, packed_numel));
    S2_RETURN_IF_ERROR(s2_check_conversion(dtype, packed_dtype, divisor, &copy));
    const rows r = rows_of(layout, positions, capacity, runs, packed_numel, width);
    const int64_t grid = s2_grid(capacity, r.lanes);
    const auto launch = [=](auto divide) {
        typedef decltype(divide) division;
        if (capacity != 0)
            S2_LAUNCH(gather_divided<division>, grid, S2_THREADS, stream, r, divide,
                      (const typename division::source *)values,
                      (typename division::target *)packed);
    };
    if (!copy)
        S2_RETURN_IF_ERROR(s2_with_division(dtype, packed_dtype, divisor, launch));
    else if (capacity != 0)
        S2_LAUNCH(gather_copies, grid, S2_THREADS, stream, r, (const uint8_t *)values,
                  (uint8_t *)packed, width);
    return s2_launched();
}

s2_status s2_cuda_blocks_scatter(const s2_cuda_layout *layout, const void *packed,
                                 s2_dtype packed_dtype, int64_t packed_numel,
                                 const int64_t *positions, int64_t capacity,
                                 const s2_cuda_run *runs, void *values, s2_dtype dtype,
                                 double divisor, cudaStream_t stream)
{
    const int64_t width = s2_dtype_nbytes(dtype);
    bool copy;

    S2_RETURN_IF_ERROR(check_move(layout, values, dtype, positions, capacity, runs, packed,
                                  packed_dtype, packed_numel));
    S2_RETURN_IF_ERROR(s2_check_conversion(packed_dtype, dtype, divisor, &copy));
    const rows r = rows_of(layout, positions, capacity, runs, packed_numel, width);
    const int64_t grid = s2_grid(capacity, r.lanes);
    const auto launch = [=](auto divide) {
        typedef decltype(divide) division;
        if (capacity != 0)
            S2_LAUNCH(scatter_divided<division>, grid, S2_THREADS, stream, r, divide,
                      (const typename division::source *)packed,
                      (typename division::target *)values);
    };
    if (!copy)
        S2_RETURN_IF_ERROR(s2_with_division(packed_dtype, dtype, divisor, launch));
    else if (capacity != 0)
        S2_LAUNCH(scatter_copies, grid, S2_THREADS, stream, r, (const uint8_t *)packed,
                  (uint8_t *)values, width);
    return s2_launched();
}

template <typename Packed, typename Sum>
static s2_status launch_add(const rows &r, const void *packed, void *accumulator,
                            cudaStream_t stream)
{
    if (r.capacity != 0)
        S2_LAUNCH((add_rows<Packed, Sum>), s2_grid(r.capacity, r.lanes), S2_THREADS, stream, r,
                  (const Packed *)packed, (Sum *)accumulator);
    return s2_launched();
}

s2_status s2_cuda_blocks_add(const s2_cuda_layout *layout, const void *packed,
                             s2_dtype packed_dtype, int64_t packed_numel, const int64_t *positions,
                             int64_t capacity, const s2_cuda_run *runs, void *accumulator,
                             s2_dtype accumulator_dtype, cudaStream_t stream)
{
    S2_RETURN_IF_ERROR(check_move(layout, accumulator, accumulator_dtype, positions, capacity, runs,
                                  packed, packed_dtype, packed_numel));
    const rows r = rows_of(layout, positions, capacity, runs, packed_numel,
                           s2_dtype_nbytes(accumulator_dtype));
    if (accumulator_dtype == S2_FLOAT64) {
        if (packed_dtype == S2_FLOAT64)
            return launch_add<double, double>(r, packed, accumulator, stream);
        if (packed_dtype == S2_FLOAT32)
            return launch_add<float, double>(r, packed, accumulator, stream);
    } else if (accumulator_dtype == S2_FLOAT32) {
        if (packed_dtype == S2_FLOAT32)
            return launch_add<float, float>(r, packed, accumulator, stream);
        if (packed_dtype == S2_FLOAT16)
            return launch_add<s2_float16, float>(r, packed, accumulator, stream);
        if (packed_dtype == S2_BFLOAT16)
            return launch_add<s2_bfloat16, float>(r, packed, accumulator, stream);
    }
    return S2_BAD_DTYPE;
}

s2_status s2_cuda_blocks_clear_dead(const s2_cuda_layout *layout, const uint8_t *bitmap,
                                    int64_t nbytes, void *values, s2_dtype dtype,
                                    cudaStream_t stream)
{
    S2_RETURN_IF_ERROR(s2_check_values(layout, values, dtype));
    S2_RETURN_IF_ERROR(s2_check_layout_bitmap(layout, bitmap, nbytes));

    const int64_t width = s2_dtype_nbytes(dtype);
    const int lanes = s2_lanes(s2_longest_block(layout->host) * width, 1, MOST_LANES);
    if (nbytes != 0)
        S2_LAUNCH(clear_dead, s2_grid(8 * nbytes, lanes), S2_THREADS, stream, layout->segments,
                  layout->host->nsegments, bitmap, 8 * nbytes, (uint8_t *)values, width, lanes);
    return s2_launched();
}
