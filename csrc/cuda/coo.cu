/* SPDX-License-Identifier: MIT */
/* Rows by number: repeats added up, and bitmaps of the union.  See s2.h and csrc/coo.c. */
#include "block.cuh"
#include "convert.cuh"
#include "units.cuh"

/* ---------------------------------------------------------------------------------------------- */
/* Kernels                                                                                        */
/* ---------------------------------------------------------------------------------------------- */

/* What all sums are given. */
struct coo_rows {
    const int64_t *order;
    int64_t n;
    const int64_t *starts;
    int64_t capacity;
    const int64_t *count;
    int64_t width;
    int lanes;
};

/* The bits of a row that does not repeat are kept; others are added up in the order of appearance,
 * each element in a register.  They are multiplied by `down`, and the sum by `up`: powers of two
 * that keep partial sums from overflow. */
template <typename Element, typename Sum>
static __global__ void sum_rows(coo_rows r, const Element *values, Sum down, Sum up, Element *sums)
{
    const int64_t nunique = s2_length(r.count, r.capacity);
    const int lane = (int)threadIdx.x & (r.lanes - 1);

    for (int64_t k = s2_thread() / r.lanes; k < nunique; k += s2_nthreads() / r.lanes) {
        const int64_t first = r.starts[k], end = s2_min(r.starts[k + 1], r.n);
        for (int64_t e = lane; first >= 0 && first < end && e < r.width; e += r.lanes) {
            Element *sum = &sums[k * r.width + e];
            Sum total = 0;
            for (int64_t i = first; i < end; i++) {
                const int64_t row = r.order[i];
                if (row < 0 || row >= r.n) continue;
                const Element element = values[row * r.width + e];
                const Sum value = s2_number(element) * down;
                if (end == first + 1)
                    *sum = element;
                else
                    total = i == first ? value : total + value;
            }
            if (end != first + 1) s2_round(total * up, sum);
        }
    }
}

static __global__ void set_entries(const int64_t *entries, int64_t capacity, const int64_t *count,
                                   int64_t nranks, int64_t nunion, uint32_t *words, int64_t nwords)
{
    const int64_t n = s2_length(count, capacity);

    for (int64_t i = s2_thread(); i < n; i += s2_nthreads()) {
        const int64_t rank = entries[i] % S2_MAX_RANKS, index = entries[i] / S2_MAX_RANKS;
        if (entries[i] < 0 || rank >= nranks || index >= nunion) continue;
        atomicOr(&words[rank * nwords + index / 32], 1u << index % 32);
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

template <typename Element, typename Sum>
static s2_status launch_sum(const coo_rows &r, const void *values, Sum scale, void *sums,
                            cudaStream_t stream)
{
    if (r.capacity != 0 && r.n != 0 && r.width != 0)
        S2_LAUNCH((sum_rows<Element, Sum>), s2_grid(r.capacity, r.lanes), S2_THREADS, stream, r,
                  (const Element *)values, 1 / scale, scale, (Element *)sums);
    return s2_launched();
}

s2_status s2_cuda_coo_sum(const void *values, s2_dtype dtype, int64_t n, int64_t width,
                          const int64_t *order, const int64_t *starts, int64_t capacity,
                          const int64_t *count, void *sums, cudaStream_t stream)
{
    const int64_t element = s2_dtype_nbytes(dtype);

    if (element == 0) return S2_BAD_DTYPE;
    S2_RETURN_IF_ERROR(s2_check_positions(order, n));
    if (width < 0 || capacity < 0 || capacity > n || (width != 0 && n > S2_MAX_NUMEL / width))
        return S2_BAD_SIZE;
    if (s2_is_null(values, n * width) || s2_is_null(sums, capacity * width) || starts == nullptr)
        return S2_NULL_POINTER;
    if (!s2_is_aligned(values, (uint64_t)element) || !s2_is_aligned(sums, (uint64_t)element))
        return S2_BAD_ADDRESS;

    const int lanes =
        s2_lanes((width < S2_THREADS ? width : S2_THREADS) * S2_UNIT_NBYTES, 1, S2_THREADS);
    const coo_rows r = {order, n, starts, capacity, count, width, lanes};
    if (dtype == S2_FLOAT64) return launch_sum<double, double>(r, values, 1, sums, stream);
    if (dtype == S2_FLOAT32) return launch_sum<float, double>(r, values, 1, sums, stream);
    if (dtype == S2_FLOAT16) return launch_sum<s2_float16, float>(r, values, 1, sums, stream);
    return launch_sum<s2_bfloat16, float>(r, values, 0x1p16f, sums, stream);
}

s2_status s2_cuda_coo_bitmaps(const int64_t *entries, int64_t capacity, const int64_t *count,
                              int64_t nranks, int64_t nunion, uint8_t *bitmaps, int64_t nbytes,
                              cudaStream_t stream)
{
    S2_RETURN_IF_ERROR(s2_check_positions(entries, capacity));
    if (nranks < 1 || nranks > S2_MAX_RANKS || nunion < 0 || nunion > S2_MAX_ROWS ||
        nbytes != s2_ceil_div(nunion, 64) * 8)
        return S2_BAD_SIZE;
    S2_RETURN_IF_ERROR(s2_check_bitmap(bitmaps, nbytes));

    if (nbytes != 0) cudaMemsetAsync(bitmaps, 0, (size_t)(nranks * nbytes), stream);
    if (nbytes != 0 && capacity != 0)
        S2_LAUNCH(set_entries, s2_grid(capacity, 1), S2_THREADS, stream, entries, capacity, count,
                  nranks, nunion, (uint32_t *)bitmaps, nbytes / 4);
    return s2_launched();
}
