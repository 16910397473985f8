/* SPDX-License-Identifier: MIT */
/* Who owns which block of the union: see s2.h and plan.h. */
#include "plan.h"
#include "hash.h"

s2_status s2_union_check(const struct s2_union *u, int64_t *numel)
{
    S2_RETURN_IF_ERROR(s2_layout_check_bitmap(u->layout, u->bitmaps, u->nbytes));
    if (u->nranks < 1 || u->nranks > S2_MAX_RANKS || u->n < 0 || u->n > S2_MAX_NUMEL)
        return S2_BAD_SIZE;
    if (u->nbytes > S2_MAX_NUMEL / u->nranks) return S2_BAD_SIZE;
    return s2_blocks_packed_numel(u->layout, u->positions, u->n, numel);
}

/* Of the union's blocks. */
static int64_t find_longest(const struct s2_union *u)
{
    int64_t longest = 1, done = 0;

    for (int64_t i = 0; i < u->layout->nsegments && done < u->n; i++) {
        const s2_segment *segment = &u->layout->segments[i];
        int64_t end_bit = segment->first_bit + s2_segment_nblocks(segment);
        int64_t n = s2_positions_below(u->positions + done, u->n - done, end_bit);
        if (n != 0) longest = s2_max(longest, segment->block);
        done += n;
    }
    return longest;
}

/* ---------------------------------------------------------------------------------------------- */
/* Caps                                                                                           */
/* ---------------------------------------------------------------------------------------------- */

/* Sets live[r] to the elements that rank r has; returns the most. */
static int64_t find_live(const struct s2_union *u, int64_t *live)
{
    int64_t most = 0;

    for (int64_t rank = 0; rank < u->nranks; rank++) {
        live[rank] = 0;
        for (int64_t i = 0; i < u->layout->nsegments; i++) {
            const s2_segment *segment = &u->layout->segments[i];
            int64_t begin = segment->first_bit / 64, count = 0;
            int64_t end = begin + (s2_segment_nblocks(segment) + 63) / 64;
            for (int64_t word = begin; word < end; word++)
                count += s2_popcount(s2_union_word_of(u, rank, word));
            live[rank] += count * segment->block;
        }
        most = s2_max(most, live[rank]);
    }
    return most;
}

/* What a rank may own so that it sends no more than `level`, and a little: it sends what it has at
 * most once, and what it owns to nranks - 1 others. */
static inline int64_t cap_at(int64_t level, int64_t live, int64_t nranks)
{
    return live < level ? (level - live) / (nranks - 1) + 1 : 0;
}

/* The least level at which the caps have room for `numel` elements.  It is below 2 numel + nranks,
 * since no rank has more than `numel`; sums end before they overflow. */
static int64_t find_level(const int64_t *live, int64_t nranks, int64_t numel)
{
    int64_t low = 0, high = 2 * numel + nranks;

    while (low < high) {
        int64_t level = low + (high - low) / 2, room = 0;
        for (int64_t rank = 0; rank < nranks && room < numel; rank++)
            room += cap_at(level, live[rank], nranks);
        if (room < numel) {
            low = level + 1;
        } else {
            high = level;
        }
    }
    return low;
}

/*
 * Even caps leave a twentieth of room, so that few blocks must move.  A rank that has much more
 * than the others would then send twice as much as they do: what others have to own, and its even
 * share of the results.
 */
static void find_caps(const struct s2_union *u, int64_t numel, int64_t *caps)
{
    int64_t live[S2_MAX_RANKS], level = 0;
    const int64_t longest = find_longest(u), nranks = u->nranks;
    const int64_t share = (numel + numel / 20) / nranks + 1;
    bool even = true;

    if (nranks >= 3) { /* of two, each sends the other what it has, whoever owns it */
        int64_t most = find_live(u, live);
        level = find_level(live, nranks, numel);
        even = most + (nranks - 2) * share <= level + level / 10;
    }
    for (int64_t rank = 0; rank < nranks; rank++) {
        int64_t cap = even ? share : cap_at(level, live[rank], nranks);
        caps[rank] = (cap + longest - 1) / longest * longest;
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Steps 1 and 2                                                                                  */
/* ---------------------------------------------------------------------------------------------- */

#define LEFT_OVER (-1)

/* The ranks that touched each block of a word, ascending. */
struct touched {
    int16_t count[64];
    uint8_t ranks[64][S2_MAX_RANKS];
};

/* Returns the word of the union.  One look at each live block of each rank, with no branch but the
 * loop's. */
static uint64_t find_touched(const struct s2_union *u, int64_t word, struct touched *touched)
{
    uint64_t any = 0;

    memset(touched->count, 0, sizeof(touched->count));
    for (int64_t rank = 0; rank < u->nranks; rank++) {
        uint64_t bits = s2_union_word_of(u, rank, word);
        any |= bits;
        for (; bits != 0; bits &= bits - 1) {
            int bit = s2_lowest_bit(bits);
            touched->ranks[bit][touched->count[bit]++] = (uint8_t)rank;
        }
    }
    return any;
}

/* Elements of each rank: of its candidates so far, and of those among them that it owns. */
struct loads {
    int64_t candidates[S2_MAX_RANKS];
    int64_t owned[S2_MAX_RANKS];
};

/* Sets each owner to the candidate, or to LEFT_OVER beyond its cap. */
static s2_status pick_candidates(const struct s2_union *u, uint64_t seed, const int64_t *caps,
                                 int16_t *owners, struct loads *loads, int64_t *left_over)
{
    struct touched touched;
    int64_t j = 0, segment = 0;

    memset(loads, 0, sizeof(*loads));
    *left_over = 0;
    for (int64_t word = 0; word < u->nbytes / 8; word++) {
        uint64_t bits = find_touched(u, word, &touched);
        if (bits == 0) continue;
        segment = s2_union_segment(u, segment, word);
        const int64_t block = u->layout->segments[segment].block;

        for (; bits != 0; bits &= bits - 1, j++) {
            int bit = s2_lowest_bit(bits);
            int64_t position = 64 * word + bit;
            if (!s2_union_has(u, j, position)) return S2_BAD_POSITION;
            uint64_t hash = s2_hash(seed, (uint64_t)position);
            int16_t rank = touched.ranks[bit][s2_hash_below(hash, (uint32_t)touched.count[bit])];
            loads->candidates[rank] += block;
            if (loads->candidates[rank] <= caps[rank]) {
                loads->owned[rank] = loads->candidates[rank];
                owners[j] = rank;
            } else {
                owners[j] = LEFT_OVER;
                ++*left_over;
            }
        }
    }
    return j == u->n ? S2_OK : S2_BAD_POSITION;
}

/* ---------------------------------------------------------------------------------------------- */
/* Step 3                                                                                         */
/* ---------------------------------------------------------------------------------------------- */

/* All room together is larger than all that is left over, so `rank` never runs out. */
static void place_left_over(const struct s2_union *u, const int64_t *caps, const int64_t *owned,
                            int16_t *owners)
{
    int64_t at = 0, segment = 0, rank = 0, room_end = caps[0] - owned[0];

    for (int64_t j = 0; j < u->n; j++) {
        if (owners[j] != LEFT_OVER) continue;
        while (at >= room_end) {
            rank++;
            room_end += caps[rank] - owned[rank];
        }
        owners[j] = (int16_t)rank;
        segment = s2_union_segment(u, segment, u->positions[j] / 64);
        at += u->layout->segments[segment].block;
    }
}

s2_status s2_plan_owners(const s2_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                         int64_t nbytes, uint64_t seed, const int64_t *positions, int64_t nunion,
                         int16_t *owners)
{
    const struct s2_union u = {layout, bitmaps, nranks, nbytes, positions, nunion};
    struct loads loads;
    int64_t caps[S2_MAX_RANKS], numel, left_over;

    S2_RETURN_IF_ERROR(s2_union_check(&u, &numel));
    if (s2_is_null(owners, nunion)) return S2_NULL_POINTER;
    find_caps(&u, numel, caps);
    S2_RETURN_IF_ERROR(pick_candidates(&u, seed, caps, owners, &loads, &left_over));
    if (left_over != 0) place_left_over(&u, caps, loads.owned, owners);
    return S2_OK;
}
