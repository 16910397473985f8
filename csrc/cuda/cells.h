/* SPDX-License-Identifier: MIT */
/*
 * Which blocks lie in each cell of a sketch.
 *
 * Floats that are added to a cell by whichever thread comes first would have a sum that is another
 * in every run.  So each cell gets the list of its blocks, in the order of their numbers, and a
 * thread that goes through it in that order.  No keys are sorted to make the lists: blocks count
 * themselves in each of their cells, prefix sums turn counts into places, blocks enter their
 * numbers there in any order, and each list, of one block or three for the most part, is put into
 * order by itself.
 */
#ifndef S2_CELLS_H
#define S2_CELLS_H

#include "../hash.h"
#include "launch.h"

/* In a list a block is 32 bits: its number, and whether its sign there is negative. */
#define S2_MAX_BLOCKS (INT64_C(1) << 31)

/* What all kernels of sketches are given. */
struct s2_sketch_call {
    s2_sketch sketch;
    int64_t ncells;
    const int64_t *ids;
    int64_t capacity;
    const int64_t *count;
};

struct s2_cells {
    int64_t *starts;   /* cell c has members[starts[c]] to members[starts[c + 1] - 1] */
    uint32_t *members; /* number << 1 | sign, ascending */
    uint32_t *counts;  /* by cell; zeros, once the lists are made */
    int64_t *tiles;    /* for the prefix sums */
};

/* The rules of the shape and of lists of ids, and that nothing is NULL; sets *call. */
s2_status s2_cells_check(const s2_sketch *sketch, const void *table, const int64_t *ids,
                         int64_t capacity, const int64_t *count, const void *values,
                         s2_sketch_call *call);

/* Sets *nbytes to the size of the lists, a multiple of 16. */
s2_status s2_cells_nbytes(const s2_sketch *sketch, int64_t capacity, int64_t *nbytes);

/* Where they lie in that memory. */
s2_cells s2_cells_in(const s2_sketch_call &call, void *memory);

/* Enqueues what fills them. */
void s2_cells_make(const s2_sketch_call &call, const s2_cells &cells, cudaStream_t stream);

#endif /* S2_CELLS_H */
