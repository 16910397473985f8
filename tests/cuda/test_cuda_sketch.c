/* SPDX-License-Identifier: MIT */
/* That the kernels make, estimate and peel sketches as the C core does, bit for bit. */
#include <math.h>

#include "device.h"
#include "sketch_cases.h"

enum { TABLE, IDS, COUNT_OF, VALUES, OTHER, DECODED, BOUNDS, NORMS, NDECODED, NROUNDS, SCRATCH };

static problem p;
static float wanted[MAX_NUMEL];

/* The ids of the problem, with room for more. */
typedef struct call {
    const int64_t *ids;
    int64_t capacity;
    const int64_t *count;
} call;

static call call_new(void)
{
    call made = {NULL, p.n + random_below(2) * random_below(9), NULL};
    int64_t *ids = device_array(IDS, NULL, 8 * made.capacity, 8);
    const int64_t *count = device_array(COUNT_OF, &p.n, 8, 8);
    if (p.n > 0) memcpy(ids, p.ids, (size_t)(8 * p.n));
    made.ids = ids;
    made.count = made.capacity == p.n && random_chance(50) ? NULL : count;
    return made;
}

/* An array of floats, `n` of them from the host, and room for `capacity`. */
static float *floats(int array, const float *host, int64_t n, int64_t capacity)
{
    float *placed = device_array(array, NULL, 4 * capacity, 4);
    if (n > 0) memcpy(placed, host, (size_t)(4 * n));
    return placed;
}

/* Few cells, so that lists are long, now and then. */
static void draw(int i)
{
    draw_problem(&p, (enum values_kind)(i % 3));
    if (random_chance(20)) {
        p.sketch.width = 1 + random_below(p.sketch.width < 3 ? p.sketch.width : 3);
        CHECK(s2_sketch_numel(&p.sketch, &p.numel) == S2_OK);
    }
}

/* ---------------------------------------- Insert, weigh --------------------------------------- */

typedef s2_status (*host_function)(const s2_sketch *, float *, const int64_t *, int64_t,
                                   const float *);
typedef s2_status (*device_function)(const s2_sketch *, float *, const int64_t *, int64_t,
                                     const int64_t *, const float *, void *, int64_t,
                                     s2_cuda_stream);

static const struct {
    const char *name;
    host_function host;
    device_function device;
} sums[] = {
    {"insert", s2_sketch_insert, s2_cuda_sketch_insert},
    {"subtract", s2_sketch_subtract, s2_cuda_sketch_subtract},
    {"weigh", s2_sketch_weigh, s2_cuda_sketch_weigh},
};

static void test_sums(int i)
{
    const int which = i % COUNT(sums);
    draw(i / COUNT(sums));
    int64_t block = p.sketch.block, scratch_nbytes;
    int64_t numel = which == 2 ? p.sketch.rows * p.sketch.width : p.numel;
    test_case("%s %d: %s", sums[which].name, i, describe(&p));
    memcpy(wanted, p.table, (size_t)(4 * numel));
    CHECK(sums[which].host(&p.sketch, wanted, p.ids, p.n, p.values) == S2_OK);

    call at = call_new();
    CHECK(s2_cuda_sketch_scratch_nbytes(&p.sketch, at.capacity, &scratch_nbytes) == S2_OK);
    float *table = floats(TABLE, p.table, numel, numel);
    const float *values = floats(VALUES, p.values, p.n * block, at.capacity * block);
    void *scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(NULL, sums[which].device(&p.sketch, table, at.ids, at.capacity, at.count, values,
                                       scratch, scratch_nbytes, device_stream));
    check_elements(S2_FLOAT32, table, wanted, numel, 1);
}

static void test_merge(int i)
{
    static float other[MAX_NUMEL];
    draw_problem(&p, (enum values_kind)(i % 3));
    case_any(S2_FLOAT32, other, p.numel);
    test_case("merge %d: %s", i, describe(&p));
    memcpy(wanted, p.table, (size_t)(4 * p.numel));
    CHECK(s2_sketch_merge(&p.sketch, wanted, &p.sketch, other) == S2_OK);
    float *table = floats(TABLE, p.table, p.numel, p.numel);
    const float *second = floats(OTHER, other, p.numel, p.numel);
    ON_DEVICE(NULL, s2_cuda_sketch_merge(&p.sketch, table, &p.sketch, second, device_stream));
    check_elements(S2_FLOAT32, table, wanted, p.numel, 1);
}

/* ----------------------------------------- Estimate ------------------------------------------- */

static void test_estimate(int i)
{
    draw(i);
    int64_t block = p.sketch.block;
    test_case("estimate %d: %s", i, describe(&p));
    CHECK(s2_sketch_estimate(&p.sketch, p.table, p.ids, p.n, wanted) == S2_OK);
    call at = call_new();
    const float *table = floats(TABLE, p.table, p.numel, p.numel);
    float *values = floats(VALUES, NULL, 0, at.capacity * block);
    ON_DEVICE(NULL, s2_cuda_sketch_estimate(&p.sketch, table, at.ids, at.capacity, at.count, values,
                                            device_stream));
    check_elements(S2_FLOAT32, values, wanted, p.n * block, 1);
}

/* ------------------------------------------- Peel --------------------------------------------- */

/* What the C core makes of a sum of tables. */
typedef struct peeled {
    int64_t ndecoded, nrounds;
    uint8_t decoded[MAX_N];
    float bounds[MAX_N], norms[MAX_N], values[MAX_NUMEL], table[MAX_NUMEL];
} peeled;

static void peel_on_host(int64_t nranks, const float *magnitudes, int64_t max_rounds, peeled *out)
{
    int64_t nbytes;
    CHECK(s2_sketch_scratch_nbytes(&p.sketch, p.n, &nbytes) == S2_OK);
    void *scratch = test_malloc(nbytes);
    memcpy(out->table, p.table, (size_t)(4 * p.numel));
    CHECK(s2_sketch_peel(&p.sketch, out->table, p.ids, p.n, nranks, magnitudes, max_rounds,
                         out->values, out->decoded, out->bounds, out->norms, scratch, nbytes,
                         &out->ndecoded, &out->nrounds) == S2_OK);
    free(scratch);
}

/* Cells of stuck blocks hold the sums of these; what others hold means nothing. */
static void check_stuck_cells(const peeled *host, const float *table)
{
    int64_t block = p.sketch.block;
    for (int64_t i = 0; i < p.n; i++) {
        for (int64_t row = 0; row < p.sketch.rows && !host->decoded[i]; row++) {
            int64_t at = oracle_place(&p.sketch, p.ids[i], row).cell * block;
            check_elements(S2_FLOAT32, table + at, host->table + at, block, 1);
        }
    }
}

static void check_peel(int64_t nranks, const float *magnitudes, int64_t max_rounds, int any_nan)
{
    static peeled host;
    int64_t block = p.sketch.block, ncells = p.sketch.rows * p.sketch.width, scratch_nbytes;
    peel_on_host(nranks, magnitudes, max_rounds, &host);

    call at = call_new();
    CHECK(s2_cuda_sketch_peel_scratch_nbytes(&p.sketch, at.capacity, &scratch_nbytes) == S2_OK);
    float *table = floats(TABLE, p.table, p.numel, p.numel);
    float *values = floats(VALUES, NULL, 0, at.capacity * block);
    uint8_t *decoded = device_array(DECODED, NULL, at.capacity, 1);
    float *bounds = floats(BOUNDS, NULL, 0, at.capacity);
    float *norms = floats(NORMS, NULL, 0, at.capacity);
    const float *weighed = magnitudes == NULL ? NULL : floats(OTHER, magnitudes, ncells, ncells);
    int64_t *ndecoded = device_array(NDECODED, NULL, 8, 8);
    int64_t *nrounds = device_array(NROUNDS, NULL, 8, 8);
    void *scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(NULL, s2_cuda_sketch_peel(&p.sketch, table, at.ids, at.capacity, at.count, nranks,
                                        weighed, max_rounds, values, decoded, bounds, norms,
                                        scratch, scratch_nbytes, ndecoded, nrounds, device_stream));
    CHECK(*ndecoded == host.ndecoded && *nrounds == host.nrounds);
    CHECK(memcmp(decoded, host.decoded, (size_t)p.n) == 0);
    check_elements(S2_FLOAT32, values, host.values, p.n * block, any_nan);
    check_elements(S2_FLOAT32, bounds, host.bounds, p.n, any_nan);
    check_elements(S2_FLOAT32, norms, host.norms, p.n, any_nan);
    check_stuck_cells(&host, table);
}

/* A width for which some, most or all blocks can be decoded, and values of sizes far apart. */
static void draw_peelable(int i)
{
    draw_problem(&p, i % 3 == 2 ? ANY : WHOLE_NUMBERS);
    int64_t most = MAX_NUMEL / p.sketch.block / p.sketch.rows;
    most = most < MAX_CELLS / p.sketch.rows ? most : MAX_CELLS / p.sketch.rows;
    int64_t width = (p.n * (50 + random_below(150)) / 100 + 1) / p.sketch.rows + 1;
    p.sketch.width = width < most ? width : most;
    CHECK(s2_sketch_numel(&p.sketch, &p.numel) == S2_OK);
    for (int64_t k = 0; k < p.n && i % 3 == 1; k++) {
        float scale = ldexpf(1.0f, (int)random_below(60) - 30);
        for (int64_t e = 0; e < p.sketch.block; e++)
            p.values[k * p.sketch.block + e] *= scale;
    }
    memset(p.table, 0, (size_t)(4 * p.numel));
    CHECK(s2_sketch_insert(&p.sketch, p.table, p.ids, p.n, p.values) == S2_OK);
}

static void test_peel(int i)
{
    static float magnitudes[MAX_CELLS];
    int64_t nranks = 1 + random_below(S2_MAX_RANKS);
    draw_peelable(i);
    test_case("peel %d: %s, %" PRId64 " ranks", i, describe(&p), nranks);
    memset(magnitudes, 0, sizeof(magnitudes));
    CHECK(s2_sketch_weigh(&p.sketch, magnitudes, p.ids, p.n, p.values) == S2_OK);
    if (i % 2 == 0)
        check_peel(nranks, random_chance(50) ? magnitudes : NULL, 30, i % 3 == 2);
    else
        check_peel(nranks, magnitudes, 1 + random_below(4), i % 3 == 2);
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
    const s2_sketch s = {3, 4, 2, 1}, bad = {9, 4, 2, 1}, large = {1, 1, 1, 1};
    float table[24] = {0}, values[4] = {0}, bounds[2], norms[2];
    uint64_t memory[64] = {0};
    void *scratch = (void *)((uintptr_t)(memory + 1) & ~(uintptr_t)15), *odd = (char *)scratch + 8;
    int64_t ids[2] = {1, 2}, nbytes, n;
    uint8_t decoded[2];
    s2_cuda_stream none = NULL;
    CHECK(s2_cuda_sketch_scratch_nbytes(&s, 2, &nbytes) == S2_OK && nbytes < 400);
    REFUSES(S2_BAD_SKETCH, s2_cuda_sketch_scratch_nbytes(&bad, 2, &n));
    REFUSES(S2_BAD_SIZE, s2_cuda_sketch_scratch_nbytes(&large, (int64_t)1 << 31, &n));
    REFUSES(S2_BAD_SKETCH,
            s2_cuda_sketch_insert(&bad, table, ids, 2, NULL, values, scratch, nbytes, none));
    REFUSES(S2_BAD_SIZE,
            s2_cuda_sketch_insert(&s, table, ids, -1, NULL, values, scratch, nbytes, none));
    REFUSES(S2_BAD_SIZE,
            s2_cuda_sketch_insert(&s, table, ids, 2, NULL, values, scratch, nbytes + 16, none));
    REFUSES(S2_NULL_POINTER,
            s2_cuda_sketch_insert(&s, NULL, ids, 2, NULL, values, scratch, nbytes, none));
    REFUSES(S2_NULL_POINTER,
            s2_cuda_sketch_weigh(&s, table, ids, 2, NULL, NULL, scratch, nbytes, none));
    REFUSES(S2_BAD_ADDRESS,
            s2_cuda_sketch_insert(&s, table, ids, 2, NULL, values, odd, nbytes, none));
    REFUSES(S2_BAD_SKETCH, s2_cuda_sketch_merge(&s, table, &large, values, none));
    REFUSES(S2_NULL_POINTER, s2_cuda_sketch_estimate(&s, table, NULL, 2, NULL, values, none));
    CHECK(s2_cuda_sketch_peel_scratch_nbytes(&s, 2, &nbytes) == S2_OK && nbytes < 400);
    REFUSES(S2_BAD_SIZE, /* no limit of the rounds */
            s2_cuda_sketch_peel(&s, table, ids, 2, NULL, 1, NULL, 0, values, decoded, bounds, norms,
                                scratch, nbytes, &n, &n, none));
    REFUSES(S2_BAD_SIZE, s2_cuda_sketch_peel(&s, table, ids, 2, NULL, 0, NULL, 9, values, decoded,
                                             bounds, norms, scratch, nbytes, &n, &n, none));
    REFUSES(S2_NULL_POINTER,
            s2_cuda_sketch_peel(&s, table, ids, 2, NULL, 1, NULL, 9, values, decoded, NULL, norms,
                                scratch, nbytes, &n, &n, none));
    float *unaligned = (float *)(void *)((char *)table + 1);
    REFUSES(S2_BAD_ADDRESS,
            s2_cuda_sketch_peel(&s, table, ids, 2, NULL, 1, unaligned, 9, values, decoded, bounds,
                                norms, scratch, nbytes, &n, &n, none));
    REFUSES(S2_BAD_ADDRESS,
            s2_cuda_sketch_peel(&s, table, ids, 2, NULL, 1, NULL, 9, values, decoded, unaligned,
                                norms, scratch, nbytes, &n, &n, none));
    REFUSES(S2_BAD_ADDRESS,
            s2_cuda_sketch_peel(&s, table, ids, 2, NULL, 1, NULL, 9, values, decoded, bounds,
                                unaligned, scratch, nbytes, &n, &n, none));
}

int main(void)
{
    test_begin("test_cuda_sketch");
    device_new();
    for (int i = 0; i < 60; i++)
        test_sums(i);
    for (int i = 0; i < 20; i++)
        test_merge(i);
    for (int i = 0; i < 40; i++)
        test_estimate(i);
    for (int i = 0; i < 40; i++)
        test_peel(i);
    test_bad_arguments();
    device_delete();
    return test_end();
}
