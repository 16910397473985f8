/* SPDX-License-Identifier: MIT */
/* That the kernels sort rows and unite lists of them as the C core does. */
#include "device.h"

enum { SOURCE, ORDER, ROWS, STARTS, NROWS, VALID, SCRATCH };
enum { MAX_ENTRIES = 5000 }; /* of which the sort makes three tiles */

static int64_t source[MAX_ENTRIES], order[MAX_ENTRIES], rows[MAX_ENTRIES];
static int64_t starts[MAX_ENTRIES + 1];

static void *scratch_for(int64_t n, int64_t *nbytes)
{
    CHECK(s2_cuda_coo_scratch_nbytes(n, nbytes) == S2_OK);
    return device_array(SCRATCH, NULL, *nbytes, 16);
}

static void check_numbers(const int64_t *got, const int64_t *wanted, int64_t n)
{
    CHECK(n == 0 || memcmp(got, wanted, (size_t)(8 * n)) == 0);
}

/* From one row to as many as there may be, with powers of two on both sides. */
static int64_t draw_nrows(int most_bits)
{
    int64_t nrows = ((int64_t)1 << random_below(most_bits + 1)) + random_below(3) - 1;
    if (random_chance(20)) nrows = 1000000000;
    return nrows < 1 ? 1 : nrows > (int64_t)1 << most_bits ? (int64_t)1 << most_bits : nrows;
}

static int64_t draw_length(void)
{
    return random_chance(20) ? random_below(3) : random_below(1 + random_below(MAX_ENTRIES));
}

/* ------------------------------------------- Sort --------------------------------------------- */

/* Random ones, of which few are distinct now and then; in order; in the opposite order; the last
 * rows of a table. */
static void draw_indices(int64_t n, int64_t nrows)
{
    const int64_t kind = random_below(5), few = 1 + random_below(nrows < 300 ? nrows : 300);
    for (int64_t i = 0; i < n; i++) {
        source[i] = kind == 0   ? random_below(few) * (nrows / few)
                    : kind == 1 ? i * nrows / n
                    : kind == 2 ? (n - 1 - i) * nrows / n
                    : kind == 3 ? nrows - 1 - random_below(few)
                                : random_below(nrows);
    }
}

static void check_sort(int64_t n, int64_t nrows, s2_status status)
{
    int64_t wanted, nbytes;
    CHECK(s2_coo_sort(source, n, nrows, order, rows, starts, &wanted) == status);
    const int64_t *indices = device_array(SOURCE, source, 8 * n, 8);
    int64_t *got_order = device_array(ORDER, NULL, 8 * n, 8);
    int64_t *got_rows = device_array(ROWS, NULL, 8 * n, 8);
    int64_t *got_starts = device_array(STARTS, NULL, 8 * (n + 1), 8);
    int64_t *nunique = device_array(NROWS, NULL, 8, 8);
    int *valid = device_array(VALID, NULL, 4, 4);
    void *scratch = scratch_for(n, &nbytes);
    ON_DEVICE(NULL, s2_cuda_coo_sort(indices, n, nrows, got_order, got_rows, got_starts, nunique,
                                     valid, scratch, nbytes, device_stream));
    CHECK(*valid == (status == S2_OK));
    if (status != S2_OK) return;
    CHECK(*nunique == wanted);
    check_numbers(got_order, order, n);
    check_numbers(got_rows, rows, wanted);
    check_numbers(got_starts, starts, wanted + 1);
}

static void test_sort(int i)
{
    int64_t n = draw_length(), nrows = draw_nrows(40);
    test_case("sort %d: %" PRId64 " of %" PRId64 " rows", i, n, nrows);
    draw_indices(n, nrows);
    check_sort(n, nrows, S2_OK);
    if (n == 0 || random_chance(70)) return;
    source[random_below(n)] = random_chance(50) ? nrows : -1 - random_below(9);
    check_sort(n, nrows, S2_BAD_POSITION);
}

/* ------------------------------------------- Union -------------------------------------------- */

/* Lists of random lengths, empty ones among them; returns how long they are together. */
static int64_t draw_lists(int64_t nranks, int64_t nrows, int64_t *lengths)
{
    int64_t n = 0;
    for (int64_t rank = 0; rank < nranks; rank++) {
        const int64_t most = draw_length() / (1 + random_below(nranks)), begin = n;
        const int64_t step = 1 + nrows / (most + 1) * 2;
        for (int64_t row = random_below(step); n < MAX_ENTRIES && n - begin < most && row < nrows;
             row += 1 + random_below(step))
            source[n++] = row;
        lengths[rank] = n - begin;
    }
    return n;
}

static void check_unite(int64_t n, const int64_t *lengths, int64_t nranks, int64_t nrows,
                        s2_status status)
{
    int64_t wanted, nbytes;
    CHECK(s2_coo_unite(source, lengths, nranks, nrows, rows, order, &wanted) == status);
    const int64_t *lists = device_array(SOURCE, source, 8 * n, 8);
    int64_t *got_rows = device_array(ROWS, NULL, 8 * n, 8);
    int64_t *entries = device_array(ORDER, NULL, 8 * n, 8);
    int64_t *nunion = device_array(NROWS, NULL, 8, 8);
    int *valid = device_array(VALID, NULL, 4, 4);
    void *scratch = scratch_for(n, &nbytes);
    ON_DEVICE(NULL, s2_cuda_coo_unite(lists, lengths, nranks, nrows, got_rows, entries, nunion,
                                      valid, scratch, nbytes, device_stream));
    CHECK(*valid == (status == S2_OK));
    if (status != S2_OK) return;
    CHECK(*nunion == wanted);
    check_numbers(entries, order, n);
    check_numbers(got_rows, rows, wanted);
}

static void test_unite(int i)
{
    int64_t nranks = 1 + random_below(random_chance(30) ? S2_MAX_RANKS : 5), nrows = draw_nrows(40);
    int64_t lengths[S2_MAX_RANKS], n = draw_lists(nranks, nrows, lengths), at = 0;
    test_case("union %d: %" PRId64 " of %" PRId64 " rows, %" PRId64 " ranks", i, n, nrows, nranks);
    check_unite(n, lengths, nranks, nrows, S2_OK);
    if (random_chance(70)) return;
    for (int64_t rank = 0; rank < nranks; at += lengths[rank++]) {
        if (lengths[rank] < 2) continue; /* the first that can have a repeat, in its last place */
        source[at + lengths[rank] - 1] = source[at + lengths[rank] - 2];
        check_unite(n, lengths, nranks, nrows, S2_BAD_POSITION);
        return;
    }
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
    uint64_t memory[600] = {0};
    void *s = (void *)((uintptr_t)(memory + 1) & ~(uintptr_t)15), *odd = (char *)s + 8;
    int64_t i[2] = {1, 2}, o[2], r[2], t[3], lengths[2] = {1, 1}, negative[2] = {3, -1}, n, nbytes;
    int v;
    CHECK(s2_cuda_coo_scratch_nbytes(2, &nbytes) == S2_OK && nbytes <= 8 * (COUNT(memory) - 2));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_scratch_nbytes(-1, &n));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_scratch_nbytes(INT64_MAX / 8, &n));
    REFUSES(S2_NULL_POINTER, s2_cuda_coo_scratch_nbytes(2, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_sort(i, -1, 9, o, r, t, &n, &v, s, nbytes, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_sort(i, 2, S2_MAX_ROWS + 1, o, r, t, &n, &v, s, nbytes, NULL));
    REFUSES(
        S2_BAD_SIZE, /* a word has no room for both numbers */
        s2_cuda_coo_sort(i, (INT64_C(1) << 24) + 1, S2_MAX_ROWS, o, r, t, &n, &v, s, nbytes, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_sort(i, 2, 9, o, r, t, &n, &v, s, nbytes - 16, NULL));
    REFUSES(S2_NULL_POINTER, s2_cuda_coo_sort(NULL, 2, 9, o, r, t, &n, &v, s, nbytes, NULL));
    REFUSES(S2_NULL_POINTER, s2_cuda_coo_sort(i, 2, 9, o, r, NULL, &n, &v, s, nbytes, NULL));
    REFUSES(S2_NULL_POINTER, s2_cuda_coo_sort(i, 2, 9, o, r, t, &n, NULL, s, nbytes, NULL));
    REFUSES(S2_BAD_ADDRESS, s2_cuda_coo_sort(i, 2, 9, o, r, t, &n, &v, odd, nbytes, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_unite(i, lengths, 0, 9, r, o, &n, &v, s, nbytes, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_unite(i, negative, 2, 9, r, o, &n, &v, s, nbytes, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_unite(i, lengths, 2, -1, r, o, &n, &v, s, nbytes, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_coo_unite(i, lengths, 2, 9, r, o, &n, &v, s, 0, NULL));
    REFUSES(S2_NULL_POINTER, s2_cuda_coo_unite(i, NULL, 2, 9, r, o, &n, &v, s, nbytes, NULL));
    REFUSES(S2_NULL_POINTER, s2_cuda_coo_unite(i, lengths, 2, 9, r, NULL, &n, &v, s, nbytes, NULL));
    REFUSES(S2_NULL_POINTER, s2_cuda_coo_unite(i, lengths, 2, 9, r, o, &n, NULL, s, nbytes, NULL));
}

int main(void)
{
    test_begin("test_cuda_coo_sort");
    device_new();
    for (int i = 0; i < 30; i++)
        test_sort(i);
    for (int i = 0; i < 30; i++)
        test_unite(i);
    test_bad_arguments();
    device_delete();
    return test_end();
}
