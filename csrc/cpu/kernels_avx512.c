/* SPDX-License-Identifier: MIT */
/* The kernels for AVX-512 F, BW, DQ, VL.  Tails are masked loads, which never touch what they mask.
 */
#include "kernels.h"

#if S2_X86
#include <immintrin.h>

#include "../internal.h"
#include "convert.h"
#include "owed.h"
#include "select_portable.h"

#define INLINE_AVX512 static inline S2_TARGET_AVX512

INLINE_AVX512 __m512i load(const uint8_t *p) { return _mm512_loadu_si512(p); }
INLINE_AVX512 void store(uint8_t *p, __m512i v) { _mm512_storeu_si512(p, v); }
INLINE_AVX512 void stream(uint8_t *p, __m512i v) { _mm512_stream_si512((__m512i *)p, v); }
INLINE_AVX512 __m512i or (__m512i a, __m512i b) { return _mm512_or_si512(a, b); }

/* The first n of 64 bytes, zeros behind them. */
INLINE_AVX512 __m512i load_first(const uint8_t *p, int64_t n)
{
    return _mm512_maskz_loadu_epi8(~UINT64_C(0) >> (64 - n), p);
}

/* ---------------------------------------------------------------------------------------------- */
/* Bitmap                                                                                         */
/* ---------------------------------------------------------------------------------------------- */

INLINE_AVX512 __m512i magnitude_mask(int64_t width)
{
    return _mm512_set1_epi64((long long)s2_magnitude_mask(width));
}

/* As s2_block_state_portable(), four vectors a round. */
INLINE_AVX512 enum s2_block_state block_state(const uint8_t *p, int64_t nbytes, __m512i mask)
{
    __m512i any = _mm512_setzero_si512();
    int64_t i = 0;

    for (; i + 256 <= nbytes; i += 256) {
        any = or (any, or (or (load(p + i), load(p + i + 64)),
                           or (load(p + i + 128), load(p + i + 192))));
        if (_mm512_test_epi64_mask(any, mask)) return S2_BLOCK_LIVE;
    }
    for (; i + 64 <= nbytes; i += 64)
        any = or (any, load(p + i));
    if (i < nbytes) any = or (any, load_first(p + i, nbytes - i));
    if (_mm512_test_epi64_mask(any, mask)) return S2_BLOCK_LIVE;
    return _mm512_test_epi64_mask(any, any) ? S2_BLOCK_NEGATIVE_ZERO : S2_BLOCK_ZERO;
}

#define NAME        nonzero_blocks
#define TARGET      S2_TARGET_AVX512
#define MASK_TYPE   __m512i
#define MASK_FROM   magnitude_mask
#define BLOCK_STATE block_state
#include "nonzero_blocks_template.h"

/* A bit an element of 64 bytes: set where both have a bit in common. */
INLINE_AVX512 uint64_t test_8(__m512i a, __m512i b) { return _mm512_test_epi64_mask(a, b); }
INLINE_AVX512 uint64_t test_4(__m512i a, __m512i b) { return _mm512_test_epi32_mask(a, b); }
INLINE_AVX512 uint64_t test_2(__m512i a, __m512i b) { return _mm512_test_epi16_mask(a, b); }

/* Words of 64 elements, `width` vectors each; in the last word vectors may be short or missing. */
#define NONZERO_ELEMENTS(width, test)                                                              \
    for (int64_t i = 0; i < n * (width); i += 64 * (width)) {                                      \
        uint64_t live = 0, any = 0;                                                                \
        for (int j = 0; j < (width) && i + 64 * j < n * (width); j++) {                            \
            __m512i v = load_first(values + i + 64 * j, s2_min(64, n * (width)-i - 64 * j));       \
            live |= test(v, mask) << (64 / (width)*j);                                             \
            any |= test(v, v) << (64 / (width)*j);                                                 \
        }                                                                                          \
        s2_store_word(bitmap + i / (width) / 8, live);                                             \
        negative_zeros += s2_popcount(any & ~live);                                                \
    }

static S2_TARGET_AVX512 int64_t nonzero_elements(const uint8_t *values, int64_t n, int64_t width,
                                                 uint8_t *bitmap)
{
    const __m512i mask = magnitude_mask(width);
    int64_t negative_zeros = 0;

    if (width == 8) {
        NONZERO_ELEMENTS(8, test_8)
    } else if (width == 4) {
        NONZERO_ELEMENTS(4, test_4)
    } else {
        NONZERO_ELEMENTS(2, test_2)
    }
    return negative_zeros;
}

/* ---------------------------------------------------------------------------------------------- */
/* Rows                                                                                           */
/* ---------------------------------------------------------------------------------------------- */

/* Loads in groups, stores in groups: measurably quicker than in turn. */
INLINE_AVX512 void copy_row(uint8_t *t, const uint8_t *f, int64_t nbytes)
{
    int64_t i = 0;

    for (; i + 256 <= nbytes; i += 256) {
        __m512i a = load(f + i), b = load(f + i + 64);
        __m512i c = load(f + i + 128), d = load(f + i + 192);
        store(t + i, a), store(t + i + 64, b), store(t + i + 128, c), store(t + i + 192, d);
    }
    for (; i + 64 <= nbytes; i += 64)
        store(t + i, load(f + i));
    if (i < nbytes) {
        __mmask64 rest = ~UINT64_C(0) >> (64 - (nbytes - i));
        _mm512_mask_storeu_epi8(t + i, rest, load_first(f + i, nbytes - i));
    }
}

INLINE_AVX512 void stream_row(uint8_t *t, const uint8_t *f, int64_t nbytes)
{
    int64_t i = 0;

    for (; i + 256 <= nbytes; i += 256) {
        __m512i a = load(f + i), b = load(f + i + 64);
        __m512i c = load(f + i + 128), d = load(f + i + 192);
        stream(t + i, a), stream(t + i + 64, b), stream(t + i + 128, c), stream(t + i + 192, d);
    }
    for (; i < nbytes; i += 64)
        stream(t + i, load(f + i));
}

#define TARGET       S2_TARGET_AVX512
#define COPY_ROW     copy_row
#define STREAM_ROW   stream_row
#define STREAM_FENCE _mm_sfence
#include "rows_template.h"
#undef TARGET

/* ---------------------------------------------------------------------------------------------- */
/* Sketch                                                                                         */
/* ---------------------------------------------------------------------------------------------- */

#define TARGET S2_TARGET_AVX512
#include "sketch_template.h"
#undef TARGET

/* ---------------------------------------------------------------------------------------------- */
/* Selection and error feedback                                                                   */
/* ---------------------------------------------------------------------------------------------- */

/* Four vectors of sixteen. */
INLINE_AVX512 uint64_t above_64(const float *scores, int32_t most)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), all_most = _mm512_set1_epi32(most);
    uint64_t word = 0;

    for (int i = 0; i < 4; i++) {
        __m512i x = _mm512_and_si512(load((const uint8_t *)(scores + 16 * i)), magnitude);
        word |= (uint64_t)_mm512_cmpgt_epi32_mask(x, all_most) << (16 * i);
    }
    return word;
}

#define TARGET         S2_TARGET_AVX512
#define ABOVE_64       above_64
#define POPCOUNT(word) __builtin_popcountll(word)
#include "owed_template.h"
#include "select_template.h"
#undef TARGET

/* ---------------------------------------------------------------------------------------------- */
/* Conversion                                                                                     */
/* ---------------------------------------------------------------------------------------------- */

INLINE_AVX512 __m512 load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE_AVX512 void store_f16(uint16_t *p, __m512 x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

INLINE_AVX512 __m512 load_f32(const float *p) { return _mm512_loadu_ps(p); }
INLINE_AVX512 void store_f32(float *p, __m512 x) { _mm512_storeu_ps(p, x); }
INLINE_AVX512 __m512 splat_f32(float value) { return _mm512_set1_ps(value); }
INLINE_AVX512 __m512 div_f32(__m512 x, __m512 y) { return _mm512_div_ps(x, y); }
INLINE_AVX512 __m512 add_f32(__m512 x, __m512 y) { return _mm512_add_ps(x, y); }

#define TARGET       S2_TARGET_AVX512
#define SUFFIX(name) name##_avx512
#define VECTOR       __m512
#define LANES        16
#include "f16_template.h"
#define OWN_F16
#include "convert_template.h"
#include "finite_template.h"
#define RUN_NBYTES   512
#define STREAM_ROW   stream_row
#define STREAM_FENCE _mm_sfence
#include "sums_template.h"

const struct s2_kernels s2_kernels_avx512 = {
    .nonzero_blocks = nonzero_blocks,
    .nonzero_elements = nonzero_elements,
    .gather_rows = gather_rows,
    .scatter_rows = scatter_rows,
    .convert = CONVERT_TABLE,
    .add = ADD_TABLE,
    .add_rows = ADD_ROWS_TABLE,
    .sum = SUM_TABLE,
    .all_finite = all_finite,
    .sketch_add = sketch_add,
    .sketch_take = sketch_take,
    .sketch_largest = sketch_largest,
    .sketch_clear = sketch_clear,
    .sketch_median = sketch_median,
    .select_above = select_above,
    .select_split = select_split,
    .owed_add = owed_add,
    .owed_scale = owed_scale,
    .owed_subtract = owed_subtract,
    .owed_clear = owed_clear,
    .owed_energies = owed_energies,
};
#endif /* S2_X86 */
