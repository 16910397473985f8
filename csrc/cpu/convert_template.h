/* SPDX-License-Identifier: MIT */
/*
 * Conversion, division and addition of arrays: plain loops that the compiler turns into the
 * instructions of TARGET, so that every variant has the same arithmetic by construction.  Before
 * including this file define
 *
 *   TARGET          attribute of the functions
 *   SUFFIX(name)    name of a function in this variant
 *   OWN_F16         if f16_template.h has been included before
 */

/*
 * Every loop exists three times.  Without a division no arithmetic touches a half or a float, so
 * that even a processor that flushes subnormals to zero keeps them.  And x / 2^k equals x * 2^-k
 * bit for bit, results rounded to subnormals included, since both round the same exact value; a
 * multiplication is much quicker.
 */
#define CONVERT(name, src_type, dst_type, wide_type, load, store)                                  \
    static TARGET void SUFFIX(name)(const void *src, void *dst, int64_t n, double divisor)         \
    {                                                                                              \
        const src_type *s = src;                                                                   \
        dst_type *d = dst;                                                                         \
        const wide_type by = (wide_type)divisor;                                                   \
        if (by == 1) {                                                                             \
            for (int64_t i = 0; i < n; i++)                                                        \
                d[i] = store(load(s[i]));                                                          \
        } else if (s2_has_exact_reciprocal(by)) {                                                  \
            const wide_type factor = 1 / by;                                                       \
            for (int64_t i = 0; i < n; i++)                                                        \
                d[i] = store(load(s[i]) * factor);                                                 \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++)                                                        \
                d[i] = store(load(s[i]) / by);                                                     \
        }                                                                                          \
    }

#define ADD(name, src_type, sum_type, load)                                                        \
    static TARGET void SUFFIX(name)(const void *src, void *accumulator, int64_t n)                 \
    {                                                                                              \
        const src_type *s = src;                                                                   \
        sum_type *a = accumulator;                                                                 \
        for (int64_t i = 0; i < n; i++)                                                            \
            a[i] += load(s[i]);                                                                    \
    }

CONVERT(convert_f32_f32, float, float, float, (float), (float))
CONVERT(convert_f64_f64, double, double, double, (double), (double))
CONVERT(convert_f32_f64, float, double, double, (double), (double))
CONVERT(convert_f64_f32, double, float, double, (double), (float))
CONVERT(convert_bf16_f32, uint16_t, float, float, s2_float_from_bf16, (float))
CONVERT(convert_f32_bf16, float, uint16_t, float, (float), s2_bf16_from_float)

ADD(add_f32_f32, float, float, (float))
ADD(add_f32_f64, float, double, (double))
ADD(add_f64_f64, double, double, (double))
ADD(add_bf16_f32, uint16_t, float, s2_float_from_bf16)

#ifndef OWN_F16
CONVERT(convert_f16_f32, uint16_t, float, float, s2_float_from_f16, (float))
CONVERT(convert_f32_f16, float, uint16_t, float, (float), s2_f16_from_float)
ADD(add_f16_f32, uint16_t, float, s2_float_from_f16)
#endif

/* The two tables of struct s2_kernels. */
#define CONVERT_TABLE                                                                              \
    {                                                                                              \
        [S2_FLOAT32] = {[S2_FLOAT32] = SUFFIX(convert_f32_f32),                                    \
                        [S2_FLOAT64] = SUFFIX(convert_f32_f64),                                    \
                        [S2_FLOAT16] = SUFFIX(convert_f32_f16),                                    \
                        [S2_BFLOAT16] = SUFFIX(convert_f32_bf16)},                                 \
        [S2_FLOAT64] =                                                                             \
            {[S2_FLOAT32] = SUFFIX(convert_f64_f32), [S2_FLOAT64] = SUFFIX(convert_f64_f64)},      \
        [S2_FLOAT16] = {[S2_FLOAT32] = SUFFIX(convert_f16_f32)},                                   \
        [S2_BFLOAT16] = {[S2_FLOAT32] = SUFFIX(convert_bf16_f32)},                                 \
    }

#define ADD_TABLE                                                                                  \
    {                                                                                              \
        [S2_FLOAT32] = {[S2_FLOAT32] = SUFFIX(add_f32_f32), [S2_FLOAT64] = SUFFIX(add_f32_f64)},   \
        [S2_FLOAT64] = {[S2_FLOAT64] = SUFFIX(add_f64_f64)},                                       \
        [S2_FLOAT16] = {[S2_FLOAT32] = SUFFIX(add_f16_f32)},                                       \
        [S2_BFLOAT16] = {[S2_FLOAT32] = SUFFIX(add_bf16_f32)},                                     \
    }
