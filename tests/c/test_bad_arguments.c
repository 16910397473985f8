/* SPDX-License-Identifier: MIT */
/* That bad arguments are refused with the header's status, before anything is written. */
#include <math.h>

#include "world.h"

static const s2_dtype no_dtypes[] = {(s2_dtype)4, (s2_dtype)-1, (s2_dtype)INT32_MAX};

/* ------------------------------------------ Layouts ------------------------------------------- */

static void test_layouts(void)
{
    static const struct {
        const char *what;
        s2_segment second;
    } bad[] = {
        {"overlaps the first", {5, 4, 3, 64}},
        {"is before the first", {-1, 1, 3, 64}},
        {"ends behind the bucket", {6, 5, 3, 64}},
        {"has no block", {6, 4, 0, 64}},
        {"has a block below zero", {6, 4, -1, 64}},
        {"has a numel below zero", {6, -1, 3, 64}},
        {"begins within a word", {6, 4, 3, 96}},
        {"shares bits", {6, 4, 3, 0}},
        {"wraps around", {6, INT64_MAX, 3, 64}},
        {"has bits that wrap around", {6, 4, 1, INT64_MAX - 63}},
    };
    for (int64_t c = 0; c < COUNT(layout_calls); c++) {
        layout_call call = layout_calls[c];
        world_reset();
        ACCEPTS(call(&w.layout, 16));
        world_reset();
        REFUSES(S2_NULL_POINTER, call(NULL, 16));
        w.layout.segments = NULL;
        REFUSES(S2_NULL_POINTER, call(&w.layout, 16));
        for (int64_t i = 0; i < COUNT(bad); i++) {
            world_reset();
            w.segments[1] = bad[i].second;
            spoilt = bad[i].what;
            REFUSES(S2_BAD_LAYOUT, call(&w.layout, 16));
        }
        world_reset();
        w.layout.nsegments = -1;
        REFUSES(S2_BAD_SIZE, call(&w.layout, 16));
        world_reset();
        w.layout.numel = -1;
        REFUSES(S2_BAD_SIZE, call(&w.layout, 16));
    }
}

/* ------------------------------------------ Bitmaps ------------------------------------------- */

static void test_bitmap_sizes(void)
{
    static const int64_t bad[] = {0, 8, 15, 17, 24, -16, -8, INT64_MIN, INT64_MAX, INT64_MAX - 7};
    static const layout_call calls[] = {call_from_nonzero, call_count, call_clear_dead};
    for (int64_t c = 0; c < COUNT(calls); c++) {
        for (int64_t i = 0; i < COUNT(bad); i++) {
            world_reset();
            REFUSES(S2_BAD_SIZE, calls[c](&w.layout, bad[i]));
        }
    }
    static const int64_t no_words[] = {-8, -1, 1, 7, 9, 15, INT64_MIN};
    for (int64_t i = 0; i < COUNT(no_words); i++) {
        world_reset();
        REFUSES(S2_BAD_SIZE, s2_bitmap_or(w.bitmap, w.other, no_words[i]));
        REFUSES(S2_BAD_SIZE, s2_bitmap_andnot(w.bitmap, w.other, no_words[i]));
    }
}

static void test_from_nonzero(void)
{
    const s2_layout *layout = &w.layout;
    int64_t *zeros = &w.negative_zeros;
    world_reset();
    for (int64_t i = 0; i < COUNT(no_dtypes); i++)
        REFUSES(S2_BAD_DTYPE,
                s2_bitmap_from_nonzero(layout, w.values, no_dtypes[i], w.bitmap, 16, zeros, NULL));
    REFUSES(S2_NULL_POINTER,
            s2_bitmap_from_nonzero(layout, NULL, S2_FLOAT32, w.bitmap, 16, zeros, NULL));
    REFUSES(S2_NULL_POINTER,
            s2_bitmap_from_nonzero(layout, w.values, S2_FLOAT32, NULL, 16, zeros, NULL));
    REFUSES(S2_NULL_POINTER,
            s2_bitmap_from_nonzero(layout, w.values, S2_FLOAT32, w.bitmap, 16, NULL, NULL));
}

static void test_sets(void)
{
    world_reset();
    REFUSES(S2_NULL_POINTER, s2_layout_bitmap_nbytes(&w.layout, NULL));
    REFUSES(S2_NULL_POINTER, s2_bitmap_or(NULL, w.other, 16));
    REFUSES(S2_NULL_POINTER, s2_bitmap_or(w.bitmap, NULL, 16));
    REFUSES(S2_NULL_POINTER, s2_bitmap_andnot(NULL, w.other, 16));
    REFUSES(S2_NULL_POINTER, s2_bitmap_andnot(w.bitmap, NULL, 16));
    REFUSES(S2_NULL_POINTER, s2_bitmap_count(&w.layout, NULL, 16, w.counts));
    REFUSES(S2_NULL_POINTER, s2_bitmap_count(&w.layout, w.bitmap, 16, NULL));
    REFUSES(S2_NULL_POINTER, s2_bitmap_unite(&w.layout, NULL, 1, 16, w.bitmap, w.counts));
    REFUSES(S2_NULL_POINTER, s2_bitmap_unite(&w.layout, w.other, 1, 16, NULL, w.counts));
    REFUSES(S2_NULL_POINTER, s2_bitmap_unite(&w.layout, w.other, 1, 16, w.bitmap, NULL));
    REFUSES(S2_BAD_SIZE, s2_bitmap_unite(&w.layout, w.other, 0, 16, w.bitmap, w.counts));
    REFUSES(S2_BAD_SIZE, s2_bitmap_unite(&w.layout, w.other, 257, 16, w.bitmap, w.counts));
    REFUSES(S2_BAD_SIZE, s2_bitmap_unite(&w.layout, w.other, 1, 8, w.bitmap, w.counts));
    s2_segment large = {0, S2_MAX_NUMEL, 8, 0};
    s2_layout of_large = {&large, 1, S2_MAX_NUMEL};
    int64_t large_nbytes;
    CHECK(s2_layout_bitmap_nbytes(&of_large, &large_nbytes) == S2_OK);
    REFUSES(S2_BAD_SIZE,
            s2_bitmap_unite(&of_large, w.other, 256, large_nbytes, w.bitmap, w.counts));
    REFUSES(S2_NULL_POINTER, s2_bitmap_positions(NULL, 16, w.positions, 3));
    REFUSES(S2_NULL_POINTER, s2_bitmap_positions(w.bitmap, 16, NULL, 3));
    REFUSES(S2_BAD_SIZE, s2_bitmap_positions(w.bitmap, 16, w.positions, 2));
    REFUSES(S2_BAD_SIZE, s2_bitmap_positions(w.bitmap, 16, w.positions, 4));
    REFUSES(S2_BAD_SIZE, s2_bitmap_positions(w.bitmap, 16, w.positions, 0));
    REFUSES(S2_BAD_SIZE, s2_bitmap_positions(w.bitmap, 16, NULL, 0));
    REFUSES(S2_BAD_SIZE, s2_bitmap_positions(w.bitmap, 16, w.positions, -1));
    REFUSES(S2_BAD_SIZE, s2_bitmap_positions(w.bitmap, 16, w.positions, INT64_MAX));
    REFUSES(S2_BAD_SIZE, s2_bitmap_positions(w.bitmap, -8, w.positions, 3));
    REFUSES(S2_BAD_SIZE, s2_bitmap_positions(w.bitmap, 15, w.positions, 3));
    REFUSES(S2_NULL_POINTER, s2_blocks_clear_dead(&w.layout, NULL, 16, w.values, S2_FLOAT32, NULL));
    REFUSES(S2_NULL_POINTER, s2_blocks_clear_dead(&w.layout, w.bitmap, 16, NULL, S2_FLOAT32, NULL));
    for (int64_t i = 0; i < COUNT(no_dtypes); i++)
        REFUSES(S2_BAD_DTYPE,
                s2_blocks_clear_dead(&w.layout, w.bitmap, 16, w.values, no_dtypes[i], NULL));
}

static void test_from_positions(void)
{
    static const int64_t no_words[] = {-8, -1, 1, 7, 9, 15, INT64_MIN, INT64_MAX - 7};
    world_reset();
    REFUSES(S2_NULL_POINTER, s2_bitmap_from_positions(NULL, 3, w.bitmap, 16));
    REFUSES(S2_NULL_POINTER, s2_bitmap_from_positions(w.positions, 3, NULL, 16));
    REFUSES(S2_BAD_SIZE, s2_bitmap_from_positions(w.positions, -1, w.bitmap, 16));
    REFUSES(S2_BAD_SIZE, s2_bitmap_from_positions(w.positions, INT64_MIN, w.bitmap, 16));
    for (int64_t i = 0; i < COUNT(no_words); i++)
        REFUSES(S2_BAD_SIZE, s2_bitmap_from_positions(w.positions, 3, w.bitmap, no_words[i]));
    REFUSES(S2_BAD_POSITION, s2_bitmap_from_positions(w.positions, 3, w.bitmap, 8));
    REFUSES(S2_BAD_POSITION, s2_bitmap_from_positions(w.positions, 3, NULL, 0));
}

/* ------------------------------------- Lists of positions ------------------------------------- */

static void test_pointers_of_lists(void)
{
    world_reset();
    ACCEPTS(s2_list_encode(w.positions, 3, 128, w.list, 16));
    ACCEPTS(s2_list_decode(w.list, 16, 3, 128, w.positions));
    CHECK(memcmp(&w_before, &w, sizeof(w)) == 0);
    REFUSES(S2_NULL_POINTER, s2_list_nbytes(128, 3, NULL));
    REFUSES(S2_NULL_POINTER, s2_list_encode(NULL, 3, 128, w.list, 16));
    REFUSES(S2_NULL_POINTER, s2_list_encode(w.positions, 3, 128, NULL, 16));
    REFUSES(S2_NULL_POINTER, s2_list_decode(NULL, 16, 3, 128, w.positions));
    REFUSES(S2_NULL_POINTER, s2_list_decode(w.list, 16, 3, 128, NULL));
}

static void test_sizes_of_lists(void)
{
    static const int64_t sizes[] = {0, 8, 15, 17, 24, -16, INT64_MIN, INT64_MAX};
    static const int64_t counts[][2] = {/* nbits and count */
                                        {128, -1},
                                        {128, 129},
                                        {128, INT64_MIN},
                                        {128, INT64_MAX},
                                        {2, 3},
                                        {0, 3},
                                        {0, 1},
                                        {-1, 0},
                                        {-1, -1},
                                        {INT64_MIN, 3},
                                        {S2_MAX_NUMEL + 1, 0},
                                        {S2_MAX_NUMEL + 1, 3},
                                        {INT64_MAX, 3},
                                        {INT64_MAX, INT64_MAX}};
    world_reset();
    for (int64_t i = 0; i < COUNT(sizes); i++) {
        REFUSES(S2_BAD_SIZE, s2_list_encode(w.positions, 3, 128, w.list, sizes[i]));
        REFUSES(S2_BAD_SIZE, s2_list_decode(w.list, sizes[i], 3, 128, w.positions));
        if (sizes[i] == 0) continue;
        REFUSES(S2_BAD_SIZE, s2_list_encode(w.positions, 0, 128, w.list, sizes[i]));
        REFUSES(S2_BAD_SIZE, s2_list_decode(w.list, sizes[i], 0, 128, w.positions));
    }
    for (int64_t i = 0; i < COUNT(counts); i++) {
        int64_t nbits = counts[i][0], count = counts[i][1];
        REFUSES(S2_BAD_SIZE, s2_list_nbytes(nbits, count, &w.numel));
        REFUSES(S2_BAD_SIZE, s2_list_encode(w.positions, count, nbits, w.list, 16));
        REFUSES(S2_BAD_SIZE, s2_list_decode(w.list, 16, count, nbits, w.positions));
        REFUSES(S2_BAD_SIZE, s2_list_encode(NULL, count, nbits, NULL, 0));
        REFUSES(S2_BAD_SIZE, s2_list_decode(NULL, 0, count, nbits, NULL));
    }
}

static void test_bad_lists(void)
{
    static const struct {
        const char *what;
        uint8_t low[2], high;
    } bad[] = {
        {"no upper part", {0x41, 0x04}, 0},
        {"one upper part too few", {0x41, 0x04}, 0x03},
        {"one upper part too many", {0x41, 0x04}, 0x17},
        {"twice the same position", {0x21, 0x04}, 0x13},
        {"descending positions", {0x22, 0x04}, 0x13},
        {"an upper part behind the last", {0x41, 0x04}, 0x43},
    };
    for (int64_t i = 0; i < COUNT(bad); i++) {
        world_reset();
        memcpy(w.list, bad[i].low, 2);
        w.list[8] = bad[i].high;
        spoilt = bad[i].what;
        REFUSES(S2_BAD_POSITION, s2_list_decode(w.list, 16, 3, 128, w.positions));
    }
    /* Of 127 bits, the last position may be 126; sizes and cuts are those of 128 bits. */
    world_reset();
    w.list[1] = 0x7c;
    w.list[8] = 0x23;
    ACCEPTS(s2_list_decode(w.list, 16, 3, 128, w.positions));
    CHECK(w.positions[2] == 127);
    REFUSES(S2_BAD_POSITION, s2_list_decode(w.list, 16, 3, 127, w.positions));
    REFUSES(S2_BAD_POSITION, s2_list_encode(w.positions, 3, 127, w.list, 16));
}

/* ------------------------------------------- Plan --------------------------------------------- */

static void test_sizes_of_plan(void)
{
    static const int64_t bad[] = {0, 8, 15, 17, 24, 32, -16, INT64_MIN, INT64_MAX, INT64_MAX - 7};
    static const int64_t nranks[] = {0, -1, S2_MAX_RANKS + 1, INT64_MIN, INT64_MAX};
    for (int64_t c = 0; c < COUNT(plan_calls); c++) {
        plan_call call = plan_calls[c];
        world_reset();
        ACCEPTS(call(2, 16, w.positions, 3));
        world_reset();
        for (int64_t i = 0; i < COUNT(bad); i++)
            REFUSES(S2_BAD_SIZE, call(2, bad[i], w.positions, 3));
        for (int64_t i = 0; i < COUNT(nranks); i++)
            REFUSES(S2_BAD_SIZE, call(nranks[i], 16, w.positions, 3));
        REFUSES(S2_BAD_SIZE, call(2, 16, w.positions, -1));
        REFUSES(S2_BAD_SIZE, call(2, 16, w.positions, INT64_MIN));
        REFUSES(S2_NULL_POINTER, call(2, 16, NULL, 3));
    }
}

static s2_status lists_with(const s2_exchange *exchanges, int64_t nsent, int64_t nreceived)
{
    return s2_plan_lists(&w.layout, w.bitmaps, 2, 16, w.positions, 3, w.owners, 0, exchanges,
                         w.sent, nsent, w.received, nreceived, w.owned, w.compact);
}

static void test_pointers_of_plan(void)
{
    const s2_layout *layout = &w.layout;
    const s2_exchange *exchanges = w.exchanges;
    world_reset();
    REFUSES(S2_NULL_POINTER, s2_plan_owners(layout, NULL, 2, 16, 42, w.positions, 3, w.owners));
    REFUSES(S2_NULL_POINTER, s2_plan_owners(layout, w.bitmaps, 2, 16, 42, w.positions, 3, NULL));
    REFUSES(S2_NULL_POINTER,
            s2_plan_exchanges(layout, NULL, 2, 16, w.positions, 3, w.owners, 0, w.exchanges));
    REFUSES(S2_NULL_POINTER,
            s2_plan_exchanges(layout, w.bitmaps, 2, 16, w.positions, 3, NULL, 0, w.exchanges));
    REFUSES(S2_NULL_POINTER,
            s2_plan_exchanges(layout, w.bitmaps, 2, 16, w.positions, 3, w.owners, 0, NULL));
    REFUSES(S2_NULL_POINTER,
            s2_plan_lists(layout, NULL, 2, 16, w.positions, 3, w.owners, 0, exchanges, w.sent, 2,
                          w.received, 3, w.owned, w.compact));
    REFUSES(S2_NULL_POINTER,
            s2_plan_lists(layout, w.bitmaps, 2, 16, w.positions, 3, NULL, 0, exchanges, w.sent, 2,
                          w.received, 3, w.owned, w.compact));
    REFUSES(S2_NULL_POINTER, lists_with(NULL, 2, 3));
    REFUSES(S2_NULL_POINTER, s2_plan_lists(layout, w.bitmaps, 2, 16, w.positions, 3, w.owners, 0,
                                           exchanges, NULL, 2, w.received, 3, w.owned, w.compact));
    REFUSES(S2_NULL_POINTER, s2_plan_lists(layout, w.bitmaps, 2, 16, w.positions, 3, w.owners, 0,
                                           exchanges, w.sent, 2, NULL, 3, w.owned, w.compact));
    REFUSES(S2_NULL_POINTER, s2_plan_lists(layout, w.bitmaps, 2, 16, w.positions, 3, w.owners, 0,
                                           exchanges, w.sent, 2, w.received, 3, NULL, w.compact));
    REFUSES(S2_NULL_POINTER, s2_plan_lists(layout, w.bitmaps, 2, 16, w.positions, 3, w.owners, 0,
                                           exchanges, w.sent, 2, w.received, 3, w.owned, NULL));
}

static void test_ranks_of_plan(void)
{
    static const int64_t ranks[] = {-1, 2, INT64_MIN, INT64_MAX};
    static const int16_t owners[] = {-1, 2, 256, INT16_MIN, INT16_MAX};
    for (int64_t i = 0; i < COUNT(ranks); i++) {
        world_reset();
        REFUSES(S2_BAD_SIZE, s2_plan_exchanges(&w.layout, w.bitmaps, 2, 16, w.positions, 3,
                                               w.owners, ranks[i], w.exchanges));
        REFUSES(S2_BAD_SIZE,
                s2_plan_lists(&w.layout, w.bitmaps, 2, 16, w.positions, 3, w.owners, ranks[i],
                              w.exchanges, w.sent, 2, w.received, 3, w.owned, w.compact));
    }
    for (int64_t i = 0; i < COUNT(owners); i++) {
        world_reset();
        w.owners[i % 3] = owners[i];
        REFUSES(S2_BAD_SIZE, plan_exchanges(2, 16, w.positions, 3));
        REFUSES(S2_BAD_SIZE, lists_with(w.exchanges, 2, 3));
        ACCEPTS(plan_owners(2, 16, w.positions, 3));
    }
    static const int64_t lengths[][2] = {{1, 3},         {3, 3},         {0, 3},  {2, 2},
                                         {2, 4},         {2, 0},         {-2, 3}, {2, -3},
                                         {INT64_MAX, 3}, {2, INT64_MIN}, {3, 2}};
    world_reset();
    for (int64_t i = 0; i < COUNT(lengths); i++)
        REFUSES(S2_BAD_SIZE, lists_with(w.exchanges, lengths[i][0], lengths[i][1]));
    REFUSES(S2_BAD_SIZE, plan_calls[2](2, 16, w.positions, 2));
    REFUSES(S2_BAD_SIZE, plan_calls[2](2, 16, NULL, 0));
}

/* ------------------------------------------ Blocks -------------------------------------------- */

static void test_pointers_of_blocks(void)
{
    const s2_layout *layout = &w.layout;
    world_reset();
    REFUSES(S2_NULL_POINTER, s2_blocks_gather(layout, NULL, S2_FLOAT32, w.positions, 3, w.packed,
                                              S2_FLOAT32, 7, 1, NULL));
    REFUSES(S2_NULL_POINTER, s2_blocks_gather(layout, w.values, S2_FLOAT32, w.positions, 3, NULL,
                                              S2_FLOAT32, 7, 1, NULL));
    REFUSES(S2_NULL_POINTER, s2_blocks_scatter(layout, NULL, S2_FLOAT32, 7, w.positions, 3,
                                               w.values, S2_FLOAT32, 1, NULL));
    REFUSES(S2_NULL_POINTER, s2_blocks_scatter(layout, w.packed, S2_FLOAT32, 7, w.positions, 3,
                                               NULL, S2_FLOAT32, 1, NULL));
    REFUSES(S2_NULL_POINTER,
            s2_blocks_add(layout, NULL, S2_FLOAT32, 7, w.positions, 3, w.wide, S2_FLOAT64, NULL));
    REFUSES(S2_NULL_POINTER,
            s2_blocks_add(layout, w.packed, S2_FLOAT32, 7, w.positions, 3, NULL, S2_FLOAT64, NULL));
}

/* All functions that take two dtypes and a divisor, on the same arrays. */
static s2_status convert_with(int function, s2_dtype src, s2_dtype dst, double divisor)
{
    switch (function) {
    case 0:
        return s2_values_convert(w.values, src, w.wide, dst, 5, divisor, NULL);
    case 1:
        return s2_blocks_gather(&w.layout, w.wide, src, w.positions, 3, w.packed, dst, 7, divisor,
                                NULL);
    default:
        return s2_blocks_scatter(&w.layout, w.packed, src, 7, w.positions, 3, w.wide, dst, divisor,
                                 NULL);
    }
}

static void test_dtypes_and_divisors(void)
{
    static const s2_dtype pairs[][2] = {
        {S2_FLOAT16, S2_FLOAT64},  {S2_BFLOAT16, S2_FLOAT64}, {S2_FLOAT64, S2_FLOAT16},
        {S2_FLOAT64, S2_BFLOAT16}, {S2_FLOAT16, S2_BFLOAT16}, {S2_BFLOAT16, S2_FLOAT16},
    };
    const double no_divisors[] = {0.0, -0.0, -1, -1e-300, INFINITY, -INFINITY, NAN};
    for (int function = 0; function < 3; function++) {
        world_reset();
        for (int64_t i = 0; i < COUNT(pairs); i++)
            REFUSES(S2_BAD_DTYPE, convert_with(function, pairs[i][0], pairs[i][1], 1));
        for (int64_t i = 0; i < COUNT(no_dtypes); i++) {
            REFUSES(S2_BAD_DTYPE, convert_with(function, no_dtypes[i], S2_FLOAT32, 1));
            REFUSES(S2_BAD_DTYPE, convert_with(function, S2_FLOAT32, no_dtypes[i], 1));
            REFUSES(S2_BAD_DTYPE, convert_with(function, no_dtypes[i], no_dtypes[i], 1));
        }
        for (int64_t i = 0; i < COUNT(no_divisors); i++) {
            REFUSES(S2_BAD_DIVISOR, convert_with(function, S2_FLOAT32, S2_FLOAT32, no_divisors[i]));
            REFUSES(S2_BAD_DIVISOR,
                    convert_with(function, S2_FLOAT32, S2_BFLOAT16, no_divisors[i]));
        }
        /* A half is divided on its way to float32 only. */
        REFUSES(S2_BAD_DTYPE, convert_with(function, S2_FLOAT16, S2_FLOAT16, 2));
        REFUSES(S2_BAD_DTYPE, convert_with(function, S2_BFLOAT16, S2_BFLOAT16, 2));
    }
}

/* Divisors that float32 rounds to zero or to infinity are good enough for double alone. */
static void test_divisors_beyond_float32(void)
{
    static const double divisors[] = {1e-60, 1e60, 0x1p-150, 0x1.ffffffp127};
    for (int64_t i = 0; i < COUNT(divisors); i++) {
        for (int function = 0; function < 3; function++) {
            world_reset();
            REFUSES(S2_BAD_DIVISOR, convert_with(function, S2_FLOAT32, S2_FLOAT32, divisors[i]));
            REFUSES(S2_BAD_DIVISOR, convert_with(function, S2_FLOAT32, S2_FLOAT16, divisors[i]));
            REFUSES(S2_BAD_DIVISOR, convert_with(function, S2_BFLOAT16, S2_FLOAT32, divisors[i]));
        }
        ACCEPTS(convert_with(0, S2_FLOAT64, S2_FLOAT64, divisors[i]));
        ACCEPTS(convert_with(0, S2_FLOAT64, S2_FLOAT32, divisors[i]));
    }
}

static void test_dtypes_of_add(void)
{
    static const s2_dtype pairs[][2] = {
        {S2_FLOAT16, S2_FLOAT64},  {S2_BFLOAT16, S2_FLOAT64},  {S2_FLOAT64, S2_FLOAT32},
        {S2_FLOAT16, S2_FLOAT16},  {S2_BFLOAT16, S2_BFLOAT16}, {S2_FLOAT32, S2_FLOAT16},
        {S2_FLOAT32, S2_BFLOAT16}, {S2_FLOAT64, S2_FLOAT16},   {S2_BFLOAT16, S2_FLOAT16},
    };
    world_reset();
    for (int64_t i = 0; i < COUNT(pairs); i++)
        REFUSES(S2_BAD_DTYPE, s2_blocks_add(&w.layout, w.packed, pairs[i][0], 7, w.positions, 3,
                                            w.wide, pairs[i][1], NULL));
    for (int64_t i = 0; i < COUNT(no_dtypes); i++) {
        REFUSES(S2_BAD_DTYPE, s2_blocks_add(&w.layout, w.packed, no_dtypes[i], 7, w.positions, 3,
                                            w.wide, S2_FLOAT64, NULL));
        REFUSES(S2_BAD_DTYPE, s2_blocks_add(&w.layout, w.packed, S2_FLOAT32, 7, w.positions, 3,
                                            w.wide, no_dtypes[i], NULL));
    }
}

int main(void)
{
    test_begin("test_bad_arguments");
    for (int v = 0; variant_use(v); v++) {
        test_layouts();
        test_bitmap_sizes();
        test_from_nonzero();
        test_sets();
        test_from_positions();
        test_pointers_of_lists();
        test_sizes_of_lists();
        test_bad_lists();
        test_sizes_of_plan();
        test_pointers_of_plan();
        test_ranks_of_plan();
        test_pointers_of_blocks();
        test_dtypes_and_divisors();
        test_divisors_beyond_float32();
        test_dtypes_of_add();
    }
    return test_end();
}
