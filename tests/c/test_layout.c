/* SPDX-License-Identifier: MIT */
/* Which layouts are accepted, how large their bitmaps are, and that sizes near 2^63 do not wrap. */
#include "cases.h"
#include "oracle.h"
#include "test_util.h"

static void test_names(void)
{
    for (int status = -3; status < 100; status++) {
        const char *sentence = s2_status_string((s2_status)status);
        CHECK(sentence != NULL && sentence[0] != '\0');
        for (int other = S2_OK; other < status && status <= S2_CUDA_ERROR; other++)
            CHECK(strcmp(sentence, s2_status_string((s2_status)other)) != 0);
    }
    CHECK(s2_dtype_nbytes(S2_FLOAT32) == 4);
    CHECK(s2_dtype_nbytes(S2_FLOAT64) == 8);
    CHECK(s2_dtype_nbytes(S2_FLOAT16) == 2);
    CHECK(s2_dtype_nbytes(S2_BFLOAT16) == 2);
    CHECK(s2_dtype_nbytes((s2_dtype)4) == 0);
    CHECK(s2_dtype_nbytes((s2_dtype)-1) == 0);
    CHECK(s2_dtype_nbytes((s2_dtype)INT32_MAX) == 0);
}

static int64_t nblocks(int64_t numel, int64_t block)
{
    s2_segment segment = {0, numel, block, 0};
    return s2_segment_nblocks(&segment);
}

static void test_nblocks(void)
{
    for (int64_t block = 1; block <= 20; block++) {
        int64_t wanted = 0;
        for (int64_t numel = 0; numel <= 100; numel++) {
            wanted += numel % block == 1 || (block == 1 && numel > 0);
            test_case("numel %" PRId64 ", block %" PRId64, numel, block);
            CHECK(nblocks(numel, block) == wanted);
        }
    }
    CHECK(nblocks(INT64_MAX, 1) == INT64_MAX);
    CHECK(nblocks(INT64_MAX, 2) == INT64_C(1) << 62);
    CHECK(nblocks(INT64_MAX, INT64_MAX) == 1);
    CHECK(nblocks(INT64_MAX, INT64_MAX - 1) == 2);
    CHECK(nblocks(1, INT64_MAX) == 1);
    CHECK(nblocks(0, INT64_MAX) == 0);
}

/* The size of the bitmap, or a status as a negative number. */
static int64_t bitmap_nbytes(const s2_segment *segments, int64_t nsegments, int64_t numel)
{
    static const int64_t untouched = -77;
    s2_layout layout = {segments, nsegments, numel};
    int64_t nbytes = untouched;
    s2_status status = s2_layout_bitmap_nbytes(&layout, &nbytes);
    CHECK(status == S2_OK || nbytes == untouched);
    return status == S2_OK ? nbytes : -(int64_t)status;
}

static void test_example_of_the_header(void)
{
    s2_segment segments[2] = {{0, 6, 2, 0}, {6, 4, 3, 64}};
    CHECK(bitmap_nbytes(segments, 2, 10) == 16);
}

static void test_good_layouts(void)
{
    CHECK(bitmap_nbytes(NULL, 0, 0) == 0);
    CHECK(bitmap_nbytes(NULL, 0, 10) == 0);
    CHECK(bitmap_nbytes((s2_segment[]){{0, 0, 1, 0}}, 1, 0) == 0);
    CHECK(bitmap_nbytes((s2_segment[]){{5, 0, 1, 0}}, 1, 5) == 0);
    CHECK(bitmap_nbytes((s2_segment[]){{5, 0, 1, 640}}, 1, 5) == 80);
    CHECK(bitmap_nbytes((s2_segment[]){{0, 64, 1, 0}}, 1, 64) == 8);
    CHECK(bitmap_nbytes((s2_segment[]){{0, 65, 1, 0}}, 1, 65) == 16);
    CHECK(bitmap_nbytes((s2_segment[]){{3, 1, 7, 128}}, 1, 4) == 24);
    /* Empty segments take no place of their own. */
    s2_segment empty[4] = {{4, 0, 3, 64}, {4, 0, 3, 64}, {4, 2, 3, 64}, {6, 0, 3, 128}};
    CHECK(bitmap_nbytes(empty, 4, 6) == 16);

    case_layout c = case_layout_new();
    for (int i = 0; i < 5000; i++) {
        int64_t nbytes = -1;
        test_case("random layout %d", i);
        case_layout_random(&c, 1 << random_below(16));
        CHECK(s2_layout_bitmap_nbytes(&c.layout, &nbytes) == S2_OK);
        CHECK(nbytes == c.bitmap_nbytes);
    }
    case_layout_delete(&c);
}

static void test_bad_layouts(void)
{
    static const struct {
        const char *what;
        s2_segment segments[2];
        int64_t numel;
    } bad[] = {
        {"an offset below zero", {{-1, 4, 2, 0}, {4, 4, 2, 64}}, 8},
        {"a numel below zero", {{0, -4, 2, 0}, {4, 4, 2, 64}}, 8},
        {"a block of zero", {{0, 4, 0, 0}, {4, 4, 2, 64}}, 8},
        {"a block of zero in an empty segment", {{0, 0, 0, 0}, {4, 4, 2, 64}}, 8},
        {"a block below zero", {{0, 4, 2, 0}, {4, 4, -2, 64}}, 8},
        {"a first bit below zero", {{0, 4, 2, -64}, {4, 4, 2, 64}}, 8},
        {"a first bit within a word", {{0, 4, 2, 0}, {4, 4, 2, 65}}, 8},
        {"a first bit at a byte", {{0, 4, 2, 0}, {4, 4, 2, 72}}, 8},
        {"a first bit at half a word", {{0, 4, 2, 32}, {4, 4, 2, 64}}, 8},
        {"elements that overlap by one", {{0, 4, 2, 0}, {3, 4, 2, 64}}, 8},
        {"the same elements twice", {{0, 4, 2, 0}, {0, 4, 2, 64}}, 8},
        {"offsets that descend", {{4, 4, 2, 0}, {0, 4, 2, 64}}, 8},
        {"bits that overlap", {{0, 65, 1, 0}, {65, 4, 2, 64}}, 69},
        {"the same bits twice", {{0, 4, 2, 0}, {4, 4, 2, 0}}, 8},
        {"bits that descend", {{0, 4, 2, 64}, {4, 4, 2, 0}}, 8},
        {"an end behind the bucket's", {{0, 4, 2, 0}, {4, 5, 2, 64}}, 8},
        {"a segment behind the bucket", {{0, 4, 2, 0}, {9, 0, 2, 64}}, 8},
        {"an end above 2^63", {{0, 4, 2, 0}, {INT64_MAX, 2, 2, 64}}, S2_MAX_NUMEL},
        {"an end above 2^63, of a large one", {{0, 4, 2, 0}, {4, INT64_MAX, 2, 64}}, S2_MAX_NUMEL},
        {"bits above 2^63", {{0, 4, 2, 0}, {4, 4, 1, INT64_MAX - 63}}, 8},
        {"an end of bits above 2^63",
         {{0, 4, 2, 0}, {4, S2_MAX_NUMEL - 4, 1, INT64_MAX - 127}},
         S2_MAX_NUMEL},
        {"an end of bits that rounds to 2^63",
         {{0, 0, 2, 0}, {0, S2_MAX_NUMEL, 1, INT64_MAX - S2_MAX_NUMEL}},
         S2_MAX_NUMEL},
    };
    for (int64_t i = 0; i < COUNT(bad); i++) {
        test_case("%s", bad[i].what);
        CHECK(bitmap_nbytes(bad[i].segments, 2, bad[i].numel) == -(int64_t)S2_BAD_LAYOUT);
    }
}

static void test_large_layouts(void)
{
    static const s2_segment one[1] = {{0, S2_MAX_NUMEL, INT64_MAX, 0}};
    static const s2_segment two[2] = {{0, S2_MAX_NUMEL - 1, 128, 0},
                                      {S2_MAX_NUMEL - 1, 1, INT64_MAX, INT64_C(1) << 53}};
    static const s2_segment far[1] = {{0, 64, 1, INT64_MAX - 127}};
    CHECK(bitmap_nbytes(one, 1, S2_MAX_NUMEL) == 8);
    CHECK(bitmap_nbytes(two, 2, S2_MAX_NUMEL) == (INT64_C(1) << 50) + 8);
    CHECK(bitmap_nbytes(far, 1, 64) == (INT64_MAX - 63) / 8);
    CHECK(bitmap_nbytes(NULL, 0, S2_MAX_NUMEL + 1) == -(int64_t)S2_BAD_SIZE);
    CHECK(bitmap_nbytes(NULL, 0, INT64_MAX) == -(int64_t)S2_BAD_SIZE);
}

int main(void)
{
    test_begin("test_layout");
    test_names();
    test_nblocks();
    test_example_of_the_header();
    test_good_layouts();
    test_bad_layouts();
    test_large_layouts();
    return test_end();
}
