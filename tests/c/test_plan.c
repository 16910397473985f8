/* SPDX-License-Identifier: MIT */
/* That every rank finds the owners, the exchanges and the lists that the header describes. */
#include "cases.h"
#include "hash.h"
#include "oracle.h"
#include "test_util.h"

enum { MAX_BLOCKS = 1 << 14, MAX_NBYTES = MAX_BLOCKS / 8 + 1024 };

static guarded bitmaps_memory, positions_memory, owners_memory, exchanges_memory;
static guarded sent_memory, received_memory, owned_memory, compact_memory;

/* ------------------------------------------- Hash --------------------------------------------- */

/* The rows of tests/vectors/hash.json, which reference.py is held to as well. */
static const struct {
    uint64_t seed, number, hash;
    uint32_t n, below;
} hash_vectors[] = {
    {0u, 0u, 16294208416658607535u, 3, 2},
    {0u, 1u, 7960286522194355700u, 3, 1},
    {0u, 63u, 16309137577984334075u, 3, 2},
    {0u, 1000000000u, 9647096652429275078u, 3, 1},
    {0u, 1099511627783u, 4816153298360734956u, 3, 0},
    {1u, 0u, 10451216379200822465u, 3, 1},
    {1u, 1u, 13757245211066428519u, 3, 2},
    {1u, 63u, 9851787880037274203u, 3, 1},
    {1u, 1000000000u, 2135237286405269267u, 3, 0},
    {1u, 1099511627783u, 17079942416751657745u, 3, 2},
    {42u, 0u, 13679457532755275413u, 3, 2},
    {42u, 1u, 2949826092126892291u, 3, 0},
    {42u, 63u, 828042018597943978u, 3, 0},
    {42u, 1000000000u, 16456771455465998769u, 3, 2},
    {42u, 1099511627783u, 3556363878750648520u, 3, 0},
    {9223372036854775813u, 0u, 6099647518701997872u, 3, 0},
    {9223372036854775813u, 1u, 1310410189432148767u, 3, 0},
    {9223372036854775813u, 63u, 15082319663451212379u, 3, 2},
    {9223372036854775813u, 1000000000u, 13836567818676816185u, 3, 2},
    {9223372036854775813u, 1099511627783u, 2916321926864287442u, 3, 0},
    {18446744073709551615u, 0u, 16490336266968443936u, 3, 2},
    {18446744073709551615u, 1u, 16834447057089888969u, 3, 2},
    {18446744073709551615u, 63u, 17742911016552802689u, 3, 2},
    {18446744073709551615u, 1000000000u, 4225975333757542304u, 3, 0},
    {18446744073709551615u, 1099511627783u, 9831064479051131778u, 3, 1},
};

/* The hash, written once more. */
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

/* floor(hash / 2^32 * n / 2^32), by long division of the halves' product. */
static uint32_t oracle_below(uint64_t hash, uint32_t n)
{
    uint64_t upper = hash / 4294967296u, below = 0;
    for (int b = 0; b < 32; b++)
        below += (n >> b & 1) * (upper << b);
    return (uint32_t)(below / 4294967296u);
}

static void test_hash(void)
{
    for (int64_t i = 0; i < COUNT(hash_vectors); i++) {
        uint64_t seed = hash_vectors[i].seed, number = hash_vectors[i].number;
        test_case("row %" PRId64 " of the hash vectors", i);
        CHECK(s2_hash(seed, number) == hash_vectors[i].hash);
        CHECK(s2_hash_below(hash_vectors[i].hash, hash_vectors[i].n) == hash_vectors[i].below);
        CHECK(oracle_hash(seed, number) == hash_vectors[i].hash);
        CHECK(oracle_below(hash_vectors[i].hash, hash_vectors[i].n) == hash_vectors[i].below);
    }
    for (int i = 0; i < 10000; i++) {
        uint64_t seed = random_bits(), number = random_bits(), hash = random_bits();
        uint32_t n = (uint32_t)(random_bits() >> (32 + random_below(32)));
        test_case("random hash %d", i);
        CHECK(s2_hash(seed, number) == oracle_hash(seed, number));
        CHECK(s2_hash_below(hash, n) == oracle_below(hash, n));
        CHECK(n == 0 || s2_hash_below(hash, n) < n);
        CHECK(n == 0 || s2_hash_below(UINT64_MAX, n) == n - 1);
        CHECK(s2_hash_below(UINT32_MAX, n) == 0);
    }
}

/* ------------------------------------------ Cases --------------------------------------------- */

/* What the functions of the section share, and what the oracle knows about it. */
typedef struct plan_case {
    case_layout c;
    int64_t nranks, nbytes, nunion;
    uint8_t *bitmaps;
    int64_t *positions;
    oracle_block *blocks; /* of the positions */
    int16_t *owners;
} plan_case;

static plan_case plan_case_new(void)
{
    plan_case p;
    memset(&p, 0, sizeof(p));
    p.c = case_layout_new();
    p.bitmaps = test_malloc(S2_MAX_RANKS * MAX_NBYTES);
    p.positions = test_malloc(8 * MAX_BLOCKS);
    p.blocks = test_malloc(MAX_BLOCKS * (int64_t)sizeof(oracle_block));
    p.owners = test_malloc(2 * MAX_BLOCKS);
    return p;
}

static void plan_case_delete(plan_case *p)
{
    case_layout_delete(&p->c);
    free(p->bitmaps);
    free(p->positions);
    free(p->blocks);
    free(p->owners);
}

static int touches(const plan_case *p, int64_t rank, int64_t position)
{
    return oracle_bit(p->bitmaps + rank * p->nbytes, position);
}

/* Finds the union anew. */
static void plan_case_unite(plan_case *p)
{
    p->nunion = 0;
    for (int64_t bit = 0; bit < 8 * p->nbytes; bit++) {
        int touched = 0;
        for (int64_t rank = 0; rank < p->nranks; rank++)
            touched |= touches(p, rank, bit);
        if (!touched) continue;
        CHECK(oracle_find_block(&p->c.layout, bit, &p->blocks[p->nunion]));
        p->positions[p->nunion++] = bit;
    }
}

typedef enum density { NOTHING, FEW, HALF, ALL, ONE_HEAVY, ONE_ALONE, DISJOINT, MIXED } density;
enum { NDENSITIES = 8 };

static const char *const density_names[NDENSITIES] = {
    "nothing",        "few blocks",     "half",     "all",
    "one heavy rank", "one rank alone", "disjoint", "mixed"};

static int percent_of(density kind, int is_heavy)
{
    static const int mixed[] = {0, 1, 10, 50, 99, 100};
    switch (kind) {
    case FEW:
        return 2;
    case HALF:
        return 50;
    case ALL:
        return 100;
    case ONE_HEAVY:
        return is_heavy ? 100 : 2;
    case ONE_ALONE:
        return is_heavy ? 60 : 0;
    case MIXED:
        return mixed[random_below(COUNT(mixed))];
    default:
        return 0;
    }
}

/* Which ranks touch which blocks of the layout that `p` has. */
static void plan_case_touch(plan_case *p, int64_t nranks, density kind)
{
    int64_t heavy = random_below(nranks), nbytes = p->c.bitmap_nbytes;
    uint8_t *all = test_malloc(nbytes);
    CHECK(nbytes <= MAX_NBYTES);
    case_bitmap(&p->c.layout, 100, all, nbytes);
    p->nranks = nranks;
    p->nbytes = nbytes;
    memset(p->bitmaps, 0, (size_t)(nranks * nbytes));
    for (int64_t rank = 0; rank < nranks; rank++) {
        int percent = percent_of(kind, rank == heavy);
        for (int64_t bit = 0; percent > 0 && bit < 8 * nbytes; bit++) {
            if (oracle_bit(all, bit) && random_chance(percent))
                oracle_set_bit(p->bitmaps + rank * nbytes, bit);
        }
    }
    for (int64_t bit = 0; kind == DISJOINT && bit < 8 * nbytes; bit++) {
        if (oracle_bit(all, bit)) oracle_set_bit(p->bitmaps + random_below(nranks) * nbytes, bit);
    }
    free(all);
    plan_case_unite(p);
}

static int64_t random_nranks(void)
{
    static const int64_t numbers[] = {1, 2, 2, 3, 4, 8, 63, 64, 65, 255, 256};
    if (random_chance(30)) return 1 + random_below(S2_MAX_RANKS);
    return numbers[random_below(COUNT(numbers))];
}

static void plan_case_random(plan_case *p, int i)
{
    int64_t nranks = random_nranks();
    density kind = (density)(i % NDENSITIES);
    int64_t max_numel = (int64_t)1 << random_below(nranks > 16 ? 12 : 14);
    if (random_chance(30)) { /* blocks of one length */
        int64_t block = 1 + random_below(9);
        case_layout_single(&p->c, block, random_below(max_numel), random_below(5));
    } else {
        case_layout_random(&p->c, max_numel);
    }
    plan_case_touch(p, nranks, kind);
    test_case("random case %d: %" PRId64 " ranks, %s, %" PRId64 " blocks in %" PRId64 " segments",
              i, nranks, density_names[kind], p->nunion, p->c.layout.nsegments);
}

/* ------------------------------------------ Owners -------------------------------------------- */

static int64_t oracle_candidate(const plan_case *p, uint64_t seed, int64_t position)
{
    uint32_t n = 0;
    for (int64_t rank = 0; rank < p->nranks; rank++)
        n += (uint32_t)touches(p, rank, position);
    int64_t skip = oracle_below(oracle_hash(seed, (uint64_t)position), n);
    for (int64_t rank = 0;; rank++) {
        if (touches(p, rank, position) && skip-- == 0) return rank;
    }
}

static int64_t oracle_longest(const plan_case *p)
{
    int64_t longest = 1;
    for (int64_t j = 0; j < p->nunion; j++)
        longest = p->blocks[j].length > longest ? p->blocks[j].length : longest;
    return longest;
}

/* What rank `rank` may own at a level, before it is rounded up to whole blocks. */
static int64_t oracle_cap_at(int64_t level, int64_t live, int64_t nranks)
{
    return live < level ? (level - live) / (nranks - 1) + 1 : 0;
}

/* reference.py has the same: 1.05 even shares, or by a level that is tried from 0 on. */
static void oracle_caps(const plan_case *p, int64_t *caps)
{
    int64_t numel = oracle_packed_numel(&p->c.layout, p->positions, p->nunion);
    int64_t live[S2_MAX_RANKS] = {0}, most = 0, level = 0, longest = oracle_longest(p);
    int64_t share = (numel + numel / 20) / p->nranks + 1;
    for (int64_t rank = 0; rank < p->nranks; rank++) {
        for (int64_t j = 0; j < p->nunion; j++)
            live[rank] += touches(p, rank, p->positions[j]) ? p->blocks[j].length : 0;
        most = live[rank] > most ? live[rank] : most;
    }
    for (int64_t room = p->nranks < 3 ? numel : 0; room < numel; level += room < numel) {
        room = 0;
        for (int64_t rank = 0; rank < p->nranks; rank++)
            room += oracle_cap_at(level, live[rank], p->nranks);
    }
    int even = p->nranks < 3 || most + (p->nranks - 2) * share <= level + level / 10;
    for (int64_t rank = 0; rank < p->nranks; rank++) {
        int64_t cap = even ? share : oracle_cap_at(level, live[rank], p->nranks);
        caps[rank] = (cap + longest - 1) / longest * longest;
    }
}

static void oracle_owners(const plan_case *p, uint64_t seed, int16_t *owners)
{
    int64_t candidates[S2_MAX_RANKS] = {0}, loads[S2_MAX_RANKS] = {0};
    int64_t caps[S2_MAX_RANKS], left_over = 0;
    oracle_caps(p, caps);
    for (int64_t j = 0; j < p->nunion; j++) {
        int64_t rank = oracle_candidate(p, seed, p->positions[j]);
        candidates[rank] += p->blocks[j].length;
        owners[j] = candidates[rank] <= caps[rank] ? (int16_t)rank : -1;
        if (owners[j] >= 0) loads[rank] += p->blocks[j].length;
    }
    for (int64_t j = 0; j < p->nunion; j++) {
        if (owners[j] >= 0) continue;
        int64_t number = left_over, rank = 0;
        while (number >= caps[rank] - loads[rank]) {
            number -= caps[rank] - loads[rank];
            CHECK(++rank < p->nranks);
        }
        owners[j] = (int16_t)rank;
        left_over += p->blocks[j].length;
    }
}

/* What the header promises about loads, whatever the steps. */
static void check_loads(const plan_case *p, const int16_t *owners)
{
    int64_t loads[S2_MAX_RANKS] = {0}, caps[S2_MAX_RANKS], longest = oracle_longest(p);
    int one_length = 1;
    oracle_caps(p, caps);
    for (int64_t j = 0; j < p->nunion; j++) {
        CHECK(owners[j] >= 0 && owners[j] < p->nranks);
        loads[owners[j]] += p->blocks[j].length;
        one_length &= p->blocks[j].length == longest;
    }
    for (int64_t rank = 0; rank < p->nranks; rank++) {
        CHECK(loads[rank] < caps[rank] + longest);
        CHECK(!one_length || loads[rank] <= caps[rank]);
    }
}

/* Copies of what all functions read, each next to unmapped pages. */
typedef struct placed {
    const uint8_t *bitmaps;
    const int64_t *positions;
    const int16_t *owners;
} placed;

static placed place_inputs(const plan_case *p, const int16_t *owners)
{
    placed in;
    in.bitmaps =
        guarded_copy(&bitmaps_memory, p->bitmaps, p->nranks * p->nbytes, placement_random(1));
    in.positions =
        guarded_copy(&positions_memory, p->positions, 8 * p->nunion, placement_random(8));
    in.owners =
        owners ? guarded_copy(&owners_memory, owners, 2 * p->nunion, placement_random(2)) : NULL;
    return in;
}

static void check_inputs(const plan_case *p, placed in, const int16_t *owners)
{
    CHECK(memcmp(in.bitmaps, p->bitmaps, (size_t)(p->nranks * p->nbytes)) == 0);
    CHECK(memcmp(in.positions, p->positions, (size_t)(8 * p->nunion)) == 0);
    CHECK(owners == NULL || memcmp(in.owners, owners, (size_t)(2 * p->nunion)) == 0);
    guarded_check(&bitmaps_memory);
    guarded_check(&positions_memory);
    guarded_check(&owners_memory);
}

/* Leaves the owners in `p`. */
static void check_owners(plan_case *p, uint64_t seed)
{
    placed in = place_inputs(p, NULL);
    int16_t *owners = guarded_place(&owners_memory, 2 * p->nunion, placement_random(2));
    oracle_owners(p, seed, p->owners);
    CHECK(s2_plan_owners(&p->c.layout, in.bitmaps, p->nranks, p->nbytes, seed, in.positions,
                         p->nunion, owners) == S2_OK);
    CHECK(memcmp(owners, p->owners, (size_t)(2 * p->nunion)) == 0);
    check_inputs(p, in, NULL);
    check_loads(p, owners);
}

/* ---------------------------------------- Exchanges ------------------------------------------- */

static void oracle_exchanges(const plan_case *p, const int16_t *owners, int64_t rank,
                             s2_exchange *exchanges)
{
    for (int64_t other = 0; other < p->nranks; other++) {
        s2_exchange e = {0, 0, 0, 0, 0, 0};
        for (int64_t j = 0; j < p->nunion; j++) {
            int64_t length = p->blocks[j].length;
            if (owners[j] == other) {
                e.owned_blocks++;
                e.owned_numel += length;
            }
            if (owners[j] == other && touches(p, rank, p->positions[j])) {
                e.sent_blocks++;
                e.sent_numel += length;
            }
            if (owners[j] == rank && touches(p, other, p->positions[j])) {
                e.received_blocks++;
                e.received_numel += length;
            }
        }
        exchanges[other] = e;
    }
}

static void check_exchanges(const plan_case *p, const int16_t *owners, int64_t rank,
                            const s2_exchange *wanted)
{
    int64_t size = p->nranks * (int64_t)sizeof(s2_exchange);
    placed in = place_inputs(p, owners);
    s2_exchange *exchanges = guarded_place(&exchanges_memory, size, placement_random(8));
    CHECK(s2_plan_exchanges(&p->c.layout, in.bitmaps, p->nranks, p->nbytes, in.positions, p->nunion,
                            in.owners, rank, exchanges) == S2_OK);
    CHECK(memcmp(exchanges, wanted, (size_t)size) == 0);
    guarded_check(&exchanges_memory);
    check_inputs(p, in, owners);
}

/* ------------------------------------------ Lists --------------------------------------------- */

/* The lists of one rank. */
typedef struct lists {
    int64_t *sent, nsent, *received, nreceived, *owned;
    s2_segment compact[CASE_SEGMENTS];
} lists;

/* A segment for each of the bucket's, and how many of its blocks the rank owns. */
static void oracle_compact(const plan_case *p, const int16_t *owners, int64_t rank,
                           s2_segment *compact)
{
    int64_t offset = 0, bit = 0;
    for (int64_t s = 0; s < p->c.layout.nsegments; s++) {
        int64_t block = p->c.layout.segments[s].block, nblocks = 0;
        for (int64_t j = 0; j < p->nunion; j++)
            nblocks += p->blocks[j].segment == s && owners[j] == rank;
        compact[s] = (s2_segment){offset, nblocks * block, block, bit};
        offset += nblocks * block;
        for (bit += nblocks; bit % 64 != 0;)
            bit++;
    }
}

static lists oracle_lists(const plan_case *p, const int16_t *owners, int64_t rank)
{
    lists l;
    int64_t nowned = 0;
    l.nsent = l.nreceived = 0;
    l.sent = test_malloc(8 * p->nunion);
    l.owned = test_malloc(8 * p->nunion);
    l.received = test_malloc(8 * p->nunion * p->nranks);
    oracle_compact(p, owners, rank, l.compact);
    for (int64_t other = 0; other < p->nranks; other++) {
        int64_t segment = -1, in_segment = 0;
        for (int64_t j = 0; j < p->nunion; j++) {
            if (p->blocks[j].segment != segment) in_segment = 0;
            segment = p->blocks[j].segment;
            if (owners[j] == other) l.owned[nowned++] = p->positions[j];
            if (owners[j] == other && touches(p, rank, p->positions[j]))
                l.sent[l.nsent++] = p->positions[j];
            if (owners[j] == rank && touches(p, other, p->positions[j]))
                l.received[l.nreceived++] = l.compact[segment].first_bit + in_segment;
            in_segment += owners[j] == rank;
        }
    }
    CHECK(nowned == p->nunion);
    return l;
}

static void lists_delete(lists *l)
{
    free(l->sent);
    free(l->received);
    free(l->owned);
}

static int is_untouched(const guarded *memory)
{
    for (int64_t i = 0; i < memory->nbytes; i++) {
        if (memory->data[i] != 0x5c) return 0;
    }
    return 1;
}

/* One call; with `refused`, one of the lengths is wrong, and nothing must have been written. */
static void call_lists(const plan_case *p, placed in, int64_t rank, const s2_exchange *exchanges,
                       const lists *wanted, int64_t nunion, int64_t nsent, int64_t nreceived,
                       int refused)
{
    int64_t nsegments = p->c.layout.nsegments,
            compact_size = nsegments * (int64_t)sizeof(s2_segment);
    int64_t *sent = guarded_place(&sent_memory, 8 * wanted->nsent, placement_random(8));
    int64_t *received = guarded_place(&received_memory, 8 * wanted->nreceived, placement_random(8));
    int64_t *owned = guarded_place(&owned_memory, 8 * p->nunion, placement_random(8));
    s2_segment *compact = guarded_place(&compact_memory, compact_size, placement_random(8));
    s2_status status =
        s2_plan_lists(&p->c.layout, in.bitmaps, p->nranks, p->nbytes, in.positions, nunion,
                      in.owners, rank, exchanges, sent, nsent, received, nreceived, owned, compact);
    if (refused) {
        CHECK(status == S2_BAD_SIZE);
        CHECK(is_untouched(&sent_memory) && is_untouched(&received_memory));
        CHECK(is_untouched(&owned_memory) && is_untouched(&compact_memory));
    } else {
        CHECK(status == S2_OK);
        CHECK(memcmp(sent, wanted->sent, (size_t)(8 * nsent)) == 0);
        CHECK(memcmp(received, wanted->received, (size_t)(8 * nreceived)) == 0);
        CHECK(memcmp(owned, wanted->owned, (size_t)(8 * nunion)) == 0);
        CHECK(memcmp(compact, wanted->compact, (size_t)compact_size) == 0);
    }
    guarded_check(&sent_memory);
    guarded_check(&received_memory);
    guarded_check(&owned_memory);
    guarded_check(&compact_memory);
}

/* That `compact` is a layout, in which the rows that each rank sends have their place. */
static void check_compact(const plan_case *p, const lists *l, int64_t rank,
                          const s2_exchange *exchanges)
{
    int64_t nbytes, at = 0;
    s2_layout compact = {l->compact, p->c.layout.nsegments, exchanges[rank].owned_numel};
    CHECK(s2_layout_bitmap_nbytes(&compact, &nbytes) == S2_OK);
    for (int64_t other = 0; other < p->nranks; other++) {
        int64_t n = exchanges[other].received_blocks, numel = -1;
        CHECK(s2_blocks_packed_numel(&compact, l->received + at, n, &numel) == S2_OK);
        CHECK(numel == exchanges[other].received_numel);
        at += n;
    }
    CHECK(at == l->nreceived);
}

static void check_lists(const plan_case *p, const int16_t *owners, int64_t rank,
                        const s2_exchange *wanted)
{
    int64_t size = p->nranks * (int64_t)sizeof(s2_exchange);
    placed in = place_inputs(p, owners);
    const s2_exchange *exchanges =
        guarded_copy(&exchanges_memory, wanted, size, placement_random(8));
    lists l = oracle_lists(p, owners, rank);
    int64_t n = p->nunion, sent = l.nsent, received = l.nreceived;
    check_compact(p, &l, rank, wanted);
    call_lists(p, in, rank, exchanges, &l, n, sent, received, 0);
    call_lists(p, in, rank, exchanges, &l, n, sent + 1, received, 1);
    call_lists(p, in, rank, exchanges, &l, n, sent - 1, received, 1);
    call_lists(p, in, rank, exchanges, &l, n, sent, received + 1, 1);
    call_lists(p, in, rank, exchanges, &l, n, sent, received - 1, 1);
    call_lists(p, in, rank, exchanges, &l, n, INT64_MIN, INT64_MAX, 1);
    if (n > 0) call_lists(p, in, rank, exchanges, &l, n - 1, sent, received, 1);
    CHECK(memcmp(exchanges, wanted, (size_t)size) == 0);
    guarded_check(&exchanges_memory);
    check_inputs(p, in, owners);
    lists_delete(&l);
}

/* ------------------------------------------ Tests --------------------------------------------- */

/* The exchanges and the lists of one rank. */
static void check_rank(const plan_case *p, const int16_t *owners, int64_t rank)
{
    s2_exchange wanted[S2_MAX_RANKS];
    oracle_exchanges(p, owners, rank, wanted);
    check_exchanges(p, owners, rank, wanted);
    check_lists(p, owners, rank, wanted);
}

/* Owners of all kinds: any ranks, one alone, runs. */
static void draw_owners(const plan_case *p, int16_t *owners)
{
    int64_t kind = random_below(3), rank = random_below(p->nranks);
    for (int64_t j = 0; j < p->nunion; j++) {
        if (kind == 0 || (kind == 1 && random_chance(10))) rank = random_below(p->nranks);
        owners[j] = (int16_t)rank;
    }
}

static void check_plan(plan_case *p)
{
    static const uint64_t seeds[] = {0, 1, 42, UINT64_MAX};
    int16_t *owners = test_malloc(2 * p->nunion);
    check_owners(p, random_bits());
    check_owners(p, seeds[random_below(COUNT(seeds))]);
    check_rank(p, p->owners, 0);
    check_rank(p, p->owners, random_below(p->nranks));
    draw_owners(p, owners);
    check_rank(p, owners, p->nranks - 1);
    if (p->nunion > 0) check_rank(p, owners, owners[random_below(p->nunion)]);
    free(owners);
}

static void test_random_cases(void)
{
    plan_case p = plan_case_new();
    for (int i = 0; i < 320; i++) {
        plan_case_random(&p, i);
        check_plan(&p);
    }
    plan_case_delete(&p);
}

/* Two ranks and the header's layout; world.c has the same, worked out by hand. */
static void test_small_example(void)
{
    s2_segment segments[2] = {{0, 6, 2, 0}, {6, 4, 3, 64}};
    s2_layout layout = {segments, 2, 10};
    static const uint8_t bitmaps[32] = {[0] = 2, [8] = 2, [16] = 4, [24] = 2};
    static const int64_t positions[3] = {1, 2, 65};
    static const int16_t owners[3] = {0, 1, 0};
    static const s2_exchange wanted[2] = {{2, 5, 2, 5, 2, 5}, {0, 0, 1, 3, 1, 2}};
    static const int64_t wanted_sent[2] = {1, 65}, wanted_received[3] = {0, 64, 64};
    static const int64_t wanted_owned[3] = {1, 65, 2};
    static const s2_segment wanted_compact[2] = {{0, 2, 2, 0}, {2, 3, 3, 64}};
    s2_exchange exchanges[2];
    int64_t sent[2], received[3], owned[3];
    s2_segment compact[2];
    test_case("the small example");
    CHECK(s2_plan_exchanges(&layout, bitmaps, 2, 16, positions, 3, owners, 0, exchanges) == S2_OK);
    CHECK(memcmp(exchanges, wanted, sizeof(wanted)) == 0);
    CHECK(s2_plan_lists(&layout, bitmaps, 2, 16, positions, 3, owners, 0, exchanges, sent, 2,
                        received, 3, owned, compact) == S2_OK);
    CHECK(memcmp(sent, wanted_sent, sizeof(sent)) == 0);
    CHECK(memcmp(received, wanted_received, sizeof(received)) == 0);
    CHECK(memcmp(owned, wanted_owned, sizeof(owned)) == 0);
    CHECK(memcmp(compact, wanted_compact, sizeof(compact)) == 0);
}

/* Every number of ranks; that sums no more fit a rank's room than its cap says. */
static void test_every_number_of_ranks(void)
{
    plan_case p = plan_case_new();
    for (int64_t nranks = 1; nranks <= S2_MAX_RANKS; nranks++) {
        density kind = nranks % 2 == 0 ? ONE_HEAVY : HALF;
        case_layout_single(&p.c, 1 + nranks % 5, 300 + random_below(600), 0);
        plan_case_touch(&p, nranks, kind);
        test_case("%" PRId64 " ranks, %s, %" PRId64 " blocks", nranks, density_names[kind],
                  p.nunion);
        check_owners(&p, random_bits());
        check_rank(&p, p.owners, random_below(nranks));
    }
    plan_case_delete(&p);
}

/* One rank touched nearly all of many blocks, so that most of them are left over. */
static void test_many_left_over(void)
{
    static const density kinds[] = {ONE_HEAVY, ONE_ALONE, DISJOINT, ALL};
    static const int64_t numbers[] = {2, 3, 16};
    plan_case p = plan_case_new();
    for (int64_t k = 0; k < COUNT(kinds) * COUNT(numbers); k++) {
        density kind = kinds[k % COUNT(kinds)];
        int64_t nranks = numbers[k / COUNT(kinds)];
        case_layout_single(&p.c, 1 + k % 3, 12000, 3);
        plan_case_touch(&p, nranks, kind);
        test_case("%" PRId64 " ranks, %s, %" PRId64 " blocks", nranks, density_names[kind],
                  p.nunion);
        check_plan(&p);
    }
    plan_case_delete(&p);
}

/* What the ranks find, each for itself, fits together. */
static void test_ranks_agree(void)
{
    plan_case p = plan_case_new();
    for (int i = 0; i < 40; i++) {
        plan_case_random(&p, i);
        if (p.nranks > 9 || p.nunion == 0) continue;
        s2_exchange all[9][9];
        uint64_t seed = random_bits();
        CHECK(s2_plan_owners(&p.c.layout, p.bitmaps, p.nranks, p.nbytes, seed, p.positions,
                             p.nunion, p.owners) == S2_OK);
        for (int64_t rank = 0; rank < p.nranks; rank++)
            CHECK(s2_plan_exchanges(&p.c.layout, p.bitmaps, p.nranks, p.nbytes, p.positions,
                                    p.nunion, p.owners, rank, all[rank]) == S2_OK);
        for (int64_t a = 0; a < p.nranks; a++) {
            for (int64_t b = 0; b < p.nranks; b++) {
                CHECK(all[a][b].sent_blocks == all[b][a].received_blocks);
                CHECK(all[a][b].sent_numel == all[b][a].received_numel);
                CHECK(all[a][b].owned_blocks == all[0][b].owned_blocks);
                CHECK(all[a][b].owned_numel == all[0][b].owned_numel);
            }
        }
    }
    plan_case_delete(&p);
}

/* ------------------------------------------ Errors -------------------------------------------- */

/* Lists whose lengths fit `exchanges`, where everything is this rank's own. */
static void check_lists_refused(const plan_case *p, s2_status status, int64_t nunion,
                                const uint8_t *bitmaps, const int64_t *positions,
                                const int16_t *zeros)
{
    s2_exchange exchanges[S2_MAX_RANKS];
    int64_t nreceived = 0;
    memset(exchanges, 0, sizeof(exchanges));
    for (int64_t rank = 0; rank < p->nranks; rank++) {
        for (int64_t bit = 0; bit < 8 * p->nbytes; bit++)
            exchanges[rank].received_blocks += touches(p, rank, bit);
        nreceived += exchanges[rank].received_blocks;
    }
    int64_t nsent = exchanges[0].sent_blocks = exchanges[0].received_blocks;
    exchanges[0].owned_blocks = nunion;
    int64_t *sent = guarded_place(&sent_memory, 8 * nsent, placement_random(8));
    int64_t *received = guarded_place(&received_memory, 8 * nreceived, placement_random(8));
    int64_t *owned = guarded_place(&owned_memory, 8 * nunion, placement_random(8));
    s2_segment *compact = guarded_place(
        &compact_memory, p->c.layout.nsegments * (int64_t)sizeof(s2_segment), placement_random(8));
    CHECK(s2_plan_lists(&p->c.layout, bitmaps, p->nranks, p->nbytes, positions, nunion, zeros, 0,
                        exchanges, sent, nsent, received, nreceived, owned, compact) == status);
    guarded_check(&sent_memory);
    guarded_check(&received_memory);
    guarded_check(&owned_memory);
    guarded_check(&compact_memory);
}

/* That all functions refuse, and write nothing but their outputs; of exchanges not even those. */
static void check_refused(const plan_case *p, s2_status status, int64_t nunion)
{
    int16_t *zeros = test_malloc(2 * nunion);
    memset(zeros, 0, (size_t)(2 * nunion));
    const uint8_t *bitmaps =
        guarded_copy(&bitmaps_memory, p->bitmaps, p->nranks * p->nbytes, placement_random(1));
    const int64_t *positions =
        guarded_copy(&positions_memory, p->positions, 8 * nunion, placement_random(8));
    int16_t *owners = guarded_place(&owners_memory, 2 * nunion, placement_random(2));
    s2_exchange *exchanges = guarded_place(
        &exchanges_memory, p->nranks * (int64_t)sizeof(s2_exchange), placement_random(8));
    CHECK(s2_plan_owners(&p->c.layout, bitmaps, p->nranks, p->nbytes, 7, positions, nunion,
                         owners) == status);
    CHECK(s2_plan_exchanges(&p->c.layout, bitmaps, p->nranks, p->nbytes, positions, nunion, zeros,
                            0, exchanges) == status);
    CHECK(is_untouched(&exchanges_memory));
    guarded_check(&owners_memory);
    guarded_check(&exchanges_memory);
    check_lists_refused(p, status, nunion, bitmaps, positions, zeros);
    free(zeros);
}

/* Positions that ascend and may name blocks, but are not those of the union. */
static void test_positions_of_another_union(void)
{
    plan_case p = plan_case_new();
    for (int i = 0; i < 160; i++) {
        plan_case_random(&p, i);
        if (p.nunion == 0) continue;
        int64_t n = p.nunion, at = random_below(n), before = p.positions[at];
        test_case("random case %d, of %" PRId64 " positions one is wrong", i, n);
        check_refused(&p, S2_BAD_POSITION, n - 1);
        p.positions[at] = before + 1;
        check_refused(&p, S2_BAD_POSITION, n);
        p.positions[at] = before - 1;
        check_refused(&p, S2_BAD_POSITION, n);
        p.positions[at] = before;
        p.positions[n] = p.positions[n - 1] + 1;
        check_refused(&p, S2_BAD_POSITION, n + 1);

        /* One left out, though there are as many; one that nobody touched. */
        memmove(p.positions + at, p.positions + at + 1, (size_t)(8 * (n - 1 - at)));
        check_refused(&p, S2_BAD_POSITION, n - 1);
        plan_case_unite(&p);
        for (int64_t rank = 0; rank < p.nranks; rank++)
            p.bitmaps[rank * p.nbytes + before / 8] &= (uint8_t) ~(1u << before % 8);
        check_refused(&p, S2_BAD_POSITION, n);
    }
    plan_case_delete(&p);
}

/* A bit that belongs to no block, with and without a position that names it. */
static void test_bits_of_no_block(void)
{
    plan_case p = plan_case_new();
    for (int i = 0; i < 160; i++) {
        plan_case_random(&p, i);
        if (p.nbytes == 0) continue;
        int64_t stray = random_below(8 * p.nbytes), rank = random_below(p.nranks), n = p.nunion;
        oracle_block block;
        if (oracle_find_block(&p.c.layout, stray, &block)) continue;
        oracle_set_bit(p.bitmaps + rank * p.nbytes, stray);
        test_case("random case %d, bit %" PRId64 " is of no block", i, stray);
        check_refused(&p, S2_BAD_POSITION, n);
        while (n > 0 && p.positions[n - 1] > stray) {
            p.positions[n] = p.positions[n - 1];
            n--;
        }
        p.positions[n] = stray;
        check_refused(&p, S2_BAD_POSITION, p.nunion + 1);
    }
    plan_case_delete(&p);
}

static void test_bad_owners(void)
{
    plan_case p = plan_case_new();
    for (int i = 0; i < 80; i++) {
        plan_case_random(&p, i);
        if (p.nunion == 0) continue;
        const int16_t wrong[] = {-1, INT16_MIN, (int16_t)p.nranks, INT16_MAX};
        int64_t at = random_below(p.nunion);
        s2_exchange wanted[S2_MAX_RANKS];
        oracle_owners(&p, 0, p.owners);
        oracle_exchanges(&p, p.owners, 0, wanted);
        lists l = oracle_lists(&p, p.owners, 0);
        for (int64_t k = 0; k < COUNT(wrong); k++) {
            p.owners[at] = wrong[k];
            placed in = place_inputs(&p, p.owners);
            s2_exchange *exchanges = guarded_place(
                &exchanges_memory, p.nranks * (int64_t)sizeof(s2_exchange), placement_random(8));
            test_case("random case %d, owner %" PRId64 " is %d", i, at, wrong[k]);
            CHECK(s2_plan_exchanges(&p.c.layout, in.bitmaps, p.nranks, p.nbytes, in.positions,
                                    p.nunion, in.owners, 0, exchanges) == S2_BAD_SIZE);
            CHECK(is_untouched(&exchanges_memory));
            call_lists(&p, in, 0, wanted, &l, p.nunion, l.nsent, l.nreceived, 1);
        }
        lists_delete(&l);
    }
    plan_case_delete(&p);
}

/* Lengths that add up, but whose parts are those of other arguments. */
static void test_exchanges_of_another_plan(void)
{
    plan_case p = plan_case_new();
    for (int i = 0; i < 240; i++) {
        s2_exchange wanted[S2_MAX_RANKS];
        plan_case_random(&p, i);
        int64_t from = random_below(p.nranks), to = random_below(p.nranks);
        oracle_owners(&p, 0, p.owners);
        oracle_exchanges(&p, p.owners, 0, wanted);
        int64_t *counts[] = {&wanted[from].sent_blocks,     &wanted[to].sent_blocks,
                             &wanted[from].received_blocks, &wanted[to].received_blocks,
                             &wanted[from].owned_blocks,    &wanted[to].owned_blocks};
        int64_t kind = random_below(3), moved = *counts[2 * kind];
        if (from == to || moved == 0) continue;
        lists l = oracle_lists(&p, p.owners, 0);
        moved = random_chance(30) ? moved : 1 + random_below(moved);
        if (random_chance(20)) moved = INT64_MAX / 2; /* below zero, and far beyond the end */
        *counts[2 * kind] -= moved;
        *counts[2 * kind + 1] += moved;
        placed in = place_inputs(&p, p.owners);
        int64_t *sent = guarded_place(&sent_memory, 8 * l.nsent, placement_random(8));
        int64_t *received = guarded_place(&received_memory, 8 * l.nreceived, placement_random(8));
        int64_t *owned = guarded_place(&owned_memory, 8 * p.nunion, placement_random(8));
        s2_segment compact[CASE_SEGMENTS];
        test_case("random case %d: %" PRId64 " of list %" PRId64 " moved from %" PRId64
                  " to %" PRId64,
                  i, moved, kind, from, to);
        CHECK(s2_plan_lists(&p.c.layout, in.bitmaps, p.nranks, p.nbytes, in.positions, p.nunion,
                            in.owners, 0, wanted, sent, l.nsent, received, l.nreceived, owned,
                            compact) == S2_BAD_SIZE);
        guarded_check(&sent_memory);
        guarded_check(&received_memory);
        guarded_check(&owned_memory);
        lists_delete(&l);
    }
    plan_case_delete(&p);
}

int main(void)
{
    test_begin("test_plan");
    bitmaps_memory = guarded_new(S2_MAX_RANKS * MAX_NBYTES + 64);
    positions_memory = guarded_new(8 * MAX_BLOCKS + 64);
    owners_memory = guarded_new(2 * MAX_BLOCKS + 64);
    exchanges_memory = guarded_new(S2_MAX_RANKS * (int64_t)sizeof(s2_exchange) + 64);
    sent_memory = guarded_new(8 * MAX_BLOCKS + 64);
    received_memory = guarded_new(8 * S2_MAX_RANKS * MAX_BLOCKS + 64);
    owned_memory = guarded_new(8 * MAX_BLOCKS + 64);
    compact_memory = guarded_new(CASE_SEGMENTS * (int64_t)sizeof(s2_segment) + 64);
    test_hash();
    test_small_example();
    test_random_cases();
    test_every_number_of_ranks();
    test_many_left_over();
    test_ranks_agree();
    test_positions_of_another_union();
    test_bits_of_no_block();
    test_bad_owners();
    test_exchanges_of_another_plan();
    guarded_delete(&bitmaps_memory);
    guarded_delete(&positions_memory);
    guarded_delete(&owners_memory);
    guarded_delete(&exchanges_memory);
    guarded_delete(&sent_memory);
    guarded_delete(&received_memory);
    guarded_delete(&owned_memory);
    guarded_delete(&compact_memory);
    return test_end();
}
