/* SPDX-License-Identifier: MIT */
/*
 * Conversion and addition of FLOAT16 by the instructions for it, which compilers do not find by
 * themselves.  Before including this file define
 *
 *   TARGET                       attribute of the functions
 *   SUFFIX(name)                 name of a function in this variant
 *   VECTOR, LANES                a vector of floats, and how many it holds
 *   load_f16(p), store_f16(p, x) between halves in memory and such a vector
 *   load_f32(p), store_f32(p, x), splat_f32(value), div_f32(x, y), add_f32(x, y)
 */

/* Division by a power of two is as exact as the multiplication, and these loops wait for memory. */
static TARGET void SUFFIX(convert_f16_f32)(const void *src, void *dst, int64_t n, double divisor)
{
    const uint16_t *s = src;
    float *d = dst;
    const float by = (float)divisor;
    const VECTOR all_by = splat_f32(by);
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        store_f32(d + i, div_f32(load_f16(s + i), all_by));
    for (; i < n; i++)
        d[i] = s2_float_from_f16(s[i]) / by;
}

static TARGET void SUFFIX(convert_f32_f16)(const void *src, void *dst, int64_t n, double divisor)
{
    const float *s = src;
    uint16_t *d = dst;
    const float by = (float)divisor;
    const VECTOR all_by = splat_f32(by);
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        store_f16(d + i, div_f32(load_f32(s + i), all_by));
    for (; i < n; i++)
        d[i] = s2_f16_from_float(s[i] / by);
}

/* For convert_template.h; where there is no factor of 1, division is as exact as one. */
static inline __attribute__((always_inline)) TARGET void
SUFFIX(add_f16_f32_run)(const uint16_t *restrict s, float *restrict a, int64_t n, float by,
                        float factor)
{
    const VECTOR all_by = splat_f32(by);
    int64_t i = 0;

    if (factor == 1) {
        for (; i + LANES <= n; i += LANES)
            store_f32(a + i, add_f32(load_f32(a + i), load_f16(s + i)));
    } else {
        for (; i + LANES <= n; i += LANES)
            store_f32(a + i, add_f32(load_f32(a + i), div_f32(load_f16(s + i), all_by)));
    }
    for (; i < n; i++)
        a[i] += s2_float_from_f16(s[i]) / by;
}
