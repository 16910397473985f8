/* SPDX-License-Identifier: MIT */
/*
 * Arithmetic of error feedback: plain loops that the compiler turns into the instructions of
 * TARGET, so that every variant has the same arithmetic by construction.  Products stand in
 * statements of their own: in one with a sum, a compiler may fuse the two and round only once.
 * Before including this file define
 *
 *   TARGET          attribute of the functions
 */

#define ALWAYS_INLINE static inline __attribute__((always_inline)) TARGET

static TARGET bool owed_add(const float *restrict values, int64_t n, float factor,
                            const float *restrict before, float *restrict owed)
{
    uint32_t any = 0;

    if (before == NULL) {
        for (int64_t i = 0; i < n; i++) {
            const float product = values[i] * factor;
            any |= s2_float_bits(values[i]);
            owed[i] = product + 0.0f;
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            const float product = values[i] * factor;
            any |= s2_float_bits(values[i]);
            owed[i] = before[i] + product;
        }
    }
    return (any & 0x7fffffff) != 0;
}

static TARGET void owed_scale(const float *restrict owed, int64_t n, float scale,
                              float *restrict values)
{
    for (int64_t i = 0; i < n; i++)
        values[i] = owed[i] * scale;
}

static TARGET void owed_subtract(const float *restrict values, int64_t n, float factor,
                                 float *restrict owed)
{
    for (int64_t i = 0; i < n; i++) {
        const float product = values[i] * factor;
        const uint32_t bits = s2_float_bits(product);
        const uint32_t kept = (bits & 0x7f800000) == 0x7f800000 ? 0 : UINT32_MAX;
        owed[i] -= s2_float_from_bits(bits & kept);
    }
}

/* By halves of a word: a shift of 32 bits by as many as there are lanes is one instruction. */
static TARGET void owed_clear(float *values, int64_t n, uint64_t word)
{
    for (int64_t half = 0; half < n; half += 32) {
        const uint32_t bits = (uint32_t)(word >> half);
        const int64_t end = n - half < 32 ? n - half : 32;
        for (int64_t i = 0; i < end; i++) {
            const uint32_t kept = 0 - (bits >> i & 1);
            values[half + i] = s2_float_from_bits(s2_float_bits(values[half + i]) & kept);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Energies                                                                                       */
/* ---------------------------------------------------------------------------------------------- */

/* So many sums side by side: two vectors of the widest kernel's, four or eight of the others', so
 * that an addition need not wait for the one before. */
#define SUMS 16

/* The square of a float is exact as a double, so that it is all the same whether it is fused. */
ALWAYS_INLINE double sum_of_squares(const float *values, int64_t n)
{
    double sums[SUMS] = {0};
    int64_t i = 0;

    for (; i + SUMS <= n; i += SUMS) {
        for (int lane = 0; lane < SUMS; lane++) {
            const double x = values[i + lane];
            sums[lane] += x * x;
        }
    }
    for (int lane = 0; i + lane < n; lane++) {
        const double x = values[i + lane];
        sums[lane] += x * x;
    }
    for (int half = SUMS / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    }
    return sums[0];
}

static TARGET void owed_energies(const float *owed, int64_t n, int64_t block, float *energies)
{
    for (int64_t at = 0; at < n; at += block) {
        const double sum = sum_of_squares(owed + at, n - at < block ? n - at : block);
        *energies++ = s2_energy_from_sum(sum);
    }
}

#undef SUMS
#undef ALWAYS_INLINE
