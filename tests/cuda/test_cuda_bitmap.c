/* SPDX-License-Identifier: MIT */
/* That the kernels make, combine, count and list bitmaps as the C core does, bit for bit. */
#include "device.h"
#include "oracle.h"

enum { LAYOUT, VALUES, BITMAP, OTHER, ZEROS, COUNTS, POSITIONS, COUNT_OF, SCRATCH };
enum { MAX_NUMEL = 1 << 14 };

static case_layout c;

/* Blocks of a few elements and of thousands, and several segments. */
static void draw_layout(void)
{
    if (random_chance(40)) {
        int64_t block = block_lengths[random_below(nblock_lengths)];
        int64_t nblocks = 1 + random_below(1 + MAX_NUMEL / block);
        case_layout_single(&c, block, block * nblocks - random_below(block), random_below(70));
    } else {
        case_layout_random(&c, (int64_t)1 << random_below(14));
    }
}

/* -------------------------------------- Live or dead blocks ----------------------------------- */

static void test_from_nonzero(int i)
{
    s2_dtype dtype = all_dtypes[i % 4];
    draw_layout();
    int64_t nbytes = c.bitmap_nbytes, size = c.layout.numel * dtype_size(dtype), wanted_zeros;
    void *values = test_malloc(size);
    uint8_t *wanted = test_malloc(nbytes);
    case_values(&c.layout, dtype, values);
    test_case("from_nonzero %d: %s, %" PRId64 " elements in %" PRId64 " segments", i,
              dtype_name(dtype), c.layout.numel, c.layout.nsegments);
    CHECK(s2_bitmap_from_nonzero(&c.layout, values, dtype, wanted, nbytes, &wanted_zeros, NULL) ==
          S2_OK);

    s2_cuda_layout layout = device_layout(&c);
    const void *source = device_array(VALUES, values, size, dtype_size(dtype));
    uint8_t *bitmap = device_array(BITMAP, NULL, nbytes, 8);
    int64_t *zeros = device_array(ZEROS, NULL, 8, 8);
    ON_DEVICE(&c, s2_cuda_bitmap_from_nonzero(&layout, source, dtype, bitmap, nbytes, zeros,
                                              device_stream));
    CHECK(memcmp(bitmap, wanted, (size_t)nbytes) == 0);
    CHECK(*zeros == wanted_zeros);
    CHECK(memcmp(source, values, (size_t)size) == 0);
    free(values);
    free(wanted);
}

/* -------------------------------------------- Sets -------------------------------------------- */

static void random_bytes(uint8_t *bytes, int64_t nbytes)
{
    for (int64_t i = 0; i < nbytes; i++)
        bytes[i] = (uint8_t)(random_bits() & random_bits());
}

static void test_or_and_andnot(int i)
{
    int64_t nbytes = 8 * random_below(i % 2 ? 1500 : 40);
    uint8_t *first = test_malloc(nbytes), *second = test_malloc(nbytes);
    random_bytes(first, nbytes);
    random_bytes(second, nbytes);
    test_case("or and andnot of %" PRId64 " bytes", nbytes);
    for (int without = 0; without < 2; without++) {
        uint8_t *bitmap = device_array(BITMAP, first, nbytes, 8);
        const uint8_t *other = device_array(OTHER, second, nbytes, 8);
        uint8_t *wanted = test_malloc(nbytes);
        if (nbytes > 0) memcpy(wanted, first, (size_t)nbytes);
        CHECK((without ? s2_bitmap_andnot : s2_bitmap_or)(wanted, second, nbytes) == S2_OK);
        ON_DEVICE(NULL, (without ? s2_cuda_bitmap_andnot : s2_cuda_bitmap_or)(bitmap, other, nbytes,
                                                                              device_stream));
        CHECK(memcmp(bitmap, wanted, (size_t)nbytes) == 0);
        free(wanted);
    }
    free(first);
    free(second);
}

/* Bitmaps of densities from nothing to all. */
static uint8_t *draw_bitmap(void)
{
    static const int percents[] = {0, 1, 10, 50, 99, 100};
    uint8_t *bitmap = test_malloc(c.bitmap_nbytes);
    case_bitmap(&c.layout, percents[random_below(COUNT(percents))], bitmap, c.bitmap_nbytes);
    return bitmap;
}

static void test_count(int i)
{
    draw_layout();
    int64_t nsegments = c.layout.nsegments, nbytes = c.bitmap_nbytes, wanted[CASE_SEGMENTS];
    uint8_t *host = draw_bitmap();
    test_case("count %d: %" PRId64 " bytes, %" PRId64 " segments", i, nbytes, nsegments);
    CHECK(s2_bitmap_count(&c.layout, host, nbytes, wanted) == S2_OK);

    s2_cuda_layout layout = device_layout(&c);
    const uint8_t *bitmap = device_array(BITMAP, host, nbytes, 8);
    int64_t *counts = device_array(COUNTS, NULL, 8 * nsegments, 8);
    ON_DEVICE(&c, s2_cuda_bitmap_count(&layout, bitmap, nbytes, counts, device_stream));
    CHECK(memcmp(counts, wanted, (size_t)(8 * nsegments)) == 0);
    free(host);
}

static void test_unite(int i)
{
    draw_layout();
    const int64_t nranks = 1 + random_below(i % 5 == 0 ? 40 : 4);
    int64_t nsegments = c.layout.nsegments, nbytes = c.bitmap_nbytes,
            ncounts = nsegments + nsegments * nranks;
    uint8_t *host = test_malloc(nranks * nbytes), *wanted = test_malloc(nbytes);
    int64_t *wanted_counts = test_malloc(8 * ncounts);
    for (int64_t rank = 0; rank < nranks; rank++) {
        uint8_t *own = draw_bitmap();
        if (nbytes > 0) memcpy(host + rank * nbytes, own, (size_t)nbytes);
        free(own);
    }
    test_case("unite %d: %" PRId64 " ranks, %" PRId64 " bytes, %" PRId64 " segments", i, nranks,
              nbytes, nsegments);
    CHECK(s2_bitmap_unite(&c.layout, host, nranks, nbytes, wanted, wanted_counts) == S2_OK);

    s2_cuda_layout layout = device_layout(&c);
    const uint8_t *bitmaps = device_array(OTHER, host, nranks * nbytes, 8);
    uint8_t *bitmap = device_array(BITMAP, NULL, nbytes, 8);
    int64_t *counts = device_array(COUNTS, NULL, 8 * ncounts, 8);
    ON_DEVICE(
        &c, s2_cuda_bitmap_unite(&layout, bitmaps, nranks, nbytes, bitmap, counts, device_stream));
    CHECK(memcmp(bitmap, wanted, (size_t)nbytes) == 0);
    CHECK(memcmp(counts, wanted_counts, (size_t)(8 * ncounts)) == 0);
    free(host);
    free(wanted);
    free(wanted_counts);
}

/* ----------------------------------------- Positions ------------------------------------------ */

/* With room for all and some more, or for less. */
static void test_positions(int i)
{
    draw_layout();
    int64_t nbytes = c.bitmap_nbytes, scratch_nbytes;
    uint8_t *host = draw_bitmap();
    int64_t *wanted = test_malloc(64 * nbytes), n = oracle_bitmap_positions(host, nbytes, wanted);
    int64_t capacity = n + (random_chance(50) ? 0 : random_below(20)) - random_below(n / 2 + 1);
    int64_t listed = n < capacity ? n : capacity;
    test_case("positions %d: %" PRId64 " of %" PRId64 " bytes, room for %" PRId64, i, n, nbytes,
              capacity);
    CHECK(s2_bitmap_positions(host, nbytes, wanted, n) == S2_OK);
    CHECK(s2_cuda_bitmap_scratch_nbytes(nbytes, &scratch_nbytes) == S2_OK);

    const uint8_t *bitmap = device_array(BITMAP, host, nbytes, 8);
    int64_t *positions = device_array(POSITIONS, NULL, 8 * capacity, 8);
    int64_t *count = device_array(COUNT_OF, NULL, 8, 8);
    void *scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(NULL, s2_cuda_bitmap_positions(bitmap, nbytes, positions, capacity, count, scratch,
                                             scratch_nbytes, device_stream));
    CHECK(*count == n);
    CHECK(memcmp(positions, wanted, (size_t)(8 * listed)) == 0);
    for (int64_t k = listed; k < capacity; k++)
        CHECK(positions[k] == 0x5c5c5c5c5c5c5c5c);

    /* And back, from as many as were listed. */
    uint8_t *back = device_array(OTHER, NULL, nbytes, 8);
    int is_full = n >= capacity && random_chance(50);
    CHECK(s2_bitmap_from_positions(wanted, listed, host, nbytes) == S2_OK);
    ON_DEVICE(NULL, s2_cuda_bitmap_from_positions(positions, capacity, is_full ? NULL : count, back,
                                                  nbytes, device_stream));
    CHECK(memcmp(back, host, (size_t)nbytes) == 0);
    free(host);
    free(wanted);
}

/* Three rounds of the one thread block that adds up the tiles of words. */
static void test_long_bitmap(void)
{
    int64_t nbytes = 8 * (256 * 512 + 1000), scratch_nbytes;
    uint8_t *host = test_malloc(nbytes);
    int64_t *wanted = test_malloc(64 * nbytes), n = 0;
    memset(host, 0, (size_t)nbytes);
    for (int64_t bit = random_below(900); bit < 8 * nbytes; bit += 1 + random_below(900)) {
        host[bit / 8] |= (uint8_t)(1 << bit % 8);
        wanted[n++] = bit;
    }
    test_case("a long bitmap");
    CHECK(s2_cuda_bitmap_scratch_nbytes(nbytes, &scratch_nbytes) == S2_OK);
    const uint8_t *bitmap = device_array(BITMAP, host, nbytes, 8);
    int64_t *positions = device_array(POSITIONS, NULL, 8 * n, 8);
    int64_t *count = device_array(COUNT_OF, NULL, 8, 8);
    void *scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(NULL, s2_cuda_bitmap_positions(bitmap, nbytes, positions, n, count, scratch,
                                             scratch_nbytes, device_stream));
    CHECK(*count == n && memcmp(positions, wanted, (size_t)(8 * n)) == 0);
    free(host);
    free(wanted);
}

int main(void)
{
    test_begin("test_cuda_bitmap");
    device_new();
    c = case_layout_new();
    for (int i = 0; i < 80; i++)
        test_from_nonzero(i);
    for (int i = 0; i < 20; i++)
        test_or_and_andnot(i);
    for (int i = 0; i < 60; i++)
        test_count(i);
    for (int i = 0; i < 40; i++)
        test_unite(i);
    for (int i = 0; i < 60; i++)
        test_positions(i);
    test_long_bitmap();
    case_layout_delete(&c);
    device_delete();
    return test_end();
}
