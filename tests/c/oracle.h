/* SPDX-License-Identifier: MIT */
/*
 * oracle.h - what the functions of s2.h should do, written once more from the contract alone: one
 * element at a time, one block at a time, without a thought for speed.  Elements are handled as
 * bit patterns, so that no compiler flag and no conversion instruction has a say in the result.
 */
#ifndef S2_ORACLE_H
#define S2_ORACLE_H

#include <stdint.h>

#include "s2.h"

/* ----------------------------------------- Elements ------------------------------------------- */

extern const s2_dtype all_dtypes[4];
const char *dtype_name(s2_dtype dtype);
int64_t dtype_size(s2_dtype dtype);

uint64_t element_get(const void *array, s2_dtype dtype, int64_t i);
void element_set(void *array, s2_dtype dtype, int64_t i, uint64_t bits);

/* A bit pattern of this dtype with the sign bit alone: -0.0. */
uint64_t element_sign(s2_dtype dtype);
int element_is_zero(s2_dtype dtype, uint64_t bits); /* +0.0 or -0.0 */
int element_is_nan(s2_dtype dtype, uint64_t bits);

/* The number that a pattern stands for; every dtype's numbers are doubles. */
double element_value(s2_dtype dtype, uint64_t bits);

/* The pattern nearest to a number; of two that are equally near, the one that ends in 0. */
uint64_t element_round(s2_dtype dtype, double value);

/* One element of s2_values_convert(), and the pairs that it takes. */
uint64_t oracle_convert(s2_dtype src, uint64_t bits, s2_dtype dst, double divisor);
int oracle_converts(s2_dtype src, s2_dtype dst, double divisor);

/* One element of s2_blocks_add(), and the pairs that it takes. */
uint64_t oracle_sum(s2_dtype accumulator, uint64_t bits, s2_dtype packed, uint64_t packed_bits);
int oracle_adds(s2_dtype packed, s2_dtype accumulator);

/*
 * Fails unless the arrays have the same bits.  With `any_nan`, one NaN is as good as another.
 * Arrays with that freedom hold NaNs only where something was computed.
 */
void check_elements(s2_dtype dtype, const void *got, const void *wanted, int64_t numel,
                    int any_nan);

/* ------------------------------------------ Blocks -------------------------------------------- */

/* A block of a layout, found by its bit. */
typedef struct oracle_block {
    int64_t segment;
    int64_t begin;   /* its first element in the bucket */
    int64_t present; /* its elements in the bucket */
    int64_t length;  /* its elements when packed */
} oracle_block;

/* 0 when the bit belongs to no block. */
int oracle_find_block(const s2_layout *layout, int64_t bit, oracle_block *block);

int64_t oracle_bitmap_nbytes(const s2_layout *layout);

int oracle_bit(const uint8_t *bitmap, int64_t bit);
void oracle_set_bit(uint8_t *bitmap, int64_t bit);

/* Returns the number of dead blocks that hold a -0.0. */
int64_t oracle_bitmap_from_nonzero(const s2_layout *layout, const void *values, s2_dtype dtype,
                                   uint8_t *bitmap);
void oracle_bitmap_count(const s2_layout *layout, const uint8_t *bitmap, int64_t *counts);

/* Returns the number of positions. */
int64_t oracle_bitmap_positions(const uint8_t *bitmap, int64_t nbytes, int64_t *positions);

int64_t oracle_packed_numel(const s2_layout *layout, const int64_t *positions, int64_t npositions);
void oracle_gather(const s2_layout *layout, const void *values, s2_dtype dtype,
                   const int64_t *positions, int64_t npositions, void *packed,
                   s2_dtype packed_dtype, double divisor);
void oracle_scatter(const s2_layout *layout, const void *packed, s2_dtype packed_dtype,
                    const int64_t *positions, int64_t npositions, void *values, s2_dtype dtype,
                    double divisor);
void oracle_add(const s2_layout *layout, const void *packed, s2_dtype packed_dtype,
                const int64_t *positions, int64_t npositions, void *accumulator,
                s2_dtype accumulator_dtype);
void oracle_clear_dead(const s2_layout *layout, const uint8_t *bitmap, void *values,
                       s2_dtype dtype);

#endif /* S2_ORACLE_H */
