/* SPDX-License-Identifier: MIT */
/*
 * Selection by magnitude: a bit an element, by words of 64 of them.  Magnitudes are the bits of a
 * float32 without its sign, as whole numbers, whose order is that of the floats, infinities and
 * NaNs above them.  Before including this file define
 *
 *   TARGET             attribute of the functions
 *   ABOVE_64(p, most)  a bit for each of p[0, 64): whether its magnitude is above `most`
 *   POPCOUNT(word)     the number of set bits
 */

static TARGET int64_t select_above(const float *scores, int64_t n, int32_t most, uint8_t *bitmap)
{
    int64_t count = 0, i = 0;

    for (; i + 64 <= n; i += 64) {
        const uint64_t word = ABOVE_64(scores + i, most);
        s2_store_word(bitmap + i / 8, word);
        count += POPCOUNT(word);
    }
    if (i < n) {
        const uint64_t word = s2_above_portable(scores + i, n - i, most);
        s2_store_word(bitmap + i / 8, word);
        count += POPCOUNT(word);
    }
    return count;
}

/* The key of the first candidate that a word has, which it is then without; that of its last
 * element if it has none. */
static inline TARGET uint64_t take_key(const float *scores, int64_t first, uint64_t *word)
{
    const int64_t at = s2_lowest_bit(*word | UINT64_C(1) << 63);
    *word &= *word - 1;
    return s2_select_key(scores[at], first + at);
}

/*
 * Whether a word has a candidate, or two, cannot be foreseen; so keys are written two at a time,
 * without a branch, and counted only so far as they are candidates.
 */
static TARGET int64_t select_split(const float *scores, int64_t n, int64_t first, int32_t below,
                                   int32_t most, uint8_t *bitmap, uint64_t *keys, int64_t *nkeys)
{
    int64_t count = 0, i = 0;
    uint64_t *next = keys;

    for (; i + 64 <= n; i += 64) {
        const uint64_t word = ABOVE_64(scores + i, most);
        uint64_t inside = ABOVE_64(scores + i, below) & ~word;
        const int64_t ninside = POPCOUNT(inside);
        s2_store_word(bitmap + i / 8, word);
        count += POPCOUNT(word);
        for (int64_t k = 0; k < s2_max(ninside, 1); k += 2) {
            next[k] = take_key(scores + i, first + i, &inside);
            next[k + 1] = take_key(scores + i, first + i, &inside);
        }
        next += ninside;
    }
    if (i < n) {
        const uint64_t word = s2_above_portable(scores + i, n - i, most);
        uint64_t inside = s2_above_portable(scores + i, n - i, below) & ~word;
        s2_store_word(bitmap + i / 8, word);
        count += POPCOUNT(word);
        while (inside != 0)
            *next++ = take_key(scores + i, first + i, &inside);
    }
    *nkeys = next - keys;
    return count;
}

#undef ABOVE_64
#undef POPCOUNT
