/* SPDX-License-Identifier: MIT */
/* That rows by number are sorted, summed and united as the header says, and nothing else is. */
#include "cases.h"
#include "oracle.h"
#include "test_util.h"

enum { MAX_N = 3000, MAX_NUMEL = 1 << 15, MAX_NBYTES = S2_MAX_RANKS * (MAX_N / 8 + 8) };

static guarded indices_memory, order_memory, rows_memory, starts_memory, values_memory, sums_memory,
    bitmaps_memory;

static int is_untouched(const guarded *memory)
{
    for (int64_t i = 0; i < memory->nbytes; i++) {
        if (memory->data[i] != 0x5c) return 0;
    }
    return 1;
}

static int64_t *place_longs(guarded *memory, int64_t n)
{
    return guarded_place(memory, 8 * n, placement_random(8));
}

static const int64_t *copy_longs(guarded *memory, const int64_t *longs, int64_t n)
{
    return guarded_copy(memory, longs, 8 * n, placement_random(8));
}

/* ------------------------------------------ Sorting ------------------------------------------- */

typedef struct entry {
    int64_t row, place;
} entry;

static int compare(const void *a, const void *b)
{
    const entry *left = a, *right = b;
    if (left->row != right->row) return left->row < right->row ? -1 : 1;
    return left->place < right->place ? -1 : left->place > right->place;
}

/* What s2_coo_sort() should find. */
typedef struct sorted {
    int64_t n, nunique, order[MAX_N], rows[MAX_N], starts[MAX_N + 1];
} sorted;

static void oracle_sort(const int64_t *indices, int64_t n, sorted *s)
{
    static entry entries[MAX_N];
    for (int64_t i = 0; i < n; i++)
        entries[i] = (entry){indices[i], i};
    qsort(entries, (size_t)n, sizeof(entry), compare);
    s->n = n;
    s->nunique = 0;
    s->starts[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        s->order[i] = entries[i].place;
        if (i == 0 || entries[i].row != entries[i - 1].row) s->rows[s->nunique++] = entries[i].row;
        s->starts[s->nunique] = i + 1;
    }
}

static void check_sort(const int64_t *wanted_indices, int64_t n, int64_t nrows)
{
    static sorted wanted;
    int64_t nunique = -1;
    oracle_sort(wanted_indices, n, &wanted);
    const int64_t *indices = copy_longs(&indices_memory, wanted_indices, n);
    int64_t *order = place_longs(&order_memory, n), *rows = place_longs(&rows_memory, n),
            *starts = place_longs(&starts_memory, n + 1);
    CHECK(s2_coo_sort(indices, n, nrows, order, rows, starts, &nunique) == S2_OK);
    CHECK(nunique == wanted.nunique);
    CHECK(memcmp(order, wanted.order, (size_t)(8 * n)) == 0);
    CHECK(memcmp(rows, wanted.rows, (size_t)(8 * nunique)) == 0);
    CHECK(memcmp(starts, wanted.starts, (size_t)(8 * (nunique + 1))) == 0);
    CHECK(memcmp(indices, wanted_indices, (size_t)(8 * n)) == 0);
    guarded_check(&indices_memory);
    guarded_check(&order_memory);
    guarded_check(&rows_memory);
    guarded_check(&starts_memory);
}

static int64_t draw_nrows(void)
{
    static const int64_t numbers[] = {1, 2, 3, 255, 256, 257, 1 << 20, 1000000000, S2_MAX_ROWS};
    if (random_chance(30)) return 1 + random_below((int64_t)1 << (1 + random_below(40)));
    return numbers[random_below(COUNT(numbers))];
}

/* Numbers of all kinds, the largest often among them. */
static void draw_indices(int64_t *indices, int64_t n, int64_t nrows)
{
    int64_t kind = random_below(7), few = 1 + random_below(8), at = 0;
    int64_t step = (int64_t)1 << random_below(41);
    for (int64_t i = 0; i < n; i++) {
        switch (kind) {
        case 0: /* few distinct ones, far apart */
            indices[i] = random_below(few) * (nrows / few) % nrows;
            break;
        case 1: /* ascending, with repeats */
            at += random_below(2) * random_below(nrows / n + 1);
            indices[i] = at < nrows ? at : nrows - 1;
            break;
        case 2: /* ascending without repeats, as far as there are rows */
            indices[i] = i < nrows ? i : nrows - 1;
            break;
        case 3: /* descending */
            indices[i] = (n - 1 - i) % nrows;
            break;
        case 4: /* low digits that are all the same */
            indices[i] = random_below((nrows - 1) / step + 1) * step;
            break;
        default:
            indices[i] = random_below(nrows);
        }
    }
    if (n > 0 && random_chance(50)) indices[random_below(n)] = nrows - 1;
}

static int64_t draw_n(void)
{
    return random_chance(30) ? random_below(5) : random_below((int64_t)1 << random_below(12));
}

static void test_sort(void)
{
    static int64_t indices[MAX_N];
    for (int i = 0; i < 3000; i++) {
        int64_t n = draw_n(), nrows = draw_nrows();
        draw_indices(indices, n, nrows);
        test_case("sort %d: %" PRId64 " of %" PRId64 " rows", i, n, nrows);
        check_sort(indices, n, nrows);
    }
    test_case("nothing of nothing");
    check_sort(indices, 0, 0);
}

/* Each digit alone decides, and each pair of bits. */
static void test_every_bit_is_sorted_by(void)
{
    for (int low = 0; low < 40; low++) {
        for (int high = low; high < 40; high++) {
            int64_t a = (int64_t)1 << low, b = (int64_t)1 << high;
            const int64_t indices[] = {b, a, 0, a | b, b, a};
            test_case("bits %d and %d", low, high);
            check_sort(indices, COUNT(indices), S2_MAX_ROWS);
        }
    }
}

static void test_bad_indices(void)
{
    static int64_t indices[MAX_N];
    for (int i = 0; i < 400; i++) {
        int64_t n = 1 + draw_n(), nrows = draw_nrows(), nunique = -7;
        const int64_t wrong[] = {-1, nrows, INT64_MIN, INT64_MAX, nrows + random_below(1000)};
        draw_indices(indices, n, nrows);
        indices[random_below(n)] = wrong[random_below(COUNT(wrong))];
        test_case("bad indices %d: %" PRId64 " of %" PRId64 " rows", i, n, nrows);
        const int64_t *in = copy_longs(&indices_memory, indices, n);
        int64_t *order = place_longs(&order_memory, n), *rows = place_longs(&rows_memory, n),
                *starts = place_longs(&starts_memory, n + 1);
        CHECK(s2_coo_sort(in, n, nrows, order, rows, starts, &nunique) == S2_BAD_POSITION);
        CHECK(s2_coo_sort(in, n, 0, order, rows, starts, &nunique) == S2_BAD_POSITION);
        CHECK(is_untouched(&order_memory) && is_untouched(&rows_memory));
        CHECK(is_untouched(&starts_memory) && nunique == -7);
    }
}

/* ------------------------------------------- Sums --------------------------------------------- */

/* One addition in the arithmetic of the sum.  A sum of two floats that is rounded to a double and
 * then to a float is rounded right, since a double has more than twice the digits. */
static double oracle_plus(s2_dtype dtype, double total, double value)
{
    double sum = total + value;
    /* A power of two leaves room for any partial sum, as the header says of BFLOAT16. */
    if (dtype == S2_BFLOAT16) return (double)(float)(sum / 65536.0) * 65536.0;
    return dtype == S2_FLOAT16 ? (double)(float)sum : sum;
}

static void oracle_sum_rows(const void *values, s2_dtype dtype, int64_t width, const sorted *s,
                            void *sums)
{
    for (int64_t k = 0; k < s->nunique; k++) {
        for (int64_t c = 0; c < width; c++) {
            uint64_t bits = element_get(values, dtype, s->order[s->starts[k]] * width + c);
            double total = element_value(dtype, bits);
            for (int64_t i = s->starts[k] + 1; i < s->starts[k + 1]; i++) {
                uint64_t other = element_get(values, dtype, s->order[i] * width + c);
                total = oracle_plus(dtype, total, element_value(dtype, other));
            }
            if (s->starts[k + 1] > s->starts[k] + 1) bits = element_round(dtype, total);
            element_set(sums, dtype, k * width + c, bits);
        }
    }
}

static void check_sum(const void *contents, s2_dtype dtype, int64_t width, const sorted *s)
{
    static uint8_t wanted[8 * MAX_NUMEL];
    int64_t size = dtype_size(dtype), numel = s->nunique * width;
    const void *values =
        guarded_copy(&values_memory, contents, s->n * width * size, placement_random(size));
    const int64_t *order = copy_longs(&order_memory, s->order, s->n),
                  *starts = copy_longs(&starts_memory, s->starts, s->nunique + 1);
    oracle_sum_rows(contents, dtype, width, s, wanted);
    for (int parallel = 0; parallel < 2; parallel++) {
        void *sums = guarded_place(&sums_memory, numel * size, placement_random(size));
        CHECK(s2_coo_sum(values, dtype, s->n, width, order, starts, s->nunique, sums,
                         parallel ? &executor_backwards : NULL) == S2_OK);
        check_elements(dtype, sums, wanted, numel, 1);
        guarded_check(&sums_memory);
    }
    CHECK(memcmp(values, contents, (size_t)(s->n * width * size)) == 0);
    guarded_check(&values_memory);
    guarded_check(&order_memory);
    guarded_check(&starts_memory);
}

static int64_t draw_width(void)
{
    static const int64_t widths[] = {0, 1, 2, 3, 8, 15, 16, 17, 64, 100, 511, 512, 513, 1025};
    return widths[random_below(COUNT(widths))];
}

static void test_sum(void)
{
    static int64_t indices[MAX_N];
    static sorted s;
    static uint8_t values[8 * MAX_NUMEL];
    for (int v = 0; variant_use(v); v++) {
        for (int i = 0; i < 600; i++) {
            s2_dtype dtype = all_dtypes[i % 4];
            int64_t width = draw_width(), most = width == 0 ? 50 : MAX_NUMEL / width;
            int64_t n = draw_n() % (most + 1), nrows = 1 + random_below(2 * n + 1);
            draw_indices(indices, n, nrows);
            oracle_sort(indices, n, &s);
            (i % 3 == 0 ? case_any : case_finite)(dtype, values, n * width);
            test_case("sum %d: %" PRId64 " rows of %" PRId64 " %s, %" PRId64 " distinct", i, n,
                      width, dtype_name(dtype), s.nunique);
            check_sum(values, dtype, width, &s);
        }
    }
}

/* Sums that leave the type on their way, and sums of the smallest numbers there are. */
static void test_sums_at_the_ends_of_the_range(void)
{
    static const int64_t one_row[MAX_N];
    static sorted s;
    static uint8_t values[8 * MAX_N];
    for (int i = 0; i < 200; i++) {
        s2_dtype dtype = i % 2 == 0 ? S2_BFLOAT16 : S2_FLOAT16;
        uint64_t largest = dtype == S2_BFLOAT16 ? 0x7f7f : 0x7bff;
        int64_t n = 1 + random_below(MAX_N / 2), sign = random_below(2);
        oracle_sort(one_row, 2 * n - 1, &s);
        for (int64_t j = 0; j < 2 * n - 1; j++) /* n of the largest, then all but one of -largest */
            element_set(values, dtype, j, largest | ((j < n) == sign ? 0 : element_sign(dtype)));
        test_case("%" PRId64 " of the largest %s", n, dtype_name(dtype));
        check_sum(values, dtype, 1, &s);
        uint8_t sum[2];
        CHECK(s2_coo_sum(values, dtype, s.n, 1, s.order, s.starts, 1, sum, NULL) == S2_OK);
        CHECK(element_get(sum, dtype, 0) == (largest | (sign ? 0 : element_sign(dtype))));

        for (int64_t j = 0; j < 2 * n - 1; j++)
            element_set(values, dtype, j, 1 | (random_chance(40) ? element_sign(dtype) : 0));
        test_case("%" PRId64 " of the smallest %s", 2 * n - 1, dtype_name(dtype));
        check_sum(values, dtype, 1, &s);
    }
}

/* Lists that s2_coo_sort() cannot have made and that would lead out of an array. */
static void test_bad_orders(void)
{
    static int64_t indices[MAX_N];
    static sorted s;
    static const float values[MAX_N];
    for (int i = 0; i < 600; i++) {
        int64_t n = 2 + draw_n();
        draw_indices(indices, n, n);
        oracle_sort(indices, n, &s);
        int64_t at = random_below(s.nunique), kind = random_below(6), nunique = s.nunique;
        const int64_t outside[] = {-1, n, INT64_MIN, INT64_MAX};
        s2_status status = S2_BAD_POSITION;
        if (kind == 0) s.order[random_below(n)] = outside[random_below(4)];
        if (kind == 1) s.starts[at] = at == 0 ? 1 : s.starts[at - 1];
        if (kind == 2) s.starts[at] = outside[random_below(4)];
        if (kind == 3) s.starts[nunique] = n - 1;
        if (kind == 4) s.starts[nunique] = n + 1;
        if (kind == 5 && nunique == 1) continue;
        if (kind == 5) nunique--; /* ends too early */
        test_case("bad order %d of kind %" PRId64, i, kind);
        const int64_t *order = copy_longs(&order_memory, s.order, n),
                      *starts = copy_longs(&starts_memory, s.starts, nunique + 1);
        float *sums = guarded_place(&sums_memory, 4 * nunique, placement_random(4));
        CHECK(s2_coo_sum(values, S2_FLOAT32, n, 1, order, starts, nunique, sums, NULL) == status);
        CHECK(is_untouched(&sums_memory));
    }
}

/* ------------------------------------------- Union -------------------------------------------- */

/* The lists of some ranks, and what should become of them. */
typedef struct lists {
    int64_t nranks, n, nunion, lengths[S2_MAX_RANKS], longs[MAX_N], rows[MAX_N], entries[MAX_N];
} lists;

/* Each rank has a random part of some rows, and now and then none. */
static void draw_lists(lists *l, int64_t nranks, int64_t nrows)
{
    static int64_t pool[MAX_N];
    static sorted s;
    static entry all[MAX_N];
    int64_t most = MAX_N / nranks, npool = 1 + random_below(most);
    draw_indices(pool, npool, nrows);
    oracle_sort(pool, npool, &s);
    l->nranks = nranks;
    l->n = l->nunion = 0;
    for (int64_t rank = 0; rank < nranks; rank++) {
        int percent = random_chance(20) ? 0 : (int)random_below(101);
        int64_t before = l->n;
        for (int64_t k = 0; k < s.nunique; k++) {
            if (!random_chance(percent)) continue;
            all[l->n] = (entry){s.rows[k], rank};
            l->longs[l->n++] = s.rows[k];
        }
        l->lengths[rank] = l->n - before;
    }
    qsort(all, (size_t)l->n, sizeof(entry), compare);
    for (int64_t i = 0; i < l->n; i++) {
        if (i == 0 || all[i].row != all[i - 1].row) l->rows[l->nunion++] = all[i].row;
        l->entries[i] = (l->nunion - 1) * S2_MAX_RANKS + all[i].place;
    }
}

static void check_unite(const lists *l, int64_t nrows)
{
    int64_t nunion = -1;
    const int64_t *in = copy_longs(&indices_memory, l->longs, l->n),
                  *lengths = copy_longs(&order_memory, l->lengths, l->nranks);
    int64_t *rows = place_longs(&rows_memory, l->n), *entries = place_longs(&starts_memory, l->n);
    CHECK(s2_coo_unite(in, lengths, l->nranks, nrows, rows, entries, &nunion) == S2_OK);
    CHECK(nunion == l->nunion);
    CHECK(memcmp(rows, l->rows, (size_t)(8 * nunion)) == 0);
    CHECK(memcmp(entries, l->entries, (size_t)(8 * l->n)) == 0);
    CHECK(memcmp(in, l->longs, (size_t)(8 * l->n)) == 0);
    guarded_check(&indices_memory);
    guarded_check(&order_memory);
    guarded_check(&rows_memory);
    guarded_check(&starts_memory);
}

static void check_bitmaps(const lists *l)
{
    static uint8_t wanted[MAX_NBYTES];
    int64_t nbytes = (l->nunion + 63) / 64 * 8, size = l->nranks * nbytes;
    memset(wanted, 0, (size_t)size);
    for (int64_t i = 0; i < l->n; i++)
        oracle_set_bit(wanted + l->entries[i] % S2_MAX_RANKS * nbytes,
                       l->entries[i] / S2_MAX_RANKS);
    const int64_t *entries = copy_longs(&starts_memory, l->entries, l->n);
    uint8_t *bitmaps = guarded_place(&bitmaps_memory, size, placement_random(1));
    CHECK(s2_coo_bitmaps(entries, l->n, l->nranks, l->nunion, bitmaps, nbytes) == S2_OK);
    CHECK(memcmp(bitmaps, wanted, (size_t)size) == 0);
    guarded_check(&starts_memory);
    guarded_check(&bitmaps_memory);
}

static int64_t draw_nranks(void)
{
    static const int64_t numbers[] = {1, 2, 3, 8, 255, 256};
    return random_chance(30) ? 1 + random_below(256) : numbers[random_below(COUNT(numbers))];
}

static void test_union(void)
{
    static lists l;
    for (int i = 0; i < 2000; i++) {
        int64_t nranks = draw_nranks(), nrows = draw_nrows();
        draw_lists(&l, nranks, nrows);
        test_case("union %d: %" PRId64 " ranks, %" PRId64 " of %" PRId64 " rows", i, nranks,
                  l.nunion, nrows);
        check_unite(&l, nrows);
        check_bitmaps(&l);
    }
}

static void test_bad_lists(void)
{
    static lists l;
    for (int i = 0; i < 600; i++) {
        int64_t nrows = draw_nrows(), nunion = -7;
        draw_lists(&l, draw_nranks(), nrows);
        if (l.n == 0) continue;
        int64_t at = random_below(l.n), rank = 0, end = l.lengths[0];
        while (end <= at)
            end += l.lengths[++rank];
        const int64_t wrong[] = {-1, nrows, INT64_MIN, INT64_MAX,
                                 at > end - l.lengths[rank] ? l.longs[at - 1] : -1};
        l.longs[at] = wrong[random_below(COUNT(wrong))];
        test_case("bad list %d of %" PRId64 " rows", i, nrows);
        const int64_t *in = copy_longs(&indices_memory, l.longs, l.n);
        int64_t *rows = place_longs(&rows_memory, l.n), *entries = place_longs(&starts_memory, l.n);
        CHECK(s2_coo_unite(in, l.lengths, l.nranks, nrows, rows, entries, &nunion) ==
              S2_BAD_POSITION);
        CHECK(is_untouched(&rows_memory) && is_untouched(&starts_memory) && nunion == -7);
    }
}

static void test_bad_entries(void)
{
    static lists l;
    for (int i = 0; i < 600; i++) {
        draw_lists(&l, draw_nranks(), draw_nrows());
        if (l.n == 0) continue;
        int64_t at = random_below(l.n), nbytes = (l.nunion + 63) / 64 * 8, kind = random_below(3);
        if (kind == 0) l.entries[at] = random_chance(50) ? -1 : INT64_MIN;
        if (kind == 1) l.entries[at] = random_chance(50) ? l.nunion * S2_MAX_RANKS : INT64_MAX;
        if (kind == 2 && l.nranks == S2_MAX_RANKS) continue;
        if (kind == 2) l.entries[at] = l.entries[at] / S2_MAX_RANKS * S2_MAX_RANKS + l.nranks;
        test_case("bad entry %d of kind %" PRId64, i, kind);
        const int64_t *entries = copy_longs(&starts_memory, l.entries, l.n);
        uint8_t *bitmaps = guarded_place(&bitmaps_memory, l.nranks * nbytes, placement_random(1));
        CHECK(s2_coo_bitmaps(entries, l.n, l.nranks, l.nunion, bitmaps, nbytes) == S2_BAD_POSITION);
        CHECK(is_untouched(&bitmaps_memory));
    }
}

/* ------------------------------------------ Errors -------------------------------------------- */

static void test_bad_sizes_of_a_sort(void)
{
    int64_t a[2] = {0, 0}, order[2] = {7, 7}, rows[2] = {7, 7}, starts[3] = {7, 7, 7}, k = 7;
    test_case("sizes of a sort");
    CHECK(s2_coo_sort(a, -1, 5, order, rows, starts, &k) == S2_BAD_SIZE);
    CHECK(s2_coo_sort(a, INT64_MAX, 5, order, rows, starts, &k) == S2_BAD_SIZE);
    CHECK(s2_coo_sort(a, 2, -1, order, rows, starts, &k) == S2_BAD_SIZE);
    CHECK(s2_coo_sort(a, 2, S2_MAX_ROWS + 1, order, rows, starts, &k) == S2_BAD_SIZE);
    /* Number and place do not share a word. */
    CHECK(s2_coo_sort(a, (1 << 24) + 1, S2_MAX_ROWS, order, rows, starts, &k) == S2_BAD_SIZE);
    CHECK(s2_coo_sort(NULL, 1 << 24, S2_MAX_ROWS, order, rows, starts, &k) == S2_NULL_POINTER);
    CHECK(s2_coo_sort(NULL, 2, 5, order, rows, starts, &k) == S2_NULL_POINTER);
    CHECK(s2_coo_sort(a, 2, 5, NULL, rows, starts, &k) == S2_NULL_POINTER);
    CHECK(s2_coo_sort(a, 2, 5, order, NULL, starts, &k) == S2_NULL_POINTER);
    CHECK(s2_coo_sort(a, 2, 5, order, rows, NULL, &k) == S2_NULL_POINTER);
    CHECK(s2_coo_sort(a, 2, 5, order, rows, starts, NULL) == S2_NULL_POINTER);
    CHECK(order[0] == 7 && rows[0] == 7 && starts[0] == 7 && k == 7);
    CHECK(s2_coo_sort(NULL, 0, 5, NULL, NULL, starts, &k) == S2_OK);
    CHECK(k == 0 && starts[0] == 0 && starts[1] == 7);
}

static void test_bad_sizes_of_a_sum(void)
{
    const int64_t order[2] = {1, 0}, starts[3] = {0, 1, 2};
    float values[2] = {1, 2}, sums[2] = {7, 7};
    test_case("sizes of a sum");
#define SUM(values, dtype, n, width, order, starts, k, sums)                                       \
    s2_coo_sum(values, dtype, n, width, order, starts, k, sums, NULL)
    CHECK(SUM(values, S2_FLOAT32, -1, 1, order, starts, 2, sums) == S2_BAD_SIZE);
    CHECK(SUM(values, S2_FLOAT32, 2, -1, order, starts, 2, sums) == S2_BAD_SIZE);
    CHECK(SUM(values, S2_FLOAT32, 2, INT64_MAX / 2, order, starts, 2, sums) == S2_BAD_SIZE);
    CHECK(SUM(values, S2_FLOAT32, S2_MAX_NUMEL, 2, order, starts, 2, sums) == S2_BAD_SIZE);
    CHECK(SUM(values, S2_FLOAT32, INT64_MAX, 0, order, starts, 2, sums) == S2_BAD_SIZE);
    CHECK(SUM(values, S2_FLOAT32, 2, 1, order, starts, 3, sums) == S2_BAD_SIZE);
    CHECK(SUM(values, S2_FLOAT32, 2, 1, order, starts, -1, sums) == S2_BAD_SIZE);
    CHECK(SUM(values, (s2_dtype)4, 2, 1, order, starts, 2, sums) == S2_BAD_DTYPE);
    CHECK(SUM(NULL, S2_FLOAT32, 2, 1, order, starts, 2, sums) == S2_NULL_POINTER);
    CHECK(SUM(values, S2_FLOAT32, 2, 1, NULL, starts, 2, sums) == S2_NULL_POINTER);
    CHECK(SUM(values, S2_FLOAT32, 2, 1, order, NULL, 2, sums) == S2_NULL_POINTER);
    CHECK(SUM(values, S2_FLOAT32, 2, 1, order, starts, 2, NULL) == S2_NULL_POINTER);
    CHECK(sums[0] == 7 && sums[1] == 7);
    CHECK(SUM(values, S2_FLOAT32, 2, 1, order, starts, 2, sums) == S2_OK);
    CHECK(sums[0] == 2 && sums[1] == 1);
    CHECK(SUM(NULL, S2_FLOAT32, 0, 5, NULL, starts, 0, NULL) == S2_OK);
#undef SUM
}

static void test_bad_sizes_of_a_union(void)
{
    const int64_t lists[2] = {3, 3}, entries[2] = {0, 1};
    int64_t lengths[2] = {1, 1}, rows[2] = {7, 7}, out[2] = {7, 7}, k = 7;
    uint8_t bitmaps[16] = {7};
    test_case("sizes of a union");
    CHECK(s2_coo_unite(lists, lengths, 0, 5, rows, out, &k) == S2_BAD_SIZE);
    CHECK(s2_coo_unite(lists, lengths, 257, 5, rows, out, &k) == S2_BAD_SIZE);
    CHECK(s2_coo_unite(lists, lengths, 2, -1, rows, out, &k) == S2_BAD_SIZE);
    CHECK(s2_coo_unite(lists, lengths, 2, S2_MAX_ROWS + 1, rows, out, &k) == S2_BAD_SIZE);
    CHECK(s2_coo_unite(lists, NULL, 2, 5, rows, out, &k) == S2_NULL_POINTER);
    CHECK(s2_coo_unite(NULL, lengths, 2, 5, rows, out, &k) == S2_NULL_POINTER);
    CHECK(s2_coo_unite(lists, lengths, 2, 5, NULL, out, &k) == S2_NULL_POINTER);
    CHECK(s2_coo_unite(lists, lengths, 2, 5, rows, NULL, &k) == S2_NULL_POINTER);
    CHECK(s2_coo_unite(lists, lengths, 2, 5, rows, out, NULL) == S2_NULL_POINTER);
    lengths[1] = -1;
    CHECK(s2_coo_unite(lists, lengths, 2, 5, rows, out, &k) == S2_BAD_SIZE);
    lengths[0] = lengths[1] = INT64_MAX;
    CHECK(s2_coo_unite(lists, lengths, 2, 5, rows, out, &k) == S2_BAD_SIZE);
    CHECK(rows[0] == 7 && out[0] == 7 && k == 7);

    CHECK(s2_coo_bitmaps(entries, -1, 2, 1, bitmaps, 8) == S2_BAD_SIZE);
    CHECK(s2_coo_bitmaps(entries, INT64_MAX, 2, 1, bitmaps, 8) == S2_BAD_SIZE);
    CHECK(s2_coo_bitmaps(entries, 2, 0, 1, bitmaps, 8) == S2_BAD_SIZE);
    CHECK(s2_coo_bitmaps(entries, 2, 257, 1, bitmaps, 8) == S2_BAD_SIZE);
    CHECK(s2_coo_bitmaps(entries, 2, 2, -1, bitmaps, 0) == S2_BAD_SIZE);
    CHECK(s2_coo_bitmaps(entries, 2, 2, INT64_MAX, bitmaps, 8) == S2_BAD_SIZE);
    CHECK(s2_coo_bitmaps(entries, 2, 2, 65, bitmaps, 8) == S2_BAD_SIZE);
    CHECK(s2_coo_bitmaps(NULL, 2, 2, 1, bitmaps, 8) == S2_NULL_POINTER);
    CHECK(s2_coo_bitmaps(entries, 2, 2, 1, NULL, 8) == S2_NULL_POINTER);
    CHECK(bitmaps[0] == 7);
    CHECK(s2_coo_bitmaps(entries, 2, 2, 1, bitmaps, 8) == S2_OK);
    CHECK(bitmaps[0] == 1 && bitmaps[8] == 1);
}

static void test_example_of_the_header(void)
{
    const int64_t indices[3] = {7, 2, 7}, lists[4] = {2, 7, 5, 7}, lengths[2] = {2, 2};
    const float values[3] = {1, 2, 4};
    int64_t order[3], rows[4], starts[4], entries[4], k;
    float sums[2];
    uint8_t bitmaps[16];
    test_case("the header's example");
    CHECK(s2_coo_sort(indices, 3, 8, order, rows, starts, &k) == S2_OK);
    CHECK(k == 2 && order[0] == 1 && order[1] == 0 && order[2] == 2);
    CHECK(rows[0] == 2 && rows[1] == 7 && starts[0] == 0 && starts[1] == 1 && starts[2] == 3);
    CHECK(s2_coo_sum(values, S2_FLOAT32, 3, 1, order, starts, 2, sums, NULL) == S2_OK);
    CHECK(sums[0] == 2 && sums[1] == 5);
    CHECK(s2_coo_unite(lists, lengths, 2, 8, rows, entries, &k) == S2_OK);
    CHECK(k == 3 && rows[0] == 2 && rows[1] == 5 && rows[2] == 7);
    CHECK(s2_coo_bitmaps(entries, 4, 2, 3, bitmaps, 8) == S2_OK);
    CHECK(bitmaps[0] == 5 && bitmaps[8] == 6);
}

int main(void)
{
    test_begin("test_coo");
    guarded *longs[] = {&indices_memory, &order_memory, &rows_memory, &starts_memory};
    for (int64_t i = 0; i < COUNT(longs); i++)
        *longs[i] = guarded_new(8 * (MAX_N + 1) + 64);
    values_memory = guarded_new(8 * MAX_NUMEL + 64);
    sums_memory = guarded_new(8 * MAX_NUMEL + 64);
    bitmaps_memory = guarded_new(MAX_NBYTES + 64);
    test_example_of_the_header();
    test_sort();
    test_every_bit_is_sorted_by();
    test_bad_indices();
    test_sum();
    test_sums_at_the_ends_of_the_range();
    test_bad_orders();
    test_union();
    test_bad_lists();
    test_bad_entries();
    test_bad_sizes_of_a_sort();
    test_bad_sizes_of_a_sum();
    test_bad_sizes_of_a_union();
    for (int64_t i = 0; i < COUNT(longs); i++)
        guarded_delete(longs[i]);
    guarded_delete(&values_memory);
    guarded_delete(&sums_memory);
    guarded_delete(&bitmaps_memory);
    return test_end();
}
