/* SPDX-License-Identifier: MIT */
/* The kernels for AVX2 with F16C. */
#include "kernels.h"

#if S2_X86
#include <immintrin.h>

#include "../internal.h"
#include "bitmap_portable.h"
#include "convert.h"
#include "owed.h"
#include "select_portable.h"

#define INLINE_AVX2 static inline S2_TARGET_AVX2

INLINE_AVX2 __m256i load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE_AVX2 void store(uint8_t *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }
INLINE_AVX2 void stream(uint8_t *p, __m256i v) { _mm256_stream_si256((__m256i *)p, v); }
INLINE_AVX2 __m256i or (__m256i a, __m256i b) { return _mm256_or_si256(a, b); }

/* ---------------------------------------------------------------------------------------------- */
/* Bitmap                                                                                         */
/* ---------------------------------------------------------------------------------------------- */

INLINE_AVX2 __m256i magnitude_mask(int64_t width)
{
    return _mm256_set1_epi64x((long long)s2_magnitude_mask(width));
}

/* As s2_block_state_portable(), in vectors: four a round, and a last one that may overlap. */
INLINE_AVX2 enum s2_block_state block_state(const uint8_t *p, int64_t nbytes, __m256i mask)
{
    __m256i any = _mm256_setzero_si256();
    int64_t i = 0;

    if (nbytes < 32)
        return s2_block_state_portable(p, nbytes,
                                       (uint64_t)_mm_cvtsi128_si64(_mm256_castsi256_si128(mask)));
    for (; i + 128 <= nbytes; i += 128) {
        any = or (any,
                  or (or (load(p + i), load(p + i + 32)), or (load(p + i + 64), load(p + i + 96))));
        if (!_mm256_testz_si256(any, mask)) return S2_BLOCK_LIVE;
    }
    for (; i + 32 <= nbytes; i += 32)
        any = or (any, load(p + i));
    any = or (any, load(p + nbytes - 32));
    if (!_mm256_testz_si256(any, mask)) return S2_BLOCK_LIVE;
    return _mm256_testz_si256(any, any) ? S2_BLOCK_ZERO : S2_BLOCK_NEGATIVE_ZERO;
}

#define NAME        nonzero_blocks
#define TARGET      S2_TARGET_AVX2
#define MASK_TYPE   __m256i
#define MASK_FROM   magnitude_mask
#define BLOCK_STATE block_state
#include "nonzero_blocks_template.h"

/* A bit an element of 64 bytes: set where it is zero. */
INLINE_AVX2 uint64_t zeros_8(__m256i a, __m256i b)
{
    const __m256i zero = _mm256_setzero_si256();
    int low = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(a, zero)));
    int high = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(b, zero)));
    return (uint64_t)(low | high << 4);
}

INLINE_AVX2 uint64_t zeros_4(__m256i a, __m256i b)
{
    const __m256i zero = _mm256_setzero_si256();
    int low = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(a, zero)));
    int high = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(b, zero)));
    return (uint64_t)(low | high << 8);
}

INLINE_AVX2 uint64_t zeros_2(__m256i a, __m256i b)
{
    const __m256i zero = _mm256_setzero_si256();
    /* The pack works within halves: a low, b low, a high, b high; the permutation puts that right.
     */
    __m256i bytes = _mm256_packs_epi16(_mm256_cmpeq_epi16(a, zero), _mm256_cmpeq_epi16(b, zero));
    return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(bytes, 0xd8));
}

/* Words of 64 elements; the rest, fewer than a word, is the portable kernel's. */
#define NONZERO_ELEMENTS(width, zeros)                                                             \
    for (; i + 64 <= n; i += 64) {                                                                 \
        uint64_t dead = 0, zero_bits = 0;                                                          \
        for (int j = 0; j < (width); j++) {                                                        \
            __m256i a = load(values + i * (width) + 64 * j);                                       \
            __m256i b = load(values + i * (width) + 64 * j + 32);                                  \
            dead |= zeros(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask))                    \
                    << (64 / (width)*j);                                                           \
            zero_bits |= zeros(a, b) << (64 / (width)*j);                                          \
        }                                                                                          \
        s2_store_word(bitmap + i / 8, ~dead);                                                      \
        negative_zeros += s2_popcount(dead & ~zero_bits);                                          \
    }

static S2_TARGET_AVX2 int64_t nonzero_elements(const uint8_t *values, int64_t n, int64_t width,
                                               uint8_t *bitmap)
{
    const __m256i mask = magnitude_mask(width);
    int64_t negative_zeros = 0, i = 0;

    if (width == 8) {
        NONZERO_ELEMENTS(8, zeros_8)
    } else if (width == 4) {
        NONZERO_ELEMENTS(4, zeros_4)
    } else {
        NONZERO_ELEMENTS(2, zeros_2)
    }
    if (i < n)
        negative_zeros +=
            s2_kernels_portable.nonzero_elements(values + i * width, n - i, width, bitmap + i / 8);
    return negative_zeros;
}

/* ---------------------------------------------------------------------------------------------- */
/* Rows                                                                                           */
/* ---------------------------------------------------------------------------------------------- */

/* Loads in groups, stores in groups: measurably quicker than in turn.  The last vector may overlap
 * the one before. */
INLINE_AVX2 void copy_row(uint8_t *t, const uint8_t *f, int64_t nbytes)
{
    if (nbytes < 32) {
        memcpy(t, f, (size_t)nbytes);
        return;
    }
    int64_t i = 0;
    for (; i + 128 <= nbytes; i += 128) {
        __m256i a = load(f + i), b = load(f + i + 32), c = load(f + i + 64), d = load(f + i + 96);
        store(t + i, a), store(t + i + 32, b), store(t + i + 64, c), store(t + i + 96, d);
    }
    for (; i + 32 <= nbytes; i += 32)
        store(t + i, load(f + i));
    store(t + nbytes - 32, load(f + nbytes - 32));
}

INLINE_AVX2 void stream_row(uint8_t *t, const uint8_t *f, int64_t nbytes)
{
    for (int64_t i = 0; i < nbytes; i += 64) {
        __m256i a = load(f + i), b = load(f + i + 32);
        stream(t + i, a), stream(t + i + 32, b);
    }
}

#define TARGET       S2_TARGET_AVX2
#define COPY_ROW     copy_row
#define STREAM_ROW   stream_row
#define STREAM_FENCE _mm_sfence
#include "rows_template.h"
#undef TARGET

/* ---------------------------------------------------------------------------------------------- */
/* Sketch                                                                                         */
/* ---------------------------------------------------------------------------------------------- */

#define TARGET S2_TARGET_AVX2
#include "sketch_template.h"
#undef TARGET

/* ---------------------------------------------------------------------------------------------- */
/* Selection and error feedback                                                                   */
/* ---------------------------------------------------------------------------------------------- */

/* Eight vectors of eight. */
INLINE_AVX2 uint64_t above_64(const float *scores, int32_t most)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), all_most = _mm256_set1_epi32(most);
    uint64_t word = 0;

    for (int i = 0; i < 8; i++) {
        __m256i x = _mm256_and_si256(load((const uint8_t *)(scores + 8 * i)), magnitude);
        __m256 above = _mm256_castsi256_ps(_mm256_cmpgt_epi32(x, all_most));
        word |= (uint64_t)_mm256_movemask_ps(above) << (8 * i);
    }
    return word;
}

#define TARGET         S2_TARGET_AVX2
#define ABOVE_64       above_64
#define POPCOUNT(word) __builtin_popcountll(word)
#include "owed_template.h"
#include "select_template.h"
#undef TARGET

/* ---------------------------------------------------------------------------------------------- */
/* Conversion                                                                                     */
/* ---------------------------------------------------------------------------------------------- */

INLINE_AVX2 __m256 load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE_AVX2 void store_f16(uint16_t *p, __m256 x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

INLINE_AVX2 __m256 load_f32(const float *p) { return _mm256_loadu_ps(p); }
INLINE_AVX2 void store_f32(float *p, __m256 x) { _mm256_storeu_ps(p, x); }
INLINE_AVX2 __m256 splat_f32(float value) { return _mm256_set1_ps(value); }
INLINE_AVX2 __m256 div_f32(__m256 x, __m256 y) { return _mm256_div_ps(x, y); }
INLINE_AVX2 __m256 add_f32(__m256 x, __m256 y) { return _mm256_add_ps(x, y); }

#define TARGET       S2_TARGET_AVX2
#define SUFFIX(name) name##_avx2
#define VECTOR       __m256
#define LANES        8
#include "f16_template.h"
#define OWN_F16
#include "convert_template.h"
#include "finite_template.h"
#define RUN_NBYTES   256
#define STREAM_ROW   stream_row
#define STREAM_FENCE _mm_sfence
#include "sums_template.h"

const struct s2_kernels s2_kernels_avx2 = {
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
