/* SPDX-License-Identifier: MIT */
/*
 * The loop over blocks, the same in every variant.  Before including this file define
 *
 *   NAME                              of the function
 *   TARGET                            its attribute
 *   MASK_TYPE, MASK_FROM(width)       the magnitude mask in the variant's own form
 *   BLOCK_STATE(p, nbytes, mask)      the state of one block
 */

static TARGET int64_t NAME(const uint8_t *values, int64_t nbytes, int64_t block_nbytes,
                           int64_t width, uint8_t *bitmap)
{
    const uint8_t *p = values, *end = values + nbytes;
    const MASK_TYPE mask = MASK_FROM(width);
    int64_t negative_zeros = 0;

    while (p != end) {
        uint64_t word = 0;
        for (int bit = 0; bit < 64 && p != end; bit++) {
            int64_t n = end - p < block_nbytes ? end - p : block_nbytes;
            enum s2_block_state state = BLOCK_STATE(p, n, mask);
            word |= (uint64_t)(state == S2_BLOCK_LIVE) << bit;
            negative_zeros += state == S2_BLOCK_NEGATIVE_ZERO;
            p += n;
        }
        s2_store_word(bitmap, word);
        bitmap += 8;
    }
    return negative_zeros;
}

#undef NAME
#undef TARGET
#undef MASK_TYPE
#undef MASK_FROM
#undef BLOCK_STATE
