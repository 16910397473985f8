/* SPDX-License-Identifier: MIT */
#include "sketch_cases.h"

#include <stdio.h>

/* ------------------------------------------- Cases -------------------------------------------- */

static void draw_values(enum values_kind kind, float *values, int64_t numel)
{
    if (kind == FINITE) {
        case_finite(S2_FLOAT32, values, numel);
    } else if (kind == ANY) {
        case_any(S2_FLOAT32, values, numel);
    } else {
        for (int64_t i = 0; i < numel; i++)
            values[i] = (float)(random_below(201) - 100);
    }
}

void draw_problem(problem *p, enum values_kind kind)
{
    int64_t id = random_below(3) * random_below((int64_t)1 << 40);
    p->sketch.rows = 1 + random_below(8);
    p->sketch.block = block_lengths[random_below(nblock_lengths)];
    int64_t cells = MAX_NUMEL / p->sketch.block;
    cells = cells < MAX_CELLS ? cells : MAX_CELLS;
    if (cells < p->sketch.rows) p->sketch.rows = 1;
    p->sketch.width = 1 + random_below(cells / p->sketch.rows);
    p->sketch.seed = random_bits();
    int64_t most = MAX_NUMEL / p->sketch.block < MAX_N ? MAX_NUMEL / p->sketch.block : MAX_N;
    p->n = random_chance(10) ? random_below(3) : random_below(most + 1);
    for (int64_t i = 0; i < p->n; i++) {
        p->ids[i] = id;
        id += 1 + (random_chance(50) ? 0 : random_below(1000));
    }
    CHECK(s2_sketch_numel(&p->sketch, &p->numel) == S2_OK);
    CHECK(p->numel == p->sketch.rows * p->sketch.width * p->sketch.block);
    draw_values(kind, p->values, p->n * p->sketch.block);
    draw_values(kind, p->table, p->numel);
}

const char *describe(const problem *p)
{
    static char text[128];
    snprintf(text, sizeof(text), "%" PRId64 " blocks of %" PRId64 " in %" PRId64 " x %" PRId64,
             p->n, p->sketch.block, p->sketch.rows, p->sketch.width);
    return text;
}

/* -------------------------------------------- Hash -------------------------------------------- */

static uint64_t oracle_hash(uint64_t seed, uint64_t number)
{
    uint64_t z = seed;
    z += 0x9e3779b97f4a7c15u * number;
    z += 0x9e3779b97f4a7c15u;
    z ^= z >> 30;
    z *= 0xbf58476d1ce4e5b9u;
    z ^= z >> 27;
    z *= 0x94d049bb133111ebu;
    z ^= z >> 31;
    return z;
}

place oracle_place(const s2_sketch *sketch, int64_t id, int64_t row)
{
    uint64_t hash = oracle_hash(oracle_hash(sketch->seed, (uint64_t)id), (uint64_t)row);
    uint64_t product = hash / 4294967296u * (uint64_t)sketch->width;
    return (place){row * sketch->width + (int64_t)(product / 4294967296u), (int)(hash % 2)};
}

void oracle_insert(const problem *p, float *table, float factor)
{
    for (int64_t i = 0; i < p->n; i++) {
        for (int64_t row = 0; row < p->sketch.rows; row++) {
            place at = oracle_place(&p->sketch, p->ids[i], row);
            for (int64_t e = 0; e < p->sketch.block; e++) {
                float value = p->values[i * p->sketch.block + e] * factor;
                table[at.cell * p->sketch.block + e] += at.negative ? -value : value;
            }
        }
    }
}

void oracle_weigh(const problem *p, float *magnitudes)
{
    for (int64_t i = 0; i < p->n; i++) {
        uint32_t largest = 0;
        float magnitude;
        for (int64_t e = 0; e < p->sketch.block; e++) {
            uint32_t bits;
            memcpy(&bits, &p->values[i * p->sketch.block + e], 4);
            bits &= 0x7fffffff;
            if (bits > largest) largest = bits;
        }
        memcpy(&magnitude, &largest, 4);
        for (int64_t row = 0; row < p->sketch.rows; row++)
            magnitudes[oracle_place(&p->sketch, p->ids[i], row).cell] += magnitude;
    }
}

/* ------------------------------------------- Memory ------------------------------------------- */

guarded table_memory, ids_memory, values_memory, decoded_memory, bounds_memory, norms_memory,
    magnitudes_memory, scratch_memory, other_memory;

static const struct {
    guarded *memory;
    int64_t capacity;
} memories[] = {
    {&table_memory, 4 * MAX_NUMEL},
    {&ids_memory, 8 * MAX_N},
    {&values_memory, 4 * MAX_NUMEL},
    {&decoded_memory, MAX_N},
    {&bounds_memory, 4 * MAX_N},
    {&norms_memory, 4 * MAX_N},
    {&other_memory, 4 * MAX_NUMEL},
    {&magnitudes_memory, 4 * MAX_CELLS},
    {&scratch_memory, 16 * MAX_CELLS + 5 * MAX_N},
};

void sketch_memory_new(void)
{
    for (int64_t i = 0; i < COUNT(memories); i++)
        *memories[i].memory = guarded_new(memories[i].capacity + 64);
}

void sketch_memory_check(void)
{
    for (int64_t i = 0; i < COUNT(memories); i++)
        guarded_check(memories[i].memory);
}

void sketch_memory_delete(void)
{
    for (int64_t i = 0; i < COUNT(memories); i++)
        guarded_delete(memories[i].memory);
}

float *place_floats(guarded *memory, const float *floats, int64_t n)
{
    return guarded_copy(memory, floats, 4 * n, placement_random(4));
}

const int64_t *place_ids(const problem *p)
{
    return guarded_copy(&ids_memory, p->ids, 8 * p->n, placement_random(8));
}
