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
        test_pointers_of_blocks();
        test_dtypes_and_divisors();
        test_divisors_beyond_float32();
        test_dtypes_of_add();
    }
    return test_end();
}
