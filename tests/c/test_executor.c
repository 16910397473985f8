/* SPDX-License-Identifier: MIT */
/* That results are the same however an executor cuts ranges, in any order, on any threads. */
#include <pthread.h>
#include <stdio.h>

#include "cases.h"
#include "oracle.h"
#include "test_util.h"

enum { NTHREADS = 4, MAX_PIECES = 4096 };

/* ----------------------------------------- Executors ------------------------------------------ */

/* What one call of parallel_for() has left to do. */
typedef struct work {
    pthread_mutex_t lock;
    int64_t pieces[MAX_PIECES][2];
    int64_t npieces;
    int64_t next;
    s2_range_body body;
    void *body_arg;
} work;

/* How to cut; and how often it was asked to. */
typedef struct cutter {
    int nthreads;    /* 0: the calling thread, in a shuffled order */
    int64_t longest; /* pieces are from one grain to so many grains long */
    int64_t calls;
    int64_t pieces;
} cutter;

/* Cuts [begin, end) into pieces of random lengths, none but the last shorter than the grain. */
static void cut(const cutter *how, work *w, int64_t begin, int64_t end, int64_t grain)
{
    w->npieces = 0;
    while (begin < end) {
        int64_t length = grain + random_below(grain * (how->longest - 1) + 1);
        if (length > end - begin || w->npieces == MAX_PIECES - 1) length = end - begin;
        w->pieces[w->npieces][0] = begin;
        w->pieces[w->npieces][1] = begin + length;
        w->npieces++;
        begin += length;
    }
    for (int64_t i = w->npieces - 1; i > 0; i--) {
        int64_t j = random_below(i + 1);
        for (int k = 0; k < 2; k++) {
            int64_t swapped = w->pieces[i][k];
            w->pieces[i][k] = w->pieces[j][k];
            w->pieces[j][k] = swapped;
        }
    }
}

static void *run_pieces(void *arg)
{
    work *w = arg;
    for (;;) {
        pthread_mutex_lock(&w->lock);
        int64_t mine = w->next++;
        pthread_mutex_unlock(&w->lock);
        if (mine >= w->npieces) return NULL;
        w->body(w->body_arg, w->pieces[mine][0], w->pieces[mine][1]);
    }
}

static void cut_parallel_for(void *self, int64_t begin, int64_t end, int64_t grain,
                             s2_range_body body, void *body_arg)
{
    cutter *how = self;
    work *w = test_malloc(sizeof(work));
    CHECK(begin >= 0 && begin <= end && grain >= 1 && body != NULL);
    cut(how, w, begin, end, grain);
    how->calls++;
    how->pieces += w->npieces;
    w->next = 0;
    w->body = body;
    w->body_arg = body_arg;
    CHECK(pthread_mutex_init(&w->lock, NULL) == 0);
    if (how->nthreads == 0) {
        run_pieces(w);
    } else {
        pthread_t threads[NTHREADS];
        for (int t = 0; t < how->nthreads; t++)
            CHECK(pthread_create(&threads[t], NULL, run_pieces, w) == 0);
        for (int t = 0; t < how->nthreads; t++)
            CHECK(pthread_join(threads[t], NULL) == 0);
    }
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* ------------------------------------------ A bucket ------------------------------------------ */

/* The arguments of all functions that take an executor, and their results. */
typedef struct bucket {
    case_layout c;
    s2_dtype dtype;
    s2_dtype packed_dtype;
    double divisor;
    void *values;
    int64_t *positions;
    int64_t npositions;
    int64_t packed_numel;
} bucket;

typedef struct results {
    uint8_t *bitmap;
    int64_t negative_zeros;
    void *packed;
    void *scattered;
    void *sums;
    void *cleared;
    void *converted;
} results;

static s2_dtype sum_dtype(s2_dtype dtype) { return dtype == S2_FLOAT64 ? S2_FLOAT64 : S2_FLOAT32; }

/* Fills in all but the layout. */
static void bucket_fill(bucket *b, s2_dtype dtype)
{
    const s2_layout *layout = &b->c.layout;
    uint8_t *bitmap = test_malloc(b->c.bitmap_nbytes);
    b->dtype = dtype;
    b->packed_dtype = dtype == S2_FLOAT32 ? all_dtypes[random_below(4)] : dtype;
    b->divisor = oracle_converts(dtype, b->packed_dtype, 3) ? 3 : 1;
    b->values = test_malloc(8 * layout->numel);
    b->positions = test_malloc(8 * b->c.nblocks);
    case_values(layout, dtype, b->values);
    oracle_bitmap_from_nonzero(layout, b->values, dtype, bitmap);
    b->npositions = oracle_bitmap_positions(bitmap, b->c.bitmap_nbytes, b->positions);
    b->packed_numel = oracle_packed_numel(layout, b->positions, b->npositions);
    free(bitmap);
}

static void bucket_clear(bucket *b)
{
    free(b->values);
    free(b->positions);
}

/* Runs every function once, on outputs that begin as copies of the values or as zeros. */
static results compute(const bucket *b, const s2_executor *executor)
{
    const s2_layout *layout = &b->c.layout;
    size_t wide = (size_t)(8 * layout->numel);
    s2_dtype sum = sum_dtype(b->packed_dtype);
    results r;
    r.negative_zeros = -1;
    r.bitmap = test_malloc(b->c.bitmap_nbytes);
    r.packed = test_malloc(8 * b->packed_numel);
    r.scattered = memset(test_malloc(8 * layout->numel), 0x11, wide);
    r.sums = memset(test_malloc(8 * layout->numel), 0x11, wide);
    r.cleared = memcpy(test_malloc(8 * layout->numel), b->values, wide);
    r.converted = memset(test_malloc(8 * layout->numel), 0x11, wide);
    CHECK(s2_bitmap_from_nonzero(layout, b->values, b->dtype, r.bitmap, b->c.bitmap_nbytes,
                                 &r.negative_zeros, executor) == S2_OK);
    CHECK(s2_blocks_gather(layout, b->values, b->dtype, b->positions, b->npositions, r.packed,
                           b->packed_dtype, b->packed_numel, b->divisor, executor) == S2_OK);
    CHECK(s2_blocks_scatter(layout, r.packed, b->packed_dtype, b->packed_numel, b->positions,
                            b->npositions, r.scattered, sum, 3, executor) == S2_OK);
    CHECK(s2_blocks_add(layout, r.packed, b->packed_dtype, b->packed_numel, b->positions,
                        b->npositions, r.sums, sum, executor) == S2_OK);
    CHECK(s2_blocks_clear_dead(layout, r.bitmap, b->c.bitmap_nbytes, r.cleared, b->dtype,
                               executor) == S2_OK);
    CHECK(s2_values_convert(b->values, b->dtype, r.converted, b->packed_dtype, layout->numel,
                            b->divisor, executor) == S2_OK);
    return r;
}

/* One variant and one order of the elements: even the NaNs have the same bits. */
static void compare(const bucket *b, const results *got, const results *wanted)
{
    size_t wide = (size_t)(8 * b->c.layout.numel);
    CHECK(memcmp(got->bitmap, wanted->bitmap, (size_t)b->c.bitmap_nbytes) == 0);
    CHECK(got->negative_zeros == wanted->negative_zeros);
    check_elements(b->packed_dtype, got->packed, wanted->packed, b->packed_numel, 1);
    check_elements(sum_dtype(b->packed_dtype), got->scattered, wanted->scattered, b->c.layout.numel,
                   1);
    check_elements(sum_dtype(b->packed_dtype), got->sums, wanted->sums, b->c.layout.numel, 1);
    CHECK(memcmp(got->cleared, wanted->cleared, wide) == 0);
    check_elements(b->packed_dtype, got->converted, wanted->converted, b->c.layout.numel, 1);
}

static void results_free(results *r)
{
    free(r->bitmap);
    free(r->packed);
    free(r->scattered);
    free(r->sums);
    free(r->cleared);
    free(r->converted);
}

/* The result without an executor is checked against the oracle where it is cheap to. */
static void check_against_oracle(const bucket *b, const results *r)
{
    uint8_t *bitmap = test_malloc(b->c.bitmap_nbytes);
    CHECK(oracle_bitmap_from_nonzero(&b->c.layout, b->values, b->dtype, bitmap) ==
          r->negative_zeros);
    CHECK(memcmp(bitmap, r->bitmap, (size_t)b->c.bitmap_nbytes) == 0);
    free(bitmap);
}

static void check_executors(const bucket *b, int64_t *calls, int64_t *pieces)
{
    for (int v = 0; variant_use(v); v++) {
        results wanted = compute(b, NULL);
        if (v == 0) check_against_oracle(b, &wanted);
        for (int i = 0; i < 3; i++) {
            cutter how = {i < 2 ? 0 : NTHREADS, i == 0 ? 1 : 3, 0, 0};
            s2_executor executor = {cut_parallel_for, &how};
            results got = compute(b, &executor);
            compare(b, &got, &wanted);
            results_free(&got);
            *calls += how.calls;
            *pieces += how.pieces;
        }
        results_free(&wanted);
    }
}

/* ------------------------------------------- Tests -------------------------------------------- */

/* Long enough to be cut, whatever the grain may be within reason. */
static void test_long_segments(void)
{
    static const int64_t lengths[] = {1, 3, 17, 64, 70, 513, 8192, 100000};
    bucket b = {case_layout_new(), S2_FLOAT32, S2_FLOAT32, 1, NULL, NULL, 0, 0};
    int64_t calls = 0, pieces = 0;
    for (int64_t i = 0; i < COUNT(lengths); i++) {
        s2_dtype dtype = all_dtypes[i % 4];
        int64_t numel = 200000 + random_below(100000);
        case_layout_single(&b.c, lengths[i], numel, random_below(9));
        bucket_fill(&b, dtype);
        test_case("%s, block %" PRId64 ", numel %" PRId64, dtype_name(dtype), lengths[i], numel);
        check_executors(&b, &calls, &pieces);
        bucket_clear(&b);
    }
    printf("  long segments: %" PRId64 " ranges in %" PRId64 " pieces\n", calls, pieces);
    case_layout_delete(&b.c);
}

static void test_random_layouts(void)
{
    bucket b = {case_layout_new(), S2_FLOAT32, S2_FLOAT32, 1, NULL, NULL, 0, 0};
    int64_t calls = 0, pieces = 0;
    for (int i = 0; i < 60; i++) {
        s2_dtype dtype = all_dtypes[i % 4];
        case_layout_random(&b.c, i % 15 == 0 ? 1000000 : 1 << random_below(16));
        bucket_fill(&b, dtype);
        test_case("random layout %d, %s", i, dtype_name(dtype));
        check_executors(&b, &calls, &pieces);
        bucket_clear(&b);
    }
    printf("  random layouts: %" PRId64 " ranges in %" PRId64 " pieces\n", calls, pieces);
    case_layout_delete(&b.c);
}

static void *compute_in_thread(void *arg)
{
    bucket *b = arg;
    results *r = test_malloc(sizeof(results));
    *r = compute(b, NULL);
    return r;
}

/* Calls on memory of their own run at the same time; the inputs here are even the same. */
static void test_calls_at_the_same_time(void)
{
    bucket b = {case_layout_new(), S2_FLOAT32, S2_FLOAT32, 1, NULL, NULL, 0, 0};
    for (int i = 0; i < 8; i++) {
        pthread_t threads[NTHREADS];
        case_layout_random(&b.c, 20000);
        bucket_fill(&b, all_dtypes[i % 4]);
        test_case("random layout %d in %d threads", i, NTHREADS);
        results wanted = compute(&b, NULL);
        for (int t = 0; t < NTHREADS; t++)
            CHECK(pthread_create(&threads[t], NULL, compute_in_thread, &b) == 0);
        for (int t = 0; t < NTHREADS; t++) {
            void *got;
            CHECK(pthread_join(threads[t], &got) == 0);
            compare(&b, got, &wanted);
            results_free(got);
            free(got);
        }
        results_free(&wanted);
        bucket_clear(&b);
    }
    case_layout_delete(&b.c);
}

int main(void)
{
    test_begin("test_executor");
    test_long_segments();
    test_random_layouts();
    test_calls_at_the_same_time();
    return test_end();
}
