/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "internal.h"

struct conversion {
    s2_convert_kernel convert; /* NULL: copy */
    const uint8_t *src;
    uint8_t *dst;
    int64_t src_width, dst_width;
    double divisor;
};

static void convert_range(void *arg, int64_t begin, int64_t end)
{
    const struct conversion *c = arg;
    const uint8_t *src = c->src + begin * c->src_width;
    uint8_t *dst = c->dst + begin * c->dst_width;

    if (c->convert != NULL)
        c->convert(src, dst, end - begin, c->divisor);
    else if (src != dst && begin != end)
        memcpy(dst, src, (size_t)((end - begin) * c->dst_width));
}

static bool is_divisor(double divisor) { return isfinite(divisor) && divisor > 0.0; }

s2_status s2_convert_kernel_find(s2_dtype src, s2_dtype dst, double divisor,
                                 s2_convert_kernel *convert)
{
    *convert = NULL;
    if (s2_dtype_nbytes(src) == 0 || s2_dtype_nbytes(dst) == 0) return S2_BAD_DTYPE;
    if (!is_divisor(divisor)) return S2_BAD_DIVISOR;
    if (src == dst && divisor == 1.0) return S2_OK;
    *convert = s2_kernels_current()->convert[src][dst];
    if (*convert == NULL) return S2_BAD_DTYPE;
    bool wide = src == S2_FLOAT64 || dst == S2_FLOAT64;
    return wide || is_divisor((float)divisor) ? S2_OK : S2_BAD_DIVISOR;
}

s2_status s2_values_convert(const void *src, s2_dtype src_dtype, void *dst, s2_dtype dst_dtype,
                            int64_t numel, double divisor, const s2_executor *executor)
{
    struct conversion c = {.src = src,
                           .dst = dst,
                           .src_width = s2_dtype_nbytes(src_dtype),
                           .dst_width = s2_dtype_nbytes(dst_dtype),
                           .divisor = divisor};

    S2_RETURN_IF_ERROR(s2_convert_kernel_find(src_dtype, dst_dtype, divisor, &c.convert));
    if (numel < 0 || numel > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (s2_is_null(src, numel) || s2_is_null(dst, numel)) return S2_NULL_POINTER;
    if (numel == 0) return S2_OK;
    s2_run(executor, numel, s2_grain(c.src_width + c.dst_width), convert_range, &c);
    return S2_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Finite values                                                                                  */
/* ---------------------------------------------------------------------------------------------- */

struct search {
    const struct s2_kernels *kernels;
    const uint8_t *values;
    int64_t width;     /* bytes of an element */
    uint64_t exponent; /* its bits within an element */
    int finite;
};

static void search_range(void *arg, int64_t begin, int64_t end)
{
    struct search *s = arg;
    const uint8_t *values = s->values + begin * s->width;

    if (!s->kernels->all_finite(values, end - begin, s->width, s->exponent))
        __atomic_store_n(&s->finite, 0, __ATOMIC_RELAXED);
}

s2_status s2_values_finite(const void *values, s2_dtype dtype, int64_t numel, int *finite,
                           const s2_executor *executor)
{
    static const uint64_t exponents[] = {[S2_FLOAT32] = UINT64_C(0x7f800000),
                                         [S2_FLOAT64] = UINT64_C(0x7ff0000000000000),
                                         [S2_FLOAT16] = UINT64_C(0x7c00),
                                         [S2_BFLOAT16] = UINT64_C(0x7f80)};

    if (s2_dtype_nbytes(dtype) == 0) return S2_BAD_DTYPE;
    if (numel < 0 || numel > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (s2_is_null(values, numel) || finite == NULL) return S2_NULL_POINTER;

    struct search s = {.kernels = s2_kernels_current(),
                       .values = values,
                       .width = s2_dtype_nbytes(dtype),
                       .exponent = exponents[dtype],
                       .finite = 1};
    if (numel != 0) s2_run(executor, numel, s2_grain(s.width), search_range, &s);
    *finite = s.finite;
    return S2_OK;
}
