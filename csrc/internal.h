/* SPDX-License-Identifier: MIT */
/* What the files of the core share among themselves. */
#ifndef S2_INTERNAL_H
#define S2_INTERNAL_H

#include <stdbool.h>
#include <string.h>

#include "cpu/kernels.h"
#include "s2.h"

/* Bytes that a task should have to itself, so that handing it out costs little beside it. */
#define S2_TASK_NBYTES (INT64_C(256) * 1024)

/* Values between two steps, on the stack.  A page: several vectors of every kernel's, and an eighth
 * of a first-level cache, so that what they come from and go to fits beside it. */
#define S2_STAGE_NBYTES 4096

union s2_stage {
    uint8_t bytes[S2_STAGE_NBYTES];
    uint16_t halves[S2_STAGE_NBYTES / 2];
    float floats[S2_STAGE_NBYTES / 4];
    double doubles[S2_STAGE_NBYTES / 8];
};

#define S2_RETURN_IF_ERROR(call)                                                                   \
    do {                                                                                           \
        s2_status status_ = (call);                                                                \
        if (status_ != S2_OK) return status_;                                                      \
    } while (0)

static inline int64_t s2_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t s2_max(int64_t a, int64_t b) { return a > b ? a : b; }

static inline bool s2_is_null(const void *pointer, int64_t size)
{
    return pointer == NULL && size != 0;
}

/* How many items of `item_nbytes` make a task. */
static inline int64_t s2_grain(int64_t item_nbytes)
{
    return s2_max(1, S2_TASK_NBYTES / s2_max(1, item_nbytes));
}

static inline void s2_run(const s2_executor *executor, int64_t n, int64_t grain, s2_range_body body,
                          void *body_arg)
{
    if (executor == NULL || n <= grain) {
        body(body_arg, 0, n);
    } else {
        executor->parallel_for(executor->self, 0, n, grain, body, body_arg);
    }
}

/* The eight bytes of a bitmap from `byte` on as a word whose bit i is the bitmap's bit 8 byte + i.
 */
static inline uint64_t s2_load_word(const uint8_t *byte)
{
    uint64_t word;
    memcpy(&word, byte, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline void s2_store_word(uint8_t *byte, uint64_t word)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(byte, &word, 8);
}

/*
 * Set bits, by adding neighbours: pairs, nibbles, bytes, then all bytes at once by the product.
 * Unlike the builtin it needs no instruction beyond the baseline, and compilers vectorise it.
 */
static inline int64_t s2_popcount(uint64_t word)
{
    word = word - ((word >> 1) & UINT64_C(0x5555555555555555));
    word = (word & UINT64_C(0x3333333333333333)) + ((word >> 2) & UINT64_C(0x3333333333333333));
    word = (word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (int64_t)((word * UINT64_C(0x0101010101010101)) >> 56);
}

/* Number of the lowest set bit of a word that is not zero. */
static inline int s2_lowest_bit(uint64_t word) { return __builtin_ctzll(word); }

/* The layout's rules, and that `nbytes` is the size of its bitmap. */
s2_status s2_layout_check(const s2_layout *layout);
s2_status s2_layout_check_bitmap(const s2_layout *layout, const uint8_t *bitmap, int64_t nbytes);

/* The values of a bucket that follows `layout`. */
s2_status s2_layout_check_values(const s2_layout *layout, const void *values, s2_dtype dtype);

/* That positions ascend strictly from 0 or more, below nbits. */
s2_status s2_positions_check(const int64_t *positions, int64_t npositions, int64_t nbits);

/* The positions, and that packed blocks at them have `packed_numel` elements. */
s2_status s2_blocks_check_packed(const s2_layout *layout, const int64_t *positions,
                                 int64_t npositions, const void *packed, int64_t packed_numel);

/* How many of the ascending positions lie below `bit`. */
int64_t s2_positions_below(const int64_t *positions, int64_t npositions, int64_t bit);

/*
 * The kernel that takes `src` to `dst`, or NULL for a copy of the bits: the pairs of dtypes that
 * s2_values_convert() takes, and its checks.
 */
s2_status s2_convert_kernel_find(s2_dtype src, s2_dtype dst, double divisor,
                                 s2_convert_kernel *convert);

#endif /* S2_INTERNAL_H */
