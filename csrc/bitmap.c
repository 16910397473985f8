/* SPDX-License-Identifier: MIT */
/* Bitmaps: made from values by the chosen kernel, combined and counted a word at a time. */
#include "internal.h"

/* ---------------------------------------------------------------------------------------------- */
/* From values                                                                                    */
/* ---------------------------------------------------------------------------------------------- */

/* One segment, cut at 64-bit words of its bits, so that no two tasks write to the same word. */
struct scan {
    const struct s2_kernels *kernels;
    const uint8_t *values; /* of the segment */
    int64_t nbytes;        /* of the segment */
    int64_t block_nbytes;
    int64_t width;       /* bytes of an element */
    uint8_t *bitmap;     /* of the segment */
    int64_t nwords;      /* of the bitmap */
    int64_t word_nbytes; /* of the values that fill a word */
    int64_t negative_zeros;
};

static void scan_words(void *arg, int64_t begin, int64_t end)
{
    struct scan *scan = arg;
    int64_t first = begin * scan->word_nbytes;
    int64_t last = end == scan->nwords ? scan->nbytes : end * scan->word_nbytes;
    const uint8_t *values = scan->values + first;
    uint8_t *bitmap = scan->bitmap + begin * 8;
    int64_t negative_zeros;

    if (scan->block_nbytes == scan->width)
        negative_zeros = scan->kernels->nonzero_elements(values, (last - first) / scan->width,
                                                         scan->width, bitmap);
    else
        negative_zeros = scan->kernels->nonzero_blocks(values, last - first, scan->block_nbytes,
                                                       scan->width, bitmap);
    if (negative_zeros != 0)
        __atomic_fetch_add(&scan->negative_zeros, negative_zeros, __ATOMIC_RELAXED);
}

s2_status s2_bitmap_from_nonzero(const s2_layout *layout, const void *values, s2_dtype dtype,
                                 uint8_t *bitmap, int64_t nbytes, int64_t *negative_zeros,
                                 const s2_executor *executor)
{
    S2_RETURN_IF_ERROR(s2_layout_check_values(layout, values, dtype));
    S2_RETURN_IF_ERROR(s2_layout_check_bitmap(layout, bitmap, nbytes));
    if (negative_zeros == NULL) return S2_NULL_POINTER;

    int64_t width = s2_dtype_nbytes(dtype);
    int64_t cleared = 0; /* bytes of the bitmap that have been written */
    *negative_zeros = 0;
    for (int64_t i = 0; i < layout->nsegments; i++) {
        const s2_segment *segment = &layout->segments[i];
        int64_t first_byte = segment->first_bit / 8;
        int64_t nwords = (s2_segment_nblocks(segment) + 63) / 64;
        if (nwords == 0) continue;

        /* A block is no longer than its segment here, whatever was declared; and with several
         * words 64 blocks are shorter than the segment.  So no product overflows. */
        int64_t segment_nbytes = segment->numel * width;
        int64_t block_nbytes = s2_min(segment->block, segment->numel) * width;
        struct scan scan = {.kernels = s2_kernels_current(),
                            .values = (const uint8_t *)values + segment->offset * width,
                            .nbytes = segment_nbytes,
                            .block_nbytes = block_nbytes,
                            .width = width,
                            .bitmap = bitmap + first_byte,
                            .nwords = nwords,
                            .word_nbytes = nwords > 1 ? 64 * block_nbytes : segment_nbytes,
                            .negative_zeros = 0};
        memset(bitmap + cleared, 0, (size_t)(first_byte - cleared));
        cleared = first_byte + nwords * 8;
        s2_run(executor, nwords, s2_grain(scan.word_nbytes), scan_words, &scan);
        *negative_zeros += scan.negative_zeros;
    }
    if (cleared != nbytes) memset(bitmap + cleared, 0, (size_t)(nbytes - cleared));
    return S2_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Sets                                                                                           */
/* ---------------------------------------------------------------------------------------------- */

static s2_status check_pair(const uint8_t *bitmap, const uint8_t *other, int64_t nbytes)
{
    if (nbytes < 0 || nbytes % 8 != 0) return S2_BAD_SIZE;
    if (s2_is_null(bitmap, nbytes) || s2_is_null(other, nbytes)) return S2_NULL_POINTER;
    return S2_OK;
}

s2_status s2_bitmap_or(uint8_t *bitmap, const uint8_t *other, int64_t nbytes)
{
    S2_RETURN_IF_ERROR(check_pair(bitmap, other, nbytes));
    for (int64_t i = 0; i < nbytes; i += 8)
        s2_store_word(bitmap + i, s2_load_word(bitmap + i) | s2_load_word(other + i));
    return S2_OK;
}

s2_status s2_bitmap_andnot(uint8_t *bitmap, const uint8_t *other, int64_t nbytes)
{
    S2_RETURN_IF_ERROR(check_pair(bitmap, other, nbytes));
    for (int64_t i = 0; i < nbytes; i += 8)
        s2_store_word(bitmap + i, s2_load_word(bitmap + i) & ~s2_load_word(other + i));
    return S2_OK;
}

static int64_t count_words(const uint8_t *bitmap, int64_t nbytes)
{
    int64_t count = 0;
    for (int64_t i = 0; i < nbytes; i += 8)
        count += s2_popcount(s2_load_word(bitmap + i));
    return count;
}

s2_status s2_bitmap_count(const s2_layout *layout, const uint8_t *bitmap, int64_t nbytes,
                          int64_t *counts)
{
    S2_RETURN_IF_ERROR(s2_layout_check_bitmap(layout, bitmap, nbytes));
    if (s2_is_null(counts, layout->nsegments)) return S2_NULL_POINTER;

    for (int64_t i = 0; i < layout->nsegments; i++) {
        const s2_segment *segment = &layout->segments[i];
        int64_t nwords = (s2_segment_nblocks(segment) + 63) / 64;
        counts[i] = nwords == 0 ? 0 : count_words(bitmap + segment->first_bit / 8, nwords * 8);
    }
    return S2_OK;
}

s2_status s2_bitmap_unite(const s2_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                          int64_t nbytes, uint8_t *bitmap, int64_t *counts)
{
    if (nranks < 1 || nranks > S2_MAX_RANKS) return S2_BAD_SIZE;
    S2_RETURN_IF_ERROR(s2_layout_check_bitmap(layout, bitmaps, nbytes));
    if (nbytes > S2_MAX_NUMEL / nranks) return S2_BAD_SIZE;
    if (s2_is_null(bitmap, nbytes) || s2_is_null(counts, layout->nsegments)) return S2_NULL_POINTER;

    if (nbytes != 0) memcpy(bitmap, bitmaps, (size_t)nbytes);
    for (int64_t rank = 0; rank < nranks; rank++) {
        const uint8_t *own = bitmaps + rank * nbytes;
        S2_RETURN_IF_ERROR(s2_bitmap_or(bitmap, own, nbytes));
        S2_RETURN_IF_ERROR(s2_bitmap_count(layout, own, nbytes, counts));
        counts += layout->nsegments;
    }
    return s2_bitmap_count(layout, bitmap, nbytes, counts);
}

s2_status s2_bitmap_positions(const uint8_t *bitmap, int64_t nbytes, int64_t *positions,
                              int64_t npositions)
{
    S2_RETURN_IF_ERROR(check_pair(bitmap, bitmap, nbytes));
    if (npositions < 0) return S2_BAD_SIZE;
    if (s2_is_null(positions, npositions)) return S2_NULL_POINTER;
    if (count_words(bitmap, nbytes) != npositions) return S2_BAD_SIZE;

    int64_t *next = positions;
    for (int64_t i = 0; i < nbytes; i += 8) {
        for (uint64_t word = s2_load_word(bitmap + i); word != 0; word &= word - 1)
            *next++ = 8 * i + s2_lowest_bit(word);
    }
    return S2_OK;
}

s2_status s2_bitmap_from_positions(const int64_t *positions, int64_t npositions, uint8_t *bitmap,
                                   int64_t nbytes)
{
    S2_RETURN_IF_ERROR(check_pair(bitmap, bitmap, nbytes));
    if (npositions < 0 || npositions > S2_MAX_NUMEL || nbytes > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (s2_is_null(positions, npositions)) return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(s2_positions_check(positions, npositions, 8 * nbytes));

    if (nbytes != 0) memset(bitmap, 0, (size_t)nbytes);
    for (int64_t i = 0; i < npositions; i++)
        bitmap[positions[i] / 8] |= (uint8_t)(1u << positions[i] % 8);
    return S2_OK;
}
