/* SPDX-License-Identifier: MIT */
/* That sums of ranks' blocks have the bits of the C core, of few ranks and of many. */
#include "device.h"
#include "oracle.h"

enum { LAYOUT, PACKED, POSITIONS, COUNTS, RUNS, SUMS, LOST, SCRATCH };
enum { MAX_RANKS = 70, MAX_NUMEL = 1 << 11 };

static const double divisors[] = {1, 2, 3, 0.7, 256, 5};

/* What the ranks of a case have: their positions and elements, one rank's behind the other's. */
static case_layout c;
static s2_packed ranks[MAX_RANKS];
static int64_t nranks, npositions[MAX_RANKS], npositions_of_all, numel_of_all;
static int64_t *positions;
static uint8_t *packed;
static s2_dtype dtype;
static double divisor;

/* ------------------------------------------- Cases -------------------------------------------- */

static void draw_layout(void)
{
    if (random_chance(40)) {
        int64_t block = block_lengths[random_below(nblock_lengths)];
        int64_t nblocks = 1 + random_below(1 + MAX_NUMEL / block);
        case_layout_single(&c, block, block * nblocks - random_below(block), random_below(70));
    } else {
        case_layout_random(&c, (int64_t)1 << random_below(11));
    }
}

/* Any elements, of which many have one size, so that sums are rounded. */
static void draw_elements(uint8_t *elements, int64_t numel)
{
    (random_chance(20) ? case_any : case_finite)(dtype, elements, numel);
    for (int64_t i = 0; i < numel; i++) {
        double value = (double)random_below(2000) / 7 - 140;
        if (random_chance(60)) element_set(elements, dtype, i, element_round(dtype, value));
    }
}

static void draw_rank(int64_t rank, int percent)
{
    uint8_t *bitmap = test_malloc(c.bitmap_nbytes);
    int64_t *list = positions + npositions_of_all, numel;
    uint8_t *elements = packed + numel_of_all * dtype_size(dtype);
    case_bitmap(&c.layout, random_chance(20) ? 100 : percent, bitmap, c.bitmap_nbytes);
    npositions[rank] = oracle_bitmap_positions(bitmap, c.bitmap_nbytes, list);
    CHECK(s2_blocks_packed_numel(&c.layout, list, npositions[rank], &numel) == S2_OK);
    draw_elements(elements, numel);
    ranks[rank] = (s2_packed){elements, numel, list, npositions[rank]};
    npositions_of_all += npositions[rank];
    numel_of_all += numel;
    free(bitmap);
}

static void draw_case(int i)
{
    static const int percents[] = {0, 3, 30, 100};
    int64_t padded = 0;
    draw_layout();
    dtype = all_dtypes[i % 4];
    divisor = divisors[random_below(COUNT(divisors))];
    npositions_of_all = numel_of_all = 0;
    for (int64_t s = 0; s < c.layout.nsegments; s++)
        padded += s2_segment_nblocks(&c.layout.segments[s]) * c.layout.segments[s].block;
    /* Now and then more than a launch takes, where there is room for them. */
    const int has_room = padded * 8 * MAX_RANKS <= DEVICE_NBYTES;
    nranks =
        1 + (has_room && random_chance(30) ? 30 + random_below(MAX_RANKS - 30) : random_below(5));
    positions = test_malloc(8 * nranks * c.nblocks);
    packed = test_malloc(nranks * padded * dtype_size(dtype));
    for (int64_t rank = 0; rank < nranks; rank++)
        draw_rank(rank, percents[i / 4 % 4]);
}

/* -------------------------------------------- Sums -------------------------------------------- */

/* The ranks on the device, with the runs that are made of their positions. */
static void place_ranks(const s2_cuda_layout *layout, s2_cuda_packed *placed)
{
    const int64_t width = dtype_size(dtype), nruns = c.layout.nsegments + 1;
    int64_t *list = device_array(POSITIONS, positions, 8 * npositions_of_all, 8);
    const uint8_t *elements = device_array(PACKED, packed, width * numel_of_all, width);
    const int64_t *counts = device_array(COUNTS, npositions, 8 * nranks, 8);
    s2_cuda_run *runs = device_array(RUNS, NULL, 16 * nruns * nranks, 8);
    int64_t room = npositions_of_all;
    for (int64_t r = 0; r < nranks; r++) {
        const int is_full = random_chance(50);
        const int64_t capacity = is_full ? npositions[r] : room;
        ON_DEVICE(&c, s2_cuda_blocks_runs(layout, list, capacity, is_full ? NULL : &counts[r], runs,
                                          device_stream));
        placed[r] = (s2_cuda_packed){elements, ranks[r].numel, list, capacity, runs};
        list += npositions[r];
        room -= npositions[r];
        elements += width * ranks[r].numel;
        runs += nruns;
    }
}

static void check_sums(const void *old, const float *old_lost)
{
    const int64_t numel = c.layout.numel, width = dtype_size(dtype);
    s2_cuda_packed placed[MAX_RANKS];
    void *wanted = test_malloc(width * numel);
    float *wanted_lost = old_lost == NULL ? NULL : test_malloc(4 * numel);
    int64_t scratch_nbytes;
    memcpy(wanted, old, (size_t)(width * numel));
    if (old_lost != NULL) memcpy(wanted_lost, old_lost, (size_t)(4 * numel));
    CHECK(s2_blocks_sum(&c.layout, ranks, nranks, dtype, divisor, wanted, wanted_lost, NULL) ==
          S2_OK);

    const s2_cuda_layout layout = device_layout(&c);
    place_ranks(&layout, placed);
    CHECK(s2_cuda_blocks_sum_scratch_nbytes(numel, nranks, &scratch_nbytes) == S2_OK);
    void *sums = device_array(SUMS, old, width * numel, width);
    float *lost = old_lost == NULL ? NULL : device_array(LOST, old_lost, 4 * numel, 4);
    void *scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(&c, s2_cuda_blocks_sum(&layout, placed, nranks, dtype, divisor, sums, lost, scratch,
                                     scratch_nbytes, device_stream));
    check_elements(dtype, sums, wanted, numel, 1);
    if (lost != NULL) check_elements(S2_FLOAT32, lost, wanted_lost, numel, 1);
    free(wanted);
    free(wanted_lost);
}

static void test_sums(int i)
{
    draw_case(i);
    test_case("sums %d: %s by %g, %" PRId64 " ranks, %" PRId64 " segments", i, dtype_name(dtype),
              divisor, nranks, c.layout.nsegments);
    void *old = test_malloc(dtype_size(dtype) * c.layout.numel);
    float *old_lost = test_malloc(4 * c.layout.numel);
    case_finite(dtype, old, c.layout.numel);
    case_finite(S2_FLOAT32, old_lost, c.layout.numel);
    check_sums(old, NULL);
    check_sums(old, old_lost);
    free(old);
    free(old_lost);
    free(positions);
    free(packed);
}

/* -------------------------------------- What has no place ------------------------------------- */

/* Elements without room, and positions that name nothing: no harm is done. */
static void test_no_place(int i)
{
    draw_case(i);
    s2_cuda_packed placed[MAX_RANKS];
    test_case("no place %d: %s, %" PRId64 " ranks", i, dtype_name(dtype), nranks);
    for (int64_t k = 0; k < npositions_of_all && NONSENSE; k++) {
        if (random_chance(50))
            positions[k] = random_chance(50) ? (int64_t)random_bits() : random_below(300) - 9;
    }
    for (int64_t r = 0; r < nranks; r++)
        ranks[r].numel = random_below(ranks[r].numel + 1);
    const s2_cuda_layout layout = device_layout(&c);
    place_ranks(&layout, placed);
    int64_t scratch_nbytes, nbytes = dtype_size(dtype) * c.layout.numel;
    CHECK(s2_cuda_blocks_sum_scratch_nbytes(c.layout.numel, nranks, &scratch_nbytes) == S2_OK);
    void *sums = device_array(SUMS, NULL, nbytes, dtype_size(dtype));
    void *scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(&c, s2_cuda_blocks_sum(&layout, placed, nranks, dtype, divisor, sums, NULL, scratch,
                                     scratch_nbytes, device_stream));
    free(positions);
    free(packed);
}

/* ------------------------------------------ Refusals ------------------------------------------ */

/* Nothing is launched: the stream is none. */
#define REFUSES(status, call)                                                                      \
    do {                                                                                           \
        test_case("%s", #call);                                                                    \
        CHECK((call) == (status));                                                                 \
    } while (0)

static void test_bad_arguments(void)
{
    static const s2_segment segments[1] = {{0, 10, 4, 0}};
    const s2_layout host = {segments, 1, 10};
    const s2_cuda_layout layout = {&host, segments};
    const int64_t list[3] = {0, 1, 2};
    const s2_cuda_run runs[2] = {{0, 0}, {3, 12}};
    float values[12], sums[10], lost[10], *odd = (float *)(void *)((char *)lost + 1);
    int64_t nbytes;
    s2_cuda_packed rank[1] = {{values, 12, list, 3, runs}};
#define SUM(rank, n, dtype, divisor, sums, lost, scratch_nbytes)                                   \
    s2_cuda_blocks_sum(&layout, rank, n, dtype, divisor, sums, lost, NULL, scratch_nbytes, NULL)
    REFUSES(S2_BAD_SIZE, SUM(rank, 0, S2_FLOAT32, 1, sums, lost, 0));
    REFUSES(S2_BAD_SIZE, SUM(rank, S2_MAX_RANKS + 1, S2_FLOAT32, 1, sums, lost, 0));
    REFUSES(S2_BAD_SIZE, SUM(rank, 1, S2_FLOAT32, 1, sums, lost, 8));
    REFUSES(S2_BAD_DTYPE, SUM(rank, 1, (s2_dtype)4, 1, sums, lost, 0));
    for (int i = 0; i < 4; i++) {
        REFUSES(S2_BAD_DIVISOR, SUM(rank, 1, all_dtypes[i], 0, sums, lost, 0));
        REFUSES(S2_BAD_DIVISOR, SUM(rank, 1, all_dtypes[i], -1, sums, lost, 0));
    }
    REFUSES(S2_BAD_DIVISOR, SUM(rank, 1, S2_FLOAT16, 1e-60, sums, lost, 0));
    REFUSES(S2_NULL_POINTER, SUM(NULL, 1, S2_FLOAT32, 1, sums, lost, 0));
    REFUSES(S2_NULL_POINTER, SUM(rank, 1, S2_FLOAT32, 1, NULL, lost, 0));
    REFUSES(S2_BAD_ADDRESS, SUM(rank, 1, S2_FLOAT32, 1, odd, NULL, 0));
    REFUSES(S2_BAD_ADDRESS, SUM(rank, 1, S2_FLOAT32, 1, sums, odd, 0));
    static const s2_status wanted[] = {S2_NULL_POINTER, S2_BAD_SIZE,     S2_NULL_POINTER,
                                       S2_BAD_SIZE,     S2_NULL_POINTER, S2_BAD_ADDRESS};
    const s2_cuda_packed bad[] = {{NULL, 12, list, 3, runs},   {values, -1, list, 3, runs},
                                  {values, 12, NULL, 3, runs}, {values, 12, list, -1, runs},
                                  {values, 12, list, 3, NULL}, {odd, 8, list, 3, runs}};
    for (int i = 0; i < COUNT(bad); i++) {
        rank[0] = bad[i];
        REFUSES(wanted[i], SUM(rank, 1, S2_FLOAT32, 1, sums, NULL, 0));
    }
#undef SUM
    REFUSES(S2_BAD_SIZE, s2_cuda_blocks_sum_scratch_nbytes(10, 0, &nbytes));
    REFUSES(S2_OK, s2_cuda_blocks_sum_scratch_nbytes(10, 32, &nbytes));
    CHECK(nbytes == 0);
    REFUSES(S2_OK, s2_cuda_blocks_sum_scratch_nbytes(10, 33, &nbytes));
    CHECK(nbytes == 80);
}

int main(void)
{
    test_begin("test_cuda_sums");
    device_new();
    c = case_layout_new();
    for (int i = 0; i < 40; i++)
        test_sums(i);
    for (int i = 0; i < 12; i++)
        test_no_place(i);
    case_layout_delete(&c);
    test_bad_arguments();
    device_delete();
    return test_end();
}
