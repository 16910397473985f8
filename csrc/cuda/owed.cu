/* SPDX-License-Identifier: MIT */
/* Error feedback: what is owed grows by gradients, and shrinks by what is delivered. */
#include "../cpu/owed.h"
#include "block.cuh"
#include "owed.cuh"
#include "units.cuh"

/* Sums of squares side by side, one for each of the lanes of a block: as many as s2.h says. */
#define SUMS 16

/* ---------------------------------------------------------------------------------------------- */
/* Kernels                                                                                        */
/* ---------------------------------------------------------------------------------------------- */

/* `before` may be NULL, for zeros. */
template <typename Element>
static __global__ void add(const Element *values, int64_t n, float factor, const float *before,
                           float *owed, uint32_t *touched)
{
    uint32_t any = 0;
    int64_t total;

    for (int64_t i = s2_thread(); i < n; i += s2_nthreads()) {
        const float value = (float)s2_number(values[i]);
        const float product = value * factor;
        any |= s2_float_bits(value) & 0x7fffffff;
        owed[i] = (before == nullptr ? 0.0f : before[i]) + product;
    }
    s2_block_prefix(any != 0, &total);
    if (threadIdx.x == 0 && total != 0) atomicOr(touched, 1u);
}

/* Of two sums that are added, both lanes get the same: a sum has the same bits either way. */
static __global__ void measure(const float *owed, int64_t numel, int64_t block, float *energies,
                               int64_t nblocks)
{
    const int together = S2_WARP / SUMS, lane = s2_lane() % SUMS;

    for (int64_t first = s2_warp() * together; first < nblocks; first += s2_nwarps() * together) {
        const int64_t b = first + s2_lane() / SUMS, at = b * block;
        const int64_t n = b < nblocks ? s2_min(block, numel - at) : 0;
        double sum = 0;
        for (int64_t i = lane; i < n; i += SUMS) {
            const double x = owed[at + i];
            const double square = x * x;
            sum += square;
        }
        for (int half = SUMS / 2; half > 0; half /= 2)
            sum += __shfl_xor_sync(S2_ALL_LANES, sum, half);
        if (lane == 0 && b < nblocks) energies[b] = s2_energy_from_sum(sum);
    }
}

/* `bitmap` may be NULL, for blocks that are all selected. */
struct delivery {
    float *owed;
    int64_t numel;
    int64_t block;
    int64_t nblocks;
    const uint8_t *bitmap;
    float scale, factor;
    int lanes;
};

template <typename Element> static __global__ void deliver(delivery d, Element *values)
{
    const int lane = (int)threadIdx.x & (d.lanes - 1);

    for (int64_t b = s2_thread() / d.lanes; b < d.nblocks; b += s2_nthreads() / d.lanes) {
        const bool is_selected = d.bitmap == nullptr || (d.bitmap[b / 8] >> b % 8 & 1);
        const int64_t at = b * d.block, end = at + s2_min(d.block, d.numel - at);
        for (int64_t i = at + lane; i < end; i += d.lanes) {
            if (is_selected)
                s2_deliver(&d.owed[i], d.scale, d.factor, &values[i]);
            else
                values[i] = {};
        }
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

static bool is_factor(float factor) { return std::isfinite(factor) && factor > 0.0f; }

static s2_status check_owed(const void *owed, int64_t numel)
{
    if (s2_is_null(owed, numel)) return S2_NULL_POINTER;
    return s2_is_aligned(owed, sizeof(float)) ? S2_OK : S2_BAD_ADDRESS;
}

static s2_status check_elements(const void *values, s2_dtype dtype, int64_t numel)
{
    if (s2_is_null(values, numel)) return S2_NULL_POINTER;
    return s2_is_aligned(values, (uint64_t)s2_dtype_nbytes(dtype)) ? S2_OK : S2_BAD_ADDRESS;
}

/* Calls the function with an element of the dtype. */
template <typename Function> static void with_element(s2_dtype dtype, Function function)
{
    if (dtype == S2_FLOAT32) function(float());
    if (dtype == S2_FLOAT64) function(double());
    if (dtype == S2_FLOAT16) function(s2_float16());
    if (dtype == S2_BFLOAT16) function(s2_bfloat16());
}

s2_status s2_cuda_owed_add(const void *values, s2_dtype dtype, int64_t numel, double factor,
                           const float *before, float *owed, int *touched, cudaStream_t stream)
{
    if (s2_dtype_nbytes(dtype) == 0) return S2_BAD_DTYPE;
    if (numel < 0 || numel > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (!is_factor((float)factor)) return S2_BAD_FACTOR;
    S2_RETURN_IF_ERROR(check_elements(values, dtype, numel));
    S2_RETURN_IF_ERROR(check_owed(owed, numel));
    if (touched == nullptr) return S2_NULL_POINTER;
    if (!s2_is_aligned(before, sizeof(float))) return S2_BAD_ADDRESS;

    cudaMemsetAsync(touched, 0, sizeof(*touched), stream);
    if (numel != 0) {
        with_element(dtype, [=](auto element) {
            typedef decltype(element) Element;
            S2_LAUNCH(add<Element>, s2_grid(numel, 1), S2_THREADS, stream, (const Element *)values,
                      numel, (float)factor, before, owed, (uint32_t *)touched);
        });
    }
    return s2_launched();
}

/* Blocks of an array; 0 where the sizes are not allowed or the array is empty. */
static int64_t nblocks_of(int64_t numel, int64_t block)
{
    return numel < 1 || block < 1 ? 0 : s2_ceil_div(numel, block);
}

s2_status s2_cuda_owed_energies(const float *owed, int64_t numel, int64_t block, float *energies,
                                int64_t nblocks, cudaStream_t stream)
{
    if (numel < 0 || numel > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (block < 1 || nblocks != nblocks_of(numel, block)) return S2_BAD_SIZE;
    S2_RETURN_IF_ERROR(check_owed(owed, numel));
    S2_RETURN_IF_ERROR(check_owed(energies, nblocks));

    /* No longer than the array, whatever was declared, so that no product overflows. */
    const int64_t length = block < numel ? block : numel;
    if (numel != 0)
        S2_LAUNCH(measure, s2_grid(nblocks, SUMS), S2_THREADS, stream, owed, numel, length,
                  energies, nblocks);
    return s2_launched();
}

s2_status s2_cuda_owed_deliver(float *owed, int64_t numel, int64_t block, const uint8_t *bitmap,
                               int64_t nbytes, double scale, void *values, s2_dtype dtype,
                               cudaStream_t stream)
{
    const float down = (float)scale, up = (float)(1.0 / scale);

    if (s2_dtype_nbytes(dtype) == 0) return S2_BAD_DTYPE;
    if (numel < 0 || numel > S2_MAX_NUMEL || block < 1) return S2_BAD_SIZE;
    const int64_t wanted = s2_ceil_div(nblocks_of(numel, block), 64) * 8;
    if (nbytes != (bitmap == nullptr ? 0 : wanted)) return S2_BAD_SIZE;
    S2_RETURN_IF_ERROR(s2_check_bitmap(bitmap, nbytes));
    if (!is_factor(down) || !is_factor(up)) return S2_BAD_FACTOR;
    S2_RETURN_IF_ERROR(check_owed(owed, numel));
    S2_RETURN_IF_ERROR(check_elements(values, dtype, numel));
    if (numel == 0) return s2_launched();

    /* Where all is delivered, blocks do not matter. */
    const int64_t length = bitmap == nullptr ? 1 : block < numel ? block : numel;
    const int lanes = s2_lanes(length * (int64_t)sizeof(float), 1, S2_THREADS);
    const delivery d = {owed, numel, length, nblocks_of(numel, length), bitmap, down, up, lanes};
    with_element(dtype, [=](auto element) {
        typedef decltype(element) Element;
        S2_LAUNCH(deliver<Element>, s2_grid(d.nblocks, lanes), S2_THREADS, stream, d,
                  (Element *)values);
    });
    return s2_launched();
}
