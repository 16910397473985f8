/* SPDX-License-Identifier: MIT */
/* That the kernels add up repeated rows and make bitmaps of a union as the C core does. */
#include "device.h"
#include "oracle.h"

enum { VALUES, ORDER, STARTS, COUNT_OF, SUMS, ENTRIES, BITMAPS };
enum { MAX_ENTRIES = 700 };

static int64_t order[MAX_ENTRIES], rows[MAX_ENTRIES], starts[MAX_ENTRIES + 1];

/* A number in memory of the device, or NULL where it need not be known. */
static const int64_t *count_of(int64_t n, int64_t capacity)
{
    const int64_t *count = device_array(COUNT_OF, &n, 8, 8);
    return capacity == n && random_chance(50) ? NULL : count;
}

/* ------------------------------------------- Sums --------------------------------------------- */

/* Rows that never repeat, now and then, or nearly always. */
static void test_sum(int i)
{
    static const int64_t widths[] = {0, 1, 2, 7, 31, 32, 33, 64, 100, 300};
    s2_dtype dtype = all_dtypes[i % 4];
    int64_t width = widths[random_below(COUNT(widths))], indices[MAX_ENTRIES], nunique;
    int64_t n = random_chance(10) ? random_below(3) : random_below(width > 64 ? 100 : MAX_ENTRIES);
    int64_t nrows = 1 + random_below((int64_t)1 << random_below(20));
    int64_t size = n * width * dtype_size(dtype);
    for (int64_t k = 0; k < n; k++)
        indices[k] = random_below(nrows);
    CHECK(s2_coo_sort(indices, n, nrows, order, rows, starts, &nunique) == S2_OK);
    test_case("sum %d: %s, %" PRId64 " rows of %" PRId64 " of which %" PRId64 " differ", i,
              dtype_name(dtype), n, width, nunique);
    void *host = test_malloc(size), *wanted = test_malloc(size);
    case_any(dtype, host, n * width);
    CHECK(s2_coo_sum(host, dtype, n, width, order, starts, nunique, wanted, NULL) == S2_OK);

    int64_t capacity = nunique + random_below(2) * (n - nunique);
    const void *values = device_array(VALUES, host, size, dtype_size(dtype));
    const int64_t *device_order = device_array(ORDER, order, 8 * n, 8);
    const int64_t *device_starts = device_array(STARTS, starts, 8 * (nunique + 1), 8);
    void *sums = device_array(SUMS, NULL, capacity * width * dtype_size(dtype), dtype_size(dtype));
    const int64_t *count = count_of(nunique, capacity);
    ON_DEVICE(NULL, s2_cuda_coo_sum(values, dtype, n, width, device_order, device_starts, capacity,
                                    count, sums, device_stream));
    check_elements(dtype, sums, wanted, nunique * width, nunique != n);
    free(host);
    free(wanted);
}

/* Lists that are none do no harm. */
static void test_nonsense(void)
{
    int64_t n = 1 + random_below(200), width = 1 + random_below(9);
    for (int64_t k = 0; k < n; k++) {
        order[k] = random_chance(50) ? (int64_t)random_bits() : random_below(n + 9) - 4;
        starts[k] = random_chance(50) ? (int64_t)random_bits() : random_below(n + 9) - 4;
    }
    starts[n] = n + 1;
    test_case("nonsense: %" PRId64 " rows of %" PRId64, n, width);
    const void *values = device_array(VALUES, NULL, 4 * n * width, 4);
    const int64_t *device_order = device_array(ORDER, order, 8 * n, 8);
    const int64_t *device_starts = device_array(STARTS, starts, 8 * (n + 1), 8);
    void *sums = device_array(SUMS, NULL, 4 * n * width, 4);
    ON_DEVICE(NULL, s2_cuda_coo_sum(values, S2_FLOAT32, n, width, device_order, device_starts, n,
                                    NULL, sums, device_stream));
}

/* ------------------------------------------ Bitmaps ------------------------------------------- */

static void test_bitmaps(int i)
{
    int64_t nranks = 1 + random_below(random_chance(20) ? S2_MAX_RANKS : 5);
    int64_t nunion = random_below(200), n = 0, nbytes = (nunion + 63) / 64 * 8;
    int64_t entries[MAX_ENTRIES];
    for (int64_t entry = 0; entry < nunion * nranks && n < MAX_ENTRIES; entry++) {
        if (random_chance(40)) entries[n++] = entry / nranks * S2_MAX_RANKS + entry % nranks;
    }
    test_case("bitmaps %d: %" PRId64 " entries of %" PRId64 " ranks", i, n, nranks);
    uint8_t *wanted = test_malloc(nranks * nbytes);
    CHECK(s2_coo_bitmaps(entries, n, nranks, nunion, wanted, nbytes) == S2_OK);

    int64_t capacity = n + random_below(2) * random_below(9);
    int64_t *list = device_array(ENTRIES, NULL, 8 * capacity, 8);
    uint8_t *bitmaps = device_array(BITMAPS, NULL, nranks * nbytes, 8);
    const int64_t *count = count_of(n, capacity);
    if (n > 0) memcpy(list, entries, (size_t)(8 * n));
    ON_DEVICE(NULL, s2_cuda_coo_bitmaps(list, capacity, count, nranks, nunion, bitmaps, nbytes,
                                        device_stream));
    CHECK(memcmp(bitmaps, wanted, (size_t)(nranks * nbytes)) == 0);

    for (int64_t k = 0; k < capacity; k++) /* and entries that name nothing */
        list[k] = random_chance(50) ? (int64_t)random_bits() : random_below(60000) - 9;
    ON_DEVICE(NULL, s2_cuda_coo_bitmaps(list, capacity, count, nranks, nunion, bitmaps, nbytes,
                                        device_stream));
    free(wanted);
}

/* ----------------------------------------- Bad arguments -------------------------------------- */

#define REFUSES(status, call)                                                                      \
    do {                                                                                           \
        test_case("%s", #call);                                                                    \
        CHECK((call) == (status));                                                                 \
    } while (0)

/* Nothing is launched: the stream is none. */
static void test_bad_arguments(void)
{
    float v[8] = {0}, w[8] = {0};
    int64_t o[2] = {0, 1}, s[3] = {0, 1, 2};
    uint64_t bits[2] = {0};
    uint8_t *b = (uint8_t *)bits;
    REFUSES(S2_BAD_DTYPE, s2_cuda_coo_sum(v, (s2_dtype)7, 2, 4, o, s, 2, NULL, w, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_sum(v, S2_FLOAT32, 2, 4, o, s, 3, NULL, w, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_sum(v, S2_FLOAT32, -1, 4, o, s, 0, NULL, w, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_sum(v, S2_FLOAT32, 2, INT64_MAX, o, s, 2, NULL, w, NULL));
    REFUSES(S2_NULL_POINTER, s2_cuda_coo_sum(NULL, S2_FLOAT32, 2, 4, o, s, 2, NULL, w, NULL));
    REFUSES(S2_NULL_POINTER, s2_cuda_coo_sum(v, S2_FLOAT32, 2, 4, o, NULL, 2, NULL, w, NULL));
    REFUSES(S2_BAD_ADDRESS,
            s2_cuda_coo_sum((char *)v + 1, S2_FLOAT32, 1, 4, o, s, 1, NULL, w, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_bitmaps(o, 2, NULL, 257, 64, b, 8, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_bitmaps(o, 2, NULL, 1, 65, b, 8, NULL));
    REFUSES(S2_NULL_POINTER, s2_cuda_coo_bitmaps(NULL, 2, NULL, 1, 64, b, 8, NULL));
    REFUSES(S2_BAD_ADDRESS, s2_cuda_coo_bitmaps(o, 2, NULL, 1, 64, b + 4, 8, NULL));
}

int main(void)
{
    test_begin("test_cuda_coo");
    device_new();
    for (int i = 0; i < 80; i++)
        test_sum(i);
    for (int i = 0; i < 20; i++)
        test_nonsense();
    for (int i = 0; i < 40; i++)
        test_bitmaps(i);
    test_bad_arguments();
    device_delete();
    return test_end();
}
