/* SPDX-License-Identifier: MIT */
/* That packing, unpacking, adding and clearing touch the named blocks alone, element by element. */
#include "cases.h"
#include "oracle.h"
#include "test_util.h"

/* Of a packed array, too: 65 of the longest blocks. */
static const int64_t max_numel = 8192 * 66;

/* Bytes of arrays that are larger than a cache. */
static const int64_t large_nbytes = 10 * 1024 * 1024;

static guarded values_memory, packed_memory, positions_memory, bitmap_memory;

static const double divisors[] = {1, 1, 2, 3, 0.7, 1000, 1e-3, 8};

static placement random_place(s2_dtype dtype) { return placement_random(dtype_size(dtype)); }

/* A layout, the bits of the blocks to take, and the same as positions. */
typedef struct chosen {
    case_layout c;
    uint8_t *bitmap;
    int64_t *positions;
    int64_t npositions;
    int64_t packed_numel;
} chosen;

static chosen chosen_new(void)
{
    chosen blocks;
    memset(&blocks, 0, sizeof(blocks));
    blocks.c = case_layout_new();
    return blocks;
}

static void chosen_clear(chosen *blocks)
{
    free(blocks->bitmap);
    free(blocks->positions);
    blocks->bitmap = NULL;
    blocks->positions = NULL;
}

static void chosen_delete(chosen *blocks)
{
    chosen_clear(blocks);
    case_layout_delete(&blocks->c);
}

/* Chooses blocks of the layout that `blocks` holds already. */
static void choose_percent(chosen *blocks, int percent)
{
    const case_layout *c = &blocks->c;
    chosen_clear(blocks);
    blocks->bitmap = test_malloc(c->bitmap_nbytes);
    blocks->positions = test_malloc(8 * c->nblocks);
    case_bitmap(&c->layout, percent, blocks->bitmap, c->bitmap_nbytes);
    blocks->npositions =
        oracle_bitmap_positions(blocks->bitmap, c->bitmap_nbytes, blocks->positions);
    blocks->packed_numel = oracle_packed_numel(&c->layout, blocks->positions, blocks->npositions);
}

static void choose(chosen *blocks)
{
    static const int percents[] = {0, 3, 30, 70, 100};
    choose_percent(blocks, percents[random_below(COUNT(percents))]);
}

/* The positions, right at an unmapped page as often as not. */
static const int64_t *place_positions(const chosen *blocks)
{
    return guarded_copy(&positions_memory, blocks->positions, 8 * blocks->npositions,
                        placement_random(8));
}

static void check_memory(void)
{
    guarded_check(&values_memory);
    guarded_check(&packed_memory);
    guarded_check(&positions_memory);
    guarded_check(&bitmap_memory);
}

/* --------------------------------------- One function each ------------------------------------ */

static void check_packed_numel(const chosen *blocks)
{
    int64_t numel = -1;
    const int64_t *positions = place_positions(blocks);
    CHECK(s2_blocks_packed_numel(&blocks->c.layout, positions, blocks->npositions, &numel) ==
          S2_OK);
    CHECK(numel == blocks->packed_numel);
}

static void check_gather(const chosen *blocks, s2_dtype dtype, s2_dtype packed_dtype,
                         double divisor, placement values_at, placement packed_at)
{
    const s2_layout *layout = &blocks->c.layout;
    int64_t nbytes = layout->numel * dtype_size(dtype);
    int64_t packed_nbytes = blocks->packed_numel * dtype_size(packed_dtype);
    void *values = test_malloc(nbytes), *wanted = test_malloc(packed_nbytes);
    case_any(dtype, values, layout->numel);
    oracle_gather(layout, values, dtype, blocks->positions, blocks->npositions, wanted,
                  packed_dtype, divisor);
    for (int v = 0; variant_use(v); v++) {
        const int64_t *positions = place_positions(blocks);
        const void *source = guarded_copy(&values_memory, values, nbytes, values_at);
        void *packed = guarded_place(&packed_memory, packed_nbytes, packed_at);
        CHECK(s2_blocks_gather(layout, source, dtype, positions, blocks->npositions, packed,
                               packed_dtype, blocks->packed_numel, divisor, NULL) == S2_OK);
        check_elements(packed_dtype, packed, wanted, blocks->packed_numel,
                       dtype != packed_dtype || divisor != 1);
        CHECK(memcmp(source, values, (size_t)nbytes) == 0);
        check_memory();
    }
    free(values);
    free(wanted);
}

/*
 * What is not named is random and free of NaNs, so that it is compared bit by bit even where NaNs
 * may differ.
 */
static void check_scatter(const chosen *blocks, s2_dtype packed_dtype, s2_dtype dtype,
                          double divisor, placement packed_at, placement values_at)
{
    const s2_layout *layout = &blocks->c.layout;
    int64_t nbytes = layout->numel * dtype_size(dtype);
    int64_t packed_nbytes = blocks->packed_numel * dtype_size(packed_dtype);
    void *old = test_malloc(nbytes), *wanted = test_malloc(nbytes);
    void *packed = test_malloc(packed_nbytes);
    case_finite(dtype, old, layout->numel);
    case_any(packed_dtype, packed, blocks->packed_numel);
    memcpy(wanted, old, (size_t)nbytes);
    oracle_scatter(layout, packed, packed_dtype, blocks->positions, blocks->npositions, wanted,
                   dtype, divisor);
    for (int v = 0; variant_use(v); v++) {
        const int64_t *positions = place_positions(blocks);
        const void *source = guarded_copy(&packed_memory, packed, packed_nbytes, packed_at);
        void *values = guarded_copy(&values_memory, old, nbytes, values_at);
        CHECK(s2_blocks_scatter(layout, source, packed_dtype, blocks->packed_numel, positions,
                                blocks->npositions, values, dtype, divisor, NULL) == S2_OK);
        check_elements(dtype, values, wanted, layout->numel, dtype != packed_dtype || divisor != 1);
        CHECK(memcmp(source, packed, (size_t)packed_nbytes) == 0);
        check_memory();
    }
    free(old);
    free(wanted);
    free(packed);
}

static void check_add(const chosen *blocks, s2_dtype packed_dtype, s2_dtype dtype,
                      placement packed_at, placement values_at)
{
    const s2_layout *layout = &blocks->c.layout;
    int64_t nbytes = layout->numel * dtype_size(dtype);
    int64_t packed_nbytes = blocks->packed_numel * dtype_size(packed_dtype);
    void *old = test_malloc(nbytes), *wanted = test_malloc(nbytes);
    void *packed = test_malloc(packed_nbytes);
    case_finite(dtype, old, layout->numel);
    case_any(packed_dtype, packed, blocks->packed_numel);
    /* Sums of numbers of one size, and of opposite ones: -0.0, cancellation, ties. */
    for (int64_t i = 0; i < layout->numel; i++) {
        if (random_chance(60))
            element_set(old, dtype, i, element_round(dtype, (double)random_below(1000) / 7 - 70));
    }
    memcpy(wanted, old, (size_t)nbytes);
    oracle_add(layout, packed, packed_dtype, blocks->positions, blocks->npositions, wanted, dtype);
    for (int v = 0; variant_use(v); v++) {
        const int64_t *positions = place_positions(blocks);
        const void *source = guarded_copy(&packed_memory, packed, packed_nbytes, packed_at);
        void *values = guarded_copy(&values_memory, old, nbytes, values_at);
        CHECK(s2_blocks_add(layout, source, packed_dtype, blocks->packed_numel, positions,
                            blocks->npositions, values, dtype, NULL) == S2_OK);
        check_elements(dtype, values, wanted, layout->numel, 1);
        CHECK(memcmp(source, packed, (size_t)packed_nbytes) == 0);
        check_memory();
    }
    free(old);
    free(wanted);
    free(packed);
}

static void check_clear_dead(const chosen *blocks, s2_dtype dtype, placement values_at,
                             placement bitmap_at)
{
    const s2_layout *layout = &blocks->c.layout;
    int64_t nbytes = layout->numel * dtype_size(dtype), bitmap_nbytes = blocks->c.bitmap_nbytes;
    void *old = test_malloc(nbytes), *wanted = test_malloc(nbytes);
    case_any(dtype, old, layout->numel);
    memcpy(wanted, old, (size_t)nbytes);
    oracle_clear_dead(layout, blocks->bitmap, wanted, dtype);
    for (int v = 0; variant_use(v); v++) {
        const uint8_t *bitmap =
            guarded_copy(&bitmap_memory, blocks->bitmap, bitmap_nbytes, bitmap_at);
        void *values = guarded_copy(&values_memory, old, nbytes, values_at);
        CHECK(s2_blocks_clear_dead(layout, bitmap, bitmap_nbytes, values, dtype, NULL) == S2_OK);
        check_elements(dtype, values, wanted, layout->numel, 0);
        CHECK(memcmp(bitmap, blocks->bitmap, (size_t)bitmap_nbytes) == 0);
        check_memory();
    }
    free(old);
    free(wanted);
}

/* ------------------------------------------- Sweeps ------------------------------------------- */

/* Every function, and every pair of dtypes that it takes or those whose turn it is. */
static void check_all(const chosen *blocks, int every_pair)
{
    static int turn;
    turn++;
    check_packed_numel(blocks);
    for (int i = 0; i < 16; i++) {
        s2_dtype a = all_dtypes[i / 4], b = all_dtypes[i % 4];
        double divisor = divisors[random_below(COUNT(divisors))];
        if (!every_pair && (i + turn) % 5 != 0) continue;
        if (!oracle_converts(a, b, divisor)) divisor = 1;
        if (oracle_converts(a, b, divisor)) {
            check_gather(blocks, a, b, divisor, random_place(a), random_place(b));
            check_scatter(blocks, a, b, divisor, random_place(a), random_place(b));
        }
        if (oracle_adds(a, b)) check_add(blocks, a, b, random_place(a), random_place(b));
    }
    for (int d = 0; d < 4; d++) {
        if (every_pair || (d + turn) % 4 == 0)
            check_clear_dead(blocks, all_dtypes[d], random_place(all_dtypes[d]),
                             placement_random(1));
    }
}

static void test_every_block_length(void)
{
    chosen blocks = chosen_new();
    for (int64_t b = 0; b < nblock_lengths; b++) {
        int64_t block = block_lengths[b];
        int64_t lengths[] = {0,
                             1,
                             block - 1,
                             block,
                             block + 1,
                             63 * block,
                             64 * block,
                             65 * block,
                             63 * block + block / 2 + 1,
                             random_below(66 * block),
                             random_below(9 * block)};
        for (int64_t i = 0; i < COUNT(lengths); i++) {
            /* The longest blocks are there for their length, not for their number. */
            int64_t numel =
                block > 100 && lengths[i] > 4 * block ? 3 * block + lengths[i] % block : lengths[i];
            case_layout_single(&blocks.c, block, numel, random_below(30));
            choose(&blocks);
            test_case("block %" PRId64 ", numel %" PRId64 ", %" PRId64 " blocks chosen", block,
                      numel, blocks.npositions);
            check_all(&blocks, numel < 600);
        }
    }
    chosen_delete(&blocks);
}

static void test_random_layouts(void)
{
    chosen blocks = chosen_new();
    for (int i = 0; i < 500; i++) {
        case_layout_random(&blocks.c, 1 << random_below(14));
        choose(&blocks);
        if (blocks.packed_numel > max_numel) continue;
        test_case("random layout %d, %" PRId64 " blocks chosen", i, blocks.npositions);
        check_all(&blocks, 0);
    }
    chosen_delete(&blocks);
}

static void test_every_alignment(void)
{
    static const int64_t lengths[] = {1, 3, 8, 17, 40, 64, 129};
    chosen blocks = chosen_new();
    for (int i = 0; i < 16; i++) {
        s2_dtype a = all_dtypes[i / 4], b = all_dtypes[i % 4];
        if (!oracle_converts(a, b, 1)) continue;
        double divisor = oracle_converts(a, b, 3) && random_chance(50) ? 3 : 1;
        for (int64_t distance = 0; distance < 64; distance += 2) {
            int64_t block = lengths[random_below(COUNT(lengths))];
            case_layout_single(&blocks.c, block, block * 6 + random_below(block), 0);
            choose(&blocks);
            placement at = {random_chance(50), distance};
            test_case("%s to %s, block %" PRId64 ", at distance %" PRId64, dtype_name(a),
                      dtype_name(b), block, distance);
            if (distance % dtype_size(a) == 0) {
                check_gather(&blocks, a, b, divisor, at, random_place(b));
                check_scatter(&blocks, a, b, divisor, at, random_place(b));
                if (oracle_adds(a, b)) check_add(&blocks, a, b, at, random_place(b));
            }
            if (distance % dtype_size(b) == 0) {
                check_gather(&blocks, a, b, divisor, random_place(a), at);
                check_scatter(&blocks, a, b, divisor, random_place(a), at);
                if (oracle_adds(a, b)) check_add(&blocks, a, b, random_place(a), at);
                check_clear_dead(&blocks, b, at, placement_random(1));
            }
            check_clear_dead(&blocks, a, random_place(a), at);
            check_clear_dead(&blocks, a, random_place(a), (placement){at.at_back, distance + 1});
        }
    }
    chosen_delete(&blocks);
}

/*
 * Arrays that do not fit into caches may be written past them, in whole lines: at addresses that
 * are and are not at the beginning of one.
 */
static void test_large_arrays(void)
{
    static const int64_t lengths[] = {4096, 4096 + 16, 4096 + 2}; /* whole lines, or not */
    static const placement places[][2] = {
        {{0, 0}, {1, 0}}, {{1, 0}, {0, 4}}, {{0, 4}, {0, 0}}, {{1, 32}, {1, 32}}};
    chosen blocks = chosen_new();
    for (int64_t i = 0; i < COUNT(lengths); i++) {
        case_layout_single(&blocks.c, lengths[i], large_nbytes / 4 - 16 * lengths[i] + 16, 16);
        choose_percent(&blocks, 98);
        for (int64_t p = 0; p < (i == 0 ? COUNT(places) : 1); p++) {
            test_case("large arrays, block %" PRId64 ", places %" PRId64, lengths[i], p);
            check_gather(&blocks, S2_FLOAT32, S2_FLOAT32, 1, places[p][0], places[p][1]);
            check_scatter(&blocks, S2_FLOAT32, S2_FLOAT32, 1, places[p][0], places[p][1]);
        }
    }
    chosen_delete(&blocks);
}

/* What fills up a short last block is +0.0 when packed, and is ignored when it comes back. */
static void test_filling(void)
{
    static const float values[5] = {-1, -2, -3, -4, -5};
    static const float packed_wanted[6] = {-1, -2, -3, -4, -5, 0};
    static const s2_segment segments[1] = {{0, 5, 3, 0}};
    static const s2_layout layout = {segments, 1, 5};
    static const int64_t positions[2] = {0, 1};
    for (int v = 0; variant_use(v); v++) {
        float *packed = guarded_place(&packed_memory, 24, (placement){1, 0});
        CHECK(s2_blocks_gather(&layout, values, S2_FLOAT32, positions, 2, packed, S2_FLOAT32, 6, 1,
                               NULL) == S2_OK);
        CHECK(memcmp(packed, packed_wanted, 24) == 0);
        packed[5] = 99; /* anything but a zero */
        float *back = guarded_place(&values_memory, 20, (placement){1, 0});
        CHECK(s2_blocks_scatter(&layout, packed, S2_FLOAT32, 6, positions, 2, back, S2_FLOAT32, 1,
                                NULL) == S2_OK);
        CHECK(memcmp(back, values, 20) == 0);
        CHECK(s2_blocks_add(&layout, packed, S2_FLOAT32, 6, positions, 2, back, S2_FLOAT32, NULL) ==
              S2_OK);
        for (int i = 0; i < 5; i++)
            CHECK(back[i] == 2 * values[i]);
        check_memory();
    }
}

int main(void)
{
    test_begin("test_blocks");
    values_memory = guarded_new(large_nbytes + 128);
    packed_memory = guarded_new(large_nbytes + 128);
    positions_memory = guarded_new(max_numel * 8 + 128);
    bitmap_memory = guarded_new(max_numel + 128);
    test_every_block_length();
    test_random_layouts();
    test_every_alignment();
    test_large_arrays();
    test_filling();
    guarded_delete(&values_memory);
    guarded_delete(&packed_memory);
    guarded_delete(&positions_memory);
    guarded_delete(&bitmap_memory);
    return test_end();
}
