/* SPDX-License-Identifier: MIT */
/*
 * Elias-Fano lists: see s2.h for the layout (Elias, Efficient Storage and Retrieval by Content and
 * Address of Static Files, JACM 21(2), 1974; Fano, On the Number of Bits Required to Implement an
 * Associative Memory, 1971).
 */
#include "internal.h"
#include "list_shape.h"

static s2_status check_counts(int64_t nbits, int64_t count)
{
    return nbits >= 0 && nbits <= S2_MAX_NUMEL && count >= 0 && count <= nbits ? S2_OK
                                                                               : S2_BAD_SIZE;
}

s2_status s2_list_nbytes(int64_t nbits, int64_t count, int64_t *nbytes)
{
    S2_RETURN_IF_ERROR(check_counts(nbits, count));
    if (nbytes == NULL) return S2_NULL_POINTER;
    *nbytes = s2_list_shape_of(nbits, count).nbytes;
    return S2_OK;
}

static void set_bits(uint8_t *words, int64_t at, int n, uint64_t value)
{
    uint8_t *word = words + at / 64 * 8;
    int shift = (int)(at % 64);

    if (n == 0) return;
    s2_store_word(word, s2_load_word(word) | value << shift);
    if (shift + n > 64) s2_store_word(word + 8, s2_load_word(word + 8) | value >> (64 - shift));
}

static uint64_t get_bits(const uint8_t *words, int64_t at, int n)
{
    const uint8_t *word = words + at / 64 * 8;
    int shift = (int)(at % 64);

    if (n == 0) return 0;
    uint64_t value = s2_load_word(word) >> shift;
    if (shift + n > 64) value |= s2_load_word(word + 8) << (64 - shift);
    return value & (~UINT64_C(0) >> (64 - n));
}

s2_status s2_list_encode(const int64_t *positions, int64_t count, int64_t nbits, uint8_t *list,
                         int64_t nbytes)
{
    S2_RETURN_IF_ERROR(check_counts(nbits, count));
    const s2_list_shape shape = s2_list_shape_of(nbits, count);
    if (nbytes != shape.nbytes) return S2_BAD_SIZE;
    if (s2_is_null(positions, count) || s2_is_null(list, nbytes)) return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(s2_positions_check(positions, count, nbits));
    if (count == 0) return S2_OK;

    const uint64_t low_mask = (UINT64_C(1) << shape.low_bits) - 1;
    uint8_t *high = list + shape.low_nbytes;
    memset(list, 0, (size_t)nbytes);
    for (int64_t i = 0; i < count; i++) {
        uint64_t position = (uint64_t)positions[i];
        set_bits(list, i * shape.low_bits, shape.low_bits, position & low_mask);
        set_bits(high, i + (int64_t)(position >> shape.low_bits), 1, 1);
    }
    return S2_OK;
}

/* Whether `list` holds `count` positions that ascend strictly below nbits. */
static s2_status check_list(const uint8_t *list, const s2_list_shape *shape, int64_t count,
                            int64_t nbits)
{
    const uint8_t *high = list + shape->low_nbytes;
    int64_t i = 0, previous = -1;

    for (int64_t at = 0; at < shape->nbytes - shape->low_nbytes; at += 8) {
        for (uint64_t bits = s2_load_word(high + at); bits != 0; bits &= bits - 1, i++) {
            if (i == count) return S2_BAD_POSITION;
            int64_t upper = 8 * at + s2_lowest_bit(bits) - i;
            if (upper > (nbits - 1) >> shape->low_bits) return S2_BAD_POSITION;
            uint64_t low = get_bits(list, i * shape->low_bits, shape->low_bits);
            int64_t position = upper << shape->low_bits | (int64_t)low;
            if (position <= previous || position >= nbits) return S2_BAD_POSITION;
            previous = position;
        }
    }
    return i == count ? S2_OK : S2_BAD_POSITION;
}

s2_status s2_list_decode(const uint8_t *list, int64_t nbytes, int64_t count, int64_t nbits,
                         int64_t *positions)
{
    S2_RETURN_IF_ERROR(check_counts(nbits, count));
    const s2_list_shape shape = s2_list_shape_of(nbits, count);
    if (nbytes != shape.nbytes) return S2_BAD_SIZE;
    if (s2_is_null(positions, count) || s2_is_null(list, nbytes)) return S2_NULL_POINTER;
    if (count == 0) return S2_OK;
    S2_RETURN_IF_ERROR(check_list(list, &shape, count, nbits));

    const uint8_t *high = list + shape.low_nbytes;
    int64_t i = 0;
    for (int64_t at = 0; at < nbytes - shape.low_nbytes; at += 8) {
        for (uint64_t bits = s2_load_word(high + at); bits != 0; bits &= bits - 1, i++) {
            int64_t upper = 8 * at + s2_lowest_bit(bits) - i;
            uint64_t low = get_bits(list, i * shape.low_bits, shape.low_bits);
            positions[i] = upper << shape.low_bits | (int64_t)low;
        }
    }
    return S2_OK;
}
