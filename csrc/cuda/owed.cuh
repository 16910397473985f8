/* SPDX-License-Identifier: MIT */
/* What is delivered of an element, and what is owed still: see s2_owed_deliver(). */
#ifndef S2_OWED_CUH
#define S2_OWED_CUH

#include "convert.cuh"

static __device__ inline bool s2_is_finite(float x)
{
    return (s2_float_bits(x) & 0x7f800000) != 0x7f800000;
}

template <typename Element>
static __device__ inline void s2_deliver(float *owed, float scale, float factor, Element *value)
{
    Element delivered;

    s2_round(*owed * scale, &delivered);
    const float taken = (float)s2_number(delivered) * factor;
    *value = delivered;
    *owed -= s2_is_finite(taken) ? taken : 0.0f;
}

#endif /* S2_OWED_CUH */
