/* SPDX-License-Identifier: MIT */
/* That kernels can be chosen, and that the choice shows in no bit of any result. */
#include "cases.h"
#include "oracle.h"
#include "test_util.h"

enum { NUMEL = 20000, PACKED = 4 * NUMEL };

/* ------------------------------------------ Choice -------------------------------------------- */

static void test_names(void)
{
    CHECK(strcmp(s2_variant_name(S2_PORTABLE), "portable") == 0);
    CHECK(strcmp(s2_variant_name(S2_AVX2), "avx2") == 0);
    CHECK(strcmp(s2_variant_name(S2_AVX512), "avx512") == 0);
    CHECK(s2_variant_name((s2_variant)3) == NULL);
    CHECK(s2_variant_name((s2_variant)-1) == NULL);
    CHECK(s2_variant_name((s2_variant)INT32_MAX) == NULL);
}

static void test_choice(void)
{
    s2_variant best = s2_variant_best();
    CHECK(s2_variant_name(best) != NULL);
    for (int v = -2; v < 8; v++) {
        s2_variant before = s2_variant_current();
        int exists = v >= S2_PORTABLE && v <= (int)best;
        test_case("variant %d", v);
        CHECK(s2_variant_force((s2_variant)v) == (exists ? S2_OK : S2_BAD_VARIANT));
        CHECK(s2_variant_current() == (exists ? (s2_variant)v : before));
        CHECK(s2_variant_best() == best);
    }
    CHECK(s2_variant_force((s2_variant)INT32_MAX) == S2_BAD_VARIANT);
    CHECK(s2_variant_force(best) == S2_OK);
}

/* ------------------------------------------ Results ------------------------------------------- */

/* All that one pass over a bucket computes. */
typedef struct results {
    uint8_t bitmap[NUMEL / 8 + 64 * CASE_SEGMENTS];
    int64_t negative_zeros;
    int64_t counts[CASE_SEGMENTS];
    int64_t positions[NUMEL];
    int64_t npositions;
    int64_t packed_numel;
    uint64_t packed[PACKED];
    uint64_t sums[NUMEL];
    uint64_t scattered[NUMEL];
    uint64_t cleared[NUMEL];
} results;

/* The wider type that a dtype is added up in. */
static s2_dtype sum_dtype(s2_dtype dtype) { return dtype == S2_FLOAT64 ? S2_FLOAT64 : S2_FLOAT32; }

static void compute(const case_layout *c, s2_dtype dtype, const void *values, results *r)
{
    const s2_layout *layout = &c->layout;
    s2_dtype sum = sum_dtype(dtype);
    memset(r, 0, sizeof(*r));
    CHECK(s2_bitmap_from_nonzero(layout, values, dtype, r->bitmap, c->bitmap_nbytes,
                                 &r->negative_zeros, NULL) == S2_OK);
    CHECK(s2_bitmap_count(layout, r->bitmap, c->bitmap_nbytes, r->counts) == S2_OK);
    for (int64_t s = 0; s < layout->nsegments; s++)
        r->npositions += r->counts[s];
    CHECK(s2_bitmap_positions(r->bitmap, c->bitmap_nbytes, r->positions, r->npositions) == S2_OK);
    CHECK(s2_blocks_packed_numel(layout, r->positions, r->npositions, &r->packed_numel) == S2_OK);
    if (r->packed_numel > PACKED) return;
    CHECK(s2_blocks_gather(layout, values, dtype, r->positions, r->npositions, r->packed, dtype,
                           r->packed_numel, 1, NULL) == S2_OK);
    CHECK(s2_values_convert(values, dtype, r->sums, sum, layout->numel, 5, NULL) == S2_OK);
    CHECK(s2_blocks_add(layout, r->packed, dtype, r->packed_numel, r->positions, r->npositions,
                        r->sums, sum, NULL) == S2_OK);
    CHECK(s2_blocks_scatter(layout, r->packed, dtype, r->packed_numel, r->positions, r->npositions,
                            r->scattered, sum, 3, NULL) == S2_OK);
    memcpy(r->cleared, values, (size_t)(layout->numel * dtype_size(dtype)));
    CHECK(s2_blocks_clear_dead(layout, r->bitmap, c->bitmap_nbytes, r->cleared, dtype, NULL) ==
          S2_OK);
}

static void compare(const case_layout *c, s2_dtype dtype, const results *a, const results *b)
{
    s2_dtype sum = sum_dtype(dtype);
    CHECK(memcmp(a->bitmap, b->bitmap, sizeof(a->bitmap)) == 0);
    CHECK(a->negative_zeros == b->negative_zeros);
    CHECK(memcmp(a->counts, b->counts, sizeof(a->counts)) == 0);
    CHECK(a->npositions == b->npositions && a->packed_numel == b->packed_numel);
    CHECK(memcmp(a->positions, b->positions, sizeof(a->positions)) == 0);
    CHECK(memcmp(a->packed, b->packed, sizeof(a->packed)) == 0);
    check_elements(sum, a->sums, b->sums, c->layout.numel, 1);
    check_elements(sum, a->scattered, b->scattered, c->layout.numel, 1);
    CHECK(memcmp(a->cleared, b->cleared, sizeof(a->cleared)) == 0);
}

static void test_results(void)
{
    case_layout c = case_layout_new();
    void *values = test_malloc(NUMEL * 8);
    results *first = test_malloc(sizeof(results)), *other = test_malloc(sizeof(results));
    for (int i = 0; i < 200; i++) {
        s2_dtype dtype = all_dtypes[i % 4];
        do
            case_layout_random(&c, NUMEL / 2);
        while (c.layout.numel > NUMEL);
        case_values(&c.layout, dtype, values);
        test_case("random layout %d, %s", i, dtype_name(dtype));
        for (int v = 0; variant_use(v); v++) {
            compute(&c, dtype, values, v == 0 ? first : other);
            if (v > 0) compare(&c, dtype, other, first);
        }
    }
    free(values);
    free(first);
    free(other);
    case_layout_delete(&c);
}

int main(void)
{
    test_begin("test_variants");
    test_names();
    test_choice();
    test_results();
    return test_end();
}
