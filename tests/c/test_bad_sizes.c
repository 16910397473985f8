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
    }
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
        test_values();
        test_overflow();
        test_long_blocks();
        test_nothing();
    }
    return test_end();
}
