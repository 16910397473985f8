/* SPDX-License-Identifier: MIT */
/* Arrays of elements: converted, divided, searched for what is not finite. */
#include "block.cuh"
#include "convert.cuh"

/* ---------------------------------------------------------------------------------------------- */
/* Kernels                                                                                        */
/* ---------------------------------------------------------------------------------------------- */

/* `from` and `to` may be one array: each thread reads an element before it writes it. */
template <typename Division>
static __global__ void convert(Division divide, const typename Division::source *from,
                               typename Division::target *to, int64_t n)
{
    for (int64_t i = s2_thread(); i < n; i += s2_nthreads())
        divide(from[i], &to[i]);
}

static __global__ void set_int(int *where, int value) { *where = value; }

/* An element is infinite or a NaN where all bits of its exponent are set. */
template <typename T>
static __global__ void find_non_finite(const T *elements, int64_t n, T exponent, int *finite)
{
    bool found = false;
    for (int64_t i = s2_thread(); i < n; i += s2_nthreads())
        found |= (elements[i] & exponent) == exponent;
    if (found) atomicAnd(finite, 0);
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

s2_status s2_cuda_values_convert(const void *src, s2_dtype src_dtype, void *dst, s2_dtype dst_dtype,
                                 int64_t numel, double divisor, cudaStream_t stream)
{
    bool copy;

    S2_RETURN_IF_ERROR(s2_check_conversion(src_dtype, dst_dtype, divisor, &copy));
    if (numel < 0 || numel > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (s2_is_null(src, numel) || s2_is_null(dst, numel)) return S2_NULL_POINTER;
    if (!s2_is_aligned(src, (uint64_t)s2_dtype_nbytes(src_dtype)) ||
        !s2_is_aligned(dst, (uint64_t)s2_dtype_nbytes(dst_dtype)))
        return S2_BAD_ADDRESS;

    const auto launch = [=](auto divide) {
        typedef decltype(divide) division;
        if (numel != 0)
            S2_LAUNCH(convert<division>, s2_grid(numel, 1), S2_THREADS, stream, divide,
                      (const typename division::source *)src, (typename division::target *)dst,
                      numel);
    };
    if (!copy)
        S2_RETURN_IF_ERROR(s2_with_division(src_dtype, dst_dtype, divisor, launch));
    else if (src != dst && numel != 0)
        cudaMemcpyAsync(dst, src, (size_t)(numel * s2_dtype_nbytes(dst_dtype)),
                        cudaMemcpyDeviceToDevice, stream);
    return s2_launched();
}

s2_status s2_cuda_values_finite(const void *values, s2_dtype dtype, int64_t numel, int *finite,
                                cudaStream_t stream)
{
    const int64_t width = s2_dtype_nbytes(dtype);

    if (width == 0) return S2_BAD_DTYPE;
    if (numel < 0 || numel > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (s2_is_null(values, numel) || finite == nullptr) return S2_NULL_POINTER;
    if (!s2_is_aligned(values, (uint64_t)width)) return S2_BAD_ADDRESS;

    S2_LAUNCH(set_int, 1, 1, stream, finite, 1);
    if (numel == 0) return s2_launched();
    if (width == 8)
        S2_LAUNCH(find_non_finite<uint64_t>, s2_grid(numel, 1), S2_THREADS, stream,
                  (const uint64_t *)values, numel, UINT64_C(0x7ff0000000000000), finite);
    else if (width == 4)
        S2_LAUNCH(find_non_finite<uint32_t>, s2_grid(numel, 1), S2_THREADS, stream,
                  (const uint32_t *)values, numel, UINT32_C(0x7f800000), finite);
    else
        S2_LAUNCH(find_non_finite<uint16_t>, s2_grid(numel, 1), S2_THREADS, stream,
                  (const uint16_t *)values, numel,
                  (uint16_t)(dtype == S2_FLOAT16 ? 0x7c00 : 0x7f80), finite);
    return s2_launched();
}
