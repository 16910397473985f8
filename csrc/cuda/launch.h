/* SPDX-License-Identifier: MIT */
/*
 * How kernels are launched, and what launchers check.
 *
 * Kernels are launched by S2_LAUNCH(), and have their shared arrays from S2_SHARED(), and in no
 * other way: these two are all that a C++ compiler would not take.  tests/cuda/emulator has another
 * cuda_runtime.h, which defines them, and runs the same kernels on the CPU.
 *
 * The bits of results are those of the C core only if nvcc keeps to IEEE 754: -fmad=false, since a
 * fused product and sum is rounded once, and none of -use_fast_math, -ftz=true, -prec-div=false and
 * -prec-sqrt=false.
 */
#ifndef S2_LAUNCH_H
#define S2_LAUNCH_H

#include <cuda_runtime.h>

#include "s2_cuda.h"

#ifndef S2_LAUNCH
#define S2_LAUNCH(kernel, grid, block, stream, ...)                                                \
    kernel<<<(unsigned)(grid), (unsigned)(block), 0, stream>>>(__VA_ARGS__)
#define S2_SHARED(type, name, count) __shared__ type name[count]
#endif

/* Threads of a block: of every kernel, so that any can use the sums of block.cuh.  8 warps divide
 * the 32, 48 or 64 that a multiprocessor holds. */
#define S2_THREADS 256

/* Thread blocks of a launch, at most.  The largest devices run some thousand at a time; several
 * times as many even out, and each goes on to what is beyond the grid. */
#ifndef S2_MAX_GRID
#define S2_MAX_GRID 8192
#endif

#define S2_RETURN_IF_ERROR(call)                                                                   \
    do {                                                                                           \
        s2_status status_ = (call);                                                                \
        if (status_ != S2_OK) return status_;                                                      \
    } while (0)

static inline int64_t s2_ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* Thread blocks for `n` items, at least one, of `lanes` threads each, a power of two. */
static inline int64_t s2_grid(int64_t n, int64_t lanes)
{
    const int64_t most = S2_MAX_GRID, blocks = s2_ceil_div(n, S2_THREADS / lanes);
    return blocks < most ? blocks : most;
}

/* What becomes of the launches before it. */
static inline s2_status s2_launched(void)
{
    return cudaGetLastError() == cudaSuccess ? S2_OK : S2_CUDA_ERROR;
}

static inline bool s2_is_null(const void *pointer, int64_t size)
{
    return pointer == nullptr && size != 0;
}

static inline bool s2_is_aligned(const void *pointer, uint64_t nbytes)
{
    return (uint64_t)(uintptr_t)pointer % nbytes == 0;
}

/* The layout's rules, and that its segments are on the device. */
static inline s2_status s2_check_layout(const s2_cuda_layout *layout)
{
    int64_t nbytes;

    if (layout == nullptr) return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(s2_layout_bitmap_nbytes(layout->host, &nbytes));
    if (s2_is_null(layout->segments, layout->host->nsegments)) return S2_NULL_POINTER;
    return s2_is_aligned(layout->segments, 8) ? S2_OK : S2_BAD_ADDRESS;
}

/* A bitmap of any layout. */
static inline s2_status s2_check_bitmap(const void *bitmap, int64_t nbytes)
{
    if (nbytes < 0 || nbytes % 8 != 0 || nbytes > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (s2_is_null(bitmap, nbytes)) return S2_NULL_POINTER;
    return s2_is_aligned(bitmap, 8) ? S2_OK : S2_BAD_ADDRESS;
}

/* The bitmap of this layout. */
static inline s2_status s2_check_layout_bitmap(const s2_cuda_layout *layout, const void *bitmap,
                                               int64_t nbytes)
{
    int64_t wanted;

    S2_RETURN_IF_ERROR(s2_check_layout(layout));
    S2_RETURN_IF_ERROR(s2_layout_bitmap_nbytes(layout->host, &wanted));
    return nbytes == wanted ? s2_check_bitmap(bitmap, nbytes) : S2_BAD_SIZE;
}

/* The values of a bucket of this layout. */
static inline s2_status s2_check_values(const s2_cuda_layout *layout, const void *values,
                                        s2_dtype dtype)
{
    const int64_t width = s2_dtype_nbytes(dtype);

    S2_RETURN_IF_ERROR(s2_check_layout(layout));
    if (width == 0) return S2_BAD_DTYPE;
    if (s2_is_null(values, layout->host->numel)) return S2_NULL_POINTER;
    return s2_is_aligned(values, (uint64_t)width) ? S2_OK : S2_BAD_ADDRESS;
}

/* Room for positions; where their number lies may be NULL. */
static inline s2_status s2_check_positions(const int64_t *positions, int64_t capacity)
{
    if (capacity < 0 || capacity > S2_MAX_NUMEL) return S2_BAD_SIZE;
    return s2_is_null(positions, capacity) ? S2_NULL_POINTER : S2_OK;
}

static inline s2_status s2_check_scratch(const void *scratch, int64_t nbytes, int64_t wanted)
{
    if (nbytes != wanted) return S2_BAD_SIZE;
    if (s2_is_null(scratch, nbytes)) return S2_NULL_POINTER;
    return s2_is_aligned(scratch, 16) ? S2_OK : S2_BAD_ADDRESS;
}

/* The length of the longest block, of those that a segment really has. */
static inline int64_t s2_longest_block(const s2_layout *layout)
{
    int64_t longest = 1;
    for (int64_t i = 0; i < layout->nsegments; i++) {
        const s2_segment *segment = &layout->segments[i];
        const int64_t length = segment->block < segment->numel ? segment->block : segment->numel;
        longest = length > longest ? length : longest;
    }
    return longest;
}

#endif /* S2_LAUNCH_H */
