/* SPDX-License-Identifier: MIT */
/* That positions and sizes are checked up to the largest, and that nothing at all is fine. */
#include "world.h"

static void test_positions(void)
{
    /* With each, the packed size that these positions would imply, were their blocks there. */
    static const struct {
        const char *what;
        int64_t positions[3];
        int64_t numel;
    } bad[] = {
        {"below zero", {-1, 0, 1}, 6},
        {"far below zero", {INT64_MIN, 0, 1}, 6},
        {"twice the same", {1, 1, 65}, 7},
        {"twice the same at the end", {1, 65, 65}, 8},
        {"descending", {2, 1, 65}, 7},
        {"descending at the end", {1, 65, 64}, 8},
        {"behind the first segment's blocks", {1, 3, 65}, 7},
        {"in the padding of the first", {1, 63, 65}, 7},
        {"behind the last segment's blocks", {1, 64, 66}, 8},
        {"behind the bitmap", {1, 64, 128}, 8},
        {"far behind the bitmap", {1, 64, INT64_MAX}, 8},
        {"behind the second block first", {66, 67, 68}, 9},
    };
    for (int64_t c = 0; c < COUNT(blocks_calls); c++) {
        blocks_call call = blocks_calls[c];
        world_reset();
        ACCEPTS(call(w.positions, 3, 7));
        for (int64_t i = 0; i < COUNT(bad); i++) {
            world_reset();
            memcpy(w.positions, bad[i].positions, sizeof(w.positions));
            spoilt = bad[i].what;
            REFUSES(S2_BAD_POSITION, call(w.positions, 3, bad[i].numel));
        }
        world_reset();
        REFUSES(S2_NULL_POINTER, call(NULL, 3, 7));
        REFUSES(S2_BAD_SIZE, call(w.positions, -1, 7));
        REFUSES(S2_BAD_SIZE, call(w.positions, INT64_MIN, 7));
        if (call == positions_packed_numel) continue;
        static const int64_t sizes[] = {0, 6, 8, -1, -7, INT64_MIN, INT64_MAX};
        for (int64_t i = 0; i < COUNT(sizes); i++)
            REFUSES(S2_BAD_SIZE, call(w.positions, 3, sizes[i]));
        REFUSES(S2_BAD_SIZE, call(w.positions, 2, 7));
        REFUSES(S2_BAD_SIZE, call(NULL, 0, 7));
    }
    world_reset();
    REFUSES(S2_NULL_POINTER, s2_blocks_packed_numel(&w.layout, w.positions, 3, NULL));
    /* Between two segments whose bits leave whole words free. */
    w.segments[1].first_bit = 256;
    w.positions[2] = 128;
    for (int64_t c = 0; c < COUNT(blocks_calls); c++)
        REFUSES(S2_BAD_POSITION, blocks_calls[c](w.positions, 3, 7));
}

/* Those that the plan and the bitmap do not take, though some of them name blocks. */
static void test_positions_of_others(void)
{
    static const struct {
        const char *what;
        int64_t positions[3];
        int ascend;
    } bad[] = {
        {"below zero", {-1, 1, 65}, 0},
        {"far below zero", {INT64_MIN, 1, 65}, 0},
        {"twice the same", {1, 1, 65}, 0},
        {"descending", {2, 1, 65}, 0},
        {"descending at the end", {1, 65, 2}, 0},
        {"behind the bitmap", {1, 2, 128}, 0},
        {"far behind the bitmap", {1, 2, INT64_MAX}, 0},
        {"a block that is dead", {0, 2, 65}, 1},
        {"a block that is dead at the end", {1, 2, 64}, 1},
        {"in the padding of the first segment", {1, 63, 65}, 1},
        {"behind the last segment's blocks", {1, 2, 66}, 1},
    };
    for (int64_t i = 0; i < COUNT(bad); i++) {
        world_reset();
        memcpy(w.positions, bad[i].positions, sizeof(w.positions));
        spoilt = bad[i].what;
        REFUSES(S2_BAD_POSITION, plan_owners(2, 16, w.positions, 3));
        REFUSES(S2_BAD_POSITION, plan_exchanges(2, 16, w.positions, 3));
        if (bad[i].ascend) continue;
        REFUSES(S2_BAD_POSITION, s2_bitmap_from_positions(w.positions, 3, w.bitmap, 16));
        REFUSES(S2_BAD_POSITION, s2_list_encode(w.positions, 3, 128, w.list, 16));
    }
    world_reset();
    REFUSES(S2_BAD_POSITION, plan_owners(2, 16, w.positions, 2));
    REFUSES(S2_BAD_POSITION, plan_exchanges(2, 16, w.positions, 2));
    REFUSES(S2_BAD_POSITION, plan_owners(2, 16, NULL, 0));
    REFUSES(S2_BAD_POSITION, plan_exchanges(2, 16, NULL, 0));
    REFUSES(S2_BAD_POSITION, plan_owners(1, 16, w.positions, 3));
}

static void test_values(void)
{
    world_reset();
    REFUSES(S2_NULL_POINTER, s2_values_convert(NULL, S2_FLOAT32, w.wide, S2_FLOAT64, 5, 1, NULL));
    REFUSES(S2_NULL_POINTER, s2_values_convert(w.values, S2_FLOAT32, NULL, S2_FLOAT64, 5, 1, NULL));
    REFUSES(S2_BAD_SIZE, s2_values_convert(w.values, S2_FLOAT32, w.wide, S2_FLOAT64, -1, 1, NULL));
    REFUSES(S2_BAD_SIZE,
            s2_values_convert(w.values, S2_FLOAT32, w.wide, S2_FLOAT64, INT64_MIN, 1, NULL));
}

/* Sizes whose bytes, or whose product with a block, could not be counted. */
static void test_overflow(void)
{
    static const int64_t huge[] = {S2_MAX_NUMEL + 1, INT64_C(1) << 61, INT64_C(1) << 62, INT64_MAX};
    for (int64_t i = 0; i < COUNT(huge); i++) {
        world_reset();
        REFUSES(S2_BAD_SIZE,
                s2_values_convert(w.values, S2_FLOAT32, w.wide, S2_FLOAT64, huge[i], 1, NULL));
        REFUSES(S2_BAD_SIZE,
                s2_values_convert(w.wide, S2_FLOAT64, w.values, S2_FLOAT32, huge[i], 1, NULL));
        REFUSES(S2_BAD_SIZE,
                s2_values_convert(w.halves, S2_FLOAT16, w.values, S2_FLOAT16, huge[i], 1, NULL));
        REFUSES(S2_BAD_SIZE, s2_bitmap_positions(w.bitmap, 16, w.positions, huge[i]));

        /* A bucket that no memory holds, though its segments are short. */
        w.layout.numel = huge[i];
        for (int64_t c = 0; c < COUNT(layout_calls); c++)
            REFUSES(S2_BAD_SIZE, layout_calls[c](&w.layout, 16));
    }
}

/* Sizes that no array has, and bitmaps that are too much together. */
static void test_overflow_of_plan(void)
{
    static const int64_t huge[] = {S2_MAX_NUMEL + 1, INT64_C(1) << 61, INT64_MAX};
    world_reset();
    for (int64_t i = 0; i < COUNT(huge); i++) {
        REFUSES(S2_BAD_SIZE, s2_bitmap_from_positions(w.positions, huge[i], w.bitmap, 16));
        for (int64_t c = 0; c < COUNT(plan_calls); c++)
            REFUSES(S2_BAD_SIZE, plan_calls[c](2, 16, w.positions, huge[i]));
    }
    w.segments[1].first_bit = INT64_C(1) << 62;
    int64_t nbytes = (INT64_C(1) << 59) + 8;
    for (int64_t c = 0; c < COUNT(plan_calls); c++) {
        REFUSES(S2_BAD_SIZE, plan_calls[c](2, nbytes, w.positions, 3));
        REFUSES(S2_BAD_SIZE, plan_calls[c](32, nbytes, w.positions, 3));
    }
}

/* One rank owns a block as long as an array can be. */
static void test_long_blocks_of_plan(void)
{
    static const int64_t lengths[] = {S2_MAX_NUMEL, INT64_MAX};
    for (int64_t i = 0; i < COUNT(lengths); i++) {
        world_reset();
        w.segments[0].block = w.segments[1].block = lengths[i];
        memset(w.bitmaps, 0, sizeof(w.bitmaps));
        w.bitmaps[16] = 1;
        w.positions[0] = 0;
        if (lengths[i] <= S2_MAX_NUMEL) {
            ACCEPTS(plan_owners(2, 16, w.positions, 1));
            CHECK(w.owners[0] == 1);
            ACCEPTS(plan_exchanges(2, 16, w.positions, 1));
            CHECK(w.exchanges[1].owned_numel == lengths[i]);
            CHECK(w.exchanges[0].owned_numel == 0 && w.exchanges[1].sent_numel == 0);
        } else {
            REFUSES(S2_BAD_SIZE, plan_owners(2, 16, w.positions, 1));
            REFUSES(S2_BAD_SIZE, plan_exchanges(2, 16, w.positions, 1));
        }
        w.bitmaps[8] = 1;
        w.positions[1] = 64;
        REFUSES(S2_BAD_SIZE, plan_owners(2, 16, w.positions, 2));
        REFUSES(S2_BAD_SIZE, plan_exchanges(2, 16, w.positions, 2));
    }
}

/* Blocks longer than their segment: one each, and longer than an array can be when packed. */
static void test_long_blocks(void)
{
    static const int64_t lengths[] = {S2_MAX_NUMEL, INT64_MAX};
    static const uint8_t both_live[16] = {[0] = 1, [8] = 1};
    for (int64_t i = 0; i < COUNT(lengths); i++) {
        world_reset();
        w.segments[0].block = w.segments[1].block = lengths[i];
        ACCEPTS(call_from_nonzero(&w.layout, 16));
        CHECK(memcmp(w.bitmap, both_live, 16) == 0);
        memset(w.bitmap, 0, 16);
        w.bitmap[0] = 1;
        ACCEPTS(call_clear_dead(&w.layout, 16));
        CHECK(w.values[5] == 5 && w.values[6] == 0 && w.values[9] == 0);

        w.positions[0] = 0;
        w.positions[1] = 64;
        ACCEPTS(s2_blocks_packed_numel(&w.layout, w.positions, 0, &w.numel));
        CHECK(w.numel == 0);
        if (lengths[i] <= S2_MAX_NUMEL) {
            ACCEPTS(s2_blocks_packed_numel(&w.layout, w.positions, 1, &w.numel));
            CHECK(w.numel == lengths[i]);
        } else {
            REFUSES(S2_BAD_SIZE, s2_blocks_packed_numel(&w.layout, w.positions, 1, &w.numel));
            for (int64_t c = 0; c < COUNT(blocks_calls); c++)
                REFUSES(S2_BAD_SIZE, blocks_calls[c](w.positions, 1, lengths[i]));
        }
        for (int64_t c = 0; c < COUNT(blocks_calls); c++) {
            REFUSES(S2_BAD_SIZE, blocks_calls[c](w.positions, 2, lengths[i]));
            REFUSES(S2_BAD_SIZE, blocks_calls[c](w.positions, 2, -2));
        }
        w.segments[0].block = 2;
        for (int64_t c = 0; c < COUNT(blocks_calls); c++)
            REFUSES(S2_BAD_SIZE, blocks_calls[c](w.positions, 2, 2 + S2_MAX_NUMEL));
    }
}

static void nothing_planned(const s2_layout *layout)
{
    s2_segment *compact = layout->nsegments == 0 ? NULL : w.compact;
    world_reset();
    memset(w.compact, 1, sizeof(w.compact));
    ACCEPTS(s2_plan_owners(layout, NULL, 2, 0, 42, NULL, 0, NULL));
    ACCEPTS(s2_plan_exchanges(layout, NULL, 2, 0, NULL, 0, NULL, 1, w.exchanges));
    for (int rank = 0; rank < 2; rank++) {
        const s2_exchange e = w.exchanges[rank];
        CHECK(e.sent_blocks == 0 && e.received_blocks == 0 && e.owned_blocks == 0);
        CHECK(e.sent_numel == 0 && e.received_numel == 0 && e.owned_numel == 0);
    }
    ACCEPTS(s2_plan_lists(layout, NULL, 2, 0, NULL, 0, NULL, 1, w.exchanges, NULL, 0, NULL, 0, NULL,
                          compact));
    for (int64_t s = 0; s < layout->nsegments; s++) {
        const s2_segment got = w.compact[s];
        CHECK(got.offset == 0 && got.numel == 0 && got.first_bit == 0);
        CHECK(got.block == layout->segments[s].block);
    }
    REFUSES(S2_BAD_POSITION, s2_plan_owners(layout, NULL, 2, 0, 42, w.positions, 1, w.owners));
    REFUSES(S2_NULL_POINTER, s2_plan_exchanges(layout, NULL, 2, 0, NULL, 0, NULL, 1, NULL));
    REFUSES(S2_NULL_POINTER, s2_plan_lists(layout, NULL, 2, 0, NULL, 0, NULL, 1, NULL, NULL, 0,
                                           NULL, 0, NULL, compact));
    REFUSES(S2_BAD_SIZE, s2_plan_exchanges(layout, NULL, 2, 0, NULL, 0, NULL, 2, w.exchanges));
    REFUSES(S2_BAD_SIZE, s2_plan_owners(layout, NULL, 0, 0, 42, NULL, 0, NULL));
}

static void nothing_listed(int64_t nbits)
{
    w.numel = -1;
    ACCEPTS(s2_list_nbytes(nbits, 0, &w.numel));
    CHECK(w.numel == 0);
    ACCEPTS(s2_list_encode(NULL, 0, nbits, NULL, 0));
    ACCEPTS(s2_list_decode(NULL, 0, 0, nbits, NULL));
}

/* NULL is as good as any address where there is nothing. */
static void test_nothing(void)
{
    s2_layout nothing = {NULL, 0, 0};
    s2_segment none[2] = {{0, 0, 3, 0}, {0, 0, 1, 0}};
    s2_layout empty = {none, 2, 0};
    const s2_layout *layouts[2] = {&nothing, &empty};
    for (int i = 0; i < 2; i++) {
        const s2_layout *layout = layouts[i];
        world_reset();
        ACCEPTS(s2_layout_bitmap_nbytes(layout, &w.numel));
        CHECK(w.numel == 0);
        ACCEPTS(s2_bitmap_from_nonzero(layout, NULL, S2_FLOAT32, NULL, 0, &w.negative_zeros, NULL));
        CHECK(w.negative_zeros == 0);
        ACCEPTS(s2_bitmap_count(layout, NULL, 0, i == 0 ? NULL : w.counts));
        CHECK(i == 0 || (w.counts[0] == 0 && w.counts[1] == 0));
        ACCEPTS(s2_blocks_packed_numel(layout, NULL, 0, &w.numel));
        CHECK(w.numel == 0);
        ACCEPTS(s2_blocks_gather(layout, NULL, S2_FLOAT32, NULL, 0, NULL, S2_FLOAT16, 0, 2, NULL));
        ACCEPTS(s2_blocks_scatter(layout, NULL, S2_FLOAT16, 0, NULL, 0, NULL, S2_FLOAT32, 2, NULL));
        ACCEPTS(s2_blocks_add(layout, NULL, S2_FLOAT32, 0, NULL, 0, NULL, S2_FLOAT64, NULL));
        ACCEPTS(s2_blocks_clear_dead(layout, NULL, 0, NULL, S2_FLOAT32, NULL));
        REFUSES(S2_BAD_POSITION, s2_blocks_packed_numel(layout, w.positions, 1, &w.numel));
        nothing_planned(layout);
    }
    for (int64_t nbits = 0; nbits <= 64; nbits += 16)
        nothing_listed(nbits);
    nothing_listed(S2_MAX_NUMEL);
    ACCEPTS(s2_bitmap_from_positions(NULL, 0, NULL, 0));
    REFUSES(S2_BAD_POSITION, s2_bitmap_from_positions(w.positions, 1, NULL, 0));
    ACCEPTS(s2_bitmap_or(NULL, NULL, 0));
    ACCEPTS(s2_bitmap_andnot(NULL, NULL, 0));
    ACCEPTS(s2_bitmap_positions(NULL, 0, NULL, 0));
    ACCEPTS(s2_values_convert(NULL, S2_FLOAT32, NULL, S2_FLOAT64, 0, 1, NULL));
    /* The sizes of what is not NULL count for themselves. */
    world_reset();
    ACCEPTS(
        s2_blocks_gather(&w.layout, w.values, S2_FLOAT32, NULL, 0, NULL, S2_FLOAT32, 0, 1, NULL));
    ACCEPTS(
        s2_blocks_scatter(&w.layout, NULL, S2_FLOAT32, 0, NULL, 0, w.values, S2_FLOAT32, 1, NULL));
    CHECK(memcmp(&w_before, &w, sizeof(w)) == 0);
    REFUSES(S2_NULL_POINTER,
            s2_blocks_gather(&w.layout, NULL, S2_FLOAT32, NULL, 0, NULL, S2_FLOAT32, 0, 1, NULL));
}

int main(void)
{
    test_begin("test_bad_sizes");
    for (int v = 0; variant_use(v); v++) {
        test_positions();
        test_positions_of_others();
        test_values();
        test_overflow();
        test_overflow_of_plan();
        test_long_blocks();
        test_long_blocks_of_plan();
        test_nothing();
    }
    return test_end();
}
