/* SPDX-License-Identifier: MIT */
/* That the kernels select what the C core selects, whatever the scores are. */
#include <math.h>

#include "device.h"

enum { SCORES, BITMAP, RESULT, SCRATCH };

/* Two tiles of a bitmap, and a part of one. */
enum { MOST = 40000 };

static const int64_t lengths[] = {0, 1, 33, 64, 127, 700, 4095};

static int64_t bitmap_nbytes(int64_t n) { return (n + 63) / 64 * 8; }

static float *draw_scores(case_scores kind, int64_t n)
{
    float *scores = test_malloc(4 * n);
    for (int64_t i = 0; i < n; i++)
        scores[i] = case_score(kind, i, n);
    return scores;
}

/* --------------------------------------------- Top -------------------------------------------- */

static void check_top(case_scores kind, const float *host, int64_t n, int64_t keep)
{
    int64_t nbytes = bitmap_nbytes(n), core_nbytes, scratch_nbytes;
    float least;
    test_case("the top %" PRId64 " of %" PRId64 ", kind %d", keep, n, (int)kind);
    CHECK(s2_select_scratch_nbytes(n, &core_nbytes) == S2_OK);
    uint8_t *wanted = test_malloc(nbytes);
    void *core_scratch = test_malloc(core_nbytes);
    CHECK(s2_select_top(host, n, keep, wanted, nbytes, &least, core_scratch, core_nbytes, NULL) ==
          S2_OK);

    CHECK(s2_cuda_select_top_scratch_nbytes(n, &scratch_nbytes) == S2_OK);
    const float *scores = device_array(SCORES, host, 4 * n, 4);
    uint8_t *bitmap = device_array(BITMAP, NULL, nbytes, 8);
    float *threshold = device_array(RESULT, NULL, 4, 4);
    void *scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(NULL, s2_cuda_select_top(scores, n, keep, bitmap, nbytes, threshold, scratch,
                                       scratch_nbytes, device_stream));
    CHECK(memcmp(bitmap, wanted, (size_t)nbytes) == 0);
    CHECK(memcmp(threshold, &least, 4) == 0);
    CHECK(memcmp(scores, host, (size_t)(4 * n)) == 0);
    free(wanted);
    free(core_scratch);
}

static void test_top(void)
{
    for (int kind = 0; kind < CASE_SCORE_KINDS; kind++) {
        for (int64_t l = 0; l < COUNT(lengths); l++) {
            const int64_t n = lengths[l], keeps[] = {l % 2, n / 3, n - l % 3};
            float *host = draw_scores((case_scores)kind, n);
            for (int64_t k = 0; k < COUNT(keeps); k++) {
                if (keeps[k] >= 0 && keeps[k] <= n) check_top((case_scores)kind, host, n, keeps[k]);
            }
            free(host);
        }
    }
}

/* So many that are equal to the threshold that they lie in several tiles of the bitmap. */
static void test_many_equal(void)
{
    static const case_scores kinds[] = {CASE_EQUAL, CASE_ZEROS, CASE_FEW_VALUES};
    for (int64_t i = 0; i < COUNT(kinds); i++) {
        const int64_t n = MOST - random_below(200);
        float *host = draw_scores(kinds[i], n);
        check_top(kinds[i], host, n, n / 2 + random_below(n / 2));
        free(host);
    }
}

/* ------------------------------------------ Threshold ----------------------------------------- */

static void check_above(case_scores kind, const float *host, int64_t n, float threshold)
{
    int64_t nbytes = bitmap_nbytes(n), total;
    uint8_t *wanted = test_malloc(nbytes);
    test_case("above %g, %" PRId64 " of kind %d", (double)threshold, n, (int)kind);
    CHECK(s2_select_above(host, n, threshold, wanted, nbytes, &total, NULL) == S2_OK);
    const float *scores = device_array(SCORES, host, 4 * n, 4);
    uint8_t *bitmap = device_array(BITMAP, NULL, nbytes, 8);
    int64_t *count = device_array(RESULT, NULL, 8, 8);
    ON_DEVICE(NULL,
              s2_cuda_select_above(scores, n, threshold, bitmap, nbytes, count, device_stream));
    CHECK(memcmp(bitmap, wanted, (size_t)nbytes) == 0);
    CHECK(*count == total);
    free(wanted);
}

static void test_above(void)
{
    for (int kind = 0; kind < CASE_SCORE_KINDS; kind++) {
        for (int64_t l = 0; l < COUNT(lengths); l++) {
            const int64_t n = lengths[l];
            float *host = draw_scores((case_scores)kind, n);
            const float thresholds[] = {0,     -0.0f,    1.5f, 1e-40f,
                                        1e30f, INFINITY, NAN,  n ? fabsf(host[n / 2]) : 1};
            for (int64_t t = l % 2; t < COUNT(thresholds); t += 2)
                check_above((case_scores)kind, host, n, thresholds[t]);
            free(host);
        }
    }
}

/* ------------------------------------------- Random ------------------------------------------- */

static void check_random(uint64_t seed, int64_t n, int64_t keep)
{
    int64_t nbytes = bitmap_nbytes(n), scratch_nbytes;
    uint8_t *wanted = test_malloc(nbytes);
    test_case("%" PRId64 " of %" PRId64 " at random", keep, n);
    CHECK(s2_select_random(seed, n, keep, wanted, nbytes) == S2_OK);
    CHECK(s2_cuda_select_random_scratch_nbytes(n, &scratch_nbytes) == S2_OK);
    uint8_t *bitmap = device_array(BITMAP, NULL, nbytes, 8);
    void *scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(NULL, s2_cuda_select_random(seed, n, keep, bitmap, nbytes, scratch, scratch_nbytes,
                                          device_stream));
    CHECK(memcmp(bitmap, wanted, (size_t)nbytes) == 0);
    free(wanted);
}

static void test_random(void)
{
    for (int i = 0; i < 150; i++) {
        const int64_t n = random_below(i % 20 == 0 ? 5000 : 300);
        check_random(random_bits(), n, i % 7 == 0 ? n : random_below(n + 1));
    }
}

/* ------------------------------------------ Refusals ------------------------------------------ */

/* Nothing is launched: the stream is none. */
#define REFUSES(status, call)                                                                      \
    do {                                                                                           \
        test_case("%s", #call);                                                                    \
        CHECK((call) == (status));                                                                 \
    } while (0)

static s2_cuda_stream const none = NULL;

static void test_bad_scores(void)
{
    float scores[70], *odd = (float *)(void *)((char *)scores + 1), threshold;
    uint64_t bitmap_memory[3];
    uint8_t *bitmap = (uint8_t *)bitmap_memory;
    int64_t count, nbytes;
    CHECK(s2_cuda_select_top_scratch_nbytes(70, &nbytes) == S2_OK);
    void *scratch = test_malloc(nbytes);
#define TOP(scores, n, keep, bitmap, nbytes, threshold, scratch, scratch_nbytes)                   \
    s2_cuda_select_top(scores, n, keep, bitmap, nbytes, threshold, scratch, scratch_nbytes, none)
    REFUSES(S2_BAD_SIZE, TOP(scores, -1, 0, bitmap, 16, &threshold, scratch, nbytes));
    REFUSES(S2_BAD_SIZE, TOP(scores, INT64_MAX, 0, bitmap, 16, &threshold, scratch, nbytes));
    REFUSES(S2_BAD_SIZE, TOP(scores, 70, 71, bitmap, 16, &threshold, scratch, nbytes));
    REFUSES(S2_BAD_SIZE, TOP(scores, 70, -1, bitmap, 16, &threshold, scratch, nbytes));
    REFUSES(S2_BAD_SIZE, TOP(scores, 70, 1, bitmap, 24, &threshold, scratch, nbytes));
    REFUSES(S2_BAD_SIZE, TOP(scores, 70, 1, bitmap, 16, &threshold, scratch, nbytes - 8));
    REFUSES(S2_NULL_POINTER, TOP(NULL, 70, 1, bitmap, 16, &threshold, scratch, nbytes));
    REFUSES(S2_NULL_POINTER, TOP(scores, 70, 1, NULL, 16, &threshold, scratch, nbytes));
    REFUSES(S2_NULL_POINTER, TOP(scores, 70, 1, bitmap, 16, NULL, scratch, nbytes));
    REFUSES(S2_NULL_POINTER, TOP(scores, 70, 1, bitmap, 16, &threshold, NULL, nbytes));
    REFUSES(S2_BAD_ADDRESS, TOP(odd, 70, 1, bitmap, 16, &threshold, scratch, nbytes));
    REFUSES(S2_BAD_ADDRESS, TOP(scores, 70, 1, bitmap + 1, 16, &threshold, scratch, nbytes));
    REFUSES(S2_BAD_ADDRESS, TOP(scores, 70, 1, bitmap, 16, odd, scratch, nbytes));
#undef TOP
    REFUSES(S2_BAD_SIZE, s2_cuda_select_top_scratch_nbytes(S2_MAX_SELECT_SCORES + 1, &nbytes));
    REFUSES(S2_NULL_POINTER, s2_cuda_select_top_scratch_nbytes(70, NULL));

    REFUSES(S2_BAD_SIZE, s2_cuda_select_above(scores, 70, 1, bitmap, 8, &count, none));
    REFUSES(S2_BAD_FACTOR, s2_cuda_select_above(scores, 70, -1e-40f, bitmap, 16, &count, none));
    REFUSES(S2_NULL_POINTER, s2_cuda_select_above(NULL, 70, 1, bitmap, 16, &count, none));
    REFUSES(S2_NULL_POINTER, s2_cuda_select_above(scores, 70, 1, bitmap, 16, NULL, none));
    REFUSES(S2_BAD_ADDRESS, s2_cuda_select_above(odd, 70, 1, bitmap, 16, &count, none));
    free(scratch);
}

static void test_bad_choices(void)
{
    uint64_t bitmap_memory[3];
    uint8_t *bitmap = (uint8_t *)bitmap_memory;
    int64_t nbytes;
    void *scratch = test_malloc(560);
    REFUSES(S2_BAD_SIZE, s2_cuda_select_random(1, -1, 0, bitmap, 16, scratch, 560, none));
    REFUSES(S2_BAD_SIZE, s2_cuda_select_random(1, 70, 71, bitmap, 16, scratch, 560, none));
    REFUSES(S2_BAD_SIZE, s2_cuda_select_random(1, 70, 1, bitmap, 8, scratch, 560, none));
    REFUSES(S2_BAD_SIZE, s2_cuda_select_random(1, 70, 1, bitmap, 16, scratch, 568, none));
    REFUSES(S2_NULL_POINTER, s2_cuda_select_random(1, 70, 1, NULL, 16, scratch, 560, none));
    REFUSES(S2_NULL_POINTER, s2_cuda_select_random(1, 70, 1, bitmap, 16, NULL, 560, none));
    REFUSES(S2_BAD_SIZE, s2_cuda_select_random_scratch_nbytes(S2_MAX_NUMEL + 1, &nbytes));
    REFUSES(S2_OK, s2_cuda_select_random_scratch_nbytes(S2_MAX_NUMEL, &nbytes));
    CHECK(nbytes == 8 * S2_MAX_NUMEL);
    free(scratch);
}

int main(void)
{
    test_begin("test_cuda_select");
    device_new();
    test_top();
    test_many_equal();
    test_above();
    test_random();
    test_bad_scores();
    test_bad_choices();
    device_delete();
    return test_end();
}
