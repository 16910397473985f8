/* SPDX-License-Identifier: MIT */
/* Elements of every dtype: read as numbers, divided, rounded once.  See s2_values_convert(). */
#ifndef S2_CONVERT_CUH
#define S2_CONVERT_CUH

#include <cmath>
#include <type_traits>

#include "../cpu/half.h"
#include "launch.h"

struct s2_float16 {
    uint16_t bits;
};
struct s2_bfloat16 {
    uint16_t bits;
};

static __device__ inline float s2_number(float x) { return x; }
static __device__ inline double s2_number(double x) { return x; }
static __device__ inline float s2_number(s2_float16 x) { return s2_float_from_f16(x.bits); }
static __device__ inline float s2_number(s2_bfloat16 x) { return s2_float_from_bf16(x.bits); }

static __device__ inline void s2_round(double x, double *to) { *to = x; }
static __device__ inline void s2_round(double x, float *to) { *to = (float)x; }
static __device__ inline void s2_round(float x, double *to) { *to = x; }
static __device__ inline void s2_round(float x, float *to) { *to = x; }
static __device__ inline void s2_round(float x, s2_float16 *to) { to->bits = s2_f16_from_float(x); }
static __device__ inline void s2_round(float x, s2_bfloat16 *to)
{
    to->bits = s2_bf16_from_float(x);
}

/* to = from / divisor, divided in the wider of the two types. */
template <typename Source, typename Target> struct s2_division {
    typedef Source source;
    typedef Target target;
    typedef std::conditional_t<
        std::is_same<Source, double>::value || std::is_same<Target, double>::value, double, float>
        wide;

    wide divisor, reciprocal;
    bool is_exact; /* the reciprocal, so that the product has the same bits and is quicker */

    __device__ void operator()(Source from, Target *to) const
    {
        const wide x = s2_number(from);
        s2_round(is_exact ? x * reciprocal : x / divisor, to);
    }
};

/* A power of two whose reciprocal is a power of two in float and double alike, with room to spare.
 */
static inline bool s2_reciprocal_is_exact(double divisor)
{
    int exponent;
    return divisor >= 0x1p-64 && divisor <= 0x1p64 && std::frexp(divisor, &exponent) == 0.5;
}

static inline bool s2_is_divisor(double divisor) { return std::isfinite(divisor) && divisor > 0; }

template <typename Source, typename Target, typename Function>
static inline s2_status s2_with_types(double divisor, Function function)
{
    typedef typename s2_division<Source, Target>::wide wide;
    const wide rounded = (wide)divisor;

    if (!s2_is_divisor((double)rounded)) return S2_BAD_DIVISOR;
    function(s2_division<Source, Target>{rounded, 1 / rounded, s2_reciprocal_is_exact(divisor)});
    return S2_OK;
}

/* Whether bits are only copied, and the other checks of a conversion. */
static inline s2_status s2_check_conversion(s2_dtype from, s2_dtype to, double divisor, bool *copy)
{
    if (s2_dtype_nbytes(from) == 0 || s2_dtype_nbytes(to) == 0) return S2_BAD_DTYPE;
    if (!s2_is_divisor(divisor)) return S2_BAD_DIVISOR;
    *copy = from == to && divisor == 1.0;
    return S2_OK;
}

/* Calls the function with the division that goes with two dtypes, but for copies. */
template <typename Function>
static inline s2_status s2_with_division(s2_dtype from, s2_dtype to, double divisor,
                                         Function function)
{
    if (from == S2_FLOAT32) {
        if (to == S2_FLOAT32) return s2_with_types<float, float>(divisor, function);
        if (to == S2_FLOAT64) return s2_with_types<float, double>(divisor, function);
        if (to == S2_FLOAT16) return s2_with_types<float, s2_float16>(divisor, function);
        return s2_with_types<float, s2_bfloat16>(divisor, function);
    }
    if (from == S2_FLOAT64 && to == S2_FLOAT64)
        return s2_with_types<double, double>(divisor, function);
    if (to != S2_FLOAT32) return S2_BAD_DTYPE;
    if (from == S2_FLOAT64) return s2_with_types<double, float>(divisor, function);
    if (from == S2_FLOAT16) return s2_with_types<s2_float16, float>(divisor, function);
    return s2_with_types<s2_bfloat16, float>(divisor, function);
}

#endif /* S2_CONVERT_CUH */
