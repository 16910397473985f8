/* SPDX-License-Identifier: MIT */
/* What the conversion kernels of all variants share. */
#ifndef S2_CONVERT_H
#define S2_CONVERT_H

#include <math.h>
#include <stdbool.h>

#include "half.h"
#include "kernels.h"

/*
 * A power of two whose reciprocal is a power of two in float and double alike, with room to spare
 * (the limits are arbitrary; a divisor is a world size).
 */
static inline bool s2_has_exact_reciprocal(double divisor)
{
    int exponent;
    return divisor >= 0x1p-64 && divisor <= 0x1p64 && frexp(divisor, &exponent) == 0.5;
}

#endif /* S2_CONVERT_H */
