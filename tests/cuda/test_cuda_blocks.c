/* SPDX-License-Identifier: MIT */
/* That the kernels move blocks as the C core does, bit for bit, and touch nothing else. */
#include "device.h"
#include "oracle.h"

enum { LAYOUT, VALUES, PACKED, POSITIONS, COUNT_OF, RUNS, BITMAP };
enum { MAX_NUMEL = 1 << 13 };

static case_layout c;
static int64_t *positions, npositions, packed_numel; /* of the case */

/* ------------------------------------------- Cases -------------------------------------------- */

/* Which blocks of the layout are live. */
static void draw_positions(void)
{
    static const int percents[] = {0, 2, 20, 50, 100};
    uint8_t *bitmap = test_malloc(c.bitmap_nbytes);
    case_bitmap(&c.layout, percents[random_below(COUNT(percents))], bitmap, c.bitmap_nbytes);
    free(positions);
    positions = test_malloc(64 * c.bitmap_nbytes);
    npositions = oracle_bitmap_positions(bitmap, c.bitmap_nbytes, positions);
    CHECK(s2_blocks_packed_numel(&c.layout, positions, npositions, &packed_numel) == S2_OK);
    free(bitmap);
}

static void draw_case(void)
{
    if (random_chance(40)) {
        int64_t block = block_lengths[random_below(nblock_lengths)];
        int64_t nblocks = 1 + random_below(1 + MAX_NUMEL / block);
        case_layout_single(&c, block, block * nblocks - random_below(block), random_below(70));
    } else {
        case_layout_random(&c, (int64_t)1 << random_below(13));
    }
    draw_positions();
}

static void name_case(const char *verb, int i, s2_dtype from, s2_dtype to, double divisor)
{
    test_case("%s %d: %s to %s by %g, %" PRId64 " blocks in %" PRId64 " segments", verb, i,
              dtype_name(from), dtype_name(to), divisor, npositions, c.layout.nsegments);
}

/* What all calls take, on the device. */
typedef struct call {
    s2_cuda_layout layout;
    const int64_t *positions;
    int64_t capacity;
    s2_cuda_run *runs;
} call;

/* The list of the case with room for more, and the runs that were made of it. */
static call call_new(void)
{
    call made = {device_layout(&c), NULL, npositions + (random_chance(50) ? 0 : random_below(9)),
                 NULL};
    int64_t *list = device_array(POSITIONS, NULL, 8 * made.capacity, 8);
    const int64_t *count = device_array(COUNT_OF, &npositions, 8, 8);
    if (npositions > 0) memcpy(list, positions, (size_t)(8 * npositions));
    made.positions = list;
    made.runs = device_array(RUNS, NULL, 16 * (c.layout.nsegments + 1), 8);
    if (made.capacity == npositions && random_chance(50)) count = NULL;
    ON_DEVICE(&c, s2_cuda_blocks_runs(&made.layout, list, made.capacity, count, made.runs,
                                      device_stream));
    return made;
}

static void *random_values(s2_dtype dtype, int64_t numel)
{
    void *values = test_malloc(numel * dtype_size(dtype));
    case_any(dtype, values, numel);
    return values;
}

static const double divisors[] = {1, 2, 3, 8, 0.75, 1024};

/* ------------------------------------------- Runs --------------------------------------------- */

static void check_runs(int i)
{
    name_case("runs", i, S2_FLOAT32, S2_FLOAT32, 1);
    call at = call_new();
    int64_t first = 0, packed = 0;
    for (int64_t s = 0; s < c.layout.nsegments; s++) {
        const s2_segment *segment = &c.layout.segments[s];
        CHECK(at.runs[s].first == first && at.runs[s].packed == packed);
        int64_t end = segment->first_bit + s2_segment_nblocks(segment);
        for (; first < npositions && positions[first] < end; first++)
            packed += segment->block;
    }
    CHECK(at.runs[c.layout.nsegments].first == npositions);
    CHECK(at.runs[c.layout.nsegments].packed == packed_numel && packed == packed_numel);
}

/* The one thread block that makes runs goes round several times. */
static void test_many_segments(void)
{
    c = many_segments_new();
    for (int i = 0; i < 5; i++) {
        draw_positions();
        check_runs(i);
    }
    case_layout_delete(&c);
}

/* ------------------------------------------- Moves -------------------------------------------- */

static void test_gather(int i, s2_dtype from, s2_dtype to, double divisor)
{
    draw_case();
    name_case("gather", i, from, to, divisor);
    int64_t size = c.layout.numel * dtype_size(from);
    void *host = random_values(from, c.layout.numel);
    void *wanted = test_malloc(packed_numel * dtype_size(to));
    CHECK(s2_blocks_gather(&c.layout, host, from, positions, npositions, wanted, to, packed_numel,
                           divisor, NULL) == S2_OK);
    call at = call_new();
    const void *values = device_array(VALUES, host, size, dtype_size(from));
    void *packed = device_array(PACKED, NULL, packed_numel * dtype_size(to), dtype_size(to));
    ON_DEVICE(&c, s2_cuda_blocks_gather(&at.layout, values, from, at.positions, at.capacity,
                                        at.runs, packed, to, packed_numel, divisor, device_stream));
    check_elements(to, packed, wanted, packed_numel, from != to || divisor != 1);
    CHECK(memcmp(values, host, (size_t)size) == 0);
    free(host);
    free(wanted);
}

static void test_scatter(int i, s2_dtype from, s2_dtype to, double divisor)
{
    draw_case();
    name_case("scatter", i, from, to, divisor);
    int64_t size = c.layout.numel * dtype_size(to);
    void *host = random_values(from, packed_numel), *wanted = random_values(to, c.layout.numel);
    call at = call_new();
    const void *packed =
        device_array(PACKED, host, packed_numel * dtype_size(from), dtype_size(from));
    void *values = device_array(VALUES, wanted, size, dtype_size(to));
    CHECK(s2_blocks_scatter(&c.layout, host, from, packed_numel, positions, npositions, wanted, to,
                            divisor, NULL) == S2_OK);
    ON_DEVICE(&c, s2_cuda_blocks_scatter(&at.layout, packed, from, packed_numel, at.positions,
                                         at.capacity, at.runs, values, to, divisor, device_stream));
    check_elements(to, values, wanted, c.layout.numel, from != to || divisor != 1);
    free(host);
    free(wanted);
}

static void test_add(int i, s2_dtype from, s2_dtype to)
{
    draw_case();
    name_case("add", i, from, to, 1);
    int64_t size = c.layout.numel * dtype_size(to);
    void *host = random_values(from, packed_numel), *wanted = random_values(to, c.layout.numel);
    call at = call_new();
    const void *packed =
        device_array(PACKED, host, packed_numel * dtype_size(from), dtype_size(from));
    void *sums = device_array(VALUES, wanted, size, dtype_size(to));
    CHECK(s2_blocks_add(&c.layout, host, from, packed_numel, positions, npositions, wanted, to,
                        NULL) == S2_OK);
    ON_DEVICE(&c, s2_cuda_blocks_add(&at.layout, packed, from, packed_numel, at.positions,
                                     at.capacity, at.runs, sums, to, device_stream));
    check_elements(to, sums, wanted, c.layout.numel, 1);
    free(host);
    free(wanted);
}

static void test_moves(void)
{
    for (int i = 0; i < 160; i++) {
        s2_dtype from = all_dtypes[i % 4], to = all_dtypes[i / 4 % 4];
        double divisor = random_chance(40) ? 1 : divisors[random_below(COUNT(divisors))];
        if (oracle_converts(from, to, divisor)) {
            test_gather(i, from, to, divisor);
            test_scatter(i, from, to, divisor);
        }
        if (oracle_adds(from, to)) test_add(i, from, to);
    }
}

/* -------------------------------------- What has no place ------------------------------------- */

/* Blocks without room, positions that name nothing, and nothing at all: no harm is done. */
static void test_no_place(int i)
{
    draw_case();
    if (npositions == 0) return;
    float *host = random_values(S2_FLOAT32, c.layout.numel);
    int64_t room = random_below(packed_numel + 1);
    float *wanted = test_malloc(4 * packed_numel);
    CHECK(s2_blocks_gather(&c.layout, host, S2_FLOAT32, positions, npositions, wanted, S2_FLOAT32,
                           packed_numel, 1, NULL) == S2_OK);
    for (int bad = 0; bad <= NONSENSE; bad++) {
        test_case("no place %d: room for %" PRId64 " of %" PRId64, i, room, packed_numel);
        if (bad) {
            for (int64_t k = 0; k < npositions; k++) /* anything, in any order */
                positions[k] = random_chance(50) ? (int64_t)random_bits() : random_below(300) - 9;
        }
        call at = call_new();
        const float *values = device_array(VALUES, host, 4 * c.layout.numel, 4);
        float *packed = device_array(PACKED, NULL, 4 * room, 4);
        ON_DEVICE(&c,
                  s2_cuda_blocks_gather(&at.layout, values, S2_FLOAT32, at.positions, at.capacity,
                                        at.runs, packed, S2_FLOAT32, room, 1, device_stream));
        for (int64_t e = 0; e < room && !bad; e++)
            CHECK(memcmp(&packed[e], &wanted[e], 4) == 0 ||
                  memcmp(&packed[e], "\x5c\x5c\x5c\x5c", 4) == 0);
    }
    free(host);
    free(wanted);
}

/* ---------------------------------------- Dead blocks ----------------------------------------- */

static void test_clear_dead(int i)
{
    s2_dtype dtype = all_dtypes[i % 4];
    draw_case();
    int64_t nbytes = c.bitmap_nbytes, size = c.layout.numel * dtype_size(dtype);
    uint8_t *host = test_malloc(nbytes);
    void *wanted = random_values(dtype, c.layout.numel);
    CHECK(s2_bitmap_from_positions(positions, npositions, host, nbytes) == S2_OK);
    name_case("clear", i, dtype, dtype, 1);
    s2_cuda_layout layout = device_layout(&c);
    const uint8_t *bitmap = device_array(BITMAP, host, nbytes, 8);
    void *values = device_array(VALUES, wanted, size, dtype_size(dtype));
    CHECK(s2_blocks_clear_dead(&c.layout, host, nbytes, wanted, dtype, NULL) == S2_OK);
    ON_DEVICE(&c, s2_cuda_blocks_clear_dead(&layout, bitmap, nbytes, values, dtype, device_stream));
    CHECK(memcmp(values, wanted, (size_t)size) == 0);
    free(host);
    free(wanted);
}

int main(void)
{
    test_begin("test_cuda_blocks");
    device_new();
    c = case_layout_new();
    for (int i = 0; i < 40; i++) {
        draw_case();
        check_runs(i);
    }
    test_moves();
    for (int i = 0; i < 40; i++)
        test_no_place(i);
    for (int i = 0; i < 40; i++)
        test_clear_dead(i);
    case_layout_delete(&c);
    test_many_segments();
    free(positions);
    device_delete();
    return test_end();
}
