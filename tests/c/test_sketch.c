/* SPDX-License-Identifier: MIT */
/* That sketches are made, added up and estimated from as the header says. */
#include "hash.h"
#include "sketch_cases.h"

/* ------------------------------------------- Hash --------------------------------------------- */

/* The rows of tests/vectors/sketch.json, which reference_sketch.py is held to as well. */
static const struct {
    uint64_t seed, id;
    uint32_t row, width, cell, negative;
} vectors[] = {
    {0u, 0u, 0, 1u, 0u, 1},
    {0u, 1u, 1, 3u, 0u, 0},
    {0u, 63u, 2, 434u, 6u, 1},
    {0u, 1000000000u, 3, 1048576u, 750768u, 1},
    {0u, 1099511627783u, 4, 2147483649u, 1265797577u, 1},
    {0u, 9223372036854775806u, 5, 4294967295u, 3137131079u, 1},
    {1u, 0u, 3, 3u, 2u, 1},
    {1u, 1u, 4, 434u, 172u, 1},
    {1u, 63u, 5, 1048576u, 42296u, 1},
    {1u, 1000000000u, 6, 2147483649u, 575585630u, 0},
    {1u, 1099511627783u, 7, 4294967295u, 724944381u, 1},
    {1u, 9223372036854775806u, 0, 1u, 0u, 1},
    {42u, 0u, 6, 434u, 84u, 0},
    {42u, 1u, 7, 1048576u, 416767u, 1},
    {42u, 63u, 0, 2147483649u, 635901607u, 0},
    {42u, 1000000000u, 1, 4294967295u, 667424748u, 0},
    {42u, 1099511627783u, 2, 1u, 0u, 1},
    {42u, 9223372036854775806u, 3, 3u, 0u, 1},
    {9223372036854775813u, 0u, 1, 1048576u, 586216u, 0},
    {9223372036854775813u, 1u, 2, 2147483649u, 369001858u, 1},
    {9223372036854775813u, 63u, 3, 4294967295u, 742826480u, 1},
    {9223372036854775813u, 1000000000u, 4, 1u, 0u, 1},
    {9223372036854775813u, 1099511627783u, 5, 3u, 0u, 1},
    {9223372036854775813u, 9223372036854775806u, 6, 434u, 33u, 0},
    {18446744073709551615u, 0u, 4, 2147483649u, 1099113007u, 0},
    {18446744073709551615u, 1u, 5, 4294967295u, 1763423387u, 0},
    {18446744073709551615u, 63u, 6, 1u, 0u, 1},
    {18446744073709551615u, 1000000000u, 7, 3u, 2u, 1},
    {18446744073709551615u, 1099511627783u, 0, 434u, 277u, 1},
    {18446744073709551615u, 9223372036854775806u, 1, 1048576u, 507466u, 0},
};

static void test_places(void)
{
    for (int64_t i = 0; i < COUNT(vectors); i++) {
        uint32_t row = vectors[i].row, width = vectors[i].width;
        s2_sketch sketch = {8, width, 1, vectors[i].seed};
        test_case("row %" PRId64 " of the sketch vectors", i);
        s2_place got = s2_place_of(s2_hash(vectors[i].seed, vectors[i].id), row, width);
        CHECK(got.cell == vectors[i].cell && got.sign == vectors[i].negative << 31);
        place wanted = oracle_place(&sketch, (int64_t)vectors[i].id, row);
        CHECK(wanted.cell == (int64_t)row * width + vectors[i].cell);
        CHECK(wanted.negative == (int)vectors[i].negative);
    }
}

/* ------------------------------------------ Insert -------------------------------------------- */

static void test_insert_and_subtract(void)
{
    static problem p;
    static float wanted[2][MAX_NUMEL];
    for (int i = 0; i < 300; i++) {
        draw_problem(&p, (enum values_kind)(i % 3));
        test_case("insert %d: %s", i, describe(&p));
        for (int s = 0; s < 2; s++) {
            memcpy(wanted[s], p.table, (size_t)(4 * p.numel));
            oracle_insert(&p, wanted[s], s == 0 ? 1.0f : -1.0f);
        }
        for (int v = 0; variant_use(v); v++) {
            const int64_t *ids = place_ids(&p);
            const float *values = place_floats(&values_memory, p.values, p.n * p.sketch.block);
            float *table = place_floats(&table_memory, p.table, p.numel);
            CHECK(s2_sketch_insert(&p.sketch, table, ids, p.n, values) == S2_OK);
            check_elements(S2_FLOAT32, table, wanted[0], p.numel, 1);
            table = place_floats(&table_memory, p.table, p.numel);
            CHECK(s2_sketch_subtract(&p.sketch, table, ids, p.n, values) == S2_OK);
            check_elements(S2_FLOAT32, table, wanted[1], p.numel, 1);
            sketch_memory_check();
        }
    }
}

static void test_weigh(void)
{
    static problem p;
    static float wanted[MAX_CELLS];
    for (int i = 0; i < 300; i++) {
        draw_problem(&p, (enum values_kind)(i % 3));
        test_case("weigh %d: %s", i, describe(&p));
        int64_t ncells = p.sketch.rows * p.sketch.width;
        memcpy(wanted, p.table, (size_t)(4 * ncells)); /* whatever was there */
        oracle_weigh(&p, wanted);
        for (int v = 0; variant_use(v); v++) {
            const int64_t *ids = place_ids(&p);
            const float *values = place_floats(&values_memory, p.values, p.n * p.sketch.block);
            float *magnitudes = place_floats(&magnitudes_memory, p.table, ncells);
            CHECK(s2_sketch_weigh(&p.sketch, magnitudes, ids, p.n, values) == S2_OK);
            check_elements(S2_FLOAT32, magnitudes, wanted, ncells, 1);
            sketch_memory_check();
        }
    }
}

static void test_merge(void)
{
    static problem p, other;
    static float wanted[MAX_NUMEL];
    for (int i = 0; i < 100; i++) {
        draw_problem(&p, FINITE);
        case_finite(S2_FLOAT32, other.table, p.numel);
        for (int64_t e = 0; e < p.numel; e++)
            wanted[e] = p.table[e] + other.table[e];
        test_case("merge %d: %s", i, describe(&p));
        for (int v = 0; variant_use(v); v++) {
            float *table = place_floats(&table_memory, p.table, p.numel);
            const float *second = place_floats(&other_memory, other.table, p.numel);
            s2_sketch same = p.sketch;
            CHECK(s2_sketch_merge(&p.sketch, table, &same, second) == S2_OK);
            check_elements(S2_FLOAT32, table, wanted, p.numel, 1);
            sketch_memory_check();
        }
    }
}

/* ----------------------------------------- Estimate ------------------------------------------- */

/* Where a pattern stands among all: NaNs and numbers below zero, from the largest magnitude on,
 * then the others. */
static int64_t rank_of(uint32_t bits)
{
    int64_t magnitude = bits & 0x7fffffff;
    return bits >> 31 ? -1 - magnitude : magnitude;
}

static int compare(const void *a, const void *b)
{
    int64_t left = rank_of(*(const uint32_t *)a), right = rank_of(*(const uint32_t *)b);
    return left < right ? -1 : left > right;
}

static float oracle_median(uint32_t *cells, int64_t rows)
{
    float lower, upper, median;
    qsort(cells, (size_t)rows, 4, compare);
    memcpy(&lower, &cells[(rows - 1) / 2], 4);
    memcpy(&upper, &cells[rows / 2], 4);
    if (rows % 2 == 1) {
        median = upper;
    } else {
        float a = 0.5f * lower, b = 0.5f * upper;
        median = a + b;
    }
    return median == 0 ? 0.0f : median;
}

static void oracle_estimate(const problem *p, float *values)
{
    int64_t block = p->sketch.block;
    for (int64_t i = 0; i < p->n; i++) {
        for (int64_t e = 0; e < block; e++) {
            uint32_t cells[8];
            for (int64_t row = 0; row < p->sketch.rows; row++) {
                place at = oracle_place(&p->sketch, p->ids[i], row);
                memcpy(&cells[row], &p->table[at.cell * block + e], 4);
                if (at.negative) cells[row] ^= 0x80000000;
            }
            values[i * block + e] = oracle_median(cells, p->sketch.rows);
        }
    }
}

static void test_estimate(void)
{
    static problem p;
    static float wanted[MAX_NUMEL];
    for (int i = 0; i < 400; i++) {
        draw_problem(&p, (enum values_kind)(i % 3));
        test_case("estimate %d: %s", i, describe(&p));
        oracle_estimate(&p, wanted);
        for (int v = 0; variant_use(v); v++) {
            const int64_t *ids = place_ids(&p);
            const float *table = place_floats(&table_memory, p.table, p.numel);
            float *values =
                guarded_place(&values_memory, 4 * p.n * p.sketch.block, placement_random(4));
            CHECK(s2_sketch_estimate(&p.sketch, table, ids, p.n, values) == S2_OK);
            check_elements(S2_FLOAT32, values, wanted, p.n * p.sketch.block, 1);
            CHECK(memcmp(table, p.table, (size_t)(4 * p.numel)) == 0);
            sketch_memory_check();
        }
    }
}

/* ----------------------------------------- Bad arguments -------------------------------------- */

static float table[24], before[24];

/* Whatever the status, nothing of the table may have changed. */
#define REFUSES(status, call) CHECK((call) == (status) && memcmp(table, before, sizeof(table)) == 0)

static void test_bad_shapes(void)
{
    static const s2_sketch bad[] = {
        {0, 4, 2, 1},
        {9, 4, 2, 1},
        {-1, 4, 2, 1},
        {INT64_MIN, 4, 2, 1},
        {3, 0, 2, 1},
        {3, -4, 2, 1},
        {3, (int64_t)1 << 32, 2, 1},
        {3, INT64_MAX, 2, 1},
        {3, 4, 0, 1},
        {3, 4, -2, 1},
        {3, 4, INT64_MIN, 1},
        {3, 4, INT64_MAX, 1},
        {3, 4, S2_MAX_NUMEL / 12 + 1, 1},
        {8, 4294967295, (int64_t)1 << 26, 1},
    };
    const s2_sketch good = {3, 4, 2, 1};
    const int64_t ids[2] = {1, 2};
    float values[4] = {1, 2, 3, 4}, bounds[2], norms[2];
    uint8_t decoded[2];
    uint64_t scratch[64];
    int64_t numel = 7;
    for (int64_t i = 0; i < COUNT(bad); i++) {
        const s2_sketch *s = &bad[i];
        test_case("bad shape %" PRId64, i);
        REFUSES(S2_BAD_SKETCH, s2_sketch_numel(s, &numel));
        REFUSES(S2_BAD_SKETCH, s2_sketch_scratch_nbytes(s, 2, &numel));
        REFUSES(S2_BAD_SKETCH, s2_sketch_insert(s, table, ids, 2, values));
        REFUSES(S2_BAD_SKETCH, s2_sketch_subtract(s, table, ids, 2, values));
        REFUSES(S2_BAD_SKETCH, s2_sketch_weigh(s, table, ids, 2, values));
        REFUSES(S2_BAD_SKETCH, s2_sketch_estimate(s, table, ids, 2, values));
        REFUSES(S2_BAD_SKETCH, s2_sketch_merge(s, table, &good, before));
        REFUSES(S2_BAD_SKETCH, s2_sketch_merge(&good, table, s, before));
        REFUSES(S2_BAD_SKETCH, s2_sketch_peel(s, table, ids, 2, 1, NULL, 0, values, decoded, bounds,
                                              norms, scratch, 64, &numel, &numel));
    }
    CHECK(numel == 7 && values[0] == 1);
    CHECK(s2_sketch_numel(&(s2_sketch){8, UINT32_MAX, S2_MAX_NUMEL / 8 / UINT32_MAX, 0}, &numel) ==
          S2_OK);
    CHECK(numel <= S2_MAX_NUMEL);
}

static void test_bad_merges(void)
{
    const s2_sketch good = {3, 4, 2, 1};
    const s2_sketch others[] = {{2, 4, 2, 1}, {3, 5, 2, 1}, {3, 4, 3, 1}, {3, 4, 2, 2}};
    test_case("merges");
    for (int64_t i = 0; i < COUNT(others); i++) {
        REFUSES(S2_BAD_SKETCH, s2_sketch_merge(&good, table, &others[i], before));
        REFUSES(S2_BAD_SKETCH, s2_sketch_merge(&others[i], table, &good, before));
    }
    REFUSES(S2_NULL_POINTER, s2_sketch_merge(&good, NULL, &good, before));
    REFUSES(S2_NULL_POINTER, s2_sketch_merge(&good, table, &good, NULL));
    REFUSES(S2_NULL_POINTER, s2_sketch_merge(NULL, table, &good, before));
    REFUSES(S2_NULL_POINTER, s2_sketch_merge(&good, table, NULL, before));
}

static void test_bad_blocks(void)
{
    const s2_sketch s = {3, 4, 2, 1};
    const int64_t bad_ids[][2] = {{2, 2}, {2, 1}, {-1, 2}, {INT64_MIN, 0}, {0, INT64_MAX}};
    const int64_t ids[2] = {1, 2};
    float values[4] = {7, 7, 7, 7};
    typedef s2_status (*function)(const s2_sketch *, float *, const int64_t *, int64_t,
                                  const float *);
    static const function functions[] = {s2_sketch_insert, s2_sketch_subtract, s2_sketch_weigh};
    test_case("blocks");
    for (int64_t f = 0; f < COUNT(functions); f++) {
        for (int64_t i = 0; i < COUNT(bad_ids); i++)
            REFUSES(S2_BAD_POSITION, functions[f](&s, table, bad_ids[i], 2, values));
        REFUSES(S2_BAD_SIZE, functions[f](&s, table, ids, -1, values));
        REFUSES(S2_BAD_SIZE, functions[f](&s, table, ids, S2_MAX_NUMEL / 2 + 1, values));
        REFUSES(S2_NULL_POINTER, functions[f](NULL, table, ids, 2, values));
        REFUSES(S2_NULL_POINTER, functions[f](&s, NULL, ids, 2, values));
        REFUSES(S2_NULL_POINTER, functions[f](&s, table, NULL, 2, values));
        REFUSES(S2_NULL_POINTER, functions[f](&s, table, ids, 2, NULL));
        CHECK(functions[f](&s, table, NULL, 0, NULL) == S2_OK);
    }
    for (int64_t i = 0; i < COUNT(bad_ids); i++)
        REFUSES(S2_BAD_POSITION, s2_sketch_estimate(&s, table, bad_ids[i], 2, values));
    REFUSES(S2_BAD_SIZE, s2_sketch_estimate(&s, table, ids, INT64_MIN, values));
    REFUSES(S2_NULL_POINTER, s2_sketch_estimate(&s, table, ids, 2, NULL));
    CHECK(values[0] == 7 && values[3] == 7);
}

int main(void)
{
    test_begin("test_sketch");
    sketch_memory_new();
    test_places();
    test_insert_and_subtract();
    test_weigh();
    test_merge();
    test_estimate();
    test_bad_shapes();
    test_bad_merges();
    test_bad_blocks();
    sketch_memory_delete();
    return test_end();
}
