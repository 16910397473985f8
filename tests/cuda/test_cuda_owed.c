/* SPDX-License-Identifier: MIT */
/* That the kernels of error feedback have the bits of the C core, and what they refuse. */
#include <float.h>
#include <math.h>

#include "device.h"
#include "oracle.h"

enum { VALUES, BEFORE, OWED, RESULT, BITMAP };
enum { MAX_NUMEL = 5000 };

static const double scales[] = {1, 1024, 65536, 3, 0.1, 0x1p-20, 0x1p100};
static const int64_t blocks[] = {1,  2,  7,  8,  15,  16,   17,   31,       32,
                                 33, 63, 64, 65, 100, 1000, 4000, INT64_MAX};

/* ------------------------------------------- Cases -------------------------------------------- */

static int64_t draw_numel(void)
{
    return random_chance(20) ? random_below(3) : random_below(MAX_NUMEL + 1);
}

static int64_t nblocks_of(int64_t numel, int64_t block)
{
    return numel == 0 ? 0 : (numel - 1) / block + 1;
}

static void *draw_values(s2_dtype dtype, int64_t numel)
{
    void *values = test_malloc(numel * dtype_size(dtype));
    (random_chance(50) ? case_any : case_finite)(dtype, values, numel);
    return values;
}

/* --------------------------------------------- Add -------------------------------------------- */

static void check_add(s2_dtype dtype, const void *host, int64_t numel, double factor,
                      const float *host_before)
{
    const int64_t size = dtype_size(dtype);
    float *wanted = test_malloc(4 * numel);
    int touched_wanted;
    CHECK(s2_owed_add(host, dtype, numel, factor, host_before, wanted, &touched_wanted, NULL) ==
          S2_OK);
    const void *values = device_array(VALUES, host, numel * size, size);
    const float *before =
        host_before == NULL ? NULL : device_array(BEFORE, host_before, 4 * numel, 4);
    float *owed = device_array(OWED, NULL, 4 * numel, 4);
    int *touched = device_array(RESULT, NULL, 4, 4);
    ON_DEVICE(NULL,
              s2_cuda_owed_add(values, dtype, numel, factor, before, owed, touched, device_stream));
    check_elements(S2_FLOAT32, owed, wanted, numel, 1);
    CHECK(*touched == touched_wanted);
    free(wanted);
}

static void test_add(int i)
{
    const s2_dtype dtype = all_dtypes[i % 4];
    const int64_t numel = draw_numel();
    const double factor = 1 / scales[random_below(COUNT(scales))];
    void *host = draw_values(dtype, numel);
    float *before = draw_values(S2_FLOAT32, numel);
    test_case("add %d: %" PRId64 " of %s, factor %g", i, numel, dtype_name(dtype), factor);
    check_add(dtype, host, numel, factor, before);
    check_add(dtype, host, numel, factor, NULL);
    free(host);
    free(before);
}

/* Zeros of both signs, and one element that is the least above zero; or, as doubles are rounded to
 * FLOAT32 first, below it. */
static void test_touched(int i)
{
    uint64_t host[300];
    const s2_dtype dtype = all_dtypes[i % 4];
    const double least = random_chance(50) ? 0x1p-149 : 0x1p-151;
    const int64_t at = random_below(301);
    for (int64_t k = 0; k < 300; k++)
        element_set(host, dtype, k, random_chance(50) ? element_sign(dtype) : 0);
    if (at < 300)
        element_set(host, dtype, at, dtype == S2_FLOAT64 ? element_round(dtype, least) : 1);
    test_case("touched %d: element %" PRId64 " of %s", i, at, dtype_name(dtype));
    check_add(dtype, host, 300, 1, NULL);
}

/* ------------------------------------------ Energies ------------------------------------------ */

static void check_energies(const float *host, int64_t numel, int64_t block)
{
    const int64_t nblocks = nblocks_of(numel, block);
    float *wanted = test_malloc(4 * nblocks);
    test_case("energies of %" PRId64 " in blocks of %" PRId64, numel, block);
    CHECK(s2_owed_energies(host, numel, block, wanted, nblocks, NULL) == S2_OK);
    const float *owed = device_array(OWED, host, 4 * numel, 4);
    float *energies = device_array(RESULT, NULL, 4 * nblocks, 4);
    ON_DEVICE(NULL, s2_cuda_owed_energies(owed, numel, block, energies, nblocks, device_stream));
    CHECK(memcmp(energies, wanted, (size_t)(4 * nblocks)) == 0);
    free(wanted);
}

static void test_energies(int i)
{
    const int64_t numel = draw_numel(), block = blocks[i % COUNT(blocks)];
    float *host = draw_values(S2_FLOAT32, numel);
    check_energies(host, numel, block);
    for (int64_t k = 0; k < numel; k++)
        host[k] = (float)random_below(1000) * 1e-3f; /* whose sums are rounded */
    check_energies(host, numel, block);
    if (numel > 1) { /* a sum beyond the range of FLOAT32 */
        host[random_below(numel)] = FLT_MAX;
        host[random_below(numel)] = random_chance(50) ? 0 : -INFINITY;
        check_energies(host, numel, block);
    }
    free(host);
}

/* ------------------------------------------- Deliver ------------------------------------------ */

static void check_deliver(const float *host, int64_t numel, int64_t block, const uint8_t *bits,
                          double scale, s2_dtype dtype)
{
    const int64_t nbytes = bits == NULL ? 0 : (nblocks_of(numel, block) + 63) / 64 * 8;
    const int64_t size = dtype_size(dtype);
    float *rest = test_malloc(4 * numel);
    void *wanted = test_malloc(numel * size);
    test_case("deliver %" PRId64 " in blocks of %" PRId64 " as %s, scale %g, %s", numel, block,
              dtype_name(dtype), scale, bits == NULL ? "all" : "some");
    if (numel != 0) memcpy(rest, host, (size_t)(4 * numel));
    CHECK(s2_owed_deliver(rest, numel, block, bits, nbytes, scale, wanted, dtype, NULL) == S2_OK);
    float *owed = device_array(OWED, host, 4 * numel, 4);
    void *values = device_array(VALUES, NULL, numel * size, size);
    const uint8_t *bitmap = bits == NULL ? NULL : device_array(BITMAP, bits, nbytes, 8);
    ON_DEVICE(NULL, s2_cuda_owed_deliver(owed, numel, block, bitmap, nbytes, scale, values, dtype,
                                         device_stream));
    check_elements(dtype, values, wanted, numel, 1);
    check_elements(S2_FLOAT32, owed, rest, numel, 1);
    free(rest);
    free(wanted);
}

static void test_deliver(int i)
{
    static const int percents[] = {0, 1, 50, 97, 100};
    static uint8_t bits[(MAX_NUMEL + 63) / 64 * 8];
    const int64_t numel = draw_numel(), block = blocks[i % COUNT(blocks)];
    const int percent = percents[random_below(COUNT(percents))];
    float *host = draw_values(S2_FLOAT32, numel);
    for (int d = 0; d < 4; d++) {
        const double scale = scales[random_below(COUNT(scales))];
        memset(bits, 0, sizeof(bits));
        for (int64_t b = 0; b < nblocks_of(numel, block); b++) {
            if (random_chance(percent)) oracle_set_bit(bits, b);
        }
        check_deliver(host, numel, block, bits, scale, all_dtypes[d]);
        check_deliver(host, numel, block, NULL, scale, all_dtypes[d]);
    }
    free(host);
}

/* ------------------------------------------ Refusals ------------------------------------------ */

/* Nothing is launched: the stream is none. */
#define REFUSES(status, call)                                                                      \
    do {                                                                                           \
        test_case("%s", #call);                                                                    \
        CHECK((call) == (status));                                                                 \
    } while (0)

static s2_cuda_stream const none = NULL;

static void test_bad_additions(void)
{
    static const double bad[] = {0, -1, NAN, INFINITY, 1e-60, 1e60};
    float values[70], owed[70], *odd = (float *)(void *)((char *)owed + 1);
    int touched;
#define ADD(values, dtype, numel, factor, before, owed, touched)                                   \
    s2_cuda_owed_add(values, dtype, numel, factor, before, owed, touched, none)
    REFUSES(S2_BAD_DTYPE, ADD(values, (s2_dtype)4, 70, 1, NULL, owed, &touched));
    REFUSES(S2_BAD_SIZE, ADD(values, S2_FLOAT32, -1, 1, NULL, owed, &touched));
    REFUSES(S2_BAD_SIZE, ADD(values, S2_FLOAT32, S2_MAX_NUMEL + 1, 1, NULL, owed, &touched));
    for (int64_t i = 0; i < COUNT(bad); i++)
        REFUSES(S2_BAD_FACTOR, ADD(values, S2_FLOAT32, 70, bad[i], NULL, owed, &touched));
    REFUSES(S2_NULL_POINTER, ADD(NULL, S2_FLOAT32, 70, 1, NULL, owed, &touched));
    REFUSES(S2_NULL_POINTER, ADD(values, S2_FLOAT32, 70, 1, NULL, NULL, &touched));
    REFUSES(S2_NULL_POINTER, ADD(values, S2_FLOAT32, 70, 1, NULL, owed, NULL));
    REFUSES(S2_BAD_ADDRESS, ADD(odd, S2_FLOAT32, 1, 1, NULL, owed, &touched));
    REFUSES(S2_BAD_ADDRESS, ADD(values, S2_FLOAT32, 1, 1, odd, owed, &touched));
    REFUSES(S2_BAD_ADDRESS, ADD(values, S2_FLOAT32, 1, 1, NULL, odd, &touched));
#undef ADD

#define ENERGIES(owed, numel, block, energies, nblocks)                                            \
    s2_cuda_owed_energies(owed, numel, block, energies, nblocks, none)
    REFUSES(S2_BAD_SIZE, ENERGIES(owed, -1, 7, values, 0));
    REFUSES(S2_BAD_SIZE, ENERGIES(owed, 70, 0, values, 10));
    REFUSES(S2_BAD_SIZE, ENERGIES(owed, 70, 7, values, 11));
    REFUSES(S2_NULL_POINTER, ENERGIES(NULL, 70, 7, values, 10));
    REFUSES(S2_NULL_POINTER, ENERGIES(owed, 70, 7, NULL, 10));
    REFUSES(S2_BAD_ADDRESS, ENERGIES(odd, 1, 1, values, 1));
#undef ENERGIES
}

static void test_bad_deliveries(void)
{
    static const double bad[] = {0, -1, NAN, INFINITY, 1e-60, 1e60};
    float values[70], owed[70], *odd = (float *)(void *)((char *)owed + 1);
    uint64_t bitmap_memory[2];
    uint8_t *bitmap = (uint8_t *)bitmap_memory;
#define DELIVER(owed, numel, block, bitmap, nbytes, scale, values, dtype)                          \
    s2_cuda_owed_deliver(owed, numel, block, bitmap, nbytes, scale, values, dtype, none)
    REFUSES(S2_BAD_DTYPE, DELIVER(owed, 70, 1, bitmap, 16, 1, values, (s2_dtype)4));
    REFUSES(S2_BAD_SIZE, DELIVER(owed, -1, 1, bitmap, 0, 1, values, S2_FLOAT32));
    REFUSES(S2_BAD_SIZE, DELIVER(owed, 70, 0, bitmap, 16, 1, values, S2_FLOAT32));
    REFUSES(S2_BAD_SIZE, DELIVER(owed, 70, 1, bitmap, 8, 1, values, S2_FLOAT32));
    REFUSES(S2_BAD_SIZE, DELIVER(owed, 70, 1, NULL, 16, 1, values, S2_FLOAT32));
    for (int64_t i = 0; i < COUNT(bad); i++)
        REFUSES(S2_BAD_FACTOR, DELIVER(owed, 70, 1, bitmap, 16, bad[i], values, S2_FLOAT32));
    REFUSES(S2_NULL_POINTER, DELIVER(NULL, 70, 1, bitmap, 16, 1, values, S2_FLOAT32));
    REFUSES(S2_NULL_POINTER, DELIVER(owed, 70, 1, bitmap, 16, 1, NULL, S2_FLOAT32));
    REFUSES(S2_BAD_ADDRESS, DELIVER(odd, 1, 1, NULL, 0, 1, values, S2_FLOAT32));
    REFUSES(S2_BAD_ADDRESS, DELIVER(owed, 1, 1, NULL, 0, 1, odd, S2_FLOAT16));
    REFUSES(S2_BAD_ADDRESS, DELIVER(owed, 1, 1, bitmap + 1, 8, 1, values, S2_FLOAT32));
#undef DELIVER
}

int main(void)
{
    test_begin("test_cuda_owed");
    device_new();
    for (int i = 0; i < 60; i++)
        test_add(i);
    for (int i = 0; i < 40; i++)
        test_touched(i);
    for (int i = 0; i < 3 * COUNT(blocks); i++)
        test_energies(i);
    for (int i = 0; i < 3 * COUNT(blocks); i++)
        test_deliver(i);
    test_bad_additions();
    test_bad_deliveries();
    device_delete();
    return test_end();
}
