/* SPDX-License-Identifier: MIT */
/* What sketch.c and sketch_peel.c share: the checks, and the way from a block to its cells. */
#ifndef S2_SKETCH_H
#define S2_SKETCH_H

#include "hash.h"
#include "internal.h"

/* The sign bit of a float32: takes a block away where it was added. */
#define S2_SKETCH_NEGATE UINT32_C(0x80000000)

/* The shape's rules, that the ids ascend, and that nothing is NULL. */
s2_status s2_sketch_check(const s2_sketch *sketch, const float *table, const int64_t *ids,
                          int64_t n, const float *values);

/* The moves of one block, one for each row of the sketch. */
static inline void s2_sketch_moves(const s2_sketch *sketch, int64_t id, int64_t index,
                                   uint32_t flip, struct s2_move *moves)
{
    const uint64_t block_hash = s2_hash(sketch->seed, (uint64_t)id);

    for (int64_t row = 0; row < sketch->rows; row++) {
        s2_place place = s2_place_of(block_hash, (uint32_t)row, (uint32_t)sketch->width);
        moves[row].cell = row * sketch->width + place.cell;
        moves[row].index = index;
        moves[row].sign = place.sign ^ flip;
    }
}

#endif /* S2_SKETCH_H */
