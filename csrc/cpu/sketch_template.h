/* SPDX-License-Identifier: MIT */
/*
 * Moves between packed blocks and the cells of a sketch.  The loops over elements are plain ones
 * that the compiler turns into the instructions of TARGET, so every variant has the same arithmetic
 * by construction; the loops over moves are compiled with them, as in rows_template.h.  Before
 * including this file define
 *
 *   TARGET          attribute of the functions
 */

#define ALWAYS_INLINE static inline __attribute__((always_inline)) TARGET

/* The cell of a move that comes soon, wherever it is. */
ALWAYS_INLINE void prefetch_cell(const float *table, int64_t block, const struct s2_move *move)
{
    s2_prefetch_row((const uint8_t *)(table + move->cell * block), 4 * block);
}

ALWAYS_INLINE uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

ALWAYS_INLINE float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* ---------------------------------------------------------------------------------------------- */
/* Add and take                                                                                   */
/* ---------------------------------------------------------------------------------------------- */

/* Subtracting x and adding -x are the same, to the last bit. */
ALWAYS_INLINE void add_block(float *restrict cell, const float *restrict values, int64_t block,
                             uint32_t sign)
{
    for (int64_t i = 0; i < block; i++)
        cell[i] += float_of(bits_of(values[i]) ^ sign);
}

static TARGET void sketch_add(float *table, const float *values, int64_t block,
                              const struct s2_move *moves, int64_t n)
{
    const int64_t ahead = s2_rows_ahead(4 * block);

    for (int64_t i = 0; i < n && i < ahead; i++)
        prefetch_cell(table, block, &moves[i]);
    for (int64_t i = 0; i < n; i++) {
        if (i + ahead < n) prefetch_cell(table, block, &moves[i + ahead]);
        add_block(table + moves[i].cell * block, values + moves[i].index * block, block,
                  moves[i].sign);
    }
}

/* The addition makes a zero +0.0; the magnitudes are those of bits, of which one is a NaN's. */
ALWAYS_INLINE float take_block(const float *restrict cell, float *restrict values, int64_t block,
                               uint32_t sign)
{
    uint32_t norm = 0;

    for (int64_t i = 0; i < block; i++) {
        uint32_t bits = bits_of(cell[i]) ^ sign;
        uint32_t magnitude = bits & 0x7fffffff;
        norm = magnitude > norm ? magnitude : norm;
        values[i] = float_of(bits) + 0.0f;
    }
    return float_of(norm);
}

static TARGET void sketch_take(const float *table, float *values, int64_t block,
                               const struct s2_move *moves, int64_t n, float *norms)
{
    const int64_t ahead = s2_rows_ahead(4 * block);

    for (int64_t i = 0; i < n && i < ahead; i++)
        prefetch_cell(table, block, &moves[i]);
    for (int64_t i = 0; i < n; i++) {
        if (i + ahead < n) prefetch_cell(table, block, &moves[i + ahead]);
        norms[moves[i].index] = take_block(table + moves[i].cell * block,
                                           values + moves[i].index * block, block, moves[i].sign);
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Magnitudes                                                                                     */
/* ---------------------------------------------------------------------------------------------- */

static TARGET float sketch_largest(const float *values, int64_t n)
{
    uint32_t largest = 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = bits_of(values[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return float_of(largest);
}

static TARGET void sketch_clear(float *values, int64_t n, float threshold)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(values[i]);
        uint32_t kept = float_of(bits & 0x7fffffff) <= threshold ? 0 : UINT32_MAX;
        values[i] = float_of(bits & kept);
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Median                                                                                         */
/* ---------------------------------------------------------------------------------------------- */

/*
 * Floats as integers of the same order, -0.0 below +0.0 and NaNs at the ends: of a negative number
 * all bits but the sign are flipped.  The way back is the same.
 */
ALWAYS_INLINE uint32_t ordered(uint32_t bits) { return bits ^ ((0 - (bits >> 31)) >> 1); }

/* Keys of so many elements and all rows are an eighth of a first-level cache. */
#define STRIP 128

/* Puts the smaller of each pair into the first array. */
ALWAYS_INLINE void exchange(int32_t *restrict a, int32_t *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t x = a[i], y = b[i];
        a[i] = x < y ? x : y;
        b[i] = x < y ? y : x;
    }
}

/* The median of sorted keys as floats.  The additions of 0.0f make a zero +0.0. */
ALWAYS_INLINE void middle(int32_t keys[][STRIP], int64_t rows, float *restrict values, int64_t n)
{
    const int32_t *upper = keys[rows / 2], *lower = keys[(rows - 1) / 2];

    if (rows % 2 == 1) {
        for (int64_t i = 0; i < n; i++)
            values[i] = float_of(ordered((uint32_t)upper[i])) + 0.0f;
        return;
    }
    /* Halved before they are added, so that the sum cannot overflow.  In statements of their own:
     * in one, a compiler may fuse a product with the sum, which rounds a subnormal otherwise. */
    for (int64_t i = 0; i < n; i++) {
        float a = float_of(ordered((uint32_t)lower[i]));
        float b = float_of(ordered((uint32_t)upper[i]));
        a *= 0.5f;
        b *= 0.5f;
        values[i] = a + b + 0.0f;
    }
}

/* All elements of a strip are sorted at once, by insertion: so that every loop is one of vectors,
 * whatever `rows` is. */
ALWAYS_INLINE void median_block(const float *table, float *restrict values, int64_t block,
                                const struct s2_move *moves, int64_t rows)
{
    int32_t keys[8][STRIP];

    for (int64_t at = 0; at < block; at += STRIP) {
        const int64_t n = block - at < STRIP ? block - at : STRIP;
        for (int64_t r = 0; r < rows; r++) {
            const float *restrict cell = table + moves[r].cell * block + at;
            const uint32_t sign = moves[r].sign;
            for (int64_t i = 0; i < n; i++)
                keys[r][i] = (int32_t)ordered(bits_of(cell[i]) ^ sign);
            for (int64_t s = r; s > 0; s--)
                exchange(keys[s - 1], keys[s], n);
        }
        middle(keys, rows, values + at, n);
    }
}

static TARGET void sketch_median(const float *table, float *values, int64_t block,
                                 const struct s2_move *moves, int64_t n, int64_t rows)
{
    const int64_t ahead = (s2_rows_ahead(4 * block) + rows - 1) / rows * rows;

    for (int64_t i = 0; i < n * rows && i < ahead; i++)
        prefetch_cell(table, block, &moves[i]);
    for (int64_t i = 0; i < n * rows; i += rows) {
        for (int64_t r = 0; r < rows && i + ahead < n * rows; r++)
            prefetch_cell(table, block, &moves[i + ahead + r]);
        median_block(table, values + moves[i].index * block, block, moves + i, rows);
    }
}

#undef STRIP
#undef ALWAYS_INLINE
