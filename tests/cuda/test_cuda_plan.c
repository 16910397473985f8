/* SPDX-License-Identifier: MIT */
/* That the kernels make the owner plan of the C core, entry for entry. */
#include "device.h"
#include "oracle.h"

enum {
    LAYOUT,
    BITMAPS,
    POSITIONS,
    COUNT_OF,
    RUNS,
    OWNERS,
    EXCHANGES,
    SENT,
    RECEIVED,
    OWNED,
    COMPACT,
    SCRATCH
};
enum { MAX_NBYTES = 1 << 13, MAX_BLOCKS = 1 << 13 };

static case_layout c;
static uint8_t bitmaps[S2_MAX_RANKS * MAX_NBYTES];
static int64_t positions[2 * MAX_BLOCKS], nunion, nranks, nbytes;
static int16_t owners[2 * MAX_BLOCKS];

/* ------------------------------------------- Cases -------------------------------------------- */

static int64_t random_nranks(void)
{
    static const int64_t numbers[] = {1, 2, 2, 3, 3, 4, 4, 8, 8, 33};
    return random_chance(30) ? 1 + random_below(20) : numbers[random_below(COUNT(numbers))];
}

/* Which ranks touch which blocks of the layout. */
static void draw_bitmaps(int percent, int64_t heavy)
{
    nbytes = c.bitmap_nbytes;
    CHECK(nbytes <= MAX_NBYTES && c.nblocks <= MAX_BLOCKS);
    uint8_t *any = test_malloc(nbytes);
    memset(any, 0, (size_t)nbytes);
    for (int64_t rank = 0; rank < nranks; rank++) {
        uint8_t *bitmap = bitmaps + rank * nbytes;
        case_bitmap(&c.layout, heavy < 0 ? percent : rank == heavy ? 90 : 1, bitmap, nbytes);
        CHECK(s2_bitmap_or(any, bitmap, nbytes) == S2_OK);
    }
    nunion = oracle_bitmap_positions(any, nbytes, positions);
    free(any);
}

/* Ranks alike, or one that has much more than the others, so that caps are not even and blocks of
 * several tiles are left over. */
static void draw_case(int i)
{
    static const int percents[] = {1, 10, 50, 100};
    nranks = i == 0 ? S2_MAX_RANKS : random_nranks();
    int64_t max_numel = (int64_t)1 << (nranks > 16 ? random_below(11) : 6 + random_below(8));
    int64_t heavy = random_chance(50) ? random_below(nranks) : -1;
    int percent = percents[random_below(COUNT(percents))];
    if (random_chance(40)) {
        int64_t block = 1 + random_below(9);
        case_layout_single(&c, block, max_numel / 2 + random_below(max_numel / 2 + 1),
                           random_below(5));
    } else {
        case_layout_random(&c, max_numel);
    }
    draw_bitmaps(percent, heavy);
    test_case("case %d: %" PRId64 " ranks, %d %%, heavy %" PRId64 ", %" PRId64 " blocks in %" PRId64
              " segments",
              i, nranks, percent, heavy, nunion, c.layout.nsegments);
}

/* What all functions take, on the device. */
typedef struct call {
    s2_cuda_layout layout;
    const uint8_t *bitmaps;
    const int64_t *positions;
    int64_t capacity;
    s2_cuda_run *runs;
} call;

static call call_new(void)
{
    call made = {device_layout(&c), device_array(BITMAPS, bitmaps, nranks * nbytes, 8), NULL,
                 nunion + random_below(3) * random_below(300), NULL};
    int64_t *list = device_array(POSITIONS, NULL, 8 * made.capacity, 8);
    const int64_t *count = device_array(COUNT_OF, &nunion, 8, 8);
    if (nunion > 0) memcpy(list, positions, (size_t)(8 * nunion));
    made.positions = list;
    made.runs = device_array(RUNS, NULL, 16 * (c.layout.nsegments + 1), 8);
    ON_DEVICE(&c, s2_cuda_blocks_runs(&made.layout, list, made.capacity, count, made.runs,
                                      device_stream));
    return made;
}

/* ------------------------------------------ Owners -------------------------------------------- */

static void check_owners(const call *at)
{
    uint64_t seed = random_bits();
    int64_t scratch_nbytes;
    CHECK(s2_plan_owners(&c.layout, bitmaps, nranks, nbytes, seed, positions, nunion, owners) ==
          S2_OK);
    CHECK(s2_cuda_plan_owners_scratch_nbytes(at->capacity, nranks, &scratch_nbytes) == S2_OK);
    int16_t *got = device_array(OWNERS, NULL, 2 * at->capacity, 2);
    void *scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(&c, s2_cuda_plan_owners(&at->layout, at->bitmaps, nranks, nbytes, seed, at->positions,
                                      at->capacity, at->runs, got, scratch, scratch_nbytes,
                                      device_stream));
    CHECK(memcmp(got, owners, (size_t)(2 * nunion)) == 0);
    for (int64_t j = nunion; j < at->capacity; j++)
        CHECK(got[j] == 0x5c5c);
}

/* -------------------------------------- Exchanges and lists ----------------------------------- */

static void check_lists(const call *at, int64_t rank)
{
    static s2_exchange wanted[S2_MAX_RANKS];
    static s2_segment compact[MANY_SEGMENTS];
    static int64_t sent[MAX_BLOCKS], owned[MAX_BLOCKS];
    int64_t nsegments = c.layout.nsegments, nsent = 0, nreceived = 0, scratch_nbytes;
    CHECK(s2_plan_exchanges(&c.layout, bitmaps, nranks, nbytes, positions, nunion, owners, rank,
                            wanted) == S2_OK);
    for (int64_t r = 0; r < nranks; r++) {
        nsent += wanted[r].sent_blocks;
        nreceived += wanted[r].received_blocks;
    }
    int64_t *received = test_malloc(8 * nreceived);
    CHECK(s2_plan_lists(&c.layout, bitmaps, nranks, nbytes, positions, nunion, owners, rank, wanted,
                        sent, nsent, received, nreceived, owned, compact) == S2_OK);

    const int16_t *whose = device_array(OWNERS, owners, 2 * at->capacity, 2);
    s2_exchange *exchanges = device_array(EXCHANGES, NULL, 48 * nranks, 8);
    ON_DEVICE(&c, s2_cuda_plan_exchanges(&at->layout, at->bitmaps, nranks, nbytes, at->positions,
                                         at->capacity, at->runs, whose, rank, exchanges,
                                         device_stream));
    CHECK(memcmp(exchanges, wanted, (size_t)(48 * nranks)) == 0);

    CHECK(s2_cuda_plan_lists_scratch_nbytes(at->capacity, nranks, nsegments, &scratch_nbytes) ==
          S2_OK);
    int64_t *got_sent = device_array(SENT, NULL, 8 * nsent, 8);
    int64_t *got_received = device_array(RECEIVED, NULL, 8 * nreceived, 8);
    int64_t *got_owned = device_array(OWNED, NULL, 8 * at->capacity, 8);
    s2_segment *got_compact = device_array(COMPACT, NULL, 32 * nsegments, 8);
    void *scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(&c, s2_cuda_plan_lists(&at->layout, at->bitmaps, nranks, nbytes, at->positions,
                                     at->capacity, at->runs, whose, rank, exchanges, got_sent,
                                     nsent, got_received, nreceived, got_owned, got_compact,
                                     scratch, scratch_nbytes, device_stream));
    CHECK(memcmp(got_sent, sent, (size_t)(8 * nsent)) == 0);
    CHECK(memcmp(got_received, received, (size_t)(8 * nreceived)) == 0);
    CHECK(memcmp(got_owned, owned, (size_t)(8 * nunion)) == 0);
    CHECK(memcmp(got_compact, compact, (size_t)(32 * nsegments)) == 0);
    free(received);
}

static void check_case(void)
{
    call at = call_new();
    check_owners(&at);
    check_lists(&at, random_below(nranks));
}

/* Whatever the device holds in place of positions, owners and exchanges, no harm is done. */
static void test_nonsense(int i)
{
    draw_case(1 + i);
    int64_t nsegments = c.layout.nsegments, scratch_nbytes, rank = random_below(nranks);
    s2_exchange exchanges[S2_MAX_RANKS];
    call at = call_new();
    int64_t *list = (int64_t *)(uintptr_t)at.positions;
    for (int64_t j = 0; j < at.capacity; j++) {
        list[j] = random_chance(50) ? random_below(8 * nbytes + 100) - 50 : (int64_t)random_bits();
        owners[j] = (int16_t)(random_below(nranks + 4) - 2);
    }
    for (int64_t r = 0; r < 6 * nranks; r++)
        ((int64_t *)exchanges)[r] = random_below(1000) - 500;
    test_case("nonsense %d: %" PRId64 " ranks", i, nranks);
    CHECK(s2_cuda_plan_owners_scratch_nbytes(at.capacity, nranks, &scratch_nbytes) == S2_OK);
    int16_t *got = device_array(OWNERS, NULL, 2 * at.capacity, 2);
    void *scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(&c, s2_cuda_plan_owners(&at.layout, at.bitmaps, nranks, nbytes, 1, at.positions,
                                      at.capacity, at.runs, got, scratch, scratch_nbytes,
                                      device_stream));
    CHECK(s2_cuda_plan_lists_scratch_nbytes(at.capacity, nranks, nsegments, &scratch_nbytes) ==
          S2_OK);
    const int16_t *whose = device_array(OWNERS, owners, 2 * at.capacity, 2);
    s2_exchange *counts = device_array(EXCHANGES, exchanges, 48 * nranks, 8);
    int64_t *sent = device_array(SENT, NULL, 80, 8), *received = device_array(RECEIVED, NULL, 8, 8);
    int64_t *owned = device_array(OWNED, NULL, 8 * at.capacity, 8);
    s2_segment *compact = device_array(COMPACT, NULL, 32 * nsegments, 8);
    scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(&c, s2_cuda_plan_lists(&at.layout, at.bitmaps, nranks, nbytes, at.positions,
                                     at.capacity, at.runs, whose, rank, counts, sent, 10, received,
                                     1, owned, compact, scratch, scratch_nbytes, device_stream));
    ON_DEVICE(&c, s2_cuda_plan_exchanges(&at.layout, at.bitmaps, nranks, nbytes, at.positions,
                                         at.capacity, at.runs, whose, rank, counts, device_stream));
}

/* One rank of three has nearly all, so that in every tile blocks are left over for the others. */
static void test_left_over(void)
{
    nranks = 3;
    case_layout_single(&c, 1, 1000, 0);
    draw_bitmaps(0, 1);
    test_case("left over, %" PRId64 " blocks", nunion);
    check_case();
}

/* The one thread block that makes the compact layout goes round several times. */
static void test_many_segments(void)
{
    case_layout few = c;
    c = many_segments_new();
    nranks = 3;
    draw_bitmaps(50, -1);
    test_case("many segments, %" PRId64 " blocks", nunion);
    check_case();
    case_layout_delete(&c);
    c = few;
}

int main(void)
{
    test_begin("test_cuda_plan");
    device_new();
    c = case_layout_new();
    test_left_over();
    test_many_segments();
    for (int i = 0; i < 25; i++) {
        draw_case(i);
        check_case();
    }
    for (int i = 0; i < 8 * NONSENSE; i++)
        test_nonsense(i);
    case_layout_delete(&c);
    device_delete();
    return test_end();
}
