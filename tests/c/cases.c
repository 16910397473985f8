/* SPDX-License-Identifier: MIT */
#include "cases.h"

#include "oracle.h"

const int64_t block_lengths[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,  12,  13,  14,  15,
                                 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,  27,  28,  29,  30,
                                 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41,  42,  43,  44,  45,
                                 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56,  57,  58,  59,  60,
                                 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 100, 128, 512, 513, 8192};
const int64_t nblock_lengths = COUNT(block_lengths);

/* ----------------------------------------- Layouts -------------------------------------------- */

case_layout case_layout_new(void)
{
    case_layout c;
    memset(&c, 0, sizeof(c));
    c.memory = guarded_new(CASE_SEGMENTS * (int64_t)sizeof(s2_segment));
    return c;
}

void case_layout_delete(case_layout *c) { guarded_delete(&c->memory); }

static void case_layout_set(case_layout *c, const s2_segment *segments, int64_t nsegments,
                            int64_t numel)
{
    placement back = {1, 0};
    c->layout.segments =
        guarded_copy(&c->memory, segments, nsegments * (int64_t)sizeof(s2_segment), back);
    c->layout.nsegments = nsegments;
    c->layout.numel = numel;
    c->bitmap_nbytes = oracle_bitmap_nbytes(&c->layout);
    c->nblocks = 0;
    for (int64_t s = 0; s < nsegments; s++)
        c->nblocks += (segments[s].numel + segments[s].block - 1) / segments[s].block;
}

void case_layout_single(case_layout *c, int64_t block, int64_t numel, int64_t gap)
{
    s2_segment segment = {gap, numel, block, 0};
    case_layout_set(c, &segment, 1, numel + 2 * gap);
}

static int64_t random_numel(int64_t block, int64_t max_numel)
{
    int64_t numel;
    switch (random_below(8)) {
    case 0:
        numel = random_below(3) - 1 + block;
        break;
    case 1:
        numel = 0;
        break;
    case 2:
        numel = 1;
        break;
    case 3:
        numel = block * (63 + random_below(3));
        break;
    default:
        numel = random_below(max_numel + 1);
    }
    return numel <= max_numel ? numel : random_below(max_numel + 1);
}

void case_layout_random(case_layout *c, int64_t max_numel)
{
    s2_segment segments[CASE_SEGMENTS];
    int64_t nsegments = random_below(CASE_SEGMENTS + 1);
    int64_t offset = 0, bit = 0;
    for (int64_t s = 0; s < nsegments; s++) {
        int64_t block = block_lengths[random_below(nblock_lengths)];
        int64_t numel = random_numel(block, max_numel / CASE_SEGMENTS);
        offset += random_chance(50) ? 0 : random_below(70);
        bit += random_chance(50) ? 0 : 64 * random_below(4);
        segments[s] = (s2_segment){offset, numel, block, bit};
        offset += numel;
        bit += (numel + block - 1) / block;
        bit = (bit + 63) / 64 * 64;
    }
    case_layout_set(c, segments, nsegments, offset + (random_chance(50) ? 0 : random_below(70)));
}

/* ------------------------------------------ Values -------------------------------------------- */

/* Any pattern that is neither a zero nor a NaN. */
static uint64_t random_nonzero(s2_dtype dtype)
{
    for (;;) {
        uint64_t bits = random_bits() >> (64 - 8 * dtype_size(dtype));
        if (!element_is_zero(dtype, bits) && !element_is_nan(dtype, bits)) return bits;
    }
}

static uint64_t random_zero(s2_dtype dtype) { return random_chance(50) ? 0 : element_sign(dtype); }

static uint64_t random_sign(s2_dtype dtype) { return random_zero(dtype); }

static uint64_t infinity(s2_dtype dtype) { return element_round(dtype, 1.0 / 0.0); }

/* The smallest subnormal, and subnormals of any size. */
static uint64_t random_subnormal(s2_dtype dtype)
{
    uint64_t exponent_bits = infinity(dtype);
    uint64_t lowest_normal = exponent_bits & (~exponent_bits + 1);
    return random_chance(50) ? 1 : 1 + random_bits() % (lowest_normal - 1);
}

/* Quiet and signalling ones, of both signs. */
static uint64_t random_nan(s2_dtype dtype)
{
    for (;;) {
        uint64_t bits = random_bits() >> (64 - 8 * dtype_size(dtype));
        bits |= infinity(dtype);
        if (random_chance(30)) bits = random_sign(dtype) | infinity(dtype) | 1;
        if (element_is_nan(dtype, bits)) return bits;
    }
}

static uint64_t random_single_bit(s2_dtype dtype)
{
    return (uint64_t)1 << random_below(8 * dtype_size(dtype) - 1);
}

static void fill_block(s2_dtype dtype, void *values, int64_t begin, int64_t numel)
{
    int64_t last = begin + numel - 1, any = begin + random_below(numel);
    int64_t kind = random_below(12);
    int zeros_of_both_signs = random_chance(50);
    for (int64_t i = begin; i <= last; i++) {
        uint64_t bits = zeros_of_both_signs && kind != 0 ? random_zero(dtype) : 0;
        if (kind == 2) bits = element_sign(dtype);
        if (kind == 3) bits = random_nonzero(dtype);
        element_set(values, dtype, i, bits);
    }
    switch (kind) {
    case 0: /* dead, of +0.0 */
    case 2: /* dead, of -0.0 */
    case 3: /* live all over */
    case 4: /* dead, of both */
        break;
    case 1: /* dead, perhaps by a single -0.0 */
        element_set(values, dtype, any, element_sign(dtype));
        break;
    case 5:
        element_set(values, dtype, last, random_nonzero(dtype));
        break;
    case 6:
        element_set(values, dtype, begin, random_nonzero(dtype));
        break;
    case 7:
        element_set(values, dtype, any, random_nan(dtype));
        break;
    case 8:
        element_set(values, dtype, any, random_sign(dtype) | random_subnormal(dtype));
        break;
    case 9:
        element_set(values, dtype, any, random_sign(dtype) | infinity(dtype));
        break;
    case 10:
        element_set(values, dtype, any, random_sign(dtype) | random_single_bit(dtype));
        break;
    default:
        element_set(values, dtype, last, random_single_bit(dtype));
    }
}

void case_values(const s2_layout *layout, s2_dtype dtype, void *values)
{
    for (int64_t i = 0; i < layout->numel; i++)
        element_set(values, dtype, i, random_nonzero(dtype));
    for (int64_t bit = 0; bit < 8 * oracle_bitmap_nbytes(layout); bit++) {
        oracle_block block;
        if (oracle_find_block(layout, bit, &block))
            fill_block(dtype, values, block.begin, block.present);
    }
}

void case_finite(s2_dtype dtype, void *values, int64_t numel)
{
    for (int64_t i = 0; i < numel; i++) {
        uint64_t bits = random_nonzero(dtype);
        if (random_chance(10))
            bits = random_zero(dtype);
        else if (random_chance(10))
            bits = random_sign(dtype) | random_subnormal(dtype);
        else if ((bits & infinity(dtype)) == infinity(dtype))
            bits = 1;
        element_set(values, dtype, i, bits);
    }
}

void case_any(s2_dtype dtype, void *values, int64_t numel)
{
    for (int64_t i = 0; i < numel; i++) {
        uint64_t bits = random_bits() >> (64 - 8 * dtype_size(dtype));
        if (random_chance(20)) { /* a size at which sums and narrow types still tell values apart */
            double magnitude = (double)(bits % 1000003) / 977.0;
            bits = random_sign(dtype) | element_round(dtype, magnitude);
        }
        switch (random_below(40)) {
        case 0:
            bits = random_sign(dtype) | infinity(dtype);
            break;
        case 1:
            bits = random_nan(dtype);
            break;
        case 2:
            bits = random_zero(dtype);
            break;
        case 3:
            bits = random_sign(dtype) | random_subnormal(dtype);
            break;
        default:
            break;
        }
        element_set(values, dtype, i, bits);
    }
}

void case_bitmap(const s2_layout *layout, int percent, uint8_t *bitmap, int64_t nbytes)
{
    memset(bitmap, 0, (size_t)nbytes);
    for (int64_t bit = 0; bit < 8 * nbytes; bit++) {
        oracle_block block;
        if (random_chance(percent) && oracle_find_block(layout, bit, &block))
            oracle_set_bit(bitmap, bit);
    }
}

/* ------------------------------------------ Scores -------------------------------------------- */

static float from_bits(uint32_t bits)
{
    float score;
    memcpy(&score, &bits, 4);
    return score;
}

float case_score(case_scores kind, int64_t i, int64_t n)
{
    const uint32_t bits = (uint32_t)random_bits();
    switch (kind) {
    case CASE_NORMAL: /* sums of uniform numbers, nearly */
        return (float)(random_below(2001) + random_below(2001) + random_below(2001) - 3000) *
               (1 + (float)bits * 0x1p-40f);
    case CASE_EQUAL:
        return bits & 1 ? -1.5f : 1.5f;
    case CASE_ZEROS:
        return 0;
    case CASE_SIGNED_ZEROS:
        return bits & 1 ? -0.0f : 0.0f;
    case CASE_TWO_VALUES:
        return bits % 3 == 0 ? -3.0f : 2.0f;
    case CASE_FEW_VALUES:
        return (float)(bits % 7) - 3;
    case CASE_ASCENDING:
        return (float)i;
    case CASE_DESCENDING:
        return (float)(i - n);
    case CASE_SUBNORMAL:
        return from_bits(bits & 0x800000ff);
    case CASE_MOSTLY_ZERO:
        return bits % 10 == 0 ? (float)(bits >> 8) : 0;
    case CASE_SPECIAL:
        return from_bits((bits & 0x80000000) | (0x7f800000 - 2 + bits % 5));
    default:
        return from_bits(bits);
    }
}
