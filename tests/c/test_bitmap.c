/* SPDX-License-Identifier: MIT */
/* That a bit is set where a block is live and nowhere else, and that bits combine and count. */
#include "cases.h"
#include "oracle.h"
#include "test_util.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

/* The largest single block times 65, and some more. */
static const int64_t max_numel = 8192 * 65 + 8192;
static const int64_t max_nbytes = 1 << 17;

static guarded values_memory, bitmap_memory, other_memory, list_memory;

/* ------------------------------------ Live or dead blocks ------------------------------------- */

/* Compares with the oracle under every variant, the buffers lying where they are told. */
static void check_from_nonzero(const case_layout *c, s2_dtype dtype, const void *values,
                               placement values_at, placement bitmap_at)
{
    int64_t nbytes = c->bitmap_nbytes, size = c->layout.numel * dtype_size(dtype);
    uint8_t *wanted = test_malloc(nbytes);
    int64_t wanted_zeros = oracle_bitmap_from_nonzero(&c->layout, values, dtype, wanted);
    for (int v = 0; variant_use(v); v++) {
        const void *source = guarded_copy(&values_memory, values, size, values_at);
        uint8_t *bitmap = guarded_place(&bitmap_memory, nbytes, bitmap_at);
        int64_t zeros = -1;
        CHECK(s2_bitmap_from_nonzero(&c->layout, source, dtype, bitmap, nbytes, &zeros, NULL) ==
              S2_OK);
        CHECK(memcmp(bitmap, wanted, (size_t)nbytes) == 0);
        CHECK(zeros == wanted_zeros);
        CHECK(memcmp(source, values, (size_t)size) == 0);
        guarded_check(&values_memory);
        guarded_check(&bitmap_memory);
    }
    free(wanted);
}

static void check_single(case_layout *c, s2_dtype dtype, int64_t block, int64_t numel, void *values)
{
    case_layout_single(c, block, numel, random_chance(50) ? 0 : random_below(70));
    case_values(&c->layout, dtype, values);
    test_case("%s, block %" PRId64 ", numel %" PRId64, dtype_name(dtype), block, numel);
    check_from_nonzero(c, dtype, values, placement_random(dtype_size(dtype)), placement_random(1));
}

static void test_every_block_length(void)
{
    case_layout c = case_layout_new();
    void *values = test_malloc(max_numel * 8);
    for (int64_t d = 0; d < 4; d++) {
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
            /* Of the longest blocks, three lengths a run are enough. */
            int64_t step = block > 1000 ? 1 + random_below(4) : 1;
            for (int64_t i = 0; i < COUNT(lengths); i += step)
                check_single(&c, all_dtypes[d], block, lengths[i], values);
        }
    }
    free(values);
    case_layout_delete(&c);
}

static void test_every_alignment(void)
{
    case_layout c = case_layout_new();
    void *values = test_malloc(max_numel * 8);
    for (int64_t d = 0; d < 4; d++) {
        s2_dtype dtype = all_dtypes[d];
        for (int round = 0; round < 12; round++) {
            int64_t block = round < 8 ? 1 + random_below(40) : block_lengths[70 + round - 8];
            case_layout_single(&c, block, block * random_below(140) + random_below(block), 0);
            case_values(&c.layout, dtype, values);
            for (int64_t distance = 0; distance < 64; distance += dtype_size(dtype)) {
                placement at = {(int)(distance / dtype_size(dtype) + round) % 2, distance};
                test_case("%s, block %" PRId64 ", at distance %" PRId64, dtype_name(dtype), block,
                          distance);
                check_from_nonzero(&c, dtype, values, at, placement_random(1));
            }
            for (int64_t distance = 0; distance < 64; distance++) {
                placement at = {(int)(distance + round) % 2, distance};
                test_case("%s, block %" PRId64 ", bitmap at distance %" PRId64, dtype_name(dtype),
                          block, distance);
                check_from_nonzero(&c, dtype, values, placement_random(dtype_size(dtype)), at);
            }
        }
    }
    free(values);
    case_layout_delete(&c);
}

static void test_random_layouts(void)
{
    case_layout c = case_layout_new();
    void *values = test_malloc(max_numel * 8);
    for (int i = 0; i < 600; i++) {
        s2_dtype dtype = all_dtypes[i % 4];
        case_layout_random(&c, 1 << random_below(15));
        case_values(&c.layout, dtype, values);
        test_case("random layout %d, %s", i, dtype_name(dtype));
        check_from_nonzero(&c, dtype, values, placement_random(dtype_size(dtype)),
                           placement_random(1));
    }
    free(values);
    case_layout_delete(&c);
}

/* Each element in turn is the only one that is not +0.0: a one, a NaN, a subnormal, a -0.0. */
static void test_single_elements(void)
{
    static const int64_t lengths[] = {1, 2, 3, 7, 8, 9, 31, 33, 64, 70, 129};
    case_layout c = case_layout_new();
    for (int64_t d = 0; d < 4; d++) {
        s2_dtype dtype = all_dtypes[d];
        uint64_t sign = element_sign(dtype);
        uint64_t infinity = element_round(dtype, 1.0 / 0.0);
        const uint64_t alone[] = {
            element_round(dtype, 1), infinity | 1, sign | infinity | 1, 1, sign | 1, sign};
        for (int64_t b = 0; b < COUNT(lengths); b++) {
            int64_t numel = 3 * lengths[b] - lengths[b] / 2;
            void *values = test_malloc(numel * 8);
            memset(values, 0, (size_t)(numel * 8));
            case_layout_single(&c, lengths[b], numel, 0);
            for (int64_t i = 0; i < numel; i++) {
                element_set(values, dtype, i, alone[(i + b) % COUNT(alone)]);
                test_case("%s, block %" PRId64 ", only element %" PRId64, dtype_name(dtype),
                          lengths[b], i);
                check_from_nonzero(&c, dtype, values, placement_random(dtype_size(dtype)),
                                   placement_random(1));
                element_set(values, dtype, i, 0);
            }
            free(values);
        }
    }
    case_layout_delete(&c);
}

/* Every pattern of 16 bits is a block of its own; two of them are dead. */
static void test_every_half(void)
{
    case_layout c = case_layout_new();
    uint16_t *values = test_malloc(65536 * 2);
    for (uint32_t i = 0; i < 65536; i++)
        values[i] = (uint16_t)i;
    case_layout_single(&c, 1, 65536, 0);
    test_case("every half");
    check_from_nonzero(&c, S2_FLOAT16, values, placement_random(2), placement_random(1));
    check_from_nonzero(&c, S2_BFLOAT16, values, placement_random(2), placement_random(1));
    free(values);
    case_layout_delete(&c);
}

/* A thread may be told to take subnormals for zeros; they are live nevertheless. */
static void test_flushed_subnormals(void)
{
#ifdef __SSE__
    static const unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
    static const int64_t lengths[] = {1, 3, 8, 17, 70};
    case_layout c = case_layout_new();
    for (int64_t i = 0; i < 4 * COUNT(lengths); i++) {
        s2_dtype dtype = all_dtypes[i % 4];
        case_layout_single(&c, lengths[i / 4], 300, 0);
        void *values = test_malloc(300 * 8);
        memset(values, 0, 300 * 8);
        for (int64_t k = 0; k < 300; k += 1 + random_below(150))
            element_set(values, dtype, k, random_chance(50) ? 1 : element_sign(dtype) | 1);
        test_case("%s, block %" PRId64 ", subnormals flushed", dtype_name(dtype), lengths[i / 4]);
        unsigned mode = _mm_getcsr();
        _mm_setcsr(mode | flush_to_zero | denormals_are_zero);
        check_from_nonzero(&c, dtype, values, placement_random(dtype_size(dtype)),
                           placement_random(1));
        _mm_setcsr(mode);
        free(values);
    }
    case_layout_delete(&c);
#endif
}

/* ---------------------------------------- Sets of bits ---------------------------------------- */

static void fill_random(uint8_t *bytes, int64_t nbytes, int percent)
{
    for (int64_t i = 0; i < nbytes; i++) {
        unsigned bits = 0;
        for (int b = 0; b < 8; b++)
            bits |= (unsigned)random_chance(percent) << b;
        bytes[i] = (uint8_t)bits;
    }
}

static int random_percent(void)
{
    static const int percents[] = {0, 1, 5, 50, 99, 100};
    return percents[random_below(COUNT(percents))];
}

static void check_or_andnot(const uint8_t *a, const uint8_t *b, int64_t nbytes, placement a_at,
                            placement b_at)
{
    for (int v = 0; variant_use(v); v++) {
        const uint8_t *other = guarded_copy(&other_memory, b, nbytes, b_at);
        uint8_t *bitmap = guarded_copy(&bitmap_memory, a, nbytes, a_at);
        CHECK(s2_bitmap_or(bitmap, other, nbytes) == S2_OK);
        for (int64_t i = 0; i < nbytes; i++)
            CHECK(bitmap[i] == (a[i] | b[i]));
        guarded_check(&bitmap_memory);

        bitmap = guarded_copy(&bitmap_memory, a, nbytes, a_at);
        CHECK(s2_bitmap_andnot(bitmap, other, nbytes) == S2_OK);
        for (int64_t i = 0; i < nbytes; i++)
            CHECK(bitmap[i] == (a[i] & (b[i] ^ 0xff)));
        guarded_check(&bitmap_memory);
        guarded_check(&other_memory);
        CHECK(memcmp(other, b, (size_t)nbytes) == 0);
    }
}

static void test_or_andnot(void)
{
    uint8_t *a = test_malloc(max_nbytes), *b = test_malloc(max_nbytes);
    for (int64_t words = 0; words < 140; words++) {
        int64_t nbytes = 8 * words;
        fill_random(a, nbytes, random_percent());
        fill_random(b, nbytes, random_percent());
        test_case("%" PRId64 " words", words);
        check_or_andnot(a, b, nbytes, placement_random(1), placement_random(1));
    }
    for (int distance = 0; distance < 64; distance++) {
        int64_t nbytes = 8 * random_below(40);
        placement at = {distance % 2, distance};
        fill_random(a, nbytes, 50);
        fill_random(b, nbytes, 50);
        test_case("%" PRId64 " bytes at distance %d", nbytes, distance);
        check_or_andnot(a, b, nbytes, at, placement_random(1));
        check_or_andnot(a, b, nbytes, placement_random(1), at);
    }
    free(a);
    free(b);
}

static void check_count(const case_layout *c, const uint8_t *bits)
{
    int64_t nsegments = c->layout.nsegments, nbytes = c->bitmap_nbytes;
    int64_t wanted[CASE_SEGMENTS];
    oracle_bitmap_count(&c->layout, bits, wanted);
    for (int v = 0; variant_use(v); v++) {
        const uint8_t *bitmap = guarded_copy(&bitmap_memory, bits, nbytes, placement_random(1));
        int64_t *counts = guarded_place(&list_memory, 8 * nsegments, placement_random(8));
        CHECK(s2_bitmap_count(&c->layout, bitmap, nbytes, counts) == S2_OK);
        CHECK(memcmp(counts, wanted, (size_t)(8 * nsegments)) == 0);
        guarded_check(&list_memory);
        guarded_check(&bitmap_memory);
    }
}

/* Of two ranks that have some of `bits` each, not the same, and one that has none. */
static void check_unite(const case_layout *c, const uint8_t *bits)
{
    int64_t nsegments = c->layout.nsegments, nbytes = c->bitmap_nbytes;
    uint8_t *ranks = test_malloc(3 * nbytes), *wanted = test_malloc(nbytes);
    int64_t wanted_counts[4 * CASE_SEGMENTS];
    for (int64_t i = 0; i < nbytes; i++) {
        ranks[i] = bits[i] & 0x55;
        ranks[nbytes + i] = bits[i] & 0x36;
        ranks[2 * nbytes + i] = 0;
        wanted[i] = bits[i] & 0x77;
    }
    for (int rank = 0; rank < 3; rank++)
        oracle_bitmap_count(&c->layout, ranks + rank * nbytes, wanted_counts + rank * nsegments);
    oracle_bitmap_count(&c->layout, wanted, wanted_counts + 3 * nsegments);
    for (int v = 0; variant_use(v); v++) {
        const uint8_t *own = guarded_copy(&other_memory, ranks, 3 * nbytes, placement_random(1));
        uint8_t *bitmap = guarded_place(&bitmap_memory, nbytes, placement_random(1));
        int64_t *counts = guarded_place(&list_memory, 32 * nsegments, placement_random(8));
        CHECK(s2_bitmap_unite(&c->layout, own, 3, nbytes, bitmap, counts) == S2_OK);
        CHECK(memcmp(bitmap, wanted, (size_t)nbytes) == 0);
        CHECK(memcmp(counts, wanted_counts, (size_t)(32 * nsegments)) == 0);
        guarded_check(&list_memory);
        guarded_check(&bitmap_memory);
        guarded_check(&other_memory);
    }
    free(wanted);
    free(ranks);
}

static void check_positions(const uint8_t *bits, int64_t nbytes, placement bitmap_at)
{
    int64_t *wanted = test_malloc(64 * nbytes);
    int64_t npositions = oracle_bitmap_positions(bits, nbytes, wanted);
    for (int v = 0; variant_use(v); v++) {
        const uint8_t *bitmap = guarded_copy(&bitmap_memory, bits, nbytes, bitmap_at);
        int64_t *positions = guarded_place(&list_memory, 8 * npositions, placement_random(8));
        CHECK(s2_bitmap_positions(bitmap, nbytes, positions, npositions) == S2_OK);
        CHECK(memcmp(positions, wanted, (size_t)(8 * npositions)) == 0);
        guarded_check(&list_memory);
        guarded_check(&bitmap_memory);

        /* Any other number is refused, and nothing written. */
        positions = guarded_place(&list_memory, 8 * (npositions + 3), placement_random(8));
        int64_t before = positions[0];
        CHECK(s2_bitmap_positions(bitmap, nbytes, positions, npositions + 1) == S2_BAD_SIZE);
        CHECK(s2_bitmap_positions(bitmap, nbytes, positions, npositions + 3) == S2_BAD_SIZE);
        CHECK(npositions == 0 ||
              s2_bitmap_positions(bitmap, nbytes, positions, npositions - 1) == S2_BAD_SIZE);
        for (int64_t k = 0; k < npositions + 3; k++)
            CHECK(positions[k] == before);
    }
    free(wanted);
}

/* The way back; of spoilt positions nothing is written. */
static void check_from_positions(const uint8_t *wanted, int64_t nbytes, placement bitmap_at)
{
    int64_t *list = test_malloc(64 * nbytes);
    int64_t npositions = oracle_bitmap_positions(wanted, nbytes, list);
    for (int v = 0; variant_use(v); v++) {
        int64_t *positions = guarded_copy(&list_memory, list, 8 * npositions, placement_random(8));
        uint8_t *bitmap = guarded_place(&bitmap_memory, nbytes, bitmap_at);
        CHECK(s2_bitmap_from_positions(positions, npositions, bitmap, nbytes) == S2_OK);
        CHECK(memcmp(bitmap, wanted, (size_t)nbytes) == 0);
        CHECK(memcmp(positions, list, (size_t)(8 * npositions)) == 0);
        guarded_check(&list_memory);
        guarded_check(&bitmap_memory);

        if (npositions == 0) continue;
        int64_t at = random_below(npositions);
        const int64_t spoilt[] = {-1, at > 0 ? list[at - 1] : INT64_MIN,
                                  at + 1 < npositions ? list[at + 1] : 8 * nbytes, INT64_MAX};
        bitmap = guarded_place(&bitmap_memory, nbytes, bitmap_at);
        for (int64_t i = 0; i < COUNT(spoilt); i++) {
            positions[at] = spoilt[i];
            CHECK(s2_bitmap_from_positions(positions, npositions, bitmap, nbytes) ==
                  S2_BAD_POSITION);
        }
        for (int64_t k = 0; k < nbytes; k++)
            CHECK(bitmap[k] == 0x5c);
        guarded_check(&bitmap_memory);
    }
    free(list);
}

static void test_count_and_positions(void)
{
    case_layout c = case_layout_new();
    uint8_t *bits = test_malloc(max_nbytes);
    for (int i = 0; i < 400; i++) {
        int percent = random_percent();
        case_layout_random(&c, 1 << random_below(15));
        case_bitmap(&c.layout, percent, bits, c.bitmap_nbytes);
        test_case("random layout %d, %d %% of the bits", i, percent);
        check_count(&c, bits);
        check_unite(&c, bits);
        check_positions(bits, c.bitmap_nbytes, placement_random(1));
        check_from_positions(bits, c.bitmap_nbytes, placement_random(1));
    }
    for (int64_t distance = 0; distance < 64; distance++) {
        int64_t nbytes = 8 * (1 + random_below(70));
        fill_random(bits, nbytes, random_percent());
        test_case("%" PRId64 " bytes at distance %" PRId64, nbytes, distance);
        check_positions(bits, nbytes, (placement){(int)distance % 2, distance});
        check_from_positions(bits, nbytes, (placement){(int)distance % 2, distance});
    }
    for (int bit = 0; bit < 192; bit++) {
        memset(bits, 0, 24);
        oracle_set_bit(bits, bit);
        test_case("only bit %d", bit);
        check_positions(bits, 24, placement_random(1));
        check_from_positions(bits, 24, placement_random(1));
    }
    free(bits);
    case_layout_delete(&c);
}

/* So many bits that counters within a vector would overflow. */
static void test_large_bitmaps(void)
{
    case_layout c = case_layout_new();
    uint8_t *bits = test_malloc(max_nbytes);
    static const int percents[] = {100, 97, 1};
    for (int64_t i = 0; i < COUNT(percents); i++) {
        test_case("%d %% of %" PRId64 " bits", percents[i], 8 * max_nbytes);
        case_layout_single(&c, 1, 8 * max_nbytes - (i > 0 ? 1 + random_below(63) : 0), 0);
        case_bitmap(&c.layout, percents[i], bits, max_nbytes);
        CHECK(c.bitmap_nbytes == max_nbytes);
        check_count(&c, bits);
        check_positions(bits, max_nbytes, placement_random(1));
        check_from_positions(bits, max_nbytes, placement_random(1));
    }
    free(bits);
    case_layout_delete(&c);
}

int main(void)
{
    test_begin("test_bitmap");
    values_memory = guarded_new(max_numel * 8 + 64);
    bitmap_memory = guarded_new(max_nbytes + 64);
    other_memory = guarded_new(max_nbytes + 64);
    list_memory = guarded_new(8 * 8 * max_nbytes + 128);
    test_every_block_length();
    test_every_alignment();
    test_random_layouts();
    test_single_elements();
    test_every_half();
    test_flushed_subnormals();
    test_or_andnot();
    test_count_and_positions();
    test_large_bitmaps();
    guarded_delete(&values_memory);
    guarded_delete(&bitmap_memory);
    guarded_delete(&other_memory);
    guarded_delete(&list_memory);
    return test_end();
}
