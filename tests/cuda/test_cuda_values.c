/* SPDX-License-Identifier: MIT */
/* That the kernels convert, divide and judge values as the C core does, and what is refused. */
#include "device.h"
#include "oracle.h"

enum { SOURCE, TARGET, FINITE };

static const double divisors[] = {1, 2, 3, 8, 7, 0.5, 0.75, 1024, 0x1p100, 1e-30};

/* ----------------------------------------- Conversion ----------------------------------------- */

static void check_convert(s2_dtype from, s2_dtype to, double divisor, const void *host,
                          int64_t numel)
{
    int64_t size = numel * dtype_size(to);
    void *wanted = test_malloc(size);
    test_case("%s to %s by %g, %" PRId64 " elements", dtype_name(from), dtype_name(to), divisor,
              numel);
    CHECK(s2_values_convert(host, from, wanted, to, numel, divisor, NULL) == S2_OK);
    const void *source = device_array(SOURCE, host, numel * dtype_size(from), dtype_size(from));
    void *target = device_array(TARGET, NULL, size, dtype_size(to));
    ON_DEVICE(NULL,
              s2_cuda_values_convert(source, from, target, to, numel, divisor, device_stream));
    check_elements(to, target, wanted, numel, from != to || divisor != 1);
    CHECK(memcmp(source, host, (size_t)(numel * dtype_size(from))) == 0);
    if (from == to) { /* in place */
        target = device_array(TARGET, host, size, dtype_size(to));
        ON_DEVICE(NULL,
                  s2_cuda_values_convert(target, from, target, to, numel, divisor, device_stream));
        check_elements(to, target, wanted, numel, divisor != 1);
    }
    free(wanted);
}

static void test_convert(void)
{
    for (int i = 0; i < 160; i++) {
        s2_dtype from = all_dtypes[i % 4], to = all_dtypes[i / 4 % 4];
        double divisor = divisors[random_below(COUNT(divisors))];
        int64_t numel = random_chance(20) ? random_below(3) : random_below(3000);
        if (!oracle_converts(from, to, divisor)) continue;
        void *host = test_malloc(numel * dtype_size(from));
        case_any(from, host, numel);
        check_convert(from, to, divisor, host, numel);
        free(host);
    }
}

/* All halves there are, both ways. */
static void test_all_halves(void)
{
    enum { N = 1 << 16 };
    uint16_t *halves = test_malloc(2 * N);
    float *floats = test_malloc(4 * N);
    for (int64_t i = 0; i < N; i++)
        halves[i] = (uint16_t)i;
    for (s2_dtype half = S2_FLOAT16; half <= S2_BFLOAT16; half++) {
        check_convert(half, S2_FLOAT32, 1, halves, N);
        CHECK(s2_values_convert(halves, half, floats, S2_FLOAT32, N, 1, NULL) == S2_OK);
        for (int64_t i = 0; i < N; i++) { /* their neighbours, and what lies half way */
            uint32_t bits;
            memcpy(&bits, &floats[i], 4);
            bits += (uint32_t)(random_below(3) - 1) + (random_chance(50) ? 0x1000u : 0x8000u);
            memcpy(&floats[i], &bits, 4);
        }
        check_convert(S2_FLOAT32, half, 1, floats, N);
    }
    free(halves);
    free(floats);
}

/* ------------------------------------------ Finite -------------------------------------------- */

static void test_finite(int i)
{
    s2_dtype dtype = all_dtypes[i % 4];
    int64_t numel = random_chance(20) ? random_below(3) : random_below(3000);
    void *host = test_malloc(numel * dtype_size(dtype));
    int wanted;
    case_finite(dtype, host, numel);
    if (random_chance(50) && numel > 0) {
        uint64_t infinity = element_round(dtype, 1.0 / 0.0);
        int64_t at = random_chance(30) ? numel - 1 : random_below(numel);
        element_set(host, dtype, at,
                    infinity | (random_chance(50) ? 0 : element_sign(dtype)) |
                        (random_chance(50) ? 0 : 1));
    }
    test_case("finite %d: %s, %" PRId64 " elements", i, dtype_name(dtype), numel);
    CHECK(s2_values_finite(host, dtype, numel, &wanted, NULL) == S2_OK);
    const void *values = device_array(SOURCE, host, numel * dtype_size(dtype), dtype_size(dtype));
    int *finite = device_array(FINITE, NULL, 4, 4);
    ON_DEVICE(NULL, s2_cuda_values_finite(values, dtype, numel, finite, device_stream));
    CHECK(*finite == wanted);
    free(host);
}

/* ----------------------------------------- Bad arguments -------------------------------------- */

/* Whatever is refused, no kernel has run: it would have been on a stream that is none. */
#define REFUSES(status, call)                                                                      \
    do {                                                                                           \
        test_case("%s", #call);                                                                    \
        CHECK((call) == (status));                                                                 \
    } while (0)

static s2_cuda_stream const none = NULL;

static void test_bad_values(void)
{
    double memory[2] = {1, 2}, other[2];
    void *odd = (char *)memory + 1;
    int finite;
    REFUSES(S2_BAD_DTYPE,
            s2_cuda_values_convert(memory, S2_FLOAT16, other, S2_BFLOAT16, 1, 1, none));
    REFUSES(S2_BAD_DTYPE,
            s2_cuda_values_convert(memory, S2_FLOAT16, other, S2_FLOAT16, 1, 2, none));
    REFUSES(S2_BAD_DTYPE,
            s2_cuda_values_convert(memory, (s2_dtype)9, other, S2_FLOAT32, 1, 1, none));
    REFUSES(S2_BAD_DIVISOR,
            s2_cuda_values_convert(memory, S2_FLOAT32, other, S2_FLOAT32, 1, 0, none));
    REFUSES(S2_BAD_DIVISOR,
            s2_cuda_values_convert(memory, S2_FLOAT32, other, S2_FLOAT32, 1, 1e-60, none));
    REFUSES(S2_BAD_SIZE,
            s2_cuda_values_convert(memory, S2_FLOAT32, other, S2_FLOAT32, -1, 1, none));
    REFUSES(S2_NULL_POINTER,
            s2_cuda_values_convert(NULL, S2_FLOAT32, other, S2_FLOAT32, 1, 1, none));
    REFUSES(S2_BAD_ADDRESS, s2_cuda_values_convert(odd, S2_FLOAT32, other, S2_FLOAT32, 1, 1, none));
    REFUSES(S2_BAD_DTYPE, s2_cuda_values_finite(memory, (s2_dtype)-1, 1, &finite, none));
    REFUSES(S2_NULL_POINTER, s2_cuda_values_finite(memory, S2_FLOAT32, 1, NULL, none));
    REFUSES(S2_BAD_ADDRESS, s2_cuda_values_finite(odd, S2_FLOAT32, 1, &finite, none));
}

static void test_bad_bitmaps(void)
{
    uint64_t memory[4] = {0}, other[4] = {0};
    int64_t numbers[4] = {0};
    uint8_t *bitmap = (uint8_t *)memory;
    s2_segment segments[1] = {{0, 64, 1, 0}};
    const s2_layout host = {segments, 1, 64};
    const s2_layout wrong = {&(s2_segment){0, 65, 1, 0}, 1, 64};
    const s2_cuda_layout layout = {&host, segments}, bad = {&wrong, segments}, lost = {&host, NULL};
    REFUSES(S2_BAD_SIZE, s2_cuda_bitmap_or(bitmap, (uint8_t *)other, 9, none));
    REFUSES(S2_BAD_ADDRESS, s2_cuda_bitmap_or(bitmap + 1, (uint8_t *)other, 8, none));
    REFUSES(S2_NULL_POINTER, s2_cuda_bitmap_or(bitmap, NULL, 8, none));
    REFUSES(S2_BAD_LAYOUT, s2_cuda_bitmap_count(&bad, bitmap, 8, numbers, none));
    REFUSES(S2_NULL_POINTER, s2_cuda_bitmap_count(&lost, bitmap, 8, numbers, none));
    REFUSES(S2_NULL_POINTER, s2_cuda_bitmap_count(NULL, bitmap, 8, numbers, none));
    REFUSES(S2_BAD_SIZE, s2_cuda_bitmap_count(&layout, bitmap, 16, numbers, none));
    REFUSES(S2_BAD_SIZE, s2_cuda_bitmap_positions(bitmap, 8, numbers, 4, numbers, other, 16, none));
    REFUSES(S2_BAD_SIZE, s2_cuda_bitmap_positions(bitmap, 8, numbers, -1, numbers, other, 8, none));
    REFUSES(S2_NULL_POINTER, s2_cuda_bitmap_positions(bitmap, 8, numbers, 4, NULL, other, 8, none));
    REFUSES(S2_NULL_POINTER, s2_cuda_blocks_runs(&layout, numbers, 1, NULL, NULL, none));
    REFUSES(S2_BAD_SIZE, s2_cuda_bitmap_scratch_nbytes(7, numbers));
}

/* The runtime's error is the caller's, once. */
static void test_runtime_error(void)
{
    float host[3] = {1, 2, 3};
    float *values = device_array(SOURCE, host, 12, 4);
    test_case("an error of the runtime");
    device_set_error();
    CHECK(s2_cuda_values_convert(values, S2_FLOAT32, values, S2_FLOAT32, 3, 2, device_stream) ==
          S2_CUDA_ERROR);
    CHECK(s2_cuda_values_convert(values, S2_FLOAT32, values, S2_FLOAT32, 3, 2, device_stream) ==
          S2_OK);
}

int main(void)
{
    test_begin("test_cuda_values");
    device_new();
    test_convert();
    test_all_halves();
    for (int i = 0; i < 80; i++)
        test_finite(i);
    test_bad_values();
    test_bad_bitmaps();
    test_runtime_error();
    device_delete();
    return test_end();
}
