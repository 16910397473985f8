/* SPDX-License-Identifier: MIT */
#include "world.h"

world w, w_before;
const char *spoilt = "";

void world_reset(void)
{
    memset(&w, 0, sizeof(w));
    spoilt = "";
    w.segments[0] = (s2_segment){0, 6, 2, 0};
    w.segments[1] = (s2_segment){6, 4, 3, 64};
    w.layout = (s2_layout){w.segments, 2, 10};
    for (int i = 0; i < 10; i++) {
        w.values[i] = (float)i;
        w.wide[i] = i;
        w.halves[i] = 0x3c01;
    }
    for (int i = 0; i < 7; i++)
        w.packed[i] = (float)(100 + i);
    w.bitmap[0] = 0x6;
    w.bitmap[8] = 0x2;
    memset(w.other, 0x11, sizeof(w.other));
    w.counts[0] = w.counts[1] = w.negative_zeros = w.numel = -5;
    w.positions[0] = 1;
    w.positions[1] = 2;
    w.positions[2] = 65;
    w.list[0] = 0x41; /* 1 | 2 << 5 | 1 << 10: the low bits */
    w.list[1] = 0x04;
    w.list[8] = 0x13; /* 0 + 0, 0 + 1, 2 + 2: the upper parts */
    w.bitmaps[0] = w.bitmaps[8] = 0x2;
    w.bitmaps[16] = 0x4;
    w.bitmaps[24] = 0x2;
    w.owners[1] = 1;
    w.exchanges[0] = (s2_exchange){2, 5, 2, 5, 2, 5};
    w.exchanges[1] = (s2_exchange){0, 0, 1, 3, 1, 2};
    w_before = w;
}

static s2_status call_nbytes(const s2_layout *layout, int64_t nbytes)
{
    (void)nbytes;
    return s2_layout_bitmap_nbytes(layout, &w.numel);
}

s2_status call_from_nonzero(const s2_layout *layout, int64_t nbytes)
{
    return s2_bitmap_from_nonzero(layout, w.values, S2_FLOAT32, w.bitmap, nbytes, &w.negative_zeros,
                                  NULL);
}

s2_status call_count(const s2_layout *layout, int64_t nbytes)
{
    return s2_bitmap_count(layout, w.bitmap, nbytes, w.counts);
}

static s2_status call_packed_numel(const s2_layout *layout, int64_t nbytes)
{
    (void)nbytes;
    return s2_blocks_packed_numel(layout, w.positions, 3, &w.numel);
}

static s2_status call_gather(const s2_layout *layout, int64_t nbytes)
{
    (void)nbytes;
    return s2_blocks_gather(layout, w.values, S2_FLOAT32, w.positions, 3, w.packed, S2_FLOAT32, 7,
                            1, NULL);
}

static s2_status call_scatter(const s2_layout *layout, int64_t nbytes)
{
    (void)nbytes;
    return s2_blocks_scatter(layout, w.packed, S2_FLOAT32, 7, w.positions, 3, w.values, S2_FLOAT32,
                             1, NULL);
}

static s2_status call_add(const s2_layout *layout, int64_t nbytes)
{
    (void)nbytes;
    return s2_blocks_add(layout, w.packed, S2_FLOAT32, 7, w.positions, 3, w.wide, S2_FLOAT64, NULL);
}

s2_status call_clear_dead(const s2_layout *layout, int64_t nbytes)
{
    return s2_blocks_clear_dead(layout, w.bitmap, nbytes, w.values, S2_FLOAT32, NULL);
}

static s2_status call_owners(const s2_layout *layout, int64_t nbytes)
{
    return s2_plan_owners(layout, w.bitmaps, 2, nbytes, 42, w.positions, 3, w.owners);
}

static s2_status call_exchanges(const s2_layout *layout, int64_t nbytes)
{
    return s2_plan_exchanges(layout, w.bitmaps, 2, nbytes, w.positions, 3, w.owners, 0,
                             w.exchanges);
}

static s2_status call_lists(const s2_layout *layout, int64_t nbytes)
{
    return s2_plan_lists(layout, w.bitmaps, 2, nbytes, w.positions, 3, w.owners, 0, w.exchanges,
                         w.sent, 2, w.received, 3, w.owned, w.compact);
}

const layout_call layout_calls[NLAYOUT_CALLS] = {
    call_nbytes, call_from_nonzero, call_count,  call_packed_numel, call_gather, call_scatter,
    call_add,    call_clear_dead,   call_owners, call_exchanges,    call_lists};

s2_status positions_packed_numel(const int64_t *positions, int64_t npositions, int64_t numel)
{
    (void)numel;
    return s2_blocks_packed_numel(&w.layout, positions, npositions, &w.numel);
}

static s2_status positions_gather(const int64_t *positions, int64_t npositions, int64_t numel)
{
    return s2_blocks_gather(&w.layout, w.values, S2_FLOAT32, positions, npositions, w.packed,
                            S2_FLOAT32, numel, 1, NULL);
}

static s2_status positions_scatter(const int64_t *positions, int64_t npositions, int64_t numel)
{
    return s2_blocks_scatter(&w.layout, w.packed, S2_FLOAT32, numel, positions, npositions,
                             w.values, S2_FLOAT32, 1, NULL);
}

static s2_status positions_add(const int64_t *positions, int64_t npositions, int64_t numel)
{
    return s2_blocks_add(&w.layout, w.packed, S2_FLOAT32, numel, positions, npositions, w.values,
                         S2_FLOAT32, NULL);
}

const blocks_call blocks_calls[NBLOCKS_CALLS] = {positions_gather, positions_scatter, positions_add,
                                                 positions_packed_numel};

s2_status plan_owners(int64_t nranks, int64_t nbytes, const int64_t *positions, int64_t nunion)
{
    return s2_plan_owners(&w.layout, w.bitmaps, nranks, nbytes, 42, positions, nunion, w.owners);
}

s2_status plan_exchanges(int64_t nranks, int64_t nbytes, const int64_t *positions, int64_t nunion)
{
    return s2_plan_exchanges(&w.layout, w.bitmaps, nranks, nbytes, positions, nunion, w.owners, 0,
                             w.exchanges);
}

static s2_status plan_lists(int64_t nranks, int64_t nbytes, const int64_t *positions,
                            int64_t nunion)
{
    return s2_plan_lists(&w.layout, w.bitmaps, nranks, nbytes, positions, nunion, w.owners, 0,
                         w.exchanges, w.sent, 2, w.received, 3, w.owned, w.compact);
}

const plan_call plan_calls[NPLAN_CALLS] = {plan_owners, plan_exchanges, plan_lists};
