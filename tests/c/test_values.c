/* SPDX-License-Identifier: MIT */
/* That values keep their meaning from one type to another: rounding, ties, subnormals, NaNs. */
#include <math.h>

#include "cases.h"
#include "oracle.h"
#include "test_util.h"

static const int64_t max_numel = 1 << 19;

static guarded src_memory, dst_memory;

/* ----------------------------------------- The oracle ----------------------------------------- */

/* The oracle itself, against known patterns and against the conversion of the C language. */
static void test_oracle(void)
{
    static const struct {
        s2_dtype dtype;
        double value;
        uint64_t bits;
    } known[] = {
        {S2_FLOAT16, 1, 0x3c00},
        {S2_FLOAT16, -2, 0xc000},
        {S2_FLOAT16, 65504, 0x7bff},
        {S2_FLOAT16, 65519.99, 0x7bff},
        {S2_FLOAT16, 65520, 0x7c00},
        {S2_FLOAT16, -65520, 0xfc00},
        {S2_FLOAT16, 0x1p-14, 0x0400},
        {S2_FLOAT16, 0x1p-24, 0x0001},
        {S2_FLOAT16, 0x1p-25, 0x0000},
        {S2_FLOAT16, 0x1.8p-25, 0x0001},
        {S2_FLOAT16, 0x1.8p-24, 0x0002},
        {S2_FLOAT16, 2049, 0x6800},
        {S2_FLOAT16, 2051, 0x6802},
        {S2_FLOAT16, -0.0, 0x8000},
        {S2_BFLOAT16, 1, 0x3f80},
        {S2_BFLOAT16, 257, 0x4380},
        {S2_BFLOAT16, 259, 0x4382},
        {S2_BFLOAT16, 0x1p-133, 0x0001},
        {S2_BFLOAT16, 0x1p-134, 0x0000},
        {S2_BFLOAT16, 0x1.fep127, 0x7f7f},
        {S2_BFLOAT16, 0x1.ffp127, 0x7f80},
        {S2_FLOAT32, 1, 0x3f800000},
        {S2_FLOAT32, 0x1p-149, 0x00000001},
        {S2_FLOAT64, 1, 0x3ff0000000000000},
        {S2_FLOAT64, 0x1p-1074, 0x0000000000000001},
    };
    for (int64_t i = 0; i < COUNT(known); i++) {
        test_case("known pattern %" PRId64, i);
        CHECK(element_round(known[i].dtype, known[i].value) == known[i].bits);
    }
    for (int i = 0; i < 200000; i++) {
        uint64_t bits = random_bits();
        double value;
        memcpy(&value, &bits, 8);
        float narrow = (float)value;
        uint32_t narrow_bits;
        memcpy(&narrow_bits, &narrow, 4);
        test_case("double %#" PRIx64, bits);
        CHECK(isnan(value) || element_round(S2_FLOAT32, value) == narrow_bits);
        CHECK(isnan(value) || element_round(S2_FLOAT64, value) == bits);
        CHECK(isnan(value) || element_value(S2_FLOAT64, bits) == value);
        CHECK(isnan(narrow) || element_value(S2_FLOAT32, narrow_bits) == (double)narrow);
    }
    for (uint64_t bits = 0; bits < 65536; bits++) {
        double half = element_value(S2_FLOAT16, bits), bfloat = element_value(S2_BFLOAT16, bits);
        CHECK(isnan(half) || element_round(S2_FLOAT16, half) == bits);
        CHECK(isnan(bfloat) || element_round(S2_BFLOAT16, bfloat) == bits);
    }
}

/* ----------------------------------------- Conversion ----------------------------------------- */

static void check_convert(s2_dtype src_dtype, const void *values, s2_dtype dst_dtype, int64_t numel,
                          double divisor, placement src_at, placement dst_at)
{
    int64_t src_nbytes = numel * dtype_size(src_dtype);
    int64_t dst_nbytes = numel * dtype_size(dst_dtype);
    int copies = src_dtype == dst_dtype && divisor == 1;
    void *wanted = test_malloc(dst_nbytes);
    for (int64_t i = 0; i < numel; i++)
        element_set(
            wanted, dst_dtype, i,
            oracle_convert(src_dtype, element_get(values, src_dtype, i), dst_dtype, divisor));
    test_case("%" PRId64 " from %s to %s, divisor %.17g, source %s %" PRId64
              ", destination %s %" PRId64,
              numel, dtype_name(src_dtype), dtype_name(dst_dtype), divisor,
              src_at.at_back ? "back" : "front", src_at.distance, dst_at.at_back ? "back" : "front",
              dst_at.distance);
    for (int v = 0; variant_use(v); v++) {
        void *src = guarded_copy(&src_memory, values, src_nbytes, src_at);
        void *dst = guarded_place(&dst_memory, dst_nbytes, dst_at);
        CHECK(s2_values_convert(src, src_dtype, dst, dst_dtype, numel, divisor, NULL) == S2_OK);
        check_elements(dst_dtype, dst, wanted, numel, !copies);
        CHECK(memcmp(src, values, (size_t)src_nbytes) == 0);
        guarded_check(&src_memory);
        guarded_check(&dst_memory);
        if (src_dtype != dst_dtype) continue;
        CHECK(s2_values_convert(src, src_dtype, src, dst_dtype, numel, divisor, NULL) == S2_OK);
        check_elements(dst_dtype, src, wanted, numel, !copies);
        guarded_check(&src_memory);
    }
    free(wanted);
}

static void check_convert_anywhere(s2_dtype src, const void *values, s2_dtype dst, int64_t numel,
                                   double divisor)
{
    check_convert(src, values, dst, numel, divisor, placement_random(dtype_size(src)),
                  placement_random(dtype_size(dst)));
}

static void test_every_half(void)
{
    static const s2_dtype halves[2] = {S2_FLOAT16, S2_BFLOAT16};
    static const double divisors[] = {1, 2, 3, 1e-3, 65536};
    uint16_t *values = test_malloc(65536 * 2);
    for (uint32_t i = 0; i < 65536; i++)
        values[i] = (uint16_t)i;
    for (int h = 0; h < 2; h++) {
        for (int64_t d = 0; d < COUNT(divisors); d++)
            check_convert_anywhere(halves[h], values, S2_FLOAT32, 65536, divisors[d]);
        check_convert_anywhere(halves[h], values, halves[h], 65536, 1);
    }
    free(values);
}

/* Pattern `bits` of `narrow`, its tie with the next one, and what lies right beside the tie. */
static int64_t add_boundaries(s2_dtype narrow, uint64_t bits, s2_dtype wide, void *values,
                              int64_t at)
{
    double low = element_value(narrow, bits), high = element_value(narrow, bits + 1);
    uint64_t low_bits = element_round(wide, low);
    element_set(values, wide, at++, low_bits);
    if (isnan(low) || isnan(high) || isinf(low)) return at;
    /* The tie with infinity is where the next power of two would be, were there one. */
    double below = element_value(narrow, bits - 1);
    double tie = isinf(high) ? low + (low - below) / 2 : low + (high - low) / 2;
    uint64_t tie_bits = element_round(wide, tie);
    element_set(values, wide, at++, tie_bits);
    element_set(values, wide, at++, tie_bits - 1);
    element_set(values, wide, at++, tie_bits + 1);
    return at;
}

/* Every number of 16 bits and every tie between two. */
static void test_narrowing_to_half(void)
{
    static const s2_dtype halves[2] = {S2_FLOAT16, S2_BFLOAT16};
    uint32_t *values = test_malloc(max_numel * 4);
    for (int h = 0; h < 2; h++) {
        int64_t numel = 0;
        for (uint64_t bits = 0; bits < 65535; bits++)
            numel = add_boundaries(halves[h], bits, S2_FLOAT32, values, numel);
        check_convert_anywhere(S2_FLOAT32, values, halves[h], numel, 1);

        /* Multiplied by the divisor, the ties are ties still. */
        int64_t scaled = 0;
        for (int64_t i = 0; i < numel; i++) {
            double value = element_value(S2_FLOAT32, values[i]);
            if (fabs(value) < 0x1p120)
                values[scaled++] = (uint32_t)element_round(S2_FLOAT32, value * 8);
        }
        check_convert_anywhere(S2_FLOAT32, values, halves[h], scaled, 8);

        for (int64_t i = 0; i < max_numel; i++) /* 16 bits at random on top of rare ones below */
            values[i] = (uint32_t)random_bits() & (random_chance(50) ? 0xffffffff : 0xfffff001);
        check_convert_anywhere(S2_FLOAT32, values, halves[h], max_numel, 1);
        for (int64_t i = 0; i < max_numel; i++) /* exponents where float16 has its numbers */
            values[i] = ((uint32_t)random_bits() & 0x807fffff) | (uint32_t)(100 + random_below(45))
                                                                     << 23;
        check_convert_anywhere(S2_FLOAT32, values, halves[h], max_numel, 1);
        check_convert_anywhere(S2_FLOAT32, values, halves[h], max_numel, 3);
    }
    free(values);
}

/* Every exponent of float32, with fractions at its edges and at random. */
static void test_narrowing_to_float32(void)
{
    uint64_t *values = test_malloc(max_numel * 8);
    int64_t numel = 0;
    for (uint64_t high = 0; high < 65536; high += 64) {
        static const uint64_t low[] = {0, 1, 0x3ffffe, 0x3fffff};
        for (int64_t i = 0; i < COUNT(low); i++)
            numel = add_boundaries(S2_FLOAT32, high << 16 | low[i], S2_FLOAT64, values, numel);
        for (int i = 0; i < 20; i++)
            numel = add_boundaries(S2_FLOAT32, high << 16 | (uint64_t)random_below(0x3fffff),
                                   S2_FLOAT64, values, numel);
    }
    check_convert_anywhere(S2_FLOAT64, values, S2_FLOAT32, numel, 1);
    for (int64_t i = 0; i < numel; i++) {
        values[i] = random_bits();
        if (random_chance(80)) /* an exponent that float32 has, or nearly */
            values[i] = (values[i] & 0x800fffffffffffff) | (uint64_t)(860 + random_below(300))
                                                               << 52;
    }
    check_convert_anywhere(S2_FLOAT64, values, S2_FLOAT32, numel, 1);
    check_convert_anywhere(S2_FLOAT64, values, S2_FLOAT32, numel, 7);
    free(values);
}

/* Divisors of all sizes; some change when they are rounded to float32. */
static const double divisors[] = {1,    2,        3,       4,        7,        0.1,   1.0 / 3,
                                  1e-3, 65536,    1e5,     3e38,     1e-30,    1e-40, 1 + 1e-9,
                                  6,    0x1p-126, 0x1p126, 0.999999, 1 - 1e-12};

static void test_every_pair(void)
{
    void *values = test_malloc(4096 * 8);
    for (int i = 0; i < 16; i++) {
        s2_dtype src = all_dtypes[i / 4], dst = all_dtypes[i % 4];
        for (int64_t d = 0; d < COUNT(divisors); d++) {
            if (!oracle_converts(src, dst, divisors[d])) continue;
            case_any(src, values, 4096);
            check_convert_anywhere(src, values, dst, 4096 - random_below(70), divisors[d]);
        }
    }
    free(values);
}

static void test_every_length_and_alignment(void)
{
    static const int64_t lengths[] = {100, 127, 128, 129, 255, 256, 257, 511, 513, 1000, 4099};
    void *values = test_malloc(4099 * 8);
    for (int i = 0; i < 16; i++) {
        s2_dtype src = all_dtypes[i / 4], dst = all_dtypes[i % 4];
        if (!oracle_converts(src, dst, 1)) continue;
        double divisor = oracle_converts(src, dst, 3) && random_chance(50) ? 3 : 1;
        case_any(src, values, 4099);
        for (int64_t numel = 0; numel <= 140; numel++) {
            placement back = {1, 0}, front = {0, 0};
            check_convert(src, values, dst, numel, divisor, back, back);
            check_convert(src, values, dst, numel, divisor, front, front);
        }
        for (int64_t k = 0; k < COUNT(lengths); k++)
            check_convert_anywhere(src, values, dst, lengths[k], divisor);
        for (int64_t distance = 0; distance < 64; distance += 2) {
            placement at = {random_chance(50), distance};
            int64_t numel = random_below(200);
            if (distance % dtype_size(src) == 0)
                check_convert(src, values, dst, numel, divisor, at,
                              placement_random(dtype_size(dst)));
            if (distance % dtype_size(dst) == 0)
                check_convert(src, values, dst, numel, divisor, placement_random(dtype_size(src)),
                              at);
        }
    }
    free(values);
}

/* --------------------------------------- Finite values ---------------------------------------- */

static void check_finite(s2_dtype dtype, const void *values, int64_t numel, int wanted)
{
    for (int v = 0; variant_use(v); v++) {
        int64_t nbytes = numel * dtype_size(dtype);
        int finite = -7;
        const void *src =
            guarded_copy(&src_memory, values, nbytes, placement_random(dtype_size(dtype)));
        CHECK(s2_values_finite(src, dtype, numel, &finite, NULL) == S2_OK);
        CHECK(finite == wanted);
        CHECK(s2_values_finite(src, dtype, numel, &finite, &executor_backwards) == S2_OK);
        CHECK(finite == wanted);
        guarded_check(&src_memory);
    }
}

/* The patterns next to infinity and the NaNs at both ends, each at every place. */
static void test_finite(void)
{
    uint64_t *values = test_malloc(max_numel * 8);
    for (int i = 0; i < 4; i++) {
        s2_dtype dtype = all_dtypes[i];
        uint64_t infinity = element_round(dtype, INFINITY), sign = element_sign(dtype);
        const uint64_t bad[] = {infinity, infinity + 1, sign - 1};
        for (int64_t numel = 0; numel <= 140; numel++) {
            case_finite(dtype, values, numel);
            if (numel > 0) element_set(values, dtype, random_below(numel), infinity - 1);
            test_case("%" PRId64 " of %s, finite", numel, dtype_name(dtype));
            check_finite(dtype, values, numel, 1);
            for (int64_t at = 0; at < numel; at++) {
                uint64_t before = element_get(values, dtype, at);
                uint64_t bits = bad[random_below(3)] | (random_chance(50) ? sign : 0);
                test_case("%" PRId64 " of %s, %#" PRIx64 " at %" PRId64, numel, dtype_name(dtype),
                          bits, at);
                element_set(values, dtype, at, bits);
                check_finite(dtype, values, numel, 0);
                element_set(values, dtype, at, before);
            }
        }
        case_finite(dtype, values, max_numel);
        test_case("all of %s", dtype_name(dtype));
        check_finite(dtype, values, max_numel, 1);
        element_set(values, dtype, random_below(max_numel), infinity);
        check_finite(dtype, values, max_numel, 0);
    }
    free(values);
}

static void test_finite_refuses(void)
{
    const float one = 1;
    int finite = 7;
    test_case("bad arguments");
    CHECK(s2_values_finite(&one, (s2_dtype)4, 1, &finite, NULL) == S2_BAD_DTYPE);
    CHECK(s2_values_finite(&one, S2_FLOAT32, -1, &finite, NULL) == S2_BAD_SIZE);
    CHECK(s2_values_finite(&one, S2_FLOAT32, S2_MAX_NUMEL + 1, &finite, NULL) == S2_BAD_SIZE);
    CHECK(s2_values_finite(NULL, S2_FLOAT32, 1, &finite, NULL) == S2_NULL_POINTER);
    CHECK(s2_values_finite(&one, S2_FLOAT32, 1, NULL, NULL) == S2_NULL_POINTER);
    CHECK(finite == 7);
    CHECK(s2_values_finite(NULL, S2_FLOAT32, 0, &finite, NULL) == S2_OK && finite == 1);
}

int main(void)
{
    test_begin("test_values");
    src_memory = guarded_new(max_numel * 8 + 64);
    dst_memory = guarded_new(max_numel * 8 + 64);
    test_oracle();
    test_every_half();
    test_narrowing_to_half();
    test_narrowing_to_float32();
    test_every_pair();
    test_every_length_and_alignment();
    test_finite();
    test_finite_refuses();
    guarded_delete(&src_memory);
    guarded_delete(&dst_memory);
    return test_end();
}
