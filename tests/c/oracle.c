/* SPDX-License-Identifier: MIT */
#include "oracle.h"

#include <math.h>
#include <string.h>

#include "test_util.h"

/* ----------------------------------------- Elements ------------------------------------------- */

/* The formats of IEEE 754, and bfloat16 after their manner. */
typedef struct format {
    const char *name;
    int64_t size;
    int precision;    /* bits of the significand, with the one that is not stored */
    int max_exponent; /* finite numbers are below 2 to this power */
    int min_exponent; /* every number is a multiple of 2 to this power */
} format;

const s2_dtype all_dtypes[4] = {S2_FLOAT32, S2_FLOAT64, S2_FLOAT16, S2_BFLOAT16};

static format format_of(s2_dtype dtype)
{
    static const format float32 = {"float32", 4, 24, 128, -149};
    static const format float64 = {"float64", 8, 53, 1024, -1074};
    static const format float16 = {"float16", 2, 11, 16, -24};
    static const format bfloat16 = {"bfloat16", 2, 8, 128, -133};
    return dtype == S2_FLOAT32   ? float32
           : dtype == S2_FLOAT64 ? float64
           : dtype == S2_FLOAT16 ? float16
                                 : bfloat16;
}

const char *dtype_name(s2_dtype dtype) { return format_of(dtype).name; }

int64_t dtype_size(s2_dtype dtype) { return format_of(dtype).size; }

uint64_t element_get(const void *array, s2_dtype dtype, int64_t i)
{
    const uint8_t *bytes = array;
    int64_t size = dtype_size(dtype);
    uint64_t bits = 0;
    memcpy(&bits, bytes + i * size, (size_t)size); /* the tests run on little-endian machines */
    return bits;
}

void element_set(void *array, s2_dtype dtype, int64_t i, uint64_t bits)
{
    uint8_t *bytes = array;
    int64_t size = dtype_size(dtype);
    memcpy(bytes + i * size, &bits, (size_t)size);
}

uint64_t element_sign(s2_dtype dtype) { return (uint64_t)1 << (8 * dtype_size(dtype) - 1); }

int element_is_zero(s2_dtype dtype, uint64_t bits)
{
    return bits == 0 || bits == element_sign(dtype);
}

/* The pattern of +infinity: an exponent of all ones over a fraction of zeros. */
static uint64_t element_infinity(s2_dtype dtype)
{
    int fraction_bits = format_of(dtype).precision - 1;
    return (element_sign(dtype) - 1) >> fraction_bits << fraction_bits;
}

int element_is_nan(s2_dtype dtype, uint64_t bits)
{
    return (bits & ~element_sign(dtype)) > element_infinity(dtype);
}

double element_value(s2_dtype dtype, uint64_t bits)
{
    format f = format_of(dtype);
    int negative = (bits & element_sign(dtype)) != 0;
    uint64_t magnitude = bits & ~element_sign(dtype);
    double value;
    if (magnitude > element_infinity(dtype)) {
        value = NAN;
    } else if (magnitude == element_infinity(dtype)) {
        value = INFINITY;
    } else {
        uint64_t hidden = (uint64_t)1 << (f.precision - 1);
        uint64_t fraction = magnitude & (hidden - 1);
        int exponent = (int)(magnitude >> (f.precision - 1));
        value = exponent == 0 ? ldexp((double)fraction, f.min_exponent)
                              : ldexp((double)(hidden + fraction), f.min_exponent + exponent - 1);
    }
    return negative ? -value : value;
}

uint64_t element_round(s2_dtype dtype, double value)
{
    format f = format_of(dtype);
    uint64_t sign = signbit(value) ? element_sign(dtype) : 0;
    double magnitude = fabs(value);
    if (isnan(value)) return element_infinity(dtype) + 1;
    if (isinf(value)) return sign + element_infinity(dtype);
    if (magnitude == 0) return sign;

    /* 2^exponent is the distance of neighbours where the value lies; dividing by it is exact. */
    int exponent;
    frexp(magnitude, &exponent);
    exponent -= f.precision;
    if (exponent < f.min_exponent) exponent = f.min_exponent;
    double units = ldexp(magnitude, -exponent);
    double below = floor(units);
    double rest = units - below;
    uint64_t whole = (uint64_t)below;
    if (rest > 0.5 || (rest == 0.5 && whole % 2 == 1)) whole++;

    if (ldexp((double)whole, exponent) >= ldexp(1, f.max_exponent - 1) * 2)
        return sign + element_infinity(dtype);
    /*
     * Patterns of one sign ascend as their numbers do, in steps of one unit.  The hidden bit of
     * `whole` adds one to the exponent, which is why that begins one lower; a carry out of the
     * fraction does the same.
     */
    return sign + ((uint64_t)(exponent - f.min_exponent) << (f.precision - 1)) + whole;
}

int oracle_converts(s2_dtype src, s2_dtype dst, double divisor)
{
    int half = src == S2_FLOAT16 || src == S2_BFLOAT16;
    if (src == dst && divisor == 1) return 1;
    return (half && dst == S2_FLOAT32) || src == S2_FLOAT32 ||
           (src == S2_FLOAT64 && (dst == S2_FLOAT64 || dst == S2_FLOAT32));
}

uint64_t oracle_convert(s2_dtype src, uint64_t bits, s2_dtype dst, double divisor)
{
    if (src == dst && divisor == 1) return bits;
    int in_double = src == S2_FLOAT64 || dst == S2_FLOAT64;
    double value = element_value(src, bits);
    if (in_double) return element_round(dst, value / divisor);
    /*
     * The quotient of two float32, rounded to double and then to float32, is the one that is
     * rounded once: it cannot lie so near a tie that 53 bits do not tell it from the tie.
     */
    double divisor32 = element_value(S2_FLOAT32, element_round(S2_FLOAT32, divisor));
    uint64_t quotient = element_round(S2_FLOAT32, value / divisor32);
    return element_round(dst, element_value(S2_FLOAT32, quotient));
}

int oracle_adds(s2_dtype packed, s2_dtype accumulator)
{
    if (accumulator == S2_FLOAT64) return packed == S2_FLOAT32 || packed == S2_FLOAT64;
    return accumulator == S2_FLOAT32 && packed != S2_FLOAT64;
}

uint64_t oracle_sum(s2_dtype accumulator, uint64_t bits, s2_dtype packed, uint64_t packed_bits)
{
    /* For float32: the sum of two is rounded rightly even by way of double, as 53 >= 2 * 24 + 2. */
    double sum = element_value(accumulator, bits) + element_value(packed, packed_bits);
    return element_round(accumulator, sum);
}

void check_elements(s2_dtype dtype, const void *got, const void *wanted, int64_t numel, int any_nan)
{
    if (numel == 0 || memcmp(got, wanted, (size_t)(numel * dtype_size(dtype))) == 0) return;
    for (int64_t i = 0; i < numel; i++) {
        uint64_t a = element_get(got, dtype, i), b = element_get(wanted, dtype, i);
        int same = a == b || (any_nan && element_is_nan(dtype, a) && element_is_nan(dtype, b));
        if (!same)
            test_note("element %" PRId64 " of %" PRId64 " is %#" PRIx64 ", should be %#" PRIx64
                      " (%s)",
                      i, numel, a, b, dtype_name(dtype));
        CHECK(same);
    }
}

/* ------------------------------------------ Blocks -------------------------------------------- */

static int64_t blocks_of(const s2_segment *segment)
{
    return segment->numel / segment->block + (segment->numel % segment->block != 0);
}

int oracle_find_block(const s2_layout *layout, int64_t bit, oracle_block *block)
{
    for (int64_t s = 0; s < layout->nsegments; s++) {
        const s2_segment *segment = &layout->segments[s];
        int64_t number = bit - segment->first_bit;
        if (number < 0 || number >= blocks_of(segment)) continue;
        int64_t rest = segment->numel - number * segment->block;
        block->segment = s;
        block->begin = segment->offset + number * segment->block;
        block->present = rest < segment->block ? rest : segment->block;
        block->length = segment->block;
        return 1;
    }
    return 0;
}

int64_t oracle_bitmap_nbytes(const s2_layout *layout)
{
    if (layout->nsegments == 0) return 0;
    const s2_segment *last = &layout->segments[layout->nsegments - 1];
    int64_t bits = last->first_bit + blocks_of(last);
    while (bits % 64 != 0)
        bits++;
    return bits / 8;
}

int oracle_bit(const uint8_t *bitmap, int64_t bit) { return bitmap[bit / 8] >> (bit % 8) & 1; }

void oracle_set_bit(uint8_t *bitmap, int64_t bit)
{
    bitmap[bit / 8] = (uint8_t)(bitmap[bit / 8] | 1u << (bit % 8));
}

int64_t oracle_bitmap_from_nonzero(const s2_layout *layout, const void *values, s2_dtype dtype,
                                   uint8_t *bitmap)
{
    int64_t nbytes = oracle_bitmap_nbytes(layout), negative_zeros = 0;
    memset(bitmap, 0, (size_t)nbytes);
    for (int64_t bit = 0; bit < 8 * nbytes; bit++) {
        oracle_block block;
        if (!oracle_find_block(layout, bit, &block)) continue;
        int live = 0, negative_zero = 0;
        for (int64_t i = block.begin; i < block.begin + block.present; i++) {
            uint64_t bits = element_get(values, dtype, i);
            if (!element_is_zero(dtype, bits))
                live = 1;
            else if (bits != 0)
                negative_zero = 1;
        }
        if (live)
            oracle_set_bit(bitmap, bit);
        else
            negative_zeros += negative_zero;
    }
    return negative_zeros;
}

void oracle_bitmap_count(const s2_layout *layout, const uint8_t *bitmap, int64_t *counts)
{
    for (int64_t s = 0; s < layout->nsegments; s++) {
        const s2_segment *segment = &layout->segments[s];
        counts[s] = 0;
        for (int64_t b = 0; b < blocks_of(segment); b++)
            counts[s] += oracle_bit(bitmap, segment->first_bit + b);
    }
}

int64_t oracle_bitmap_positions(const uint8_t *bitmap, int64_t nbytes, int64_t *positions)
{
    int64_t n = 0;
    for (int64_t bit = 0; bit < 8 * nbytes; bit++) {
        if (oracle_bit(bitmap, bit)) positions[n++] = bit;
    }
    return n;
}

int64_t oracle_packed_numel(const s2_layout *layout, const int64_t *positions, int64_t npositions)
{
    int64_t numel = 0;
    for (int64_t k = 0; k < npositions; k++) {
        oracle_block block;
        CHECK(oracle_find_block(layout, positions[k], &block));
        numel += block.length;
    }
    return numel;
}

void oracle_gather(const s2_layout *layout, const void *values, s2_dtype dtype,
                   const int64_t *positions, int64_t npositions, void *packed,
                   s2_dtype packed_dtype, double divisor)
{
    int64_t at = 0;
    for (int64_t k = 0; k < npositions; k++) {
        oracle_block block;
        CHECK(oracle_find_block(layout, positions[k], &block));
        for (int64_t i = 0; i < block.length; i++, at++) {
            uint64_t bits = 0;
            if (i < block.present)
                bits = oracle_convert(dtype, element_get(values, dtype, block.begin + i),
                                      packed_dtype, divisor);
            element_set(packed, packed_dtype, at, bits);
        }
    }
}

void oracle_scatter(const s2_layout *layout, const void *packed, s2_dtype packed_dtype,
                    const int64_t *positions, int64_t npositions, void *values, s2_dtype dtype,
                    double divisor)
{
    int64_t at = 0;
    for (int64_t k = 0; k < npositions; k++) {
        oracle_block block;
        CHECK(oracle_find_block(layout, positions[k], &block));
        for (int64_t i = 0; i < block.present; i++) {
            uint64_t bits = element_get(packed, packed_dtype, at + i);
            element_set(values, dtype, block.begin + i,
                        oracle_convert(packed_dtype, bits, dtype, divisor));
        }
        at += block.length;
    }
}

void oracle_add(const s2_layout *layout, const void *packed, s2_dtype packed_dtype,
                const int64_t *positions, int64_t npositions, void *accumulator,
                s2_dtype accumulator_dtype)
{
    int64_t at = 0;
    for (int64_t k = 0; k < npositions; k++) {
        oracle_block block;
        CHECK(oracle_find_block(layout, positions[k], &block));
        for (int64_t i = 0; i < block.present; i++) {
            uint64_t old = element_get(accumulator, accumulator_dtype, block.begin + i);
            uint64_t more = element_get(packed, packed_dtype, at + i);
            element_set(accumulator, accumulator_dtype, block.begin + i,
                        oracle_sum(accumulator_dtype, old, packed_dtype, more));
        }
        at += block.length;
    }
}

void oracle_clear_dead(const s2_layout *layout, const uint8_t *bitmap, void *values, s2_dtype dtype)
{
    for (int64_t bit = 0; bit < 8 * oracle_bitmap_nbytes(layout); bit++) {
        oracle_block block;
        if (!oracle_find_block(layout, bit, &block) || oracle_bit(bitmap, bit)) continue;
        for (int64_t i = 0; i < block.present; i++)
            element_set(values, dtype, block.begin + i, 0);
    }
}
