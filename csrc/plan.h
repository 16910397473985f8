/* SPDX-License-Identifier: MIT */
/*
 * What the two halves of the owner plan share; s2.h has the rule.
 *
 * Walks go word by word through the bitmaps of all ranks, and past words in which the union has no
 * block.  They cost a load for each word and rank, and a few steps for each live block of each
 * rank; never ranks times blocks.  Each checks on its way that the positions are those of the
 * union: a walk of its own for that would cost as much as the work.
 */
#ifndef S2_PLAN_H
#define S2_PLAN_H

#include "internal.h"

/* What all functions of the section are given. */
struct s2_union {
    const s2_layout *layout;
    const uint8_t *bitmaps;
    int64_t nranks;
    int64_t nbytes; /* of each bitmap */
    const int64_t *positions;
    int64_t n; /* of the positions */
};

/*
 * Checks all of that but whether the positions are those of the union; they ascend and name blocks.
 * Sets *numel to what these take.
 */
s2_status s2_union_check(const struct s2_union *u, int64_t *numel);

static inline uint64_t s2_union_word_of(const struct s2_union *u, int64_t rank, int64_t word)
{
    return s2_load_word(u->bitmaps + rank * u->nbytes + 8 * word);
}

static inline uint64_t s2_union_word(const struct s2_union *u, int64_t word)
{
    uint64_t bits = 0;
    for (int64_t rank = 0; rank < u->nranks; rank++)
        bits |= s2_union_word_of(u, rank, word);
    return bits;
}

/* Whether `position` is number j of the positions. */
static inline bool s2_union_has(const struct s2_union *u, int64_t j, int64_t position)
{
    return j < u->n && u->positions[j] == position;
}

/* The number of the segment that owns a word, from the number for an earlier word.  No two segments
 * share a word. */
static inline int64_t s2_union_segment(const struct s2_union *u, int64_t segment, int64_t word)
{
    while (segment + 1 < u->layout->nsegments &&
           64 * word >= u->layout->segments[segment + 1].first_bit)
        segment++;
    return segment;
}

#endif /* S2_PLAN_H */
