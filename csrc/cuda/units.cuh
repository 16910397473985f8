/* SPDX-License-Identifier: MIT */
/*
 * Bytes of a block, moved by some lanes together: in units of 16 bytes where addresses and length
 * allow it, which takes the fewest instructions, else of 8, 4 or 2.  Elements are aligned to their
 * own size, so that no unit is smaller than an element.
 */
#ifndef S2_UNITS_CUH
#define S2_UNITS_CUH

#include "block.cuh"

#define S2_UNIT_NBYTES 16

/* Lanes for blocks of so many bytes: a power of two, enough for a unit each, `most` at most. */
static __host__ __device__ inline int s2_lanes(int64_t nbytes, int least, int most)
{
    int lanes = least;
    while (lanes < most && lanes * (int64_t)S2_UNIT_NBYTES < nbytes)
        lanes *= 2;
    return lanes;
}

static __device__ inline uint64_t s2_address(const void *p) { return (uint64_t)(uintptr_t)p; }

/* ---------------------------------------------------------------------------------------------- */
/* OR                                                                                             */
/* ---------------------------------------------------------------------------------------------- */

static __device__ inline uint64_t s2_fold(ulonglong2 unit) { return unit.x | unit.y; }
template <typename T> static __device__ inline uint64_t s2_fold(T unit) { return unit; }

template <typename T>
static __device__ inline uint64_t s2_or_units(const uint8_t *p, int64_t nbytes, int lane, int lanes)
{
    const T *units = (const T *)p;
    uint64_t any = 0;
    for (int64_t i = lane; i < nbytes / (int64_t)sizeof(T); i += lanes)
        any |= s2_fold(units[i]);
    return any;
}

/* The OR of what this lane sees, in the low bits of a word. */
static __device__ inline uint64_t s2_or_bytes(const uint8_t *p, int64_t nbytes, int lane, int lanes)
{
    const uint64_t odd = s2_address(p) | (uint64_t)nbytes;

    if (odd % 16 == 0) return s2_or_units<ulonglong2>(p, nbytes, lane, lanes);
    if (odd % 8 == 0) return s2_or_units<uint64_t>(p, nbytes, lane, lanes);
    if (odd % 4 == 0) return s2_or_units<uint32_t>(p, nbytes, lane, lanes);
    return s2_or_units<uint16_t>(p, nbytes, lane, lanes);
}

/* ---------------------------------------------------------------------------------------------- */
/* Copies and zeros                                                                               */
/* ---------------------------------------------------------------------------------------------- */

template <typename T>
static __device__ inline void s2_copy_units(uint8_t *to, const uint8_t *from, int64_t nbytes,
                                            int lane, int lanes)
{
    for (int64_t i = lane; i < nbytes / (int64_t)sizeof(T); i += lanes)
        ((T *)to)[i] = ((const T *)from)[i];
}

static __device__ inline void s2_copy_bytes(uint8_t *to, const uint8_t *from, int64_t nbytes,
                                            int lane, int lanes)
{
    const uint64_t odd = s2_address(to) | s2_address(from) | (uint64_t)nbytes;

    if (odd % 16 == 0)
        s2_copy_units<ulonglong2>(to, from, nbytes, lane, lanes);
    else if (odd % 8 == 0)
        s2_copy_units<uint64_t>(to, from, nbytes, lane, lanes);
    else if (odd % 4 == 0)
        s2_copy_units<uint32_t>(to, from, nbytes, lane, lanes);
    else
        s2_copy_units<uint16_t>(to, from, nbytes, lane, lanes);
}

template <typename T>
static __device__ inline void s2_zero_units(uint8_t *to, int64_t nbytes, int lane, int lanes)
{
    for (int64_t i = lane; i < nbytes / (int64_t)sizeof(T); i += lanes)
        ((T *)to)[i] = T{};
}

static __device__ inline void s2_zero_bytes(uint8_t *to, int64_t nbytes, int lane, int lanes)
{
    const uint64_t odd = s2_address(to) | (uint64_t)nbytes;

    if (odd % 16 == 0)
        s2_zero_units<ulonglong2>(to, nbytes, lane, lanes);
    else if (odd % 4 == 0)
        s2_zero_units<uint32_t>(to, nbytes, lane, lanes);
    else
        s2_zero_units<uint16_t>(to, nbytes, lane, lanes);
}

#endif /* S2_UNITS_CUH */
