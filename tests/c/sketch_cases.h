/* SPDX-License-Identifier: MIT */
/*
 * sketch_cases.h - what the tests of sketches share: shapes, ids and values, where they are put in
 * memory, and where a block goes by the hash that is written once more.
 */
#ifndef S2_SKETCH_CASES_H
#define S2_SKETCH_CASES_H

#include "cases.h"
#include "oracle.h"
#include "test_util.h"

enum { MAX_N = 256, MAX_CELLS = 1 << 12, MAX_NUMEL = 1 << 16 };

typedef struct problem {
    s2_sketch sketch;
    int64_t numel, n, ids[MAX_N];
    float table[MAX_NUMEL], values[MAX_NUMEL];
} problem;

enum values_kind { WHOLE_NUMBERS, FINITE, ANY };

/* A shape, `n` ids that ascend, values and a table without meaning. */
void draw_problem(problem *p, enum values_kind kind);
const char *describe(const problem *p);

typedef struct place {
    int64_t cell; /* counted through all rows */
    int negative;
} place;

place oracle_place(const s2_sketch *sketch, int64_t id, int64_t row);

/* table += factor * values, which is 1 or -1. */
void oracle_insert(const problem *p, float *table, float factor);

/* Adds what s2_sketch_weigh() should add. */
void oracle_weigh(const problem *p, float *magnitudes);

/* Memory for each of the arguments; sketch_memory_check() looks at what surrounds all of them. */
extern guarded table_memory, ids_memory, values_memory, decoded_memory, bounds_memory, norms_memory,
    magnitudes_memory, scratch_memory, other_memory;
void sketch_memory_new(void);
void sketch_memory_check(void);
void sketch_memory_delete(void);

float *place_floats(guarded *memory, const float *floats, int64_t n);
const int64_t *place_ids(const problem *p);

#endif /* S2_SKETCH_CASES_H */
