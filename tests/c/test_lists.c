/* SPDX-License-Identifier: MIT */
/* That lists have the bytes the header describes, come back, and that no bytes lead astray. */
#include "test_util.h"

enum { MAX_COUNT = 3000, MAX_NBYTES = 8 * MAX_COUNT };

static guarded positions_memory, list_memory;

/* ------------------------------------------ Oracle -------------------------------------------- */

/* The parts of a list, all in bits. */
typedef struct list_shape {
    int low_bits;
    int64_t low_size;
    int64_t nbytes;
    int64_t uppers; /* position >> low_bits is below this */
} list_shape;

static int64_t words_of(int64_t bits) { return bits / 64 + (bits % 64 != 0); }

static list_shape oracle_shape(int64_t nbits, int64_t count)
{
    list_shape shape = {0, 0, 0, 0};
    if (count == 0) return shape;
    for (int64_t quotient = nbits / count; quotient >= 2; quotient /= 2)
        shape.low_bits++;
    shape.low_size = 64 * words_of(count * shape.low_bits);
    shape.uppers = ((nbits - 1) >> shape.low_bits) + 1;
    shape.nbytes = shape.low_size / 8 + 8 * words_of(count + shape.uppers - 1);
    return shape;
}

static int get_bit(const uint8_t *bytes, int64_t bit) { return bytes[bit / 8] >> (bit % 8) & 1; }

static void flip_bit(uint8_t *bytes, int64_t bit)
{
    bytes[bit / 8] = (uint8_t)(bytes[bit / 8] ^ 1u << (bit % 8));
}

/* Bit by bit. */
static void oracle_encode(const int64_t *positions, int64_t count, int64_t nbits, uint8_t *list)
{
    list_shape shape = oracle_shape(nbits, count);
    memset(list, 0, (size_t)shape.nbytes);
    for (int64_t i = 0; i < count; i++) {
        for (int b = 0; b < shape.low_bits; b++) {
            if (positions[i] >> b & 1) flip_bit(list, i * shape.low_bits + b);
        }
        flip_bit(list, shape.low_size + i + (positions[i] >> shape.low_bits));
    }
}

/* Whether these bytes are a list of `count` positions, which are written as far as they are good.
 */
static int oracle_decode(const uint8_t *list, int64_t count, int64_t nbits, int64_t *positions)
{
    list_shape shape = oracle_shape(nbits, count);
    int64_t i = 0;
    for (int64_t bit = shape.low_size; bit < 8 * shape.nbytes; bit++) {
        if (!get_bit(list, bit)) continue;
        int64_t upper = bit - shape.low_size - i, low = 0;
        if (i == count || upper >= shape.uppers) return 0;
        for (int b = 0; b < shape.low_bits; b++)
            low += (int64_t)get_bit(list, i * shape.low_bits + b) << b;
        positions[i] = upper * ((int64_t)1 << shape.low_bits) + low;
        if (positions[i] >= nbits || (i > 0 && positions[i] <= positions[i - 1])) return 0;
        i++;
    }
    return i == count;
}

/* Bits of the low part that belong to no position.  The header does not say that they count. */
static int has_stray_low_bits(const uint8_t *list, int64_t count, int64_t nbits)
{
    list_shape shape = oracle_shape(nbits, count);
    for (int64_t bit = count * shape.low_bits; bit < shape.low_size; bit++) {
        if (get_bit(list, bit)) return 1;
    }
    return 0;
}

/* ------------------------------------------ Checks -------------------------------------------- */

static int is_untouched(const void *bytes, int64_t nbytes)
{
    for (int64_t i = 0; i < nbytes; i++) {
        if (((const uint8_t *)bytes)[i] != 0x5c) return 0;
    }
    return 1;
}

/* Any bytes of the right size: decoded as the oracle does, or refused with nothing written. */
static void check_decode(const uint8_t *bytes, int64_t count, int64_t nbits)
{
    int64_t wanted[MAX_COUNT];
    int64_t nbytes = oracle_shape(nbits, count).nbytes;
    int good = oracle_decode(bytes, count, nbits, wanted);
    const uint8_t *list = guarded_copy(&list_memory, bytes, nbytes, placement_random(1));
    int64_t *positions = guarded_place(&positions_memory, 8 * count, placement_random(8));
    s2_status status = s2_list_decode(list, nbytes, count, nbits, positions);
    if (status == S2_OK) {
        CHECK(good);
        CHECK(memcmp(positions, wanted, (size_t)(8 * count)) == 0);
    } else {
        CHECK(status == S2_BAD_POSITION);
        CHECK(!good || has_stray_low_bits(bytes, count, nbits));
        CHECK(is_untouched(positions, 8 * count));
    }
    CHECK(memcmp(list, bytes, (size_t)nbytes) == 0);
    guarded_check(&list_memory);
    guarded_check(&positions_memory);
}

/* There and back, and the size. */
static void check_list(const int64_t *wanted, int64_t count, int64_t nbits)
{
    uint8_t bytes[MAX_NBYTES];
    int64_t size = 8 * count, nbytes = -1;
    list_shape shape = oracle_shape(nbits, count);
    CHECK(s2_list_nbytes(nbits, count, &nbytes) == S2_OK);
    CHECK(nbytes == shape.nbytes);
    CHECK(nbytes <= MAX_NBYTES);

    oracle_encode(wanted, count, nbits, bytes);
    const int64_t *positions = guarded_copy(&positions_memory, wanted, size, placement_random(8));
    uint8_t *list = guarded_place(&list_memory, nbytes, placement_random(1));
    CHECK(s2_list_encode(positions, count, nbits, list, nbytes) == S2_OK);
    CHECK(memcmp(list, bytes, (size_t)nbytes) == 0);
    CHECK(memcmp(positions, wanted, (size_t)size) == 0);
    guarded_check(&list_memory);
    guarded_check(&positions_memory);

    int64_t *back = guarded_place(&positions_memory, size, placement_random(8));
    CHECK(s2_list_decode(list, nbytes, count, nbits, back) == S2_OK);
    CHECK(memcmp(back, wanted, (size_t)size) == 0);
    guarded_check(&list_memory);
    guarded_check(&positions_memory);
}

/* ----------------------------------------- Positions ------------------------------------------ */

static int compare(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/* Random positions from [begin, end), the ends often among them; returns their number. */
static int64_t draw_some(int64_t *positions, int64_t wanted, int64_t begin, int64_t end)
{
    int64_t count = 0;
    for (int64_t i = 0; i < wanted; i++)
        positions[i] = begin + random_below(end - begin);
    if (wanted > 0 && random_chance(30)) positions[0] = begin;
    if (wanted > 0 && random_chance(30)) positions[wanted - 1] = end - 1;
    qsort(positions, (size_t)wanted, 8, compare);
    for (int64_t i = 0; i < wanted; i++) {
        if (count == 0 || positions[count - 1] != positions[i]) positions[count++] = positions[i];
    }
    return count;
}

/* None, one, few, many, all; spread over all bits, or crowded at an end. */
static int64_t draw(int64_t *positions, int64_t nbits)
{
    int64_t most = nbits < MAX_COUNT ? nbits : MAX_COUNT, count = 0;
    switch (random_below(6)) {
    case 0:
        return draw_some(positions, random_below(most < 3 ? most + 1 : 3), 0, nbits);
    case 1: /* all, or a run at the end */
        for (int64_t position = nbits - most; position < nbits; position++)
            positions[count++] = position;
        return count;
    case 2: /* all but a few */
        for (int64_t position = 0; position < most; position++) {
            if (!random_chance(3)) positions[count++] = position;
        }
        return count;
    case 3:
        return draw_some(positions, random_below(most + 1), 0, most);
    case 4:
        return draw_some(positions, random_below(most + 1), nbits - most, nbits);
    default:
        return draw_some(positions, random_below(most + 1), 0, nbits);
    }
}

static int64_t draw_nbits(void)
{
    switch (random_below(5)) {
    case 0:
        return 1 + random_below(200);
    case 1: /* at a power of two */
        return ((int64_t)1 << (2 + random_below(58))) - 1 + random_below(3);
    case 2:
        return S2_MAX_NUMEL - random_below(2) * random_below(1000);
    default: /* of any size */
        return 1 + (int64_t)(random_bits() >> (4 + random_below(60)));
    }
}

/* ------------------------------------------ Tests --------------------------------------------- */

static void test_example_of_the_header(void)
{
    static const int64_t positions[4] = {3, 12, 13, 27};
    /* 3 | 4 << 3 | 5 << 6 | 3 << 9, then the bits 0, 2, 3 and 6. */
    static const uint8_t wanted[16] = {[0] = 0x63, [1] = 0x07, [8] = 0x4d};
    uint8_t list[16];
    int64_t nbytes;
    test_case("the header's example");
    CHECK(s2_list_nbytes(32, 4, &nbytes) == S2_OK && nbytes == 16);
    CHECK(s2_list_encode(positions, 4, 32, list, 16) == S2_OK);
    CHECK(memcmp(list, wanted, 16) == 0);
    check_list(positions, 4, 32);
}

static void check_nbytes(int64_t nbits, int64_t count)
{
    int64_t nbytes = -1;
    list_shape shape = oracle_shape(nbits, count);
    test_case("%" PRId64 " of %" PRId64 " bits", count, nbits);
    CHECK(s2_list_nbytes(nbits, count, &nbytes) == S2_OK);
    CHECK(nbytes == shape.nbytes);
    CHECK(nbytes >= 0 && nbytes % 8 == 0);
    /* What the header promises, before both parts are rounded up to a word. */
    CHECK(nbytes / 8 <= words_of(count * shape.low_bits) + words_of(3 * count));
}

static void test_sizes(void)
{
    for (int64_t nbits = 0; nbits <= 300; nbits++) {
        for (int64_t count = 0; count <= nbits; count++)
            check_nbytes(nbits, count);
    }
    for (int64_t k = 0; k < 62; k++) {
        for (int64_t more = -1; more <= 1; more++) {
            int64_t count = ((int64_t)1 << k) + more;
            if (count <= S2_MAX_NUMEL) check_nbytes(S2_MAX_NUMEL, count);
        }
    }
    check_nbytes(S2_MAX_NUMEL, S2_MAX_NUMEL);
    check_nbytes(S2_MAX_NUMEL, S2_MAX_NUMEL - 1);
    check_nbytes(S2_MAX_NUMEL, S2_MAX_NUMEL / 2);
    check_nbytes(S2_MAX_NUMEL, S2_MAX_NUMEL / 3);
    for (int i = 0; i < 20000; i++) {
        int64_t nbits = draw_nbits();
        if (nbits <= S2_MAX_NUMEL) check_nbytes(nbits, random_below(nbits + 1));
    }
}

static void test_all_small_lists(void)
{
    int64_t positions[12];
    for (int64_t nbits = 0; nbits <= 11; nbits++) {
        for (int set = 0; set < 1 << nbits; set++) {
            int64_t count = 0;
            for (int bit = 0; bit < nbits; bit++) {
                if (set >> bit & 1) positions[count++] = bit;
            }
            test_case("the bits of %d of %" PRId64, set, nbits);
            check_list(positions, count, nbits);
        }
    }
}

static void test_single_positions(void)
{
    for (int k = 0; k < 60; k++) {
        int64_t nbits = (int64_t)1 << k;
        const int64_t alone[] = {0, nbits - 1, nbits / 2, nbits / 3};
        for (int64_t i = 0; i < COUNT(alone); i++) {
            test_case("only %" PRId64 " of %" PRId64, alone[i], nbits);
            check_list(&alone[i], 1, nbits);
            check_list(&alone[i], 1, S2_MAX_NUMEL);
        }
    }
}

static void test_random_lists(void)
{
    int64_t positions[MAX_COUNT];
    for (int i = 0; i < 3000; i++) {
        int64_t nbits = draw_nbits();
        if (nbits > S2_MAX_NUMEL) nbits = S2_MAX_NUMEL;
        int64_t count = draw(positions, nbits);
        test_case("random list %d: %" PRId64 " of %" PRId64, i, count, nbits);
        check_list(positions, count, nbits);
    }
}

/* Each bit of a good list in turn is wrong, and each pair of neighbours. */
static void test_flipped_bits(void)
{
    int64_t positions[MAX_COUNT];
    uint8_t list[MAX_NBYTES];
    for (int i = 0; i < 150; i++) {
        int64_t nbits = i % 3 == 0 ? S2_MAX_NUMEL : 1 + random_below((int64_t)1 << (1 + i % 50));
        int64_t count = draw_some(positions, random_below(nbits < 40 ? nbits + 1 : 40), 0, nbits);
        oracle_encode(positions, count, nbits, list);
        for (int64_t bit = 0; bit < 8 * oracle_shape(nbits, count).nbytes; bit++) {
            test_case("bit %" PRId64 " of a list of %" PRId64 " of %" PRId64, bit, count, nbits);
            flip_bit(list, bit);
            check_decode(list, count, nbits);
            if (bit > 0) {
                flip_bit(list, bit - 1);
                check_decode(list, count, nbits);
                flip_bit(list, bit - 1);
            }
            flip_bit(list, bit);
        }
    }
}

/* An upper part that lies behind the last, so far that its position would wrap around. */
static void test_uppers_that_wrap(void)
{
    for (int k = 50; k <= 60; k++) {
        int64_t nbits = k == 60 ? S2_MAX_NUMEL : (int64_t)1 << k;
        for (int64_t count = 1; count <= 5; count++) {
            list_shape shape = oracle_shape(nbits, count);
            for (int64_t bit = 0; bit < 8 * shape.nbytes - shape.low_size - count + 1; bit++) {
                uint8_t list[128] = {0};
                for (int64_t i = 0; i < count; i++) {
                    flip_bit(list, shape.low_size + bit + i);
                    for (int b = 0; b < 3; b++) { /* ascending low bits */
                        if (i >> b & 1) flip_bit(list, i * shape.low_bits + b);
                    }
                }
                test_case("%" PRId64 " times upper part %" PRId64 ", of %" PRId64 " bits", count,
                          bit, nbits);
                check_decode(list, count, nbits);
            }
        }
    }
}

/* Bytes of all kinds; those with the right number of bits above get furthest. */
static void fill_with_junk(uint8_t *list, int64_t count, int64_t nbits)
{
    static const int percents[] = {0, 1, 30, 50, 100};
    list_shape shape = oracle_shape(nbits, count);
    int percent = percents[random_below(COUNT(percents))];
    memset(list, 0, (size_t)shape.nbytes);
    for (int64_t bit = 0; bit < 8 * shape.nbytes; bit++) {
        if (random_chance(bit < shape.low_size || random_chance(50) ? percent : 50))
            flip_bit(list, bit);
    }
    if (shape.nbytes == 0 || random_chance(30)) return;
    int64_t high_size = 8 * shape.nbytes - shape.low_size, set = 0;
    memset(list + shape.low_size / 8, 0, (size_t)(high_size / 8));
    while (set < count) {
        int64_t bit = shape.low_size + random_below(high_size);
        set += !get_bit(list, bit);
        if (!get_bit(list, bit)) flip_bit(list, bit);
    }
    if (random_chance(20)) flip_bit(list, shape.low_size + random_below(high_size));
}

static void test_junk(void)
{
    uint8_t list[MAX_NBYTES];
    for (int i = 0; i < 30000; i++) {
        int64_t nbits = draw_nbits();
        if (nbits > S2_MAX_NUMEL) nbits = S2_MAX_NUMEL;
        int64_t most = nbits < 200 ? nbits : random_chance(90) ? 5 : 200;
        int64_t count = random_below(most + 1);
        fill_with_junk(list, count, nbits);
        test_case("junk %d for %" PRId64 " of %" PRId64, i, count, nbits);
        check_decode(list, count, nbits);
    }
}

/* Any positions at all: encoded when they are good, refused with nothing written otherwise. */
static void test_bad_positions(void)
{
    int64_t wrong[MAX_COUNT];
    for (int i = 0; i < 3000; i++) {
        int64_t nbits = draw_nbits(), count, nbytes;
        if (nbits > S2_MAX_NUMEL) nbits = S2_MAX_NUMEL;
        count = draw(wrong, nbits);
        if (count == 0) continue;
        int64_t at = random_below(count);
        const int64_t spoilt[] = {
            -1,    INT64_MIN, at > 0 ? wrong[at - 1] : -1, at + 1 < count ? wrong[at + 1] : nbits,
            nbits, INT64_MAX};
        int64_t kind = random_below(COUNT(spoilt));
        wrong[at] = spoilt[kind];
        nbytes = oracle_shape(nbits, count).nbytes;
        const int64_t *positions =
            guarded_copy(&positions_memory, wrong, 8 * count, placement_random(8));
        uint8_t *list = guarded_place(&list_memory, nbytes, placement_random(1));
        test_case("position %" PRId64 " of %" PRId64 " is %" PRId64, at, count, spoilt[kind]);
        CHECK(s2_list_encode(positions, count, nbits, list, nbytes) == S2_BAD_POSITION);
        CHECK(is_untouched(list, nbytes));
        guarded_check(&list_memory);
        guarded_check(&positions_memory);
    }
}

int main(void)
{
    test_begin("test_lists");
    positions_memory = guarded_new(8 * MAX_COUNT + 64);
    list_memory = guarded_new(MAX_NBYTES + 64);
    test_example_of_the_header();
    test_sizes();
    test_all_small_lists();
    test_single_positions();
    test_random_lists();
    test_flipped_bits();
    test_junk();
    test_bad_positions();
    test_uppers_that_wrap();
    guarded_delete(&positions_memory);
    guarded_delete(&list_memory);
    return test_end();
}
