/* SPDX-License-Identifier: MIT */
/* What one rank exchanges with each other, given the owners: see s2.h and plan.h. */
#include "plan.h"

static s2_status check_owners(const struct s2_union *u, const int16_t *owners, int64_t rank)
{
    bool good = true;

    if (s2_is_null(owners, u->n)) return S2_NULL_POINTER;
    if (rank < 0 || rank >= u->nranks) return S2_BAD_SIZE;
    for (int64_t j = 0; j < u->n; j++)
        good &= owners[j] >= 0 && owners[j] < u->nranks;
    return good ? S2_OK : S2_BAD_SIZE;
}

/* ---------------------------------------------------------------------------------------------- */
/* Exchanges                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

/* Adds the counts of blocks that have this length, and begins anew. */
static void add_counts(s2_exchange *exchanges, s2_exchange *counts, int64_t nranks, int64_t block)
{
    for (int64_t rank = 0; rank < nranks; rank++) {
        exchanges[rank].sent_blocks += counts[rank].sent_blocks;
        exchanges[rank].sent_numel += counts[rank].sent_blocks * block;
        exchanges[rank].received_blocks += counts[rank].received_blocks;
        exchanges[rank].received_numel += counts[rank].received_blocks * block;
        exchanges[rank].owned_blocks += counts[rank].owned_blocks;
        exchanges[rank].owned_numel += counts[rank].owned_blocks * block;
    }
    memset(counts, 0, (size_t)nranks * sizeof(*counts));
}

/* Counts the blocks of a word, of which the first is number *j of the union. */
static s2_status count_word(const struct s2_union *u, const int16_t *owners, int64_t rank,
                            int64_t word, uint64_t bits, int64_t *j, s2_exchange *counts)
{
    const uint64_t mine = s2_union_word_of(u, rank, word);
    uint64_t own = 0; /* the blocks that this rank owns */

    for (; bits != 0; bits &= bits - 1, ++*j) {
        int bit = s2_lowest_bit(bits);
        if (!s2_union_has(u, *j, 64 * word + bit)) return S2_BAD_POSITION;
        s2_exchange *owner = &counts[owners[*j]];
        owner->owned_blocks++;
        owner->sent_blocks += (int64_t)(mine >> bit & 1);
        own |= (uint64_t)(owners[*j] == rank) << bit;
    }
    for (int64_t peer = 0; own != 0 && peer < u->nranks; peer++)
        counts[peer].received_blocks += s2_popcount(s2_union_word_of(u, peer, word) & own);
    return S2_OK;
}

s2_status s2_plan_exchanges(const s2_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                            int64_t nbytes, const int64_t *positions, int64_t nunion,
                            const int16_t *owners, int64_t rank, s2_exchange *exchanges)
{
    const struct s2_union u = {layout, bitmaps, nranks, nbytes, positions, nunion};
    s2_exchange total[S2_MAX_RANKS] = {{0}}, counts[S2_MAX_RANKS] = {{0}};
    int64_t j = 0, segment = 0, numel;

    S2_RETURN_IF_ERROR(s2_union_check(&u, &numel));
    S2_RETURN_IF_ERROR(check_owners(&u, owners, rank));
    if (exchanges == NULL) return S2_NULL_POINTER;

    for (int64_t word = 0; word < nbytes / 8; word++) {
        uint64_t bits = s2_union_word(&u, word);
        if (bits == 0) continue;
        int64_t next = s2_union_segment(&u, segment, word);
        if (next != segment) add_counts(total, counts, nranks, layout->segments[segment].block);
        segment = next;
        S2_RETURN_IF_ERROR(count_word(&u, owners, rank, word, bits, &j, counts));
    }
    if (j != nunion) return S2_BAD_POSITION;
    if (nunion != 0) add_counts(total, counts, nranks, layout->segments[segment].block);
    memcpy(exchanges, total, (size_t)nranks * sizeof(*exchanges));
    return S2_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Lists                                                                                          */
/* ---------------------------------------------------------------------------------------------- */

/* A list with a part for each rank: where the next entry of a part goes, and where the part ends.
 */
struct parts {
    int64_t *list;
    int64_t next[S2_MAX_RANKS], end[S2_MAX_RANKS];
};

struct lists {
    struct parts sent, received, owned;
};

/* False where the part is full: the exchanges are those of other arguments. */
static inline bool push(struct parts *parts, int64_t rank, int64_t position)
{
    if (parts->next[rank] == parts->end[rank]) return false;
    parts->list[parts->next[rank]++] = position;
    return true;
}

static bool begin_part(struct parts *parts, int64_t rank, int64_t count, int64_t *at, int64_t n)
{
    if (count < 0 || count > n - *at) return false;
    parts->next[rank] = *at;
    parts->end[rank] = *at += count;
    return true;
}

/* Checks the lists' lengths, and sets where their parts are. */
static s2_status begin_parts(struct lists *lists, const s2_exchange *exchanges, int64_t nranks,
                             int64_t nsent, int64_t nreceived, int64_t nunion)
{
    int64_t sent = 0, received = 0, owned = 0;

    for (int64_t rank = 0; rank < nranks; rank++) {
        const s2_exchange *e = &exchanges[rank];
        if (!begin_part(&lists->sent, rank, e->sent_blocks, &sent, nsent) ||
            !begin_part(&lists->received, rank, e->received_blocks, &received, nreceived) ||
            !begin_part(&lists->owned, rank, e->owned_blocks, &owned, nunion))
            return S2_BAD_SIZE;
    }
    return sent == nsent && received == nreceived && owned == nunion ? S2_OK : S2_BAD_SIZE;
}

/* Lists the owners of a word's blocks, of which the first is number `first` of the union; sets *own
 * to those that this rank owns. */
static s2_status list_owned(const struct s2_union *u, const int16_t *owners, int64_t rank,
                            int64_t word, uint64_t bits, int64_t first, struct parts *owned,
                            uint64_t *own)
{
    *own = 0;
    for (int64_t j = first; bits != 0; bits &= bits - 1, j++) {
        int bit = s2_lowest_bit(bits);
        if (!s2_union_has(u, j, 64 * word + bit)) return S2_BAD_POSITION;
        if (!push(owned, owners[j], 64 * word + bit)) return S2_BAD_SIZE;
        *own |= (uint64_t)(owners[j] == rank) << bit;
    }
    return S2_OK;
}

/* How many of a word's bits lie below the lowest one of `bits`. */
static int64_t count_below(uint64_t word, uint64_t bits)
{
    uint64_t lowest = bits & (0 - bits);
    return s2_popcount(word & (lowest - 1));
}

/* Lists what this rank sends of them. */
static s2_status list_sent(const struct s2_union *u, const int16_t *owners, int64_t rank,
                           int64_t word, uint64_t all, int64_t first, struct parts *sent)
{
    for (uint64_t bits = s2_union_word_of(u, rank, word); bits != 0; bits &= bits - 1) {
        int64_t owner = owners[first + count_below(all, bits)];
        if (!push(sent, owner, 64 * word + s2_lowest_bit(bits))) return S2_BAD_SIZE;
    }
    return S2_OK;
}

/* Lists what the ranks send of the blocks `own` of a word; the first of them is number `first` of
 * the compact layout. */
static s2_status list_received(const struct s2_union *u, int64_t word, uint64_t own, int64_t first,
                               struct parts *received)
{
    for (int64_t rank = 0; rank < u->nranks; rank++) {
        for (uint64_t bits = s2_union_word_of(u, rank, word) & own; bits != 0; bits &= bits - 1) {
            if (!push(received, rank, first + count_below(own, bits))) return S2_BAD_SIZE;
        }
    }
    return S2_OK;
}

/* The segments of `compact` up to `end`, of which `begin` has its blocks; the others are empty and
 * begin where it ends. */
static void close_segments(const s2_layout *layout, s2_segment *compact, int64_t begin, int64_t end)
{
    for (int64_t i = begin + 1; i < end; i++) {
        const s2_segment *before = &compact[i - 1];
        compact[i] = (s2_segment){.offset = before->offset + before->numel,
                                  .block = layout->segments[i].block,
                                  .first_bit = before->first_bit +
                                               (before->numel / before->block + 63) / 64 * 64};
    }
}

static s2_status fill_lists(const struct s2_union *u, const int16_t *owners, int64_t rank,
                            struct lists *lists, s2_segment *compact)
{
    const s2_layout *layout = u->layout;
    int64_t j = 0, segment = 0, nowned = 0; /* blocks of the segment that this rank owns */

    if (layout->nsegments != 0) compact[0] = (s2_segment){.block = layout->segments[0].block};
    for (int64_t word = 0; word < u->nbytes / 8; word++) {
        uint64_t own, bits = s2_union_word(u, word);
        if (bits == 0) continue;
        int64_t next = s2_union_segment(u, segment, word);
        if (next != segment) {
            close_segments(layout, compact, segment, next + 1);
            segment = next;
            nowned = 0;
        }
        S2_RETURN_IF_ERROR(list_owned(u, owners, rank, word, bits, j, &lists->owned, &own));
        S2_RETURN_IF_ERROR(list_sent(u, owners, rank, word, bits, j, &lists->sent));
        j += s2_popcount(bits);
        if (own == 0) continue;
        S2_RETURN_IF_ERROR(
            list_received(u, word, own, compact[segment].first_bit + nowned, &lists->received));
        nowned += s2_popcount(own);
        compact[segment].numel = nowned * compact[segment].block;
    }
    close_segments(layout, compact, segment, layout->nsegments);
    return j == u->n ? S2_OK : S2_BAD_POSITION;
}

s2_status s2_plan_lists(const s2_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                        int64_t nbytes, const int64_t *positions, int64_t nunion,
                        const int16_t *owners, int64_t rank, const s2_exchange *exchanges,
                        int64_t *sent, int64_t nsent, int64_t *received, int64_t nreceived,
                        int64_t *owned, s2_segment *compact)
{
    const struct s2_union u = {layout, bitmaps, nranks, nbytes, positions, nunion};
    struct lists lists;
    int64_t numel;

    S2_RETURN_IF_ERROR(s2_union_check(&u, &numel));
    S2_RETURN_IF_ERROR(check_owners(&u, owners, rank));
    if (exchanges == NULL) return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(begin_parts(&lists, exchanges, nranks, nsent, nreceived, nunion));
    if (s2_is_null(sent, nsent) || s2_is_null(received, nreceived) || s2_is_null(owned, nunion) ||
        s2_is_null(compact, layout->nsegments))
        return S2_NULL_POINTER;

    lists.sent.list = sent;
    lists.received.list = received;
    lists.owned.list = owned;
    S2_RETURN_IF_ERROR(fill_lists(&u, owners, rank, &lists, compact));
    for (int64_t r = 0; r < nranks; r++) {
        if (lists.sent.next[r] != lists.sent.end[r] ||
            lists.received.next[r] != lists.received.end[r])
            return S2_BAD_SIZE;
    }
    return S2_OK;
}
