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

/* By halves of a word: to shift 32 bits by as many as there are lanes is one instruction. */
static TARGET void owed_clear(float *values, int64_t n, const uint8_t *bitmap)
{
    for (int64_t begin = 0; begin < n; begin += 32) {
        const uint32_t bits = (uint32_t)(s2_load_word(bitmap + begin / 64 * 8) >> begin % 64);
        const int64_t end = n - begin < 32 ? n - begin : 32;
        for (int64_t i = 0; i < end; i++) {
            const uint32_t kept = 0 - (bits >> i & 1);
            values[begin + i] = s2_float_from_bits(s2_float_bits(values[begin + i]) & kept);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Energies                                                                                       */
/* ---------------------------------------------------------------------------------------------- */

/* So many sums side by side: two vectors of the widest kernel's, four or eight of the others', so
 * that an addition need not wait for the one before. */
#define SUMS 16

/*
 * Of n values, behind which there are `more` that may be read.  The square of a float is exact as a
 * double, so that it is all the same whether a product is fused.  A sum that a zero is added to,
 * in place of what lies behind the last value, keeps its bits.
 */
ALWAYS_INLINE double sum_of_squares(const float *values, int64_t n, int64_t more)
{
    double sums[SUMS] = {0};
    int64_t i = 0;

    for (; i + SUMS <= n; i += SUMS) {
        for (int lane = 0; lane < SUMS; lane++) {
            const double x = values[i + lane];
            sums[lane] += x * x;
        }
    }
    const int rest = (int)(n - i);
    if (rest != 0 && rest + more >= SUMS) {
        for (int lane = 0; lane < SUMS; lane++) {
            const uint32_t kept = lane < rest ? UINT32_MAX : 0;
            const double x = s2_float_from_bits(s2_float_bits(values[i + lane]) & kept);
            sums[lane] += x * x;
        }
    } else {
        for (int lane = 0; lane < rest; lane++) {
            const double x = values[i + lane];
            sums[lane] += x * x;
        }
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
        const int64_t length = n - at < block ? n - at : block;
        *energies++ = s2_energy_from_sum(sum_of_squares(owed + at, length, n - at - length));
    }
}

#undef SUMS
#undef ALWAYS_INLINE
