/* SPDX-License-Identifier: MIT */
/*
 * The two half types, one value at a time.  Integer arithmetic wherever a subnormal could occur as
 * an operand, so that conversions do not depend on whether the processor flushes subnormals to zero
 * (torch.set_flush_denormal() does that to a thread).  Written without branches that cannot become
 * selects, so that loops around them vectorise.
 */
#ifndef S2_HALF_H
#define S2_HALF_H

#include <stdint.h>
#include <string.h>

#include "../inline.h"

S2_INLINE uint32_t s2_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

S2_INLINE float s2_float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

S2_INLINE float s2_float_from_bf16(uint16_t half)
{
    return s2_float_from_bits((uint32_t)half << 16);
}

/* Round to nearest even: add just under half a unit of the kept part, and one more if it is odd. */
S2_INLINE uint16_t s2_bf16_from_float(float value)
{
    uint32_t bits = s2_float_bits(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t quiet_nan = (bits >> 16) | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

S2_INLINE float s2_float_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t magnitude = half & 0x7fff;
    uint32_t normal = (magnitude << 13) + (UINT32_C(112) << 23); /* bias 15 to bias 127 */
    /* Both exponents are all ones for infinities and NaNs; a signalling NaN becomes quiet. */
    uint32_t special = 0x7f800000 | (magnitude << 13) | (magnitude > 0x7c00 ? 0x00400000 : 0);
    /* A subnormal counts units of 2^-24. */
    uint32_t subnormal = s2_float_bits((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t bits = magnitude >= 0x7c00 ? special : magnitude < 0x0400 ? subnormal : normal;
    return s2_float_from_bits(sign | bits);
}

S2_INLINE uint16_t s2_f16_from_float(float value)
{
    uint32_t bits = s2_float_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x03ff);
    /* From 65520 on everything rounds to infinity.  The carry of the rounding gets there by itself
     * below 2^16; above, the exponent would not fit. */
    uint32_t normal = (magnitude - (UINT32_C(112) << 23) + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
    /* Below 2^-14 the result counts units of 2^-24, which is the unit of a float in [0.5, 1):
     * adding 0.5 rounds to it. */
    float shifted = s2_float_from_bits(magnitude < 0x38800000 ? magnitude : 0) + 0.5f;
    uint32_t subnormal = s2_float_bits(shifted) - s2_float_bits(0.5f);
    uint32_t half = magnitude > 0x7f800000    ? nan
                    : magnitude >= 0x47800000 ? 0x7c00
                    : magnitude < 0x38800000  ? subnormal
                                              : normal;
    return (uint16_t)(sign | half);
}

#endif /* S2_HALF_H */
