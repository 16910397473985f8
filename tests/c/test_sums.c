/* SPDX-License-Identifier: MIT */
/* That sums of ranks' blocks have the bits of one addition after the other, whatever their layout.
 */
#include "cases.h"
#include "oracle.h"
#include "test_util.h"

enum { FEW_RANKS = 5, MAX_NUMEL = 70000 };

/* Sums of so many bytes go past the caches. */
enum { STREAMED_NBYTES = 8 << 20 };

static const double divisors[] = {1, 2, 3, 0.7, 256, 5};

static guarded sums_memory, lost_memory;

/* ------------------------------------------- Oracle ------------------------------------------- */

static s2_dtype wide_dtype(s2_dtype dtype)
{
    return dtype == S2_FLOAT32 || dtype == S2_FLOAT64 ? S2_FLOAT64 : S2_FLOAT32;
}

/* The blocks of all ranks, and what should become of them. */
typedef struct ranks {
    case_layout c;
    s2_packed packed[S2_MAX_RANKS];
    void *arrays[2 * S2_MAX_RANKS];
    int64_t n;
    s2_dtype dtype;
    double divisor;
    void *sums;
    float *lost;
} ranks;

/* One rank's blocks divided by `before` and added to the totals. */
static void oracle_add_rank(const ranks *r, const s2_packed *rank, double before, void *totals)
{
    s2_dtype wide = wide_dtype(r->dtype);
    void *values = test_malloc(8 * rank->numel);
    for (int64_t i = 0; i < rank->numel; i++) {
        uint64_t bits = element_get(rank->packed, r->dtype, i);
        element_set(values, wide, i, oracle_convert(r->dtype, bits, wide, before));
    }
    oracle_add(&r->c.layout, values, wide, rank->positions, rank->npositions, totals, wide);
    free(values);
}

/* The sums, in `lost` what they have lost by way of FLOAT32, and in `direct` those that have not
 * gone that way; what lies in no segment is left alone. */
static void oracle_sums(const ranks *r, void *direct, void *by_float, float *lost)
{
    const s2_layout *layout = &r->c.layout;
    s2_dtype wide = wide_dtype(r->dtype), dtype = r->dtype;
    double before = dtype == S2_BFLOAT16 ? 256 : dtype == S2_FLOAT64 ? r->divisor : 1;
    double after = dtype == S2_FLOAT64 ? 1 : r->divisor / before;
    void *totals = memset(test_malloc(8 * layout->numel), 0, (size_t)(8 * layout->numel));
    for (int64_t k = 0; k < r->n; k++)
        oracle_add_rank(r, &r->packed[k], before, totals);
    for (int64_t s = 0; s < layout->nsegments; s++) {
        const s2_segment *segment = &layout->segments[s];
        for (int64_t i = segment->offset; i < segment->offset + segment->numel; i++) {
            uint64_t total = element_get(totals, wide, i);
            uint64_t mean = oracle_convert(wide, total, S2_FLOAT32, after);
            uint64_t rounded = oracle_convert(S2_FLOAT32, mean, dtype, 1);
            double kept = element_value(dtype, rounded);
            double rest = element_value(S2_FLOAT32, mean) - (kept - kept == 0 ? kept : 0);
            element_set(direct, dtype, i, oracle_convert(wide, total, dtype, after));
            element_set(by_float, dtype, i, rounded);
            element_set(lost, S2_FLOAT32, i, element_round(S2_FLOAT32, rest));
        }
    }
    free(totals);
}

/* -------------------------------------------- Cases ------------------------------------------- */

/* Ranks with about `percent` of the blocks, and values of which none is a NaN. */
static void draw_ranks(ranks *r, s2_dtype dtype, int64_t n, int percent)
{
    const s2_layout *layout = &r->c.layout;
    uint8_t *bitmap = test_malloc(r->c.bitmap_nbytes);
    r->dtype = dtype;
    r->n = n;
    r->divisor = divisors[random_below(COUNT(divisors))];
    for (int64_t k = 0; k < n; k++) {
        int64_t *positions = r->arrays[2 * k] = test_malloc(8 * r->c.nblocks);
        case_bitmap(layout, random_chance(20) ? 100 : percent, bitmap, r->c.bitmap_nbytes);
        int64_t npositions = oracle_bitmap_positions(bitmap, r->c.bitmap_nbytes, positions);
        int64_t numel = oracle_packed_numel(layout, positions, npositions);
        void *values = r->arrays[2 * k + 1] = test_malloc(8 * numel);
        (random_chance(20) ? case_any : case_finite)(dtype, values, numel);
        /* Numbers of one size, so that sums are rounded. */
        for (int64_t i = 0; i < numel; i++) {
            double value = (double)random_below(2000) / 7 - 140;
            if (random_chance(60)) element_set(values, dtype, i, element_round(dtype, value));
        }
        r->packed[k] = (s2_packed){values, numel, positions, npositions};
    }
    free(bitmap);
}

static void check_ranks(ranks *r)
{
    const s2_layout *layout = &r->c.layout;
    int64_t numel = layout->numel, nbytes = numel * dtype_size(r->dtype);
    void *old = test_malloc(8 * numel), *direct = test_malloc(8 * numel),
         *by_float = test_malloc(8 * numel);
    float *lost = test_malloc(4 * numel);
    case_finite(r->dtype, old, numel);
    memcpy(direct, old, (size_t)nbytes);
    memcpy(by_float, old, (size_t)nbytes);
    memset(lost, 0x11, (size_t)(4 * numel));
    oracle_sums(r, direct, by_float, lost);
    for (int v = 0; variant_use(v); v++) {
        for (int parallel = 0; parallel < 2; parallel++) {
            const s2_executor *executor = parallel ? &executor_backwards : NULL;
            placement at = placement_random(dtype_size(r->dtype));
            void *sums = guarded_copy(&sums_memory, old, nbytes, at);
            CHECK(s2_blocks_sum(layout, r->packed, r->n, r->dtype, r->divisor, sums, NULL,
                                executor) == S2_OK);
            check_elements(r->dtype, sums, direct, numel, 1);
            guarded_check(&sums_memory);

            sums = guarded_copy(&sums_memory, old, nbytes, at);
            float *rest = guarded_place(&lost_memory, 4 * numel, placement_random(4));
            memset(rest, 0x11, (size_t)(4 * numel));
            CHECK(s2_blocks_sum(layout, r->packed, r->n, r->dtype, r->divisor, sums, rest,
                                executor) == S2_OK);
            check_elements(r->dtype, sums, by_float, numel, 1);
            check_elements(S2_FLOAT32, rest, lost, numel, 1);
            guarded_check(&sums_memory);
            guarded_check(&lost_memory);
        }
    }
    for (int64_t k = 0; k < 2 * r->n; k++)
        free(r->arrays[k]);
    free(old);
    free(direct);
    free(by_float);
    free(lost);
}

static void test_block_lengths(void)
{
    static const int64_t lengths[] = {1, 2, 3, 4, 7, 8, 16, 17, 64, 100, 4096, 4097, 8192, 20000};
    static ranks r;
    r.c = case_layout_new();
    for (int64_t i = 0; i < COUNT(lengths) * 4; i++) {
        int64_t block = lengths[i / 4],
                nblocks = block > 4096 ? 3 : 1 + random_below(40000 / block);
        case_layout_single(&r.c, block, nblocks * block - random_below(block), 3);
        draw_ranks(&r, all_dtypes[i % 4], 1 + random_below(FEW_RANKS), 40);
        test_case("%s, block %" PRId64 ", %" PRId64 " ranks, divisor %g", dtype_name(r.dtype),
                  block, r.n, r.divisor);
        check_ranks(&r);
    }
    case_layout_delete(&r.c);
}

static void test_random_layouts(void)
{
    static const int percents[] = {0, 3, 30, 100};
    static ranks r;
    r.c = case_layout_new();
    for (int i = 0; i < 120; i++) {
        case_layout_random(&r.c, 3000);
        draw_ranks(&r, all_dtypes[i % 4], 1 + random_below(FEW_RANKS), percents[i / 4 % 4]);
        test_case("layout %d of %s, %" PRId64 " ranks, divisor %g", i, dtype_name(r.dtype), r.n,
                  r.divisor);
        check_ranks(&r);
    }
    case_layout_delete(&r.c);
}

/* So many that not all of a block's rows fit where those of a few ranks do. */
static void test_many_ranks(void)
{
    static const int64_t counts[] = {31, 33, 100, S2_MAX_RANKS};
    static ranks r;
    r.c = case_layout_new();
    for (int i = 0; i < COUNT(counts) * 4; i++) {
        case_layout_single(&r.c, 70, 70 * 40 - 3, 1);
        draw_ranks(&r, all_dtypes[i % 4], counts[i / 4], i % 3 == 0 ? 90 : 10);
        test_case("%s, %" PRId64 " ranks, divisor %g", dtype_name(r.dtype), r.n, r.divisor);
        check_ranks(&r);
    }
    case_layout_delete(&r.c);
}

/* Where sums lie decides how they are written: past the caches only in whole lines. */
static void test_large_sums(void)
{
    static ranks r;
    r.c = case_layout_new();
    for (int i = 0; i < 4; i++) {
        s2_dtype dtype = all_dtypes[i];
        int64_t width = dtype_size(dtype), numel = STREAMED_NBYTES / width + 5;
        case_layout_single(&r.c, 192, numel, 0);
        draw_ranks(&r, dtype, 2, 40);
        test_case("%" PRId64 " elements of %s, divisor %g", numel, dtype_name(dtype), r.divisor);
        int64_t nbytes = (numel * width + 127) / 64 * 64;
        uint8_t *memory = test_malloc(3 * nbytes);
        uint8_t *lines = memory + (64 - (uintptr_t)memory % 64) % 64, *elsewhere = lines + nbytes;
        for (int v = 0; variant_use(v); v++) {
            memset(lines, 0x77, (size_t)(2 * nbytes));
            for (int parallel = 0; parallel < 2; parallel++) {
                void *sums = parallel ? lines : elsewhere + width;
                CHECK(s2_blocks_sum(&r.c.layout, r.packed, r.n, dtype, r.divisor, sums, NULL,
                                    parallel ? &executor_backwards : NULL) == S2_OK);
            }
            CHECK(memcmp(lines, elsewhere + width, (size_t)(numel * width)) == 0);
            for (int64_t at = numel * width; at < nbytes; at++)
                CHECK(lines[at] == 0x77);
        }
        for (int64_t k = 0; k < 2 * r.n; k++)
            free(r.arrays[k]);
        free(memory);
    }
    case_layout_delete(&r.c);
}

/* ------------------------------------------ Arguments ----------------------------------------- */

static void test_bad_arguments(void)
{
    static const s2_segment segments[1] = {{0, 10, 4, 0}};
    static const s2_layout layout = {segments, 1, 10};
    static const float values[12];
    static const int64_t positions[3] = {0, 1, 2}, twice[3] = {0, 1, 1}, outside[3] = {0, 1, 3};
    const s2_packed good = {values, 12, positions, 3};
    float sums[10], lost[10];
    memset(sums, 0x5c, sizeof(sums));
    memset(lost, 0x5c, sizeof(lost));
#define SUM(ranks, n, dtype, divisor)                                                              \
    s2_blocks_sum(&layout, ranks, n, dtype, divisor, sums, lost, NULL)
    s2_packed ranks[2] = {good, good};
    test_case("bad arguments");
    CHECK(SUM(ranks, 0, S2_FLOAT32, 1) == S2_BAD_SIZE);
    CHECK(SUM(ranks, S2_MAX_RANKS + 1, S2_FLOAT32, 1) == S2_BAD_SIZE);
    CHECK(SUM(ranks, -1, S2_FLOAT32, 1) == S2_BAD_SIZE);
    CHECK(SUM(NULL, 2, S2_FLOAT32, 1) == S2_NULL_POINTER);
    CHECK(SUM(ranks, 2, (s2_dtype)4, 1) == S2_BAD_DTYPE);
    for (int i = 0; i < 4; i++) {
        CHECK(SUM(ranks, 2, all_dtypes[i], 0) == S2_BAD_DIVISOR);
        CHECK(SUM(ranks, 2, all_dtypes[i], -1) == S2_BAD_DIVISOR);
        CHECK(SUM(ranks, 2, all_dtypes[i], element_value(S2_FLOAT32, 0x7f800000)) ==
              S2_BAD_DIVISOR);
    }
    CHECK(s2_blocks_sum(&layout, ranks, 2, S2_FLOAT32, 1, NULL, lost, NULL) == S2_NULL_POINTER);
    CHECK(s2_blocks_sum(NULL, ranks, 2, S2_FLOAT32, 1, sums, lost, NULL) == S2_NULL_POINTER);
    const s2_packed bad[] = {{values, 11, positions, 3}, {values, 12, positions, 2},
                             {values, 12, twice, 3},     {values, 12, outside, 3},
                             {NULL, 12, positions, 3},   {values, 12, NULL, 3},
                             {values, 12, positions, -1}};
    static const s2_status wanted[] = {S2_BAD_SIZE,     S2_BAD_SIZE,     S2_BAD_POSITION,
                                       S2_BAD_POSITION, S2_NULL_POINTER, S2_NULL_POINTER,
                                       S2_BAD_SIZE};
    for (int i = 0; i < COUNT(bad); i++) {
        ranks[1] = bad[i];
        CHECK(SUM(ranks, 2, S2_FLOAT32, 1) == wanted[i]);
    }
    for (int64_t i = 0; i < (int64_t)sizeof(sums); i++)
        CHECK(((uint8_t *)sums)[i] == 0x5c && ((uint8_t *)lost)[i] == 0x5c);
}

int main(void)
{
    test_begin("test_sums");
    sums_memory = guarded_new(8 * MAX_NUMEL + 128);
    lost_memory = guarded_new(4 * MAX_NUMEL + 128);
    test_block_lengths();
    test_random_layouts();
    test_many_ranks();
    test_large_sums();
    test_bad_arguments();
    guarded_delete(&sums_memory);
    guarded_delete(&lost_memory);
    return test_end();
}
