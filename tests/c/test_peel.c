/* SPDX-License-Identifier: MIT */
/* That sketches are peeled in the rounds and to the values and bounds that the header says. */
#include <math.h>

#include "sketch_cases.h"

/* ------------------------------------------- Oracle ------------------------------------------- */

/* What s2_sketch_peel() should find. */
typedef struct peeled {
    int64_t ndecoded, nrounds;
    uint8_t decoded[MAX_N];
    float bounds[MAX_N], values[MAX_NUMEL], table[MAX_NUMEL];
    uint8_t has_stuck[MAX_CELLS]; /* by cell: whether the table says something there */
} peeled;

typedef struct oracle_peeling {
    const problem *p;
    peeled *out;
    place places[MAX_N][8];
    int gone[MAX_N]; /* decoded in a round before this one */
    float norms[MAX_N], cell_bounds[MAX_CELLS];
    int64_t loads[MAX_CELLS], nranks;
} oracle_peeling;

/* Blocks of a cell that are not `gone`. */
static int64_t count_left(const oracle_peeling *o, int64_t cell)
{
    int64_t count = 0;
    for (int64_t i = 0; i < o->p->n; i++) {
        for (int64_t row = 0; row < o->p->sketch.rows && !o->gone[i]; row++)
            count += o->places[i][row].cell == cell;
    }
    return count;
}

/* The squares that a block gives to a cell's bound. */
static double oracle_rounding(const oracle_peeling *o, int64_t cell, int64_t i)
{
    double additions = 2.0 * (double)o->loads[cell] - 2 + (double)(o->nranks - 1);
    double each = 2 * (double)o->norms[i] / 16777216.0;
    return additions == 0 ? 0 : exp2(ceil(log2(additions))) * each * each;
}

static float oracle_root(double bound, double squares)
{
    return (float)sqrt(bound * bound + squares);
}

static void oracle_take(oracle_peeling *o, int64_t i, place at)
{
    int64_t block = o->p->sketch.block;
    float *values = o->out->values + i * block;
    o->norms[i] = 0;
    for (int64_t e = 0; e < block; e++) {
        float value = o->out->table[at.cell * block + e];
        values[e] = (at.negative ? -value : value) + 0.0f;
        if (fabsf(values[e]) > o->norms[i]) o->norms[i] = fabsf(values[e]);
    }
    o->out->decoded[i] = 1;
    o->out->bounds[i] =
        oracle_root((double)o->cell_bounds[at.cell], oracle_rounding(o, at.cell, i));
}

static void oracle_subtract(oracle_peeling *o, int64_t i)
{
    int64_t block = o->p->sketch.block;
    for (int64_t row = 0; row < o->p->sketch.rows; row++) {
        place at = o->places[i][row];
        if (count_left(o, at.cell) == 0) continue;
        for (int64_t e = 0; e < block; e++) {
            float value = o->out->values[i * block + e];
            o->out->table[at.cell * block + e] -= at.negative ? -value : value;
        }
        double own = (double)o->out->bounds[i];
        o->cell_bounds[at.cell] = oracle_root((double)o->cell_bounds[at.cell],
                                              own * own + oracle_rounding(o, at.cell, i));
    }
}

/* Returns how many blocks were taken. */
static int64_t oracle_round(oracle_peeling *o)
{
    const problem *p = o->p;
    int64_t taken[MAX_N], ntaken = 0;
    for (int64_t i = 0; i < p->n; i++) {
        for (int64_t row = 0; row < p->sketch.rows && !o->gone[i]; row++) {
            if (count_left(o, o->places[i][row].cell) != 1) continue;
            oracle_take(o, i, o->places[i][row]);
            taken[ntaken++] = i;
            break;
        }
    }
    for (int64_t k = 0; k < ntaken; k++)
        o->gone[taken[k]] = 1;
    for (int64_t k = 0; k < ntaken; k++)
        oracle_subtract(o, taken[k]);
    return ntaken;
}

static void oracle_peel(const problem *p, int64_t nranks, int64_t max_rounds, peeled *out)
{
    static oracle_peeling o;
    int64_t ncells = p->sketch.rows * p->sketch.width, taken;
    memset(&o, 0, sizeof(o));
    memset(out, 0, sizeof(*out));
    o.p = p, o.out = out, o.nranks = nranks;
    memcpy(out->table, p->table, (size_t)(4 * p->numel));
    for (int64_t i = 0; i < p->n; i++) {
        out->bounds[i] = INFINITY;
        for (int64_t row = 0; row < p->sketch.rows; row++)
            o.places[i][row] = oracle_place(&p->sketch, p->ids[i], row);
    }
    for (int64_t cell = 0; cell < ncells; cell++)
        o.loads[cell] = count_left(&o, cell);
    while ((max_rounds == 0 || out->nrounds < max_rounds) && (taken = oracle_round(&o)) > 0) {
        out->ndecoded += taken;
        out->nrounds++;
    }
    for (int64_t cell = 0; cell < ncells; cell++)
        out->has_stuck[cell] = count_left(&o, cell) > 0;
}

/* --------------------------------------- Random tables ---------------------------------------- */

/* Peels under every variant. */
static void check_peel(const problem *p, int64_t nranks, int64_t max_rounds)
{
    static peeled wanted;
    int64_t block = p->sketch.block, nbytes;
    oracle_peel(p, nranks, max_rounds, &wanted);
    CHECK(s2_sketch_scratch_nbytes(&p->sketch, p->n, &nbytes) == S2_OK);
    for (int v = 0; variant_use(v); v++) {
        int64_t ndecoded = -7, nrounds = -7;
        const int64_t *ids = place_ids(p);
        float *table = place_floats(&table_memory, p->table, p->numel);
        float *values = guarded_place(&values_memory, 4 * p->n * block, placement_random(4));
        uint8_t *decoded = guarded_place(&decoded_memory, p->n, placement_random(1));
        float *bounds = guarded_place(&bounds_memory, 4 * p->n, placement_random(4));
        void *scratch = guarded_place(&scratch_memory, nbytes, (placement){random_chance(50), 0});
        CHECK(s2_sketch_peel(&p->sketch, table, ids, p->n, nranks, max_rounds, values, decoded,
                             bounds, scratch, nbytes, &ndecoded, &nrounds) == S2_OK);
        CHECK(ndecoded == wanted.ndecoded && nrounds == wanted.nrounds);
        CHECK(memcmp(decoded, wanted.decoded, (size_t)p->n) == 0);
        check_elements(S2_FLOAT32, values, wanted.values, p->n * block, 0);
        check_elements(S2_FLOAT32, bounds, wanted.bounds, p->n, 0);
        for (int64_t cell = 0; cell < p->sketch.rows * p->sketch.width; cell++) {
            if (wanted.has_stuck[cell])
                check_elements(S2_FLOAT32, table + cell * block, wanted.table + cell * block, block,
                               0);
        }
        sketch_memory_check();
    }
}

/* A width for which some, most or all blocks can be decoded. */
static void draw_peelable(problem *p, enum values_kind kind)
{
    draw_problem(p, kind);
    int64_t most = MAX_NUMEL / p->sketch.block / p->sketch.rows;
    most = most < MAX_CELLS / p->sketch.rows ? most : MAX_CELLS / p->sketch.rows;
    int64_t width = (p->n * (50 + random_below(150)) / 100 + 1) / p->sketch.rows + 1;
    p->sketch.width = width < most ? width : most;
    CHECK(s2_sketch_numel(&p->sketch, &p->numel) == S2_OK);
    memset(p->table, 0, (size_t)(4 * p->numel));
    oracle_insert(p, p->table, 1.0f);
}

/* Values whose sums are far from overflow, of sizes that are far apart. */
static void scale_blocks(problem *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        float scale = ldexpf(1.0f, (int)random_below(60) - 30);
        for (int64_t e = 0; e < p->sketch.block; e++)
            p->values[i * p->sketch.block + e] *= scale;
    }
    memset(p->table, 0, (size_t)(4 * p->numel));
    oracle_insert(p, p->table, 1.0f);
}

static void test_peel(void)
{
    static problem p;
    for (int i = 0; i < 400; i++) {
        int64_t nranks = 1 + random_below(S2_MAX_RANKS);
        draw_peelable(&p, WHOLE_NUMBERS);
        if (i % 2 == 1) scale_blocks(&p);
        test_case("peel %d: %s, %" PRId64 " ranks", i, describe(&p), nranks);
        check_peel(&p, nranks, 0);
        check_peel(&p, 1, 1 + random_below(4));
    }
}

/* Whole numbers are decoded bit for bit; other values within the bound, in any element. */
static void test_peeled_values(void)
{
    static problem p;
    static float values[MAX_NUMEL], bounds[MAX_N];
    static uint8_t decoded[MAX_N];
    for (int i = 0; i < 200; i++) {
        int64_t ndecoded, nrounds, nbytes, block;
        draw_peelable(&p, WHOLE_NUMBERS);
        if (i % 2 == 1) scale_blocks(&p);
        block = p.sketch.block;
        test_case("values %d: %s", i, describe(&p));
        CHECK(s2_sketch_scratch_nbytes(&p.sketch, p.n, &nbytes) == S2_OK);
        void *scratch = guarded_place(&scratch_memory, nbytes, (placement){0, 0});
        CHECK(s2_sketch_peel(&p.sketch, p.table, p.ids, p.n, 1, 0, values, decoded, bounds, scratch,
                             nbytes, &ndecoded, &nrounds) == S2_OK);
        for (int64_t k = 0; k < p.n * block; k++) {
            if (!decoded[k / block])
                CHECK(values[k] == 0 && !signbit(values[k]) && isinf(bounds[k / block]));
            else if (i % 2 == 0)
                CHECK(values[k] == p.values[k] && !(values[k] == 0 && signbit(values[k])));
            else
                CHECK(fabs((double)values[k] - (double)p.values[k]) <= (double)bounds[k / block]);
        }
    }
}

/* Then values mean nothing, but what is decoded does not depend on them. */
static void test_non_finite_cells(void)
{
    static problem p;
    static peeled wanted;
    static float values[MAX_NUMEL], bounds[MAX_N];
    static uint8_t decoded[MAX_N];
    for (int i = 0; i < 100; i++) {
        int64_t ndecoded, nrounds, nbytes;
        draw_peelable(&p, ANY);
        test_case("any bits %d: %s", i, describe(&p));
        oracle_peel(&p, 1, 0, &wanted);
        CHECK(s2_sketch_scratch_nbytes(&p.sketch, p.n, &nbytes) == S2_OK);
        void *scratch = guarded_place(&scratch_memory, nbytes, (placement){0, 0});
        CHECK(s2_sketch_peel(&p.sketch, p.table, p.ids, p.n, 1, 0, values, decoded, bounds, scratch,
                             nbytes, &ndecoded, &nrounds) == S2_OK);
        CHECK(ndecoded == wanted.ndecoded && nrounds == wanted.nrounds);
        CHECK(memcmp(decoded, wanted.decoded, (size_t)p.n) == 0);
        guarded_check(&scratch_memory);
    }
}

/* ------------------------------------ Written out by hand ------------------------------------- */

static void test_example_of_the_header(void)
{
    const s2_sketch sketch = {2, 3, 1, 3};
    const int64_t ids[3] = {0, 1, 2};
    const float values[3] = {5, 7, 9}, cells[6] = {0, 2, -5, 0, -2, 9};
    float table[6] = {0}, out[3], bounds[3];
    uint8_t decoded[3];
    uint64_t scratch[64];
    int64_t nbytes, ndecoded, nrounds;
    test_case("the header's example");
    CHECK(s2_sketch_insert(&sketch, table, ids, 3, values) == S2_OK);
    CHECK(memcmp(table, cells, sizeof(cells)) == 0);
    CHECK(s2_sketch_estimate(&sketch, table, ids, 3, out) == S2_OK);
    CHECK(out[0] == 1.5f && out[1] == 0 && out[2] == 5.5f);
    CHECK(s2_sketch_scratch_nbytes(&sketch, 3, &nbytes) == S2_OK);
    CHECK(nbytes == 6 * 16 + 3 * 8 + 8 && nbytes <= (int64_t)sizeof(scratch));
    CHECK(s2_sketch_peel(&sketch, table, ids, 3, 1, 0, out, decoded, bounds, scratch, nbytes,
                         &ndecoded, &nrounds) == S2_OK);
    CHECK(ndecoded == 3 && nrounds == 2 && memcmp(out, values, sizeof(values)) == 0);
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
    float table[6] = {0}, out[3], bounds[3], estimates[2];
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
    CHECK(s2_sketch_peel(&sketch, table, ids, 3, 1, 0, out, decoded, bounds, scratch, nbytes,
                         &ndecoded, &nrounds) == S2_OK);
    CHECK(ndecoded == 1 && nrounds == 1);
    CHECK(!decoded[0] && !decoded[1] && decoded[2]);
    CHECK(out[0] == 0 && out[1] == 0 && out[2] == 100);
    CHECK(isinf(bounds[0]) && isinf(bounds[1]) && bounds[2] == 0);
    /* Each of their cells holds both and nothing else. */
    CHECK(s2_sketch_subtract(&sketch, table, ids, 2, values) == S2_OK);
    CHECK(s2_sketch_estimate(&sketch, table, ids, 2, estimates) == S2_OK);
    CHECK(estimates[0] == 0 && estimates[1] == 0);
}

/* --------------------------------------- Bad arguments ---------------------------------------- */

static float table[24], before[24];

/* Whatever the status, nothing of the table may have changed. */
#define REFUSES(status, call) CHECK((call) == (status) && memcmp(table, before, sizeof(table)) == 0)

static void test_bad_peels(void)
{
    const s2_sketch s = {3, 4, 2, 1};
    const int64_t ids[2] = {1, 2}, bad_ids[2] = {2, 2};
    float values[4] = {7, 7, 7, 7}, bounds[2] = {7, 7};
    uint8_t decoded[2] = {7, 7};
    uint64_t scratch[64] = {7};
    int64_t d = 7, r = 7, nbytes;
    CHECK(s2_sketch_scratch_nbytes(&s, 2, &nbytes) == S2_OK);
    REFUSES(S2_BAD_SIZE, s2_sketch_scratch_nbytes(&s, -1, &d));
    REFUSES(S2_BAD_SIZE, s2_sketch_scratch_nbytes(&s, (int64_t)1 << 32, &d));
    REFUSES(S2_NULL_POINTER, s2_sketch_scratch_nbytes(&s, 2, NULL));
#define PEEL(ids, n, nranks, max_rounds, scratch, nbytes)                                          \
    s2_sketch_peel(&s, table, ids, n, nranks, max_rounds, values, decoded, bounds, scratch,        \
                   nbytes, &d, &r)
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
#define PEEL(table, values, decoded, bounds, d, r)                                                 \
    s2_sketch_peel(&s, table, ids, 2, 1, 0, values, decoded, bounds, scratch, nbytes, d, r)
    REFUSES(S2_NULL_POINTER, PEEL(NULL, values, decoded, bounds, &d, &r));
    REFUSES(S2_NULL_POINTER, PEEL(table, NULL, decoded, bounds, &d, &r));
    REFUSES(S2_NULL_POINTER, PEEL(table, values, NULL, bounds, &d, &r));
    REFUSES(S2_NULL_POINTER, PEEL(table, values, decoded, NULL, &d, &r));
    REFUSES(S2_NULL_POINTER, PEEL(table, values, decoded, bounds, NULL, &r));
    REFUSES(S2_NULL_POINTER, PEEL(table, values, decoded, bounds, &d, NULL));
#undef PEEL
    CHECK(d == 7 && r == 7 && values[0] == 7 && bounds[0] == 7 && decoded[0] == 7);
    CHECK(scratch[0] == 7);
}

static void test_nothing(void)
{
    const s2_sketch s = {3, 4, 2, 1};
    uint64_t scratch[32];
    int64_t d = 7, r = 7, nbytes;
    test_case("no blocks");
    CHECK(s2_sketch_scratch_nbytes(&s, 0, &nbytes) == S2_OK && nbytes <= (int64_t)sizeof(scratch));
    CHECK(s2_sketch_peel(&s, table, NULL, 0, 1, 0, NULL, NULL, NULL, scratch, nbytes, &d, &r) ==
          S2_OK);
    CHECK(d == 0 && r == 0 && memcmp(table, before, sizeof(table)) == 0);
}

int main(void)
{
    test_begin("test_peel");
    sketch_memory_new();
    test_example_of_the_header();
    test_stuck_pair();
    test_peel();
    test_peeled_values();
    test_non_finite_cells();
    test_bad_peels();
    test_nothing();
    sketch_memory_delete();
    return test_end();
}
