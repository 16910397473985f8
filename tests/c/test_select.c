/* SPDX-License-Identifier: MIT */
/* That selections are exact, whatever the scores are and whatever a sample of them says. */
#include <math.h>
#include <stdio.h>

#include "cases.h"
#include "hash.h"
#include "test_util.h"

enum { MOST = 200000, BITMAP = (MOST + 63) / 64 * 8 };

static guarded scores_memory, bitmap_memory, scratch_memory;

static const int64_t lengths[] = {0,   1,   2,    63,   64,   65,   127,  511,  512,
                                  513, 700, 4095, 4096, 4097, 5000, 9999, 65536};

static uint32_t magnitude(float score)
{
    uint32_t bits;
    memcpy(&bits, &score, 4);
    return bits & 0x7fffffff;
}

static int64_t bitmap_nbytes(int64_t n) { return (n + 63) / 64 * 8; }

static int bit(const uint8_t *bitmap, int64_t i) { return bitmap[i / 8] >> i % 8 & 1; }

/* --------------------------------------------- Top -------------------------------------------- */

static const float *compared;

/* By magnitude, the largest first; then by position. */
static int compare(const void *a, const void *b)
{
    const int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
    const uint32_t x = magnitude(compared[i]), y = magnitude(compared[j]);
    return x != y ? (x < y) - (x > y) : (i > j) - (i < j);
}

/* `order` are the positions from the largest down. */
static void check_top_once(const float *values, const int64_t *order, int64_t n, int64_t keep,
                           const s2_executor *executor)
{
    static uint8_t wanted[BITMAP];
    int64_t nbytes = bitmap_nbytes(n), scratch_nbytes = -1;
    float threshold = -7;
    memset(wanted, 0, (size_t)nbytes);
    for (int64_t i = 0; i < keep; i++)
        wanted[order[i] / 8] |= (uint8_t)(1 << order[i] % 8);
    CHECK(s2_select_scratch_nbytes(n, &scratch_nbytes) == S2_OK);
    const float *scores = guarded_copy(&scores_memory, values, n * 4, placement_random(4));
    uint8_t *bitmap = guarded_place(&bitmap_memory, nbytes, placement_random(1));
    void *scratch = guarded_place(&scratch_memory, scratch_nbytes, placement_random(8));
    CHECK(s2_select_top(scores, n, keep, bitmap, nbytes, &threshold, scratch, scratch_nbytes,
                        executor) == S2_OK);
    CHECK(memcmp(bitmap, wanted, (size_t)nbytes) == 0);
    if (keep == 0)
        CHECK(isnan(threshold));
    else
        CHECK(memcmp(&threshold, &(uint32_t){magnitude(values[order[keep - 1]])}, 4) == 0);
    CHECK(memcmp(scores, values, (size_t)(n * 4)) == 0);
    guarded_check(&scores_memory);
    guarded_check(&bitmap_memory);
    guarded_check(&scratch_memory);
}

static void check_top(const char *what, const float *values, int64_t n)
{
    const int64_t keeps[] = {0,     1,     2, n / 1000,           n / 100, n / 10, n / 3,
                             n / 2, n - 1, n, random_below(n + 1)};
    int64_t *order = test_malloc(n * 8);
    for (int64_t i = 0; i < n; i++)
        order[i] = i;
    compared = values;
    qsort(order, (size_t)n, 8, compare);
    for (int64_t k = 0; k < COUNT(keeps); k++) {
        if (keeps[k] < 0 || keeps[k] > n) continue;
        test_case("the top %" PRId64 " of %" PRId64 ", %s", keeps[k], n, what);
        for (int v = 0; variant_use(v); v++) {
            check_top_once(values, order, n, keeps[k], NULL);
            check_top_once(values, order, n, keeps[k], &executor_backwards);
        }
    }
    free(order);
}

static void test_top(void)
{
    float *values = test_malloc(MOST * 4);
    for (int kind = 0; kind < CASE_SCORE_KINDS; kind++) {
        for (int64_t l = 0; l <= COUNT(lengths); l++) {
            const int64_t n = l < COUNT(lengths) ? lengths[l] : MOST - random_below(70);
            char what[32];
            snprintf(what, sizeof(what), "kind %d", kind);
            for (int64_t i = 0; i < n; i++)
                values[i] = case_score((case_scores)kind, i, n);
            check_top(what, values, n);
        }
    }
    free(values);
}

/* The sample is one of each 256 scores, at places that follow from a hash: those, and no others,
 * are made the largest, the smallest, or all equal. */
static void test_misleading_samples(void)
{
    static const float lies[] = {1e30f, 0, 1000, NAN};
    const int64_t n = 131072, size = n / 256, length = n / size;
    float *values = test_malloc(n * 4);
    for (int64_t l = 0; l < COUNT(lies); l++) {
        for (int64_t i = 0; i < n; i++)
            values[i] = case_score(CASE_NORMAL, i, n);
        for (int64_t i = 0; i < size; i++)
            values[i * length + s2_hash_below(s2_hash(0, (uint64_t)i), (uint32_t)length)] = lies[l];
        check_top("a misleading sample", values, n);
    }
    free(values);
}

/* ------------------------------------------ Threshold ----------------------------------------- */

static void check_above(const float *values, int64_t n, float threshold, uint32_t least)
{
    static uint8_t wanted[BITMAP];
    int64_t nbytes = bitmap_nbytes(n), total = 0;
    memset(wanted, 0, (size_t)nbytes);
    for (int64_t i = 0; i < n; i++) {
        if (magnitude(values[i]) < least) continue;
        wanted[i / 8] |= (uint8_t)(1 << i % 8);
        total++;
    }
    for (int v = 0; variant_use(v); v++) {
        for (int parallel = 0; parallel < 2; parallel++) {
            int64_t count = -7;
            const float *scores = guarded_copy(&scores_memory, values, n * 4, placement_random(4));
            uint8_t *bitmap = guarded_place(&bitmap_memory, nbytes, placement_random(1));
            CHECK(s2_select_above(scores, n, threshold, bitmap, nbytes, &count,
                                  parallel ? &executor_backwards : NULL) == S2_OK);
            CHECK(count == total && memcmp(bitmap, wanted, (size_t)nbytes) == 0);
            guarded_check(&scores_memory);
            guarded_check(&bitmap_memory);
        }
    }
}

static void test_above(void)
{
    float *values = test_malloc(MOST * 4);
    for (int kind = 0; kind < CASE_SCORE_KINDS; kind++) {
        for (int64_t l = 0; l < COUNT(lengths); l++) {
            const int64_t n = lengths[l];
            for (int64_t i = 0; i < n; i++)
                values[i] = case_score((case_scores)kind, i, n);
            const float thresholds[] = {
                0,     -0.0f,    1.5f, 1e-40f,
                1e30f, INFINITY, NAN,  n ? fabsf(values[random_below(n)]) : 1};
            for (int64_t t = 0; t < COUNT(thresholds); t++) {
                test_case("above %g, %" PRId64 " of kind %d", (double)thresholds[t], n, kind);
                check_above(values, n, thresholds[t], magnitude(thresholds[t]));
            }
        }
    }
    free(values);
}

/* ------------------------------------------- Random ------------------------------------------- */

static void test_hash_below(void)
{
    test_case("fractions of a hash");
    CHECK(s2_hash_below_wide(UINT64_MAX, UINT64_MAX) == UINT64_MAX - 1);
    CHECK(s2_hash_below_wide(UINT64_MAX, UINT64_C(1) << 63) == UINT64_MAX >> 1);
    CHECK(s2_hash_below_wide(0x8000000000000000u, 0xfedcba9876543210u) == 0x7f6e5d4c3b2a1908u);
    for (int i = 0; i < 100000; i++) {
        const uint64_t hash = random_bits(), n = random_bits() >> random_below(64);
        /* Long multiplication by single bits. */
        uint64_t high = 0, low = 0;
        for (int b = 63; b >= 0; b--) {
            high = high << 1 | low >> 63;
            low <<= 1;
            if (hash >> b & 1) high += low + n < low, low += n;
        }
        CHECK(s2_hash_below_wide(hash, n) == high);
        if (n <= UINT32_MAX)
            CHECK(s2_hash_below_wide(hash & ~(uint64_t)UINT32_MAX, n) ==
                  s2_hash_below(hash, (uint32_t)n));
    }
}

static void check_random(uint64_t seed, int64_t n, int64_t keep)
{
    int64_t nbytes = bitmap_nbytes(n), count = 0;
    uint8_t *chosen = test_malloc(n);
    memset(chosen, 0, (size_t)n);
    for (int64_t last = n - keep; last < n; last++) {
        int64_t i =
            (int64_t)s2_hash_below_wide(s2_hash(seed, (uint64_t)last), (uint64_t)(last + 1));
        chosen[chosen[i] ? last : i] = 1;
    }
    uint8_t *bitmap = guarded_place(&bitmap_memory, nbytes, placement_random(1));
    CHECK(s2_select_random(seed, n, keep, bitmap, nbytes) == S2_OK);
    for (int64_t i = 0; i < 8 * nbytes; i++) {
        CHECK(bit(bitmap, i) == (i < n && chosen[i]));
        count += bit(bitmap, i);
    }
    CHECK(count == keep);
    guarded_check(&bitmap_memory);
    free(chosen);
}

static void test_random(void)
{
    for (int i = 0; i < 3000; i++) {
        const int64_t n = random_below(i % 100 == 0 ? 5000 : 300);
        const int64_t keep = i % 7 == 0 ? n : random_below(n + 1);
        test_case("%" PRId64 " of %" PRId64 " at random", keep, n);
        check_random(random_bits(), n, keep);
    }
}

/* All 20 sets of 3 of 6 are as frequent: each a binomial number, within five standard deviations
 * of the mean but for once in 2 million times, of which there are 20. */
static void test_random_is_uniform(void)
{
    enum { DRAWS = 100000 };
    int64_t counts[64] = {0};
    uint8_t bitmap[8];
    const uint64_t seed = random_bits();
    test_case("sets of 3 of 6");
    for (uint64_t i = 0; i < DRAWS; i++) {
        CHECK(s2_select_random(seed + i, 6, 3, bitmap, 8) == S2_OK);
        counts[bitmap[0]]++;
    }
    for (int set = 0; set < 64; set++) {
        const int size = (set & 1) + (set >> 1 & 1) + (set >> 2 & 1) + (set >> 3 & 1) +
                         (set >> 4 & 1) + (set >> 5 & 1);
        const double mean = size == 3 ? DRAWS / 20.0 : 0;
        CHECK(fabs((double)counts[set] - mean) <= 5.3 * sqrt(mean * (1 - 1 / 20.0)));
    }
}

/* ------------------------------------------ Refusals ------------------------------------------ */

/* Calls with one argument that is wrong; nothing may be written. */
static void test_refusals(void)
{
    const float scores[70] = {1};
    uint8_t bitmap[24], before[24];
    uint64_t scratch[72];
    float threshold = 7;
    int64_t count = 7, nbytes = 7;
    memset(bitmap, 0x5c, sizeof(bitmap));
    memcpy(before, bitmap, sizeof(bitmap));
    memset(scratch, 0x5c, sizeof(scratch));
    test_case("bad arguments");

    CHECK(s2_select_scratch_nbytes(-1, &nbytes) == S2_BAD_SIZE);
    CHECK(s2_select_scratch_nbytes(S2_MAX_SELECT_SCORES + 1, &nbytes) == S2_BAD_SIZE);
    CHECK(s2_select_scratch_nbytes(70, NULL) == S2_NULL_POINTER);
    CHECK(nbytes == 7);
    CHECK(s2_select_scratch_nbytes(S2_MAX_SELECT_SCORES, &nbytes) == S2_OK);
    CHECK(nbytes == S2_MAX_SELECT_SCORES);
    CHECK(s2_select_scratch_nbytes(70, &nbytes) == S2_OK && nbytes == 560);

#define TOP(scores, n, keep, bitmap, nbytes, threshold, scratch, scratch_nbytes)                   \
    s2_select_top(scores, n, keep, bitmap, nbytes, threshold, scratch, scratch_nbytes, NULL)
    CHECK(TOP(scores, -1, 0, bitmap, 16, &threshold, scratch, 560) == S2_BAD_SIZE);
    CHECK(TOP(scores, INT64_MAX, 0, bitmap, 16, &threshold, scratch, 560) == S2_BAD_SIZE);
    CHECK(TOP(scores, 70, -1, bitmap, 16, &threshold, scratch, 560) == S2_BAD_SIZE);
    CHECK(TOP(scores, 70, 71, bitmap, 16, &threshold, scratch, 560) == S2_BAD_SIZE);
    CHECK(TOP(scores, 70, 1, bitmap, 8, &threshold, scratch, 560) == S2_BAD_SIZE);
    CHECK(TOP(scores, 70, 1, bitmap, 24, &threshold, scratch, 560) == S2_BAD_SIZE);
    CHECK(TOP(scores, 70, 1, bitmap, 16, &threshold, scratch, 552) == S2_BAD_SIZE);
    CHECK(TOP(scores, 70, 1, bitmap, 16, &threshold, scratch, 568) == S2_BAD_SIZE);
    CHECK(TOP(NULL, 70, 1, bitmap, 16, &threshold, scratch, 560) == S2_NULL_POINTER);
    CHECK(TOP(scores, 70, 1, NULL, 16, &threshold, scratch, 560) == S2_NULL_POINTER);
    CHECK(TOP(scores, 70, 1, bitmap, 16, NULL, scratch, 560) == S2_NULL_POINTER);
    CHECK(TOP(scores, 70, 1, bitmap, 16, &threshold, NULL, 560) == S2_NULL_POINTER);

    CHECK(s2_select_above(scores, -1, 1, bitmap, 16, &count, NULL) == S2_BAD_SIZE);
    CHECK(s2_select_above(scores, INT64_MAX, 1, bitmap, 16, &count, NULL) == S2_BAD_SIZE);
    CHECK(s2_select_above(scores, 70, 1, bitmap, 8, &count, NULL) == S2_BAD_SIZE);
    CHECK(s2_select_above(scores, 70, -1e-40f, bitmap, 16, &count, NULL) == S2_BAD_FACTOR);
    CHECK(s2_select_above(NULL, 70, 1, bitmap, 16, &count, NULL) == S2_NULL_POINTER);
    CHECK(s2_select_above(scores, 70, 1, NULL, 16, &count, NULL) == S2_NULL_POINTER);
    CHECK(s2_select_above(scores, 70, 1, bitmap, 16, NULL, NULL) == S2_NULL_POINTER);

    CHECK(s2_select_random(1, -1, 0, bitmap, 16) == S2_BAD_SIZE);
    CHECK(s2_select_random(1, S2_MAX_NUMEL + 1, 0, bitmap, 16) == S2_BAD_SIZE);
    CHECK(s2_select_random(1, 70, 71, bitmap, 16) == S2_BAD_SIZE);
    CHECK(s2_select_random(1, 70, -1, bitmap, 16) == S2_BAD_SIZE);
    CHECK(s2_select_random(1, 70, 1, bitmap, 24) == S2_BAD_SIZE);
    CHECK(s2_select_random(1, 70, 1, NULL, 16) == S2_NULL_POINTER);

    CHECK(memcmp(bitmap, before, sizeof(bitmap)) == 0 && threshold == 7 && count == 7);
    for (int64_t i = 0; i < COUNT(scratch); i++)
        CHECK(scratch[i] == 0x5c5c5c5c5c5c5c5c);
    CHECK(TOP(NULL, 0, 0, NULL, 0, &threshold, NULL, 0) == S2_OK && isnan(threshold));
#undef TOP
}

int main(void)
{
    test_begin("test_select");
    scores_memory = guarded_new(MOST * 4 + 64);
    bitmap_memory = guarded_new(BITMAP + 64);
    scratch_memory = guarded_new(MOST * 8 + 64);
    test_top();
    test_misleading_samples();
    test_above();
    test_hash_below();
    test_random();
    test_random_is_uniform();
    test_refusals();
    guarded_delete(&scores_memory);
    guarded_delete(&bitmap_memory);
    guarded_delete(&scratch_memory);
    return test_end();
}
