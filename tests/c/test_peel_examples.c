/* SPDX-License-Identifier: MIT */
/* Peeling of a few blocks written out by hand, and of arguments that are refused. */
#include <math.h>

#include "sketch_cases.h"

/* ------------------------------------------ Blocks -------------------------------------------- */

static void test_example_of_the_header(void)
{
    const s2_sketch sketch = {2, 3, 1, 3};
    const int64_t ids[3] = {0, 1, 2};
    const float values[3] = {5, 7, 9}, cells[6] = {0, 2, -5, 0, -2, 9};
    float table[6] = {0}, out[3], bounds[3], norms[3];
    uint8_t decoded[3];
    uint64_t scratch[64];
    int64_t nbytes, ndecoded, nrounds;
    test_case("the header's example");
    CHECK(s2_sketch_insert(&sketch, table, ids, 3, values) == S2_OK);
    CHECK(memcmp(table, cells, sizeof(cells)) == 0);
    CHECK(s2_sketch_estimate(&sketch, table, ids, 3, out) == S2_OK);
    CHECK(out[0] == 1.5f && out[1] == 0 && out[2] == 5.5f);
    CHECK(s2_sketch_scratch_nbytes(&sketch, 3, &nbytes) == S2_OK);
    CHECK(nbytes == 6 * 16 + 3 * 4 + 8 && nbytes <= (int64_t)sizeof(scratch));
    CHECK(s2_sketch_peel(&sketch, table, ids, 3, 1, NULL, 0, out, decoded, bounds, norms, scratch,
                         nbytes, &ndecoded, &nrounds) == S2_OK);
    CHECK(ndecoded == 3 && nrounds == 2 && memcmp(out, values, sizeof(values)) == 0);
    CHECK(memcmp(norms, values, sizeof(values)) == 0);
    /* The second came from a cell of two, from which the third was taken: two roundings, for each
     * twice the square of 2^-23. */
    const double left = (double)(float)sqrt(2 * 81 * 0x1p-46);
    CHECK(bounds[0] == 0 && bounds[2] == 0);
    CHECK(bounds[1] == (float)sqrt(left * left + 2 * 49 * 0x1p-46));
}

/* Two blocks that share all their cells are stuck, and say so; a third is not. */
static void test_stuck_pair(void)
{
    s2_sketch sketch = {3, 2, 1, 0};
    const int64_t ids[3] = {4, 5, 6};
    const float values[3] = {1, 10, 100};
    float table[6] = {0}, out[3], bounds[3], norms[3], estimates[2];
    uint8_t decoded[3];
    uint64_t scratch[64];
    int64_t nbytes, ndecoded, nrounds;
    test_case("a stuck pair");
    for (;; sketch.seed++) {
        int same = 1, apart = 0;
        for (int64_t row = 0; row < 3; row++) {
            int64_t first = oracle_place(&sketch, 4, row).cell;
            same &= first == oracle_place(&sketch, 5, row).cell;
            apart |= first != oracle_place(&sketch, 6, row).cell;
        }
        if (same && apart) break;
    }
    CHECK(s2_sketch_insert(&sketch, table, ids, 3, values) == S2_OK);
    CHECK(s2_sketch_scratch_nbytes(&sketch, 3, &nbytes) == S2_OK);
    CHECK(nbytes <= (int64_t)sizeof(scratch));
    CHECK(s2_sketch_peel(&sketch, table, ids, 3, 1, NULL, 0, out, decoded, bounds, norms, scratch,
                         nbytes, &ndecoded, &nrounds) == S2_OK);
    CHECK(ndecoded == 1 && nrounds == 1);
    CHECK(norms[0] == 0 && norms[1] == 0 && norms[2] == 100);
    CHECK(!decoded[0] && !decoded[1] && decoded[2]);
    CHECK(out[0] == 0 && out[1] == 0 && out[2] == 100);
    CHECK(isinf(bounds[0]) && isinf(bounds[1]) && bounds[2] == 0);
    /* Each of their cells holds both and nothing else. */
    CHECK(s2_sketch_subtract(&sketch, table, ids, 2, values) == S2_OK);
    CHECK(s2_sketch_estimate(&sketch, table, ids, 2, estimates) == S2_OK);
    CHECK(estimates[0] == 0 && estimates[1] == 0);
}

/* --------------------------------------- Rounding errors ---------------------------------------
 */

/*
 * The header's example again, with other values: the second block shares one of its cells with the
 * first, the other with the third, out of which it is read.  Tables and magnitudes of two ranks.
 */
typedef struct pair_of_ranks {
    s2_sketch sketch;
    float table[12], magnitudes[6], values[6], bounds[3], norms[3];
} pair_of_ranks;

static void peel_pair_of_ranks(pair_of_ranks *r, int64_t block, const float *one, const float *two,
                               int with_magnitudes)
{
    static const int64_t ids[3] = {0, 1, 2};
    const float *of_ranks[2] = {one, two};
    uint8_t decoded[3];
    uint64_t scratch[64];
    int64_t nbytes, ndecoded, nrounds;
    memset(r, 0, sizeof(*r));
    r->sketch = (s2_sketch){2, 3, block, 3};
    for (int i = 0; i < 2; i++) {
        float table[12] = {0}, magnitudes[6] = {0};
        CHECK(s2_sketch_insert(&r->sketch, table, ids, 3, of_ranks[i]) == S2_OK);
        CHECK(s2_sketch_weigh(&r->sketch, magnitudes, ids, 3, of_ranks[i]) == S2_OK);
        CHECK(s2_sketch_merge(&r->sketch, r->table, &r->sketch, table) == S2_OK);
        for (int cell = 0; cell < 6; cell++)
            r->magnitudes[cell] += magnitudes[cell];
    }
    CHECK(s2_sketch_scratch_nbytes(&r->sketch, 3, &nbytes) == S2_OK);
    CHECK(s2_sketch_peel(&r->sketch, r->table, ids, 3, 2, with_magnitudes ? r->magnitudes : NULL, 0,
                         r->values, decoded, r->bounds, r->norms, scratch, nbytes, &ndecoded,
                         &nrounds) == S2_OK);
    CHECK(ndecoded == 3 && nrounds == 2);
}

/* What the third block loses the second by cancelling itself is in the bound where it is known. */
static void test_ranks_that_cancel(void)
{
    const float one[3] = {5, 0.7f, 1e6f}, two[3] = {5, 0.7f, -1e6f};
    const double exact = 2 * (double)0.7f;
    pair_of_ranks r;
    test_case("ranks that cancel");
    peel_pair_of_ranks(&r, 1, one, two, 0);
    const double error = fabs((double)r.values[1] - exact);
    CHECK(r.values[0] == 10 && r.values[1] == 1.375f && r.values[2] == 0);
    CHECK(error > 0.02 && (double)r.bounds[1] < 1e-6);
    peel_pair_of_ranks(&r, 1, one, two, 1);
    CHECK(r.magnitudes[1] == 2e6f + 2 * 0.7f && r.magnitudes[3 + 1] == 10 + 2 * 0.7f);
    CHECK(r.values[0] == 10 && r.values[1] == 1.375f && r.values[2] == 0);
    /* Three roundings in a cell of two: twice the square of 2^-23 for M, four times for the block
     * and for the third one, of which nothing is left but the bound of its own cell. */
    const double cell =
        (double)(float)sqrt(2 * 0x1p-46 * (double)r.magnitudes[1] * (double)r.magnitudes[1]);
    const double third = (double)r.bounds[2];
    CHECK(r.bounds[2] == (float)sqrt(0x1p-46 * 2e6 * 2e6));
    const double left = (double)(float)sqrt(cell * cell + third * third);
    CHECK(r.bounds[1] == (float)sqrt(left * left + 4 * 0x1p-46 * 1.375 * 1.375));
    CHECK(error <= (double)r.bounds[1] && (double)r.bounds[1] < 0.5);
}

static void test_clearing(void)
{
    static const float none[6] = {0};
    float values[6] = {9e6f, 1, 1000, -0.5f, 9e6f, 777};
    pair_of_ranks r;
    test_case("clearing");
    /* The first was alone, so its 1 stays, although it is within the bound over the root of 2. */
    peel_pair_of_ranks(&r, 2, values, none, 1);
    CHECK(r.values[0] == 9e6f && r.values[1] == 1);
    CHECK(1 <= (double)r.bounds[0] / sqrt(2) && r.norms[0] == 9e6f);
    CHECK(r.values[2] == 1000 && r.values[3] == 0 && !signbit(r.values[3]));
    CHECK(0.5 <= (double)r.bounds[1] / sqrt(2) && r.norms[1] == 1000);
    CHECK(r.values[4] == 9e6f && r.values[5] == 777 && r.norms[2] == 9e6f);
    /* A little more than that stays, and with it the rest. */
    values[3] = 1.0625f * (float)((double)r.bounds[1] / sqrt(2));
    peel_pair_of_ranks(&r, 2, values, none, 1);
    CHECK(fabs((double)r.values[3] - (double)values[3]) < 1e-3 && r.norms[1] == 1000);
    /* All of it may go; it was decoded nevertheless. */
    values[2] = 0.5f, values[3] = 0.5f;
    peel_pair_of_ranks(&r, 2, values, none, 1);
    CHECK(r.values[2] == 0 && r.values[3] == 0 && r.norms[1] == 0 && r.bounds[1] < 10);
}

/* --------------------------------------- Bad arguments ---------------------------------------- */

static float table[24], before[24];

/* Whatever the status, nothing of the table may have changed. */
#define REFUSES(status, call) CHECK((call) == (status) && memcmp(table, before, sizeof(table)) == 0)

static void test_bad_peels(void)
{
    const s2_sketch s = {3, 4, 2, 1};
    const int64_t ids[2] = {1, 2}, bad_ids[2] = {2, 2};
    float values[4] = {7, 7, 7, 7}, bounds[2] = {7, 7}, norms[2] = {7, 7};
    uint8_t decoded[2] = {7, 7};
    uint64_t scratch[64] = {7};
    int64_t d = 7, r = 7, nbytes;
    CHECK(s2_sketch_scratch_nbytes(&s, 2, &nbytes) == S2_OK);
    REFUSES(S2_BAD_SIZE, s2_sketch_scratch_nbytes(&s, -1, &d));
    REFUSES(S2_BAD_SIZE, s2_sketch_scratch_nbytes(&s, (int64_t)1 << 32, &d));
    REFUSES(S2_NULL_POINTER, s2_sketch_scratch_nbytes(&s, 2, NULL));
#define PEEL(ids, n, nranks, max_rounds, scratch, nbytes)                                          \
    s2_sketch_peel(&s, table, ids, n, nranks, NULL, max_rounds, values, decoded, bounds, norms,    \
                   scratch, nbytes, &d, &r)
    test_case("peels");
    REFUSES(S2_BAD_POSITION, PEEL(bad_ids, 2, 1, 0, scratch, nbytes));
    REFUSES(S2_BAD_SIZE, PEEL(ids, 2, 1, 0, scratch, nbytes - 8));
    REFUSES(S2_BAD_SIZE, PEEL(ids, 2, 1, 0, scratch, nbytes + 8));
    REFUSES(S2_BAD_SIZE, PEEL(ids, 2, 1, 0, scratch, 0));
    REFUSES(S2_BAD_SIZE, PEEL(ids, 2, 0, 0, scratch, nbytes));
    REFUSES(S2_BAD_SIZE, PEEL(ids, 2, S2_MAX_RANKS + 1, 0, scratch, nbytes));
    REFUSES(S2_BAD_SIZE, PEEL(ids, 2, 1, -1, scratch, nbytes));
    REFUSES(S2_BAD_SIZE, PEEL(ids, -1, 1, 0, scratch, nbytes));
    REFUSES(S2_BAD_SIZE, PEEL(ids, INT64_MAX, 1, 0, scratch, nbytes));
    REFUSES(S2_NULL_POINTER, PEEL(NULL, 2, 1, 0, scratch, nbytes));
    REFUSES(S2_NULL_POINTER, PEEL(ids, 2, 1, 0, NULL, nbytes));
#undef PEEL
#define PEEL(table, values, decoded, bounds, norms, d, r)                                          \
    s2_sketch_peel(&s, table, ids, 2, 1, table, 0, values, decoded, bounds, norms, scratch,        \
                   nbytes, d, r)
    REFUSES(S2_NULL_POINTER, PEEL(NULL, values, decoded, bounds, norms, &d, &r));
    REFUSES(S2_NULL_POINTER, PEEL(table, NULL, decoded, bounds, norms, &d, &r));
    REFUSES(S2_NULL_POINTER, PEEL(table, values, NULL, bounds, norms, &d, &r));
    REFUSES(S2_NULL_POINTER, PEEL(table, values, decoded, NULL, norms, &d, &r));
    REFUSES(S2_NULL_POINTER, PEEL(table, values, decoded, bounds, NULL, &d, &r));
    REFUSES(S2_NULL_POINTER, PEEL(table, values, decoded, bounds, norms, NULL, &r));
    REFUSES(S2_NULL_POINTER, PEEL(table, values, decoded, bounds, norms, &d, NULL));
#undef PEEL
    CHECK(d == 7 && r == 7 && values[0] == 7 && bounds[0] == 7 && norms[0] == 7 && decoded[0] == 7);
    CHECK(scratch[0] == 7);
}

static void test_nothing(void)
{
    const s2_sketch s = {3, 4, 2, 1};
    uint64_t scratch[32];
    int64_t d = 7, r = 7, nbytes;
    test_case("no blocks");
    CHECK(s2_sketch_scratch_nbytes(&s, 0, &nbytes) == S2_OK && nbytes <= (int64_t)sizeof(scratch));
    CHECK(s2_sketch_peel(&s, table, NULL, 0, 1, NULL, 0, NULL, NULL, NULL, NULL, scratch, nbytes,
                         &d, &r) == S2_OK);
    CHECK(d == 0 && r == 0 && memcmp(table, before, sizeof(table)) == 0);
}

int main(void)
{
    test_begin("test_peel_examples");
    test_example_of_the_header();
    test_stuck_pair();
    test_ranks_that_cancel();
    test_clearing();
    test_bad_peels();
    test_nothing();
    return test_end();
}
