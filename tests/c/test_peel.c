/* SPDX-License-Identifier: MIT */
/* That sketches are peeled in the rounds and to the values and bounds that the header says. */
#include <math.h>

#include "sketch_cases.h"

/* ------------------------------------------- Oracle ------------------------------------------- */

/* What s2_sketch_peel() should find. */
typedef struct peeled {
    int64_t ndecoded, nrounds;
    uint8_t decoded[MAX_N];
    float bounds[MAX_N], norms[MAX_N], values[MAX_NUMEL], table[MAX_NUMEL];
    uint8_t has_stuck[MAX_CELLS]; /* by cell: whether the table says something there */
} peeled;

typedef struct oracle_peeling {
    const problem *p;
    peeled *out;
    place places[MAX_N][8];
    int gone[MAX_N];   /* decoded in a round before this one */
    int shared[MAX_N]; /* read from a cell that began with others in it */
    float cell_bounds[MAX_CELLS];
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

/* The squares that a block of this magnitude gives to a cell's bound. */
static double oracle_rounding(const oracle_peeling *o, int64_t cell, float magnitude)
{
    double additions = 2.0 * (double)o->loads[cell] - 2 + (double)(o->nranks - 1);
    double each = 2 * (double)magnitude / 16777216.0;
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
    o->out->norms[i] = 0;
    for (int64_t e = 0; e < block; e++) {
        float value = o->out->table[at.cell * block + e];
        values[e] = (at.negative ? -value : value) + 0.0f;
        if (fabsf(values[e]) > o->out->norms[i]) o->out->norms[i] = fabsf(values[e]);
    }
    o->out->decoded[i] = 1;
    o->shared[i] = o->loads[at.cell] > 1;
    o->out->bounds[i] =
        oracle_root((double)o->cell_bounds[at.cell], oracle_rounding(o, at.cell, o->out->norms[i]));
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
        o->cell_bounds[at.cell] =
            oracle_root((double)o->cell_bounds[at.cell],
                        own * own + oracle_rounding(o, at.cell, o->out->norms[i]));
    }
}

static void oracle_clear(oracle_peeling *o, int64_t i)
{
    int64_t block = o->p->sketch.block;
    float threshold = (float)((double)o->out->bounds[i] / sqrt((double)block));
    o->out->norms[i] = 0;
    for (int64_t e = 0; e < block; e++) {
        float *value = &o->out->values[i * block + e];
        if (fabsf(*value) <= threshold) *value = 0;
        o->out->norms[i] = fmaxf(o->out->norms[i], fabsf(*value));
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
    for (int64_t k = 0; k < ntaken; k++) {
        if (o->shared[taken[k]]) oracle_clear(o, taken[k]);
    }
    return ntaken;
}

static void oracle_peel(const problem *p, int64_t nranks, const float *magnitudes,
                        int64_t max_rounds, peeled *out)
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
    for (int64_t cell = 0; cell < ncells; cell++) {
        int64_t load = o.loads[cell] = count_left(&o, cell);
        if (magnitudes == NULL || load == 0) continue;
        double squares = oracle_rounding(&o, cell, magnitudes[cell]) / (double)load;
        o.cell_bounds[cell] = oracle_root(0, squares);
    }
    while ((max_rounds == 0 || out->nrounds < max_rounds) && (taken = oracle_round(&o)) > 0) {
        out->ndecoded += taken;
        out->nrounds++;
    }
    for (int64_t cell = 0; cell < ncells; cell++)
        out->has_stuck[cell] = count_left(&o, cell) > 0;
}

/* --------------------------------------- Random tables ---------------------------------------- */

/* A multiple of four bytes, at one of eight. */
static void *place_scratch(int64_t nbytes)
{
    int at_back = random_chance(50);
    return guarded_place(&scratch_memory, nbytes, (placement){at_back, at_back ? nbytes % 8 : 0});
}

/* Peels under every variant; `magnitudes` may be NULL. */
static void check_peel(const problem *p, int64_t nranks, const float *magnitudes,
                       int64_t max_rounds)
{
    static peeled wanted;
    int64_t block = p->sketch.block, ncells = p->sketch.rows * p->sketch.width, nbytes;
    oracle_peel(p, nranks, magnitudes, max_rounds, &wanted);
    CHECK(s2_sketch_scratch_nbytes(&p->sketch, p->n, &nbytes) == S2_OK);
    for (int v = 0; variant_use(v); v++) {
        int64_t ndecoded = -7, nrounds = -7;
        const int64_t *ids = place_ids(p);
        float *table = place_floats(&table_memory, p->table, p->numel);
        float *values = guarded_place(&values_memory, 4 * p->n * block, placement_random(4));
        uint8_t *decoded = guarded_place(&decoded_memory, p->n, placement_random(1));
        float *bounds = guarded_place(&bounds_memory, 4 * p->n, placement_random(4));
        float *norms = guarded_place(&norms_memory, 4 * p->n, placement_random(4));
        const float *weighed =
            magnitudes == NULL ? NULL : place_floats(&magnitudes_memory, magnitudes, ncells);
        void *scratch = place_scratch(nbytes);
        CHECK(s2_sketch_peel(&p->sketch, table, ids, p->n, nranks, weighed, max_rounds, values,
                             decoded, bounds, norms, scratch, nbytes, &ndecoded,
                             &nrounds) == S2_OK);
        CHECK(ndecoded == wanted.ndecoded && nrounds == wanted.nrounds);
        CHECK(memcmp(decoded, wanted.decoded, (size_t)p->n) == 0);
        check_elements(S2_FLOAT32, values, wanted.values, p->n * block, 0);
        check_elements(S2_FLOAT32, bounds, wanted.bounds, p->n, 0);
        check_elements(S2_FLOAT32, norms, wanted.norms, p->n, 0);
        for (int64_t cell = 0; cell < ncells; cell++) {
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

/* What ranks might weigh that cancel each other, up to all but a millionth. */
static void draw_magnitudes(const problem *p, float *magnitudes)
{
    int64_t ncells = p->sketch.rows * p->sketch.width;
    float scale = ldexpf(1.0f, (int)random_below(20));
    memset(magnitudes, 0, (size_t)(4 * ncells));
    oracle_weigh(p, magnitudes);
    for (int64_t cell = 0; cell < ncells; cell++)
        magnitudes[cell] *= scale;
}

static void test_peel(void)
{
    static problem p;
    static float magnitudes[MAX_CELLS];
    for (int i = 0; i < 400; i++) {
        int64_t nranks = 1 + random_below(S2_MAX_RANKS);
        draw_peelable(&p, WHOLE_NUMBERS);
        if (i % 2 == 1) scale_blocks(&p);
        draw_magnitudes(&p, magnitudes);
        test_case("peel %d: %s, %" PRId64 " ranks", i, describe(&p), nranks);
        check_peel(&p, nranks, NULL, 0);
        check_peel(&p, 1, NULL, 1 + random_below(4));
        check_peel(&p, nranks, magnitudes, 0);
    }
}

/* Of an element, and of one that may have been cleared. */
static double most_error(float value, float bound, int64_t block)
{
    return (double)bound * (value == 0 ? 1 + 1 / sqrt((double)block) : 1);
}

/* Whole numbers are decoded bit for bit; other values within the bound, in any element. */
static void test_peeled_values(void)
{
    static problem p;
    static float values[MAX_NUMEL], bounds[MAX_N], norms[MAX_N];
    static uint8_t decoded[MAX_N];
    for (int i = 0; i < 200; i++) {
        int64_t ndecoded, nrounds, nbytes, block;
        draw_peelable(&p, WHOLE_NUMBERS);
        if (i % 2 == 1) scale_blocks(&p);
        block = p.sketch.block;
        test_case("values %d: %s", i, describe(&p));
        CHECK(s2_sketch_scratch_nbytes(&p.sketch, p.n, &nbytes) == S2_OK);
        void *scratch = guarded_place(&scratch_memory, nbytes, (placement){0, 0});
        CHECK(s2_sketch_peel(&p.sketch, p.table, p.ids, p.n, 1, NULL, 0, values, decoded, bounds,
                             norms, scratch, nbytes, &ndecoded, &nrounds) == S2_OK);
        for (int64_t k = 0; k < p.n * block; k++) {
            if (!decoded[k / block])
                CHECK(values[k] == 0 && !signbit(values[k]) && isinf(bounds[k / block]));
            else if (i % 2 == 0)
                CHECK(values[k] == p.values[k] && !(values[k] == 0 && signbit(values[k])));
            else
                CHECK(fabs((double)values[k] - (double)p.values[k]) <=
                      most_error(values[k], bounds[k / block], block));
        }
    }
}

/* Then values mean nothing, but what is decoded does not depend on them. */
static void test_non_finite_cells(void)
{
    static problem p;
    static peeled wanted;
    static float values[MAX_NUMEL], bounds[MAX_N], norms[MAX_N];
    static uint8_t decoded[MAX_N];
    for (int i = 0; i < 100; i++) {
        int64_t ndecoded, nrounds, nbytes;
        draw_peelable(&p, ANY);
        test_case("any bits %d: %s", i, describe(&p));
        oracle_peel(&p, 1, NULL, 0, &wanted);
        CHECK(s2_sketch_scratch_nbytes(&p.sketch, p.n, &nbytes) == S2_OK);
        void *scratch = guarded_place(&scratch_memory, nbytes, (placement){0, 0});
        CHECK(s2_sketch_peel(&p.sketch, p.table, p.ids, p.n, 1, NULL, 0, values, decoded, bounds,
                             norms, scratch, nbytes, &ndecoded, &nrounds) == S2_OK);
        CHECK(ndecoded == wanted.ndecoded && nrounds == wanted.nrounds);
        CHECK(memcmp(decoded, wanted.decoded, (size_t)p.n) == 0);
        guarded_check(&scratch_memory);
    }
}

int main(void)
{
    test_begin("test_peel");
    sketch_memory_new();
    test_peel();
    test_peeled_values();
    test_non_finite_cells();
    sketch_memory_delete();
    return test_end();
}
