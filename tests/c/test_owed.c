/* SPDX-License-Identifier: MIT */
/* That what is owed and what is delivered add up, to the last bit of the contract's arithmetic. */
#include <float.h>
#include <math.h>

#include "cases.h"
#include "oracle.h"
#include "test_util.h"

enum { MOST = 70000, BITMAP = (MOST + 63) / 64 * 8 };

static guarded values_memory, before_memory, owed_memory, energies_memory, bitmap_memory;

static const double scales[] = {1, 1024, 65536, 3, 0.1, 0x1p-20, 0x1p100};
static const int64_t blocks[] = {1, 2, 7, 8, 16, 17, 63, 64, 65, 100, 1000, 5000, INT64_MAX};

/* ------------------------------------------ The oracle ---------------------------------------- */

/* Products of two floats are exact as doubles, and sums of two are rounded twice without harm. */
static float product(float a, float b)
{
    return (float)element_value(S2_FLOAT32, element_round(S2_FLOAT32, (double)a * (double)b));
}

static float sum(float a, float b)
{
    return (float)element_value(S2_FLOAT32, element_round(S2_FLOAT32, (double)a + (double)b));
}

static float as_float(s2_dtype dtype, uint64_t bits)
{
    return (float)element_value(S2_FLOAT32, oracle_convert(dtype, bits, S2_FLOAT32, 1));
}

/* Elements of all sizes, a few of them zero, infinite or NaN unless they must be finite. */
static void fill(s2_dtype dtype, void *values, int64_t numel, int finite)
{
    if (finite)
        case_finite(dtype, values, numel);
    else
        case_any(dtype, values, numel);
}

/* --------------------------------------------- Add -------------------------------------------- */

static void check_add(s2_dtype dtype, const void *values, int64_t numel, double factor,
                      const float *before)
{
    float *wanted = test_malloc(numel * 4);
    int touched_wanted = 0;
    for (int64_t i = 0; i < numel; i++) {
        const float value = as_float(dtype, element_get(values, dtype, i));
        wanted[i] = sum(before ? before[i] : 0, product(value, (float)factor));
        touched_wanted |= value != 0; /* true for a NaN */
    }
    test_case("add %" PRId64 " of %s, factor %g, %s", numel, dtype_name(dtype), factor,
              before ? "owed before" : "nothing owed before");
    for (int v = 0; variant_use(v); v++) {
        for (int parallel = 0; parallel < 2; parallel++) {
            const int64_t size = dtype_size(dtype);
            int touched = -7;
            const void *src =
                guarded_copy(&values_memory, values, numel * size, placement_random(size));
            const float *old = before == NULL ? NULL
                                              : guarded_copy(&before_memory, before, numel * 4,
                                                             placement_random(4));
            float *owed = guarded_place(&owed_memory, numel * 4, placement_random(4));
            CHECK(s2_owed_add(src, dtype, numel, factor, old, owed, &touched,
                              parallel ? &executor_backwards : NULL) == S2_OK);
            CHECK(touched == touched_wanted);
            check_elements(S2_FLOAT32, owed, wanted, numel, 1);
            CHECK(memcmp(src, values, (size_t)(numel * size)) == 0);
            guarded_check(&values_memory);
            guarded_check(&owed_memory);
        }
    }
    free(wanted);
}

static void test_add(void)
{
    static const int64_t lengths[] = {0, 1, 5, 16, 63, 100, 1023, 1024, 1025, 3000, MOST};
    void *values = test_malloc(MOST * 8);
    float *before = test_malloc(MOST * 4);
    for (int i = 0; i < 4; i++) {
        for (int64_t l = 0; l < COUNT(lengths); l++) {
            for (int64_t s = 0; s < COUNT(scales); s++) {
                fill(all_dtypes[i], values, lengths[l], s % 2 == 0);
                fill(S2_FLOAT32, before, lengths[l], s % 2 == 0);
                check_add(all_dtypes[i], values, lengths[l], 1 / scales[s], before);
                check_add(all_dtypes[i], values, lengths[l], 1 / scales[s], NULL);
            }
        }
    }
    free(values);
    free(before);
}

/* Zeros of both signs, and one element, at every place, that is the least above zero. */
static void test_touched(void)
{
    uint64_t values[300];
    for (int i = 0; i < 4; i++) {
        const s2_dtype dtype = all_dtypes[i];
        const uint64_t least = dtype == S2_FLOAT64 ? element_round(S2_FLOAT64, 0x1p-149) : 1;
        for (int64_t at = -1; at < 300; at += 1 + random_below(20)) {
            for (int64_t k = 0; k < 300; k++)
                element_set(values, dtype, k, random_chance(50) ? element_sign(dtype) : 0);
            if (at >= 0) element_set(values, dtype, at, least);
            check_add(dtype, values, 300, 1, NULL);
        }
    }
}

/* ------------------------------------------ Energies ------------------------------------------ */

static float energy_of(const float *values, int64_t n)
{
    double sums[16] = {0};
    int infinite = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(values[i])) return NAN;
        infinite |= isinf(values[i]);
        sums[i % 16] += (double)values[i] * (double)values[i];
    }
    for (int count = 8; count > 0; count /= 2) {
        for (int i = 0; i < count; i++)
            sums[i] += sums[i + count];
    }
    if (infinite) return INFINITY;
    return sums[0] > FLT_MAX ? FLT_MAX : (float)sums[0];
}

static void check_energies(const float *values, int64_t numel, int64_t block)
{
    const int64_t nblocks = numel == 0 ? 0 : (numel - 1) / block + 1;
    uint32_t *wanted = test_malloc(nblocks * 4);
    for (int64_t b = 0; b < nblocks; b++) {
        const int64_t left = numel - b * block;
        const float energy = energy_of(values + b * block, left < block ? left : block);
        memcpy(&wanted[b], &energy, 4);
        if (isnan(energy)) wanted[b] = 0x7fc00000;
    }
    test_case("energies of %" PRId64 " in blocks of %" PRId64, numel, block);
    for (int v = 0; variant_use(v); v++) {
        for (int parallel = 0; parallel < 2; parallel++) {
            const float *owed = guarded_copy(&owed_memory, values, numel * 4, placement_random(4));
            float *energies = guarded_place(&energies_memory, nblocks * 4, placement_random(4));
            CHECK(s2_owed_energies(owed, numel, block, energies, nblocks,
                                   parallel ? &executor_backwards : NULL) == S2_OK);
            CHECK(memcmp(energies, wanted, (size_t)(nblocks * 4)) == 0);
            guarded_check(&owed_memory);
            guarded_check(&energies_memory);
        }
    }
    free(wanted);
}

static void test_energies(void)
{
    static const int64_t lengths[] = {0, 1, 15, 16, 17, 31, 33, 64, 100, 127, 1000, 9999, MOST};
    float *values = test_malloc(MOST * 4);
    for (int64_t l = 0; l < COUNT(lengths); l++) {
        for (int64_t b = 0; b < COUNT(blocks); b++) {
            fill(S2_FLOAT32, values, lengths[l], 0);
            check_energies(values, lengths[l], blocks[b]);
            fill(S2_FLOAT32, values, lengths[l], 1);
            check_energies(values, lengths[l], blocks[b]);
            for (int64_t i = 0; i < lengths[l]; i++)
                values[i] = (float)random_below(1000) * 1e-3f;
            check_energies(values, lengths[l], blocks[b]);
        }
    }
    free(values);
}

/* Squares whose sum is just at the end of the range, and just beyond. */
static void test_largest_energies(void)
{
    float values[20] = {0}, energies[1];
    test_case("the largest energies");
    for (int v = 0; variant_use(v); v++) {
        values[3] = 0x1p63f;
        CHECK(s2_owed_energies(values, 20, 20, energies, 1, NULL) == S2_OK);
        CHECK(energies[0] == 0x1p126f);
        values[19] = FLT_MAX;
        CHECK(s2_owed_energies(values, 20, 20, energies, 1, NULL) == S2_OK);
        CHECK(energies[0] == FLT_MAX);
        values[19] = -INFINITY;
        CHECK(s2_owed_energies(values, 20, 20, energies, 1, NULL) == S2_OK);
        CHECK(isinf(energies[0]));
        values[19] = 0;
    }
}

/* ------------------------------------------- Deliver ------------------------------------------ */

/* One element that is selected. */
static uint64_t deliver_one(float *owed, double scale, s2_dtype dtype)
{
    const float wide = product(*owed, (float)scale);
    uint64_t wide_bits = 0;
    memcpy(&wide_bits, &wide, 4);
    const uint64_t bits = oracle_convert(S2_FLOAT32, wide_bits, dtype, 1);
    const float taken = product(as_float(dtype, bits), (float)(1 / scale));
    if (isfinite(taken)) *owed = sum(*owed, -taken);
    return bits;
}

static void check_deliver(const float *owed, int64_t numel, int64_t block, const uint8_t *bitmap,
                          double scale, s2_dtype dtype)
{
    const int64_t nblocks = numel == 0 ? 0 : (numel - 1) / block + 1;
    const int64_t nbytes = bitmap == NULL ? 0 : (nblocks + 63) / 64 * 8;
    const int64_t size = dtype_size(dtype);
    float *rest = test_malloc(numel * 4);
    void *wanted = test_malloc(numel * size);
    if (numel > 0) memcpy(rest, owed, (size_t)(numel * 4));
    for (int64_t i = 0; i < numel; i++) {
        const int selected = bitmap == NULL || oracle_bit(bitmap, i / block);
        element_set(wanted, dtype, i, selected ? deliver_one(&rest[i], scale, dtype) : 0);
    }
    test_case("deliver %" PRId64 " in blocks of %" PRId64 " as %s, scale %g", numel, block,
              dtype_name(dtype), scale);
    for (int v = 0; variant_use(v); v++) {
        for (int parallel = 0; parallel < 2; parallel++) {
            float *o = guarded_copy(&owed_memory, owed, numel * 4, placement_random(4));
            void *values = guarded_place(&values_memory, numel * size, placement_random(size));
            const uint8_t *bits =
                bitmap == NULL ? NULL
                               : guarded_copy(&bitmap_memory, bitmap, nbytes, placement_random(1));
            CHECK(s2_owed_deliver(o, numel, block, bits, nbytes, scale, values, dtype,
                                  parallel ? &executor_backwards : NULL) == S2_OK);
            check_elements(dtype, values, wanted, numel, 1);
            check_elements(S2_FLOAT32, o, rest, numel, 1);
            guarded_check(&owed_memory);
            guarded_check(&values_memory);
            guarded_check(&bitmap_memory);
        }
    }
    free(rest);
    free(wanted);
}

/* Bits of so many blocks, each set so often; those behind them are zero. */
static void draw_bits(uint8_t *bitmap, int64_t nblocks, int percent)
{
    memset(bitmap, 0, BITMAP);
    for (int64_t b = 0; b < nblocks; b++) {
        if (random_chance(percent)) oracle_set_bit(bitmap, b);
    }
}

static void test_deliver(void)
{
    static const int64_t lengths[] = {0, 1, 31, 64, 65, 100, 1000, 1024, 1025, 5000, MOST};
    static const int percents[] = {0, 1, 50, 97, 100};
    static uint8_t bitmap[BITMAP];
    float *owed = test_malloc(MOST * 4);
    for (int64_t l = 0; l < COUNT(lengths); l++) {
        const int64_t n = lengths[l];
        for (int64_t b = 0; b < COUNT(blocks); b++) {
            for (int i = 0; i < 4; i++) {
                const double scale = scales[random_below(COUNT(scales))];
                const int64_t nblocks = n == 0 ? 0 : (n - 1) / blocks[b] + 1;
                fill(S2_FLOAT32, owed, n, random_chance(50));
                draw_bits(bitmap, nblocks, percents[random_below(COUNT(percents))]);
                check_deliver(owed, n, blocks[b], bitmap, scale, all_dtypes[i]);
                if (b == 0) check_deliver(owed, n, blocks[b], NULL, scale, all_dtypes[i]);
            }
        }
    }
    free(owed);
}

/* What the header says of zeros, of infinities, and of what a half type cannot hold. */
static void test_promises(void)
{
    float owed[8], values[8];
    uint16_t halves[8];
    for (int v = 0; variant_use(v); v++) {
        test_case("all of it is delivered");
        const float these[8] = {1e-40f, -3, 1e38f, FLT_MAX, -FLT_MIN, -0.0f, 0.1f, 7};
        memcpy(owed, these, sizeof(owed));
        CHECK(s2_owed_deliver(owed, 8, 4, NULL, 0, 1, values, S2_FLOAT32, NULL) == S2_OK);
        CHECK(memcmp(values, these, sizeof(values)) == 0);
        const uint32_t zeros[8] = {0};
        CHECK(memcmp(owed, zeros, sizeof(owed)) == 0);

        test_case("too large for a half type");
        const float large[8] = {1e6f, -1e6f, 65504, INFINITY, 65520, 1, NAN, -65519};
        memcpy(owed, large, sizeof(owed));
        CHECK(s2_owed_deliver(owed, 8, 4, NULL, 0, 1, halves, S2_FLOAT16, NULL) == S2_OK);
        CHECK(halves[0] == 0x7c00 && halves[1] == 0xfc00 && halves[4] == 0x7c00);
        CHECK(owed[0] == 1e6f && owed[1] == -1e6f && owed[2] == 0 && owed[3] == INFINITY);
        CHECK(owed[4] == 65520 && owed[5] == 0 && isnan(owed[6]) && owed[7] == -15);
    }
}

/* ------------------------------------------ Refusals ------------------------------------------ */

static void test_refusals(void)
{
    static const double bad[] = {0, -1, NAN, INFINITY, 1e-60, 1e60, -0.0};
    float owed[70], energies[10], values[70];
    uint8_t bitmap[16] = {0xff};
    int touched = 7;
    memset(owed, 0x5c, sizeof(owed));
    memset(values, 0x5c, sizeof(values));
    memset(energies, 0x5c, sizeof(energies));
    test_case("bad arguments");

#define ADD(dtype, numel, factor) s2_owed_add(values, dtype, numel, factor, NULL, owed, &touched, 0)
    CHECK(ADD((s2_dtype)4, 70, 1) == S2_BAD_DTYPE);
    CHECK(ADD(S2_FLOAT32, -1, 1) == S2_BAD_SIZE);
    CHECK(ADD(S2_FLOAT32, S2_MAX_NUMEL + 1, 1) == S2_BAD_SIZE);
    for (int64_t i = 0; i < COUNT(bad); i++)
        CHECK(ADD(S2_FLOAT32, 70, bad[i]) == S2_BAD_FACTOR);
    CHECK(s2_owed_add(NULL, S2_FLOAT32, 70, 1, NULL, owed, &touched, NULL) == S2_NULL_POINTER);
    CHECK(s2_owed_add(values, S2_FLOAT32, 70, 1, NULL, NULL, &touched, NULL) == S2_NULL_POINTER);
    CHECK(s2_owed_add(values, S2_FLOAT32, 70, 1, NULL, owed, NULL, NULL) == S2_NULL_POINTER);
#undef ADD

#define ENERGIES(numel, block, nblocks) s2_owed_energies(owed, numel, block, energies, nblocks, 0)
    CHECK(ENERGIES(-1, 7, 0) == S2_BAD_SIZE);
    CHECK(ENERGIES(S2_MAX_NUMEL + 1, 7, 10) == S2_BAD_SIZE);
    CHECK(ENERGIES(70, 0, 10) == S2_BAD_SIZE);
    CHECK(ENERGIES(70, -7, 10) == S2_BAD_SIZE);
    CHECK(ENERGIES(70, 7, 9) == S2_BAD_SIZE && ENERGIES(70, 7, 11) == S2_BAD_SIZE);
    CHECK(s2_owed_energies(NULL, 70, 7, energies, 10, NULL) == S2_NULL_POINTER);
    CHECK(s2_owed_energies(owed, 70, 7, NULL, 10, NULL) == S2_NULL_POINTER);
#undef ENERGIES

#define DELIVER(numel, block, bitmap, nbytes, scale, dtype)                                        \
    s2_owed_deliver(owed, numel, block, bitmap, nbytes, scale, values, dtype, NULL)
    CHECK(DELIVER(70, 7, bitmap, 8, 1, (s2_dtype)-1) == S2_BAD_DTYPE);
    CHECK(DELIVER(-1, 7, bitmap, 8, 1, S2_FLOAT32) == S2_BAD_SIZE);
    CHECK(DELIVER(S2_MAX_NUMEL + 1, 7, bitmap, 8, 1, S2_FLOAT32) == S2_BAD_SIZE);
    CHECK(DELIVER(70, 0, bitmap, 8, 1, S2_FLOAT32) == S2_BAD_SIZE);
    CHECK(DELIVER(70, 7, bitmap, 16, 1, S2_FLOAT32) == S2_BAD_SIZE);
    CHECK(DELIVER(70, 1, bitmap, 8, 1, S2_FLOAT32) == S2_BAD_SIZE);
    CHECK(DELIVER(70, 7, NULL, 8, 1, S2_FLOAT32) == S2_BAD_SIZE);
    CHECK(DELIVER(70, 7, bitmap, 0, 1, S2_FLOAT32) == S2_BAD_SIZE);
    for (int64_t i = 0; i < COUNT(bad); i++)
        CHECK(DELIVER(70, 7, bitmap, 8, bad[i], S2_FLOAT32) == S2_BAD_FACTOR);
    CHECK(DELIVER(70, 7, bitmap, 8, 1e-39, S2_FLOAT32) == S2_BAD_FACTOR); /* 1 / that is infinite */
    CHECK(s2_owed_deliver(NULL, 70, 7, bitmap, 8, 1, values, S2_FLOAT32, NULL) == S2_NULL_POINTER);
    CHECK(s2_owed_deliver(owed, 70, 7, bitmap, 8, 1, NULL, S2_FLOAT32, NULL) == S2_NULL_POINTER);
#undef DELIVER

    CHECK(touched == 7);
    for (int64_t i = 0; i < 70; i++)
        CHECK(memcmp(&owed[i], &(uint32_t){0x5c5c5c5c}, 4) == 0 &&
              memcmp(&values[i], &owed[i], 4) == 0);
    for (int64_t i = 0; i < COUNT(energies); i++)
        CHECK(memcmp(&energies[i], &(uint32_t){0x5c5c5c5c}, 4) == 0);
    CHECK(s2_owed_add(NULL, S2_FLOAT32, 0, 1, NULL, NULL, &touched, NULL) == S2_OK && !touched);
    CHECK(s2_owed_energies(NULL, 0, 1, NULL, 0, NULL) == S2_OK);
    CHECK(s2_owed_deliver(NULL, 0, 1, NULL, 0, 1, NULL, S2_FLOAT16, NULL) == S2_OK);
}

int main(void)
{
    test_begin("test_owed");
    values_memory = guarded_new(MOST * 8 + 64);
    before_memory = guarded_new(MOST * 4 + 64);
    owed_memory = guarded_new(MOST * 4 + 64);
    energies_memory = guarded_new(MOST * 4 + 64);
    bitmap_memory = guarded_new(BITMAP + 64);
    test_add();
    test_touched();
    test_energies();
    test_largest_energies();
    test_deliver();
    test_promises();
    test_refusals();
    guarded_delete(&values_memory);
    guarded_delete(&before_memory);
    guarded_delete(&owed_memory);
    guarded_delete(&energies_memory);
    guarded_delete(&bitmap_memory);
    return test_end();
}
