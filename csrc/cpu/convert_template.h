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

/* What values are multiplied by instead of a division; 0 where that is not exact. */
#define FACTOR(type, by) ((by) == 1 ? 1 : s2_has_exact_reciprocal(by) ? 1 / (type)(by) : 0)

/* Rows of a number of elements that is a constant where they are short, or the loop over a row
 * costs more than what is in it. */
#define ADD_ROWS(name, length)                                                                     \
    for (int64_t i = 0; i < n; i++, s += (length)) {                                               \
        if (ahead != 0 && i + ahead < n)                                                           \
            s2_prefetch_row((const uint8_t *)(a + (positions[i + ahead] - first) * (length)),      \
                            (length) * (int64_t)sizeof(*a));                                       \
        SUFFIX(name##_run)(s, a + (positions[i] - first) * (length), length, by, factor);          \
    }

/* The two kernels, from a function that adds a run of elements. */
#define ADD_KERNELS(name, src_type, sum_type)                                                      \
    static TARGET void SUFFIX(name)(const void *src, void *accumulator, int64_t n, double divisor) \
    {                                                                                              \
        const sum_type by = (sum_type)divisor, factor = FACTOR(sum_type, by);                      \
        SUFFIX(name##_run)(src, accumulator, n, by, factor);                                       \
    }                                                                                              \
                                                                                                   \
    static TARGET void SUFFIX(name##_rows)(const void *src, const int64_t *positions,              \
                                           int64_t first, int64_t n, int64_t block,                \
                                           void *accumulator, double divisor, int64_t ahead)       \
    {                                                                                              \
        const src_type *s = src;                                                                   \
        sum_type *a = accumulator;                                                                 \
        const sum_type by = (sum_type)divisor, factor = FACTOR(sum_type, by);                      \
        switch (block) {                                                                           \
        case 1:                                                                                    \
            ADD_ROWS(name, 1)                                                                      \
            break;                                                                                 \
        case 2:                                                                                    \
            ADD_ROWS(name, 2)                                                                      \
            break;                                                                                 \
        case 4:                                                                                    \
            ADD_ROWS(name, 4)                                                                      \
            break;                                                                                 \
        case 8:                                                                                    \
            ADD_ROWS(name, 8)                                                                      \
            break;                                                                                 \
        case 16:                                                                                   \
            ADD_ROWS(name, 16)                                                                     \
            break;                                                                                 \
        default:                                                                                   \
            ADD_ROWS(name, block)                                                                  \
        }                                                                                          \
    }

/* Products stand in statements of their own: in one with a sum, a compiler may fuse the two and
 * round only once. */
#define ADD(name, src_type, sum_type, load)                                                        \
    static inline __attribute__((always_inline)) TARGET void SUFFIX(name##_run)(                   \
        const src_type *restrict s, sum_type *restrict a, int64_t n, sum_type by, sum_type factor) \
    {                                                                                              \
        if (factor == 1) {                                                                         \
            for (int64_t i = 0; i < n; i++)                                                        \
                a[i] += load(s[i]);                                                                \
        } else if (factor != 0) {                                                                  \
            for (int64_t i = 0; i < n; i++) {                                                      \
                const sum_type product = load(s[i]) * factor;                                      \
                a[i] += product;                                                                   \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++)                                                        \
                a[i] += load(s[i]) / by;                                                           \
        }                                                                                          \
    }                                                                                              \
    ADD_KERNELS(name, src_type, sum_type)

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
#else
ADD_KERNELS(add_f16_f32, uint16_t, float)
#endif

/* The tables of struct s2_kernels. */
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

#define ADD_ROWS_TABLE                                                                             \
    {                                                                                              \
        [S2_FLOAT32] =                                                                             \
            {[S2_FLOAT32] = SUFFIX(add_f32_f32_rows), [S2_FLOAT64] = SUFFIX(add_f32_f64_rows)},    \
        [S2_FLOAT64] = {[S2_FLOAT64] = SUFFIX(add_f64_f64_rows)},                                  \
        [S2_FLOAT16] = {[S2_FLOAT32] = SUFFIX(add_f16_f32_rows)},                                  \
        [S2_BFLOAT16] = {[S2_FLOAT32] = SUFFIX(add_bf16_f32_rows)},                                \
    }
