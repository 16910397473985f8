/* SPDX-License-Identifier: MIT */
/*
 * Selection by magnitude: a bit an element, by words of 64 of them.  Magnitudes are the bits of a
 * float32 without its sign, as whole numbers, whose order is that of the floats, infinities and
 * NaNs above them.  Before including this file define
 *
 *   TARGET             attribute of the functions
 *   ABOVE_64(p, most)  a bit for each of p[0, 64): whether its magnitude is above `most`
 */

static TARGET int64_t select_above(const float *scores, int64_t n, int32_t most, uint8_t *bitmap)
{
    int64_t count = 0, i = 0;

    for (; i + 64 <= n; i += 64) {
        const uint64_t word = ABOVE_64(scores + i, most);
        s2_store_word(bitmap + i / 8, word);
        count += s2_popcount(word);
    }
    if (i < n) {
        const uint64_t word = s2_above_portable(scores + i, n - i, most);
        s2_store_word(bitmap + i / 8, word);
        count += s2_popcount(word);
    }
    return count;
}

/* A store that is made whether the element is a candidate or not would be quicker where many are;
 * of the words here most have none or one. */
static TARGET int64_t select_split(const float *scores, int64_t n, int64_t first, int32_t below,
                                   int32_t most, uint8_t *bitmap, uint64_t *keys, int64_t *nkeys)
{
    int64_t count = 0, nfound = 0;

    for (int64_t i = 0; i < n; i += 64) {
        const bool whole = i + 64 <= n;
        const uint64_t word =
            whole ? ABOVE_64(scores + i, most) : s2_above_portable(scores + i, n - i, most);
        uint64_t inside =
            whole ? ABOVE_64(scores + i, below) : s2_above_portable(scores + i, n - i, below);
        s2_store_word(bitmap + i / 8, word);
        count += s2_popcount(word);
        for (inside &= ~word; inside != 0; inside &= inside - 1) {
            const int64_t at = i + s2_lowest_bit(inside);
            keys[nfound++] = s2_select_key(scores[at], first + at);
        }
    }
    *nkeys = nfound;
    return count;
}

#undef ABOVE_64
