/* SPDX-License-Identifier: MIT */
/*
 * Sums of stacked rows.  They stay in registers: a run of elements of all rows, then the next run,
 * in the end one of half the length, and what is left of a row in memory.  The loops are as plain
 * as those of convert_template.h, which comes before this file; since a run has a constant length,
 * compilers keep its sums in registers.  Before including this file define
 *
 *   TARGET, SUFFIX(name)         as for convert_template.h
 *   RUN_NBYTES                   of the sums of a run: eight vectors, which leaves half of the
 *                                registers or more for what is added
 *   STREAM_ROW, STREAM_FENCE     as for rows_template.h
 */

/* A run of `length` elements of one stack.  As in convert_template.h, there is no arithmetic where
 * nothing is divided. */
#define SUM_RUN(src_type, sum_type, add, store, length)                                            \
    do {                                                                                           \
        const int64_t nbytes = (length) * (int64_t)sizeof(src_type);                               \
        sum_type total[RUN_NBYTES / sizeof(sum_type)];                                             \
        src_type mean[RUN_NBYTES / sizeof(sum_type)];                                              \
        for (int64_t i = 0; i < (length); i++)                                                     \
            total[i] = 0;                                                                          \
        for (int64_t r = 0; r < nrows; r++) {                                                      \
            const src_type *row = (const src_type *)(const void *)rows[r] + at;                    \
            for (int64_t p = 0; p < nbytes; p += S2_CACHE_LINE_NBYTES)                             \
                __builtin_prefetch((const uint8_t *)row + p + stacks->ahead, 0, 3);                \
            SUFFIX(add)(row, total, length, before, before_factor);                                \
        }                                                                                          \
        if (factor == 1) {                                                                         \
            for (int64_t i = 0; i < (length); i++)                                                 \
                mean[i] = store(total[i]);                                                         \
        } else if (factor != 0) {                                                                  \
            for (int64_t i = 0; i < (length); i++)                                                 \
                mean[i] = store(total[i] * factor);                                                \
        } else {                                                                                   \
            for (int64_t i = 0; i < (length); i++)                                                 \
                mean[i] = store(total[i] / by);                                                    \
        }                                                                                          \
        if (stream)                                                                                \
            STREAM_ROW((uint8_t *)(out + at), (const uint8_t *)mean, nbytes);                      \
        else                                                                                       \
            memcpy(out + at, mean, (size_t)nbytes);                                                \
    } while (0)

#define SUM(name, src_type, sum_type, add, store, divided_before, divided_after)                   \
    static TARGET void SUFFIX(name)(const struct s2_stacks *stacks, double divisor, void *sums,    \
                                    bool stream)                                                   \
    {                                                                                              \
        const sum_type before = (sum_type)(divided_before), by = (sum_type)(divided_after);        \
        const sum_type before_factor = FACTOR(sum_type, before), factor = FACTOR(sum_type, by);    \
        const int64_t length = stacks->length, run = RUN_NBYTES / (int64_t)sizeof(sum_type);       \
        src_type *out = sums;                                                                      \
        for (int64_t b = 0; b < stacks->nblocks; b++, out += length) {                             \
            const uint8_t *const *rows = stacks->rows + b * stacks->stride;                        \
            const int64_t nrows = stacks->nrows[b];                                                \
            int64_t at = 0;                                                                        \
            for (; at + run <= length; at += run)                                                  \
                SUM_RUN(src_type, sum_type, add, store, run);                                      \
            if (at + run / 2 <= length) {                                                          \
                SUM_RUN(src_type, sum_type, add, store, run / 2);                                  \
                at += run / 2;                                                                     \
            }                                                                                      \
            if (at < length) SUM_RUN(src_type, sum_type, add, store, length - at);                 \
        }                                                                                          \
        if (stream) {                                                                              \
            STREAM_FENCE();                                                                        \
        }                                                                                          \
    }

/* Without FLOAT16, whose instructions compilers do not find by themselves. */
SUM(sum_f32, float, double, add_f32_f64_run, (float), 1, divisor)
SUM(sum_f64, double, double, add_f64_f64_run, (double), divisor, 1)
SUM(sum_bf16, uint16_t, float, add_bf16_f32_run, s2_bf16_from_float, S2_BFLOAT16_SCALE,
    divisor / S2_BFLOAT16_SCALE)

#define SUM_TABLE                                                                                  \
    {                                                                                              \
        [S2_FLOAT32] = SUFFIX(sum_f32), [S2_FLOAT64] = SUFFIX(sum_f64),                            \
        [S2_BFLOAT16] = SUFFIX(sum_bf16),                                                          \
    }

#undef STREAM_ROW
#undef STREAM_FENCE
