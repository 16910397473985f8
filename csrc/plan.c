/* SPDX-License-Identifier: MIT */
/*
 * The owner plan; s2.h has the rule.
 *
 * Walks go word by word through the bitmaps of all ranks.  They cost a load for each word and rank,
 * and a few steps for each live block of each rank; never ranks times blocks.
 */
#include "hash.h"
#include "internal.h"

#define LEFT_OVER (-1)

/* ---------------------------------------------------------------------------------------------- */
/* Walks                                                                                          */
/* ---------------------------------------------------------------------------------------------- */

/* The bitmaps of all ranks. */
struct bitmaps {
    const uint8_t *first; /* of rank 0 */
    int64_t nranks;
    int64_t nbytes; /* of each */
};

static inline uint64_t word_of_rank(const struct bitmaps *bitmaps, int64_t rank, int64_t word)
{
    return s2_load_word(bitmaps->first + rank * bitmaps->nbytes + 8 * word);
}

static uint64_t word_of_union(const struct bitmaps *bitmaps, int64_t word)
{
    uint64_t bits = 0;
    for (int64_t rank = 0; rank < bitmaps->nranks; rank++)
        bits |= word_of_rank(bitmaps, rank, word);
    return bits;
}

/* Finds segments for positions that ascend. */
struct finder {
    const s2_layout *layout;
    int64_t segment;
};

/* The number of the segment that the bit at `position` belongs to, or follows. */
static inline int64_t find_segment(struct finder *finder, int64_t position)
{
    while (finder->segment + 1 < finder->layout->nsegments &&
           position >= finder->layout->segments[finder->segment + 1].first_bit)
        finder->segment++;
    return finder->segment;
}

static inline int64_t find_block(struct finder *finder, int64_t position)
{
    return finder->layout->segments[find_segment(finder, position)].block;
}

static s2_status check_sizes(const s2_layout *layout, const struct bitmaps *bitmaps,
                             const int64_t *positions, int64_t nunion)
{
    S2_RETURN_IF_ERROR(s2_layout_check_bitmap(layout, bitmaps->first, bitmaps->nbytes));
    if (bitmaps->nranks < 1 || bitmaps->nranks > S2_MAX_RANKS || nunion < 0 ||
        nunion > S2_MAX_NUMEL)
        return S2_BAD_SIZE;
    if (bitmaps->nbytes > S2_MAX_NUMEL / bitmaps->nranks) return S2_BAD_SIZE;
    return s2_is_null(positions, nunion) ? S2_NULL_POINTER : S2_OK;
}

/* The arguments that all functions here share; positions must be those of the union. */
static s2_status check(const s2_layout *layout, const struct bitmaps *bitmaps,
                       const int64_t *positions, int64_t nunion)
{
    int64_t j = 0, numel;

    S2_RETURN_IF_ERROR(check_sizes(layout, bitmaps, positions, nunion));
    S2_RETURN_IF_ERROR(s2_blocks_packed_numel(layout, positions, nunion, &numel));
    for (int64_t word = 0; word < bitmaps->nbytes / 8; word++) {
        for (uint64_t bits = word_of_union(bitmaps, word); bits != 0; bits &= bits - 1, j++) {
            if (j >= nunion || positions[j] != 64 * word + s2_lowest_bit(bits))
                return S2_BAD_POSITION;
        }
    }
    return j == nunion ? S2_OK : S2_BAD_POSITION;
}

/* ---------------------------------------------------------------------------------------------- */
/* Owners                                                                                         */
/* ---------------------------------------------------------------------------------------------- */

/* Step 1 for the blocks of a word: sets picked[b] for every bit b of the union. */
static void pick_candidates(const struct bitmaps *bitmaps, int64_t word, uint64_t seed,
                            int16_t picked[64])
{
    uint64_t touched = 0;
    int16_t count[64] = {0}; /* of the ranks that touched a block; then those still to pass by */

    for (int64_t rank = 0; rank < bitmaps->nranks; rank++) {
        uint64_t bits = word_of_rank(bitmaps, rank, word);
        touched |= bits;
        for (; bits != 0; bits &= bits - 1)
            count[s2_lowest_bit(bits)]++;
    }
    for (; touched != 0; touched &= touched - 1) {
        int bit = s2_lowest_bit(touched);
        uint64_t hash = s2_hash(seed, (uint64_t)(64 * word + bit));
        count[bit] = (int16_t)s2_hash_below(hash, (uint32_t)count[bit]);
    }
    for (int64_t rank = 0; rank < bitmaps->nranks; rank++) {
        for (uint64_t bits = word_of_rank(bitmaps, rank, word); bits != 0; bits &= bits - 1) {
            int bit = s2_lowest_bit(bits);
            if (count[bit]-- == 0) picked[bit] = (int16_t)rank;
        }
    }
}

static void pick_all_candidates(const struct bitmaps *bitmaps, uint64_t seed,
                                const int64_t *positions, int64_t nunion, int16_t *owners)
{
    int16_t picked[64];

    for (int64_t j = 0; j < nunion;) {
        int64_t word = positions[j] / 64;
        pick_candidates(bitmaps, word, seed, picked);
        for (; j < nunion && positions[j] / 64 == word; j++)
            owners[j] = picked[positions[j] % 64];
    }
}

/* An even share of the union's elements and a twentieth, in whole blocks of the longest kind. */
static int64_t find_cap(const s2_layout *layout, const int64_t *positions, int64_t nunion,
                        int64_t nranks)
{
    struct finder finder = {layout, 0};
    int64_t numel = 0, longest = 1;

    for (int64_t j = 0; j < nunion; j++) {
        int64_t block = find_block(&finder, positions[j]);
        numel += block;
        longest = s2_max(longest, block);
    }
    int64_t share = (numel + numel / 20) / nranks + 1;
    return (share + longest - 1) / longest * longest;
}

/* Step 2: unsets the owners of blocks beyond the cap, and sets loads[r] to what r owns. */
static void apply_cap(const s2_layout *layout, const int64_t *positions, int64_t nunion,
                      int64_t cap, int16_t *owners, int64_t loads[S2_MAX_RANKS])
{
    struct finder finder = {layout, 0};
    int64_t candidates[S2_MAX_RANKS] = {0}; /* elements so far, owned or not */

    memset(loads, 0, S2_MAX_RANKS * sizeof(*loads));
    for (int64_t j = 0; j < nunion; j++) {
        int64_t block = find_block(&finder, positions[j]);
        int16_t rank = owners[j];
        candidates[rank] += block;
        if (candidates[rank] <= cap)
            loads[rank] = candidates[rank];
        else
            owners[j] = LEFT_OVER;
    }
}

/* Step 3.  All room together is larger than all that is left over, so `rank` never runs out. */
static void place_left_over(const s2_layout *layout, const int64_t *positions, int64_t nunion,
                            int64_t cap, int16_t *owners, const int64_t loads[S2_MAX_RANKS])
{
    struct finder finder = {layout, 0};
    int64_t at = 0, rank = 0, room_end = cap - loads[0];

    for (int64_t j = 0; j < nunion; j++) {
        if (owners[j] != LEFT_OVER) continue;
        while (at >= room_end)
            room_end += cap - loads[++rank];
        owners[j] = (int16_t)rank;
        at += find_block(&finder, positions[j]);
    }
}

s2_status s2_plan_owners(const s2_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                         int64_t nbytes, uint64_t seed, const int64_t *positions, int64_t nunion,
                         int16_t *owners)
{
    const struct bitmaps all = {bitmaps, nranks, nbytes};
    int64_t loads[S2_MAX_RANKS];

    S2_RETURN_IF_ERROR(check(layout, &all, positions, nunion));
    if (s2_is_null(owners, nunion)) return S2_NULL_POINTER;
    int64_t cap = find_cap(layout, positions, nunion, nranks);
    pick_all_candidates(&all, seed, positions, nunion, owners);
    apply_cap(layout, positions, nunion, cap, owners, loads);
    place_left_over(layout, positions, nunion, cap, owners, loads);
    return S2_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Exchanges                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

static s2_status check_owners(const int16_t *owners, int64_t nunion, int64_t nranks, int64_t rank)
{
    if (s2_is_null(owners, nunion)) return S2_NULL_POINTER;
    if (rank < 0 || rank >= nranks) return S2_BAD_SIZE;
    for (int64_t j = 0; j < nunion; j++) {
        if (owners[j] < 0 || owners[j] >= nranks) return S2_BAD_SIZE;
    }
    return S2_OK;
}

/* The blocks of a word that this rank owns, as bits; j is the number of the word's first block. */
static uint64_t owned_bits(const int64_t *positions, int64_t nunion, const int16_t *owners,
                           int64_t rank, int64_t j)
{
    int64_t word = positions[j] / 64;
    uint64_t bits = 0;
    for (; j < nunion && positions[j] / 64 == word; j++)
        bits |= (uint64_t)(owners[j] == rank) << (positions[j] % 64);
    return bits;
}

s2_status s2_plan_exchanges(const s2_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                            int64_t nbytes, const int64_t *positions, int64_t nunion,
                            const int16_t *owners, int64_t rank, s2_exchange *exchanges)
{
    const struct bitmaps all = {bitmaps, nranks, nbytes};
    struct finder finder = {layout, 0};

    S2_RETURN_IF_ERROR(check(layout, &all, positions, nunion));
    S2_RETURN_IF_ERROR(check_owners(owners, nunion, nranks, rank));
    if (exchanges == NULL) return S2_NULL_POINTER;

    memset(exchanges, 0, (size_t)nranks * sizeof(*exchanges));
    for (int64_t j = 0; j < nunion;) {
        int64_t word = positions[j] / 64;
        int64_t block = find_block(&finder, positions[j]);
        uint64_t own = owned_bits(positions, nunion, owners, rank, j);
        uint64_t mine = word_of_rank(&all, rank, word);

        for (int64_t peer = 0; own != 0 && peer < nranks; peer++) {
            int64_t n = s2_popcount(word_of_rank(&all, peer, word) & own);
            exchanges[peer].received_blocks += n;
            exchanges[peer].received_numel += n * block;
        }
        for (; j < nunion && positions[j] / 64 == word; j++) {
            s2_exchange *exchange = &exchanges[owners[j]];
            int64_t sent = (int64_t)(mine >> (positions[j] % 64) & 1);
            exchange->owned_blocks++;
            exchange->owned_numel += block;
            exchange->sent_blocks += sent;
            exchange->sent_numel += sent * block;
        }
    }
    return S2_OK;
}

/* A segment for each of the layout's, for the blocks that `rank` owns. */
static void make_compact(const s2_layout *layout, const int64_t *positions, int64_t nunion,
                         const int16_t *owners, int64_t rank, s2_segment *compact)
{
    struct finder finder = {layout, 0};
    int64_t offset = 0, first_bit = 0;

    for (int64_t i = 0; i < layout->nsegments; i++)
        compact[i] = (s2_segment){.block = layout->segments[i].block};
    for (int64_t j = 0; j < nunion; j++) {
        s2_segment *segment = &compact[find_segment(&finder, positions[j])];
        segment->numel += owners[j] == rank ? segment->block : 0;
    }
    for (int64_t i = 0; i < layout->nsegments; i++) {
        compact[i].offset = offset;
        compact[i].first_bit = first_bit;
        offset += compact[i].numel;
        first_bit += (compact[i].numel / compact[i].block + 63) / 64 * 64;
    }
}

/* Where the next entry of each rank's part goes, in the three lists. */
struct parts {
    int64_t sent[S2_MAX_RANKS], received[S2_MAX_RANKS], owned[S2_MAX_RANKS];
};

/* Sets the parts' beginnings, and checks the lists' lengths. */
static s2_status begin_parts(struct parts *parts, const s2_exchange *exchanges, int64_t nranks,
                             int64_t nsent, int64_t nreceived, int64_t nunion)
{
    int64_t sent = 0, received = 0, owned = 0;

    for (int64_t rank = 0; rank < nranks; rank++) {
        parts->sent[rank] = sent;
        parts->received[rank] = received;
        parts->owned[rank] = owned;
        sent += exchanges[rank].sent_blocks;
        received += exchanges[rank].received_blocks;
        owned += exchanges[rank].owned_blocks;
    }
    return sent == nsent && received == nreceived && owned == nunion ? S2_OK : S2_BAD_SIZE;
}

/* Lists what others send of the blocks `own` of a word; the first of them is number `first` of the
 * compact layout. */
static void list_received(const struct bitmaps *bitmaps, int64_t word, uint64_t own, int64_t first,
                          int64_t next[S2_MAX_RANKS], int64_t *received)
{
    for (int64_t rank = 0; rank < bitmaps->nranks; rank++) {
        for (uint64_t bits = word_of_rank(bitmaps, rank, word) & own; bits != 0; bits &= bits - 1) {
            uint64_t below = (bits & (0 - bits)) - 1;
            received[next[rank]++] = first + s2_popcount(own & below);
        }
    }
}

s2_status s2_plan_lists(const s2_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                        int64_t nbytes, const int64_t *positions, int64_t nunion,
                        const int16_t *owners, int64_t rank, const s2_exchange *exchanges,
                        int64_t *sent, int64_t nsent, int64_t *received, int64_t nreceived,
                        int64_t *owned, s2_segment *compact)
{
    const struct bitmaps all = {bitmaps, nranks, nbytes};
    struct finder finder = {layout, 0};
    struct parts next;
    int64_t segment = -1, in_segment = 0; /* the present one, and how many of its blocks are ours */

    S2_RETURN_IF_ERROR(check_sizes(layout, &all, positions, nunion));
    S2_RETURN_IF_ERROR(check_owners(owners, nunion, nranks, rank));
    if (exchanges == NULL) return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(begin_parts(&next, exchanges, nranks, nsent, nreceived, nunion));
    S2_RETURN_IF_ERROR(check(layout, &all, positions, nunion));
    if (s2_is_null(sent, nsent) || s2_is_null(received, nreceived) || s2_is_null(owned, nunion) ||
        s2_is_null(compact, layout->nsegments))
        return S2_NULL_POINTER;

    make_compact(layout, positions, nunion, owners, rank, compact);
    for (int64_t j = 0; j < nunion;) {
        int64_t word = positions[j] / 64;
        uint64_t own = owned_bits(positions, nunion, owners, rank, j);
        uint64_t mine = word_of_rank(&all, rank, word);

        if (find_segment(&finder, positions[j]) != segment) {
            segment = finder.segment;
            in_segment = 0;
        }
        list_received(&all, word, own, compact[segment].first_bit + in_segment, next.received,
                      received);
        in_segment += s2_popcount(own);
        for (; j < nunion && positions[j] / 64 == word; j++) {
            owned[next.owned[owners[j]]++] = positions[j];
            if (mine >> (positions[j] % 64) & 1) sent[next.sent[owners[j]]++] = positions[j];
        }
    }
    return S2_OK;
}
