/* SPDX-License-Identifier: MIT */
/*
 * The kernels: inner loops that exist once an instruction set.  They check nothing.
 *
 * Every variant gives the same bits for the same input, but for the payload of NaNs.
 */
#ifndef S2_KERNELS_H
#define S2_KERNELS_H

#include <stdbool.h>
#include <string.h>

#include "../s2.h"

/* Functions are compiled for an instruction set one by one, never by flags for a whole file: an
 * inline function from a header, compiled under such flags but not inlined, could be the copy that
 * the linker keeps for everybody. */
#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
#define S2_X86         1
#define S2_TARGET_AVX2 __attribute__((target("avx2,f16c,bmi,popcnt")))
#define S2_TARGET_AVX512                                                                           \
    __attribute__((target("avx2,f16c,bmi,popcnt,avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define S2_X86 0
#endif

/* dst[i] = src[i] / divisor for n elements; the types are those of the table's entry. */
typedef void (*s2_convert_kernel)(const void *src, void *dst, int64_t n, double divisor);

/* accumulator[i] += src[i] / divisor for n elements, divided in the accumulator's type. */
typedef void (*s2_add_kernel)(const void *src, void *accumulator, int64_t n, double divisor);

/*
 * The same for n rows of `block` elements: row i is added to the elements of the accumulator from
 * (positions[i] - first) * block on.  These are asked for `ahead` rows before their turn; 0 where
 * they are in a cache.
 */
typedef void (*s2_add_rows_kernel)(const void *src, const int64_t *positions, int64_t first,
                                   int64_t n, int64_t block, void *accumulator, double divisor,
                                   int64_t ahead);

/*
 * What BFLOAT16 is divided by before it is added, since it has the range of FLOAT32: a sum of
 * S2_MAX_RANKS could overflow although the mean does not.  Scaled by it all values are multiples of
 * 2^-141, above FLOAT32's smallest, and exact.
 */
#define S2_BFLOAT16_SCALE 256.0

/* Rows of `length` elements in stacks: one for each of `nblocks` blocks. */
struct s2_stacks {
    const uint8_t *const *rows; /* of block b, `nrows[b]` from rows[b * stride] on */
    const int32_t *nrows;
    int64_t stride, nblocks, length;
    int64_t ahead; /* so many bytes before its turn, the memory behind a row is asked for */
};

/*
 * sums = the sum of each stack, in order, divided: the arithmetic of s2_blocks_sum().  One block
 * follows the other.  With `stream`, stores go past the caches: `sums` and the bytes of a row are
 * then multiples of 64.
 */
typedef void (*s2_sum_kernel)(const struct s2_stacks *stacks, double divisor, void *sums,
                              bool stream);

/* A block of values and one of its cells in the table of a sketch. */
struct s2_move {
    int64_t cell;  /* counted through all rows */
    int64_t index; /* which of the packed blocks */
    uint32_t sign; /* the sign bit of a float32, or 0: what elements are XORed with on the way */
};

struct s2_kernels {
    /*
     * Bits of the blocks in values[0, nbytes), the last of which may be short; whole 64-bit words
     * of `bitmap` are written.  An element has `width` bytes (2, 4 or 8) and its sign in the
     * highest bit.  Returns the number of blocks that are not live but hold a negative zero.
     */
    int64_t (*nonzero_blocks)(const uint8_t *values, int64_t nbytes, int64_t block_nbytes,
                              int64_t width, uint8_t *bitmap);

    /* The same for blocks of one element each, `n` of them. */
    int64_t (*nonzero_elements)(const uint8_t *values, int64_t n, int64_t width, uint8_t *bitmap);

    /*
     * Copies n rows to `packed`, or from there: row i is at values + (positions[i] - first) *
     * row_nbytes.  With `stream`, stores go past the caches: addresses and row_nbytes are then
     * multiples of 64.
     */
    void (*gather_rows)(const uint8_t *values, const int64_t *positions, int64_t first, int64_t n,
                        int64_t row_nbytes, uint8_t *packed, bool stream);
    void (*scatter_rows)(uint8_t *values, const int64_t *positions, int64_t first, int64_t n,
                         int64_t row_nbytes, const uint8_t *packed, bool stream);

    /* By dtype from and to; NULL where the pair is not supported. */
    s2_convert_kernel convert[4][4];
    s2_add_kernel add[4][4];
    s2_add_rows_kernel add_rows[4][4];

    /* By dtype; NULL where it has none. */
    s2_sum_kernel sum[4];

    /* Whether no element is infinite or a NaN: none has all bits of `exponent` set.  The element
     * has `width` bytes, 2, 4 or 8. */
    bool (*all_finite)(const uint8_t *values, int64_t n, int64_t width, uint64_t exponent);

    /* Cells and blocks have `block` floats each.  Cell += block, with the sign, in this order. */
    void (*sketch_add)(float *table, const float *values, int64_t block,
                       const struct s2_move *moves, int64_t n);

    /* Block = cell, with the sign, a zero as +0.0; and norms[index] = the largest magnitude in it,
     * as the bits of floats are ordered, so that a NaN is above all numbers. */
    void (*sketch_take)(const float *table, float *values, int64_t block,
                        const struct s2_move *moves, int64_t n, float *norms);

    /* The largest magnitude of n elements, in the same order. */
    float (*sketch_largest)(const float *values, int64_t n);

    /* Elements of a magnitude of `threshold` or less become +0.0. */
    void (*sketch_clear)(float *values, int64_t n, float threshold);

    /* Block = median of its cells, with their signs, a zero as +0.0: `rows` moves for each of n
     * blocks. */
    void (*sketch_median)(const float *table, float *values, int64_t block,
                          const struct s2_move *moves, int64_t n, int64_t rows);

    /* Sets the bits of the scores whose magnitudes are above `most`, which may be -1; whole 64-bit
     * words of `bitmap` are written.  Returns their number. */
    int64_t (*select_above)(const float *scores, int64_t n, int32_t most, uint8_t *bitmap);

    /* The same, and writes the keys of the scores that are above `below` and not above `most`, the
     * first score being at position `first`; `keys` has room for two more than n. */
    int64_t (*select_split)(const float *scores, int64_t n, int64_t first, int32_t below,
                            int32_t most, uint8_t *bitmap, uint64_t *keys, int64_t *nkeys);

    /* owed = before + values * factor; `before` may be NULL for zeros.  Returns whether any value
     * was neither +0.0 nor -0.0. */
    bool (*owed_add)(const float *values, int64_t n, float factor, const float *before,
                     float *owed);

    /* values = owed * scale. */
    void (*owed_scale)(const float *owed, int64_t n, float scale, float *values);

    /* owed -= values * factor, where that product is finite. */
    void (*owed_subtract)(const float *values, int64_t n, float factor, float *owed);

    /* Sets to +0.0 each value whose bit is clear; whole words of `bitmap` are read. */
    void (*owed_clear)(float *values, int64_t n, const uint8_t *bitmap);

    /* The sum of squares of each block of owed[0, n), the last of which may be short. */
    void (*owed_energies)(const float *owed, int64_t n, int64_t block, float *energies);
};

extern const struct s2_kernels s2_kernels_portable;
#if S2_X86
extern const struct s2_kernels s2_kernels_avx2;
extern const struct s2_kernels s2_kernels_avx512;
#endif

/* Those of s2_variant_current(). */
const struct s2_kernels *s2_kernels_current(void);

/* ---------------------------------------------------------------------------------------------- */
/* What the bitmap kernels of all variants share                                                  */
/* ---------------------------------------------------------------------------------------------- */

/* What a block is, from the bitwise OR of its elements. */
enum s2_block_state {
    S2_BLOCK_ZERO,          /* nothing but +0.0 */
    S2_BLOCK_NEGATIVE_ZERO, /* zeros, at least one of them -0.0: nothing but signs */
    S2_BLOCK_LIVE,
};

/* Eight bytes of elements without their signs: elements are non-zero where the AND with this is. */
static inline uint64_t s2_magnitude_mask(int64_t width)
{
    return width == 8   ? UINT64_C(0x7fffffffffffffff)
           : width == 4 ? UINT64_C(0x7fffffff7fffffff)
                        : UINT64_C(0x7fff7fff7fff7fff);
}

/* ---------------------------------------------------------------------------------------------- */
/* What loops over rows share                                                                     */
/* ---------------------------------------------------------------------------------------------- */

/*
 * Rows that come from memory are asked for before it is their turn: the hardware follows a row once
 * it is in it, but it cannot guess the next one, takes some lines to start and stops at the end of
 * a page.  So all lines of a row are asked for (of a longer one the beginning, since by then the
 * hardware has caught up), as many rows ahead as make up the time that memory takes to answer.
 *
 * A loaded memory answers within a microsecond, in which a core moves some 10 to 30 KB: so far
 * ahead, and no further, since what is asked for has to stay in a cache of its own until then.  Of
 * short rows 16 are enough: a core waits for no more lines than that at a time, or few more.  4096
 * bytes are a page, where the hardware's own prefetch stops and starts again.
 */
#define S2_PREFETCH_AHEAD_NBYTES 32768
#define S2_PREFETCH_ROW_NBYTES   4096
#define S2_PREFETCH_MAX_ROWS     16
#define S2_CACHE_LINE_NBYTES     64

static inline int64_t s2_rows_ahead(int64_t row_nbytes)
{
    int64_t rows = S2_PREFETCH_AHEAD_NBYTES / row_nbytes;
    return rows < 1 ? 1 : rows < S2_PREFETCH_MAX_ROWS ? rows : S2_PREFETCH_MAX_ROWS;
}

/* Inlined by force: gcc takes a function that does nothing but prefetch for one without effects,
 * and drops the calls. */
static inline __attribute__((always_inline)) void s2_prefetch_row(const uint8_t *row,
                                                                  int64_t row_nbytes)
{
    int64_t nbytes = row_nbytes < S2_PREFETCH_ROW_NBYTES ? row_nbytes : S2_PREFETCH_ROW_NBYTES;
    for (int64_t at = 0; at < nbytes; at += S2_CACHE_LINE_NBYTES)
        __builtin_prefetch(row + at, 0, 2);
}

#endif /* S2_KERNELS_H */
