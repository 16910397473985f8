/* SPDX-License-Identifier: MIT */
/* The bound on the errors of peeled blocks, of which s2.h has the reasons. */
#ifndef S2_PEEL_BOUND_H
#define S2_PEEL_BOUND_H

#include <float.h>
#include <stdint.h>

#include "inline.h"

/* The square of a bound.  Exact in double, so that a fused multiply-add changes nothing. */
S2_INLINE double s2_peel_square(float bound) { return (double)bound * (double)bound; }

/*
 * What roundings in a cell that began with `load` blocks, of `nranks` ranks, can have made of a
 * block whose largest magnitude is 1, squared.  A power of two, so that products with squares are
 * exact, too.
 */
S2_INLINE double s2_peel_roundings(uint32_t load, int64_t nranks)
{
    const int64_t count = 2 * (int64_t)load + nranks - 3;
    double power = 1;

    if (count == 0) return 0;
    while (power < (double)count)
        power *= 2;
    return power * 0x1p-46;
}

/* Both together.  An infinite magnitude is infinitely uncertain, also where nothing was rounded. */
S2_INLINE double s2_peel_error(double roundings, float magnitude)
{
    const double square = s2_peel_square(magnitude);
    return square <= DBL_MAX ? roundings * square : square;
}

#endif /* S2_PEEL_BOUND_H */
