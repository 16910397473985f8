/* SPDX-License-Identifier: MIT */
/* What the kernels of error feedback share in all variants, and with those of csrc/cuda. */
#ifndef S2_OWED_H
#define S2_OWED_H

#include <float.h>
#include <math.h>

#include "half.h"

/* A sum of squares as a float: finite where it was, and a NaN always the same one, since selection
 * orders by bits. */
S2_INLINE float s2_energy_from_sum(double sum)
{
    if (isnan(sum)) return s2_float_from_bits(0x7fc00000);
    return sum > FLT_MAX && !isinf(sum) ? FLT_MAX : (float)sum;
}

#endif /* S2_OWED_H */
