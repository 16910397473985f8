/* SPDX-License-Identifier: MIT */
/*
 * Elias-Fano lists: see s2.h and csrc/lists.c.
 *
 * The upper part of a list is a bitmap, of which the i-th set bit is number upper + i; so the
 * kernels that list the positions of a bitmap do most of the decoding.
 */
#include "../list_shape.h"
#include "block.cuh"

/* ---------------------------------------------------------------------------------------------- */
/* Kernels                                                                                        */
/* ---------------------------------------------------------------------------------------------- */

static __device__ inline void or_bits(s2_counter *words, int64_t at, int n, uint64_t value)
{
    const int shift = (int)(at % 64);

    if (n == 0) return;
    atomicOr(&words[at / 64], (s2_counter)(value << shift));
    if (shift + n > 64) atomicOr(&words[at / 64 + 1], (s2_counter)(value >> (64 - shift)));
}

static __device__ inline uint64_t get_bits(const uint64_t *words, int64_t at, int n)
{
    const int shift = (int)(at % 64);

    if (n == 0) return 0;
    uint64_t value = words[at / 64] >> shift;
    if (shift + n > 64) value |= words[at / 64 + 1] << (64 - shift);
    return value & (~UINT64_C(0) >> (64 - n));
}

/* Positions that are not below nbits have no bit to be set. */
static __global__ void encode(const int64_t *positions, int64_t count, s2_list_shape shape,
                              s2_counter *low, s2_counter *high)
{
    const uint64_t low_mask = (UINT64_C(1) << shape.low_bits) - 1;

    for (int64_t i = s2_thread(); i < count; i += s2_nthreads()) {
        const uint64_t position = (uint64_t)positions[i];
        const uint64_t bit = (position >> shape.low_bits) + (uint64_t)i;
        or_bits(low, i * shape.low_bits, shape.low_bits, position & low_mask);
        if (bit < (uint64_t)shape.high_nbits) or_bits(high, (int64_t)bit, 1, 1);
    }
}

static __global__ void start_check(const int64_t *nset, int64_t count, int *valid)
{
    *valid = *nset == count;
}

/* The position whose bit of the upper part is number i of the set ones. */
static __device__ inline int64_t position_of(const int64_t *set, int64_t i, const uint64_t *low,
                                             int low_bits)
{
    return (int64_t)((uint64_t)(set[i] - i) << low_bits | get_bits(low, i * low_bits, low_bits));
}

static __global__ void decode(const int64_t *set, const int64_t *nset, int64_t count, int64_t nbits,
                              s2_list_shape shape, const uint64_t *low, int64_t *positions,
                              int *valid)
{
    const int64_t n = s2_length(nset, count);
    bool good = true;

    for (int64_t i = s2_thread(); i < n; i += s2_nthreads()) {
        const int64_t position = position_of(set, i, low, shape.low_bits);
        good &= set[i] - i <= (nbits - 1) >> shape.low_bits && position < nbits;
        good &= i == 0 || position_of(set, i - 1, low, shape.low_bits) < position;
        positions[i] = position;
    }
    if (!good) atomicAnd(valid, 0);
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

static s2_status check_list(const uint8_t *list, int64_t nbytes, int64_t count, int64_t nbits,
                            const int64_t *positions)
{
    int64_t wanted;

    S2_RETURN_IF_ERROR(s2_list_nbytes(nbits, count, &wanted));
    if (nbytes != wanted) return S2_BAD_SIZE;
    S2_RETURN_IF_ERROR(s2_check_positions(positions, count));
    return s2_check_bitmap(list, nbytes);
}

s2_status s2_cuda_list_encode(const int64_t *positions, int64_t count, int64_t nbits, uint8_t *list,
                              int64_t nbytes, cudaStream_t stream)
{
    S2_RETURN_IF_ERROR(check_list(list, nbytes, count, nbits, positions));
    if (count == 0) return s2_launched();

    const s2_list_shape shape = s2_list_shape_of(nbits, count);
    cudaMemsetAsync(list, 0, (size_t)nbytes, stream);
    S2_LAUNCH(encode, s2_grid(count, 1), S2_THREADS, stream, positions, count, shape,
              (s2_counter *)list, (s2_counter *)(list + shape.low_nbytes));
    return s2_launched();
}

/* The set bits of the upper part, how many they are, and what listing them needs. */
static int64_t set_nbytes(int64_t count) { return s2_ceil_div(count + 1, 2) * 16; }

s2_status s2_cuda_list_scratch_nbytes(int64_t nbits, int64_t count, int64_t *scratch_nbytes)
{
    int64_t nbytes;

    S2_RETURN_IF_ERROR(s2_list_nbytes(nbits, count, &nbytes));
    if (scratch_nbytes == nullptr) return S2_NULL_POINTER;
    const s2_list_shape shape = s2_list_shape_of(nbits, count);
    S2_RETURN_IF_ERROR(s2_cuda_bitmap_scratch_nbytes(nbytes - shape.low_nbytes, scratch_nbytes));
    *scratch_nbytes += set_nbytes(count);
    return S2_OK;
}

s2_status s2_cuda_list_decode(const uint8_t *list, int64_t nbytes, int64_t count, int64_t nbits,
                              int64_t *positions, int *valid, void *scratch, int64_t scratch_nbytes,
                              cudaStream_t stream)
{
    int64_t wanted;

    S2_RETURN_IF_ERROR(check_list(list, nbytes, count, nbits, positions));
    if (valid == nullptr) return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(s2_cuda_list_scratch_nbytes(nbits, count, &wanted));
    S2_RETURN_IF_ERROR(s2_check_scratch(scratch, scratch_nbytes, wanted));

    const s2_list_shape shape = s2_list_shape_of(nbits, count);
    int64_t *nset = (int64_t *)scratch, *set = nset + 1;
    S2_RETURN_IF_ERROR(s2_cuda_bitmap_positions(
        list + shape.low_nbytes, nbytes - shape.low_nbytes, set, count, nset,
        (uint8_t *)scratch + set_nbytes(count), scratch_nbytes - set_nbytes(count), stream));
    S2_LAUNCH(start_check, 1, 1, stream, nset, count, valid);
    if (count != 0)
        S2_LAUNCH(decode, s2_grid(count, 1), S2_THREADS, stream, set, nset, count, nbits, shape,
                  (const uint64_t *)list, positions, valid);
    return s2_launched();
}
