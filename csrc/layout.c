/* SPDX-License-Identifier: MIT */
#include "internal.h"

int64_t s2_segment_nblocks(const s2_segment *segment)
{
    return segment->numel / segment->block + (segment->numel % segment->block != 0);
}

/* Sets *nbits to the end of the last segment's bits, rounded up to a word. */
static s2_status check_segments(const s2_layout *layout, int64_t *nbits)
{
    int64_t next_offset = 0, next_bit = 0;

    if (layout == NULL) return S2_NULL_POINTER;
    if (layout->nsegments < 0 || layout->numel < 0) return S2_BAD_SIZE;
    if (layout->numel > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (s2_is_null(layout->segments, layout->nsegments)) return S2_NULL_POINTER;

    for (int64_t i = 0; i < layout->nsegments; i++) {
        const s2_segment *segment = &layout->segments[i];

        if (segment->numel < 0 || segment->block < 1) return S2_BAD_LAYOUT;
        if (segment->offset < next_offset || segment->numel > layout->numel - next_offset ||
            segment->offset > layout->numel - segment->numel)
            return S2_BAD_LAYOUT;
        if (segment->first_bit < next_bit || segment->first_bit % 64 != 0) return S2_BAD_LAYOUT;
        next_offset = segment->offset + segment->numel;

        int64_t nblocks = s2_segment_nblocks(segment);
        if (segment->first_bit > INT64_MAX - 63 - nblocks) return S2_BAD_LAYOUT;
        next_bit = (segment->first_bit + nblocks + 63) / 64 * 64;
    }
    *nbits = next_bit;
    return S2_OK;
}

s2_status s2_layout_bitmap_nbytes(const s2_layout *layout, int64_t *nbytes)
{
    int64_t nbits;

    if (nbytes == NULL) return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(check_segments(layout, &nbits));
    *nbytes = nbits / 8;
    return S2_OK;
}

s2_status s2_layout_check(const s2_layout *layout)
{
    int64_t nbits;
    return check_segments(layout, &nbits);
}

s2_status s2_layout_check_bitmap(const s2_layout *layout, const uint8_t *bitmap, int64_t nbytes)
{
    int64_t nbits;

    S2_RETURN_IF_ERROR(check_segments(layout, &nbits));
    if (nbytes != nbits / 8) return S2_BAD_SIZE;
    return s2_is_null(bitmap, nbytes) ? S2_NULL_POINTER : S2_OK;
}

s2_status s2_layout_check_values(const s2_layout *layout, const void *values, s2_dtype dtype)
{
    S2_RETURN_IF_ERROR(s2_layout_check(layout));
    if (s2_dtype_nbytes(dtype) == 0) return S2_BAD_DTYPE;
    return s2_is_null(values, layout->numel) ? S2_NULL_POINTER : S2_OK;
}

s2_status s2_positions_check(const int64_t *positions, int64_t npositions, int64_t nbits)
{
    int64_t previous = -1;

    for (int64_t i = 0; i < npositions; i++) {
        if (positions[i] <= previous) return S2_BAD_POSITION;
        previous = positions[i];
    }
    return previous < nbits ? S2_OK : S2_BAD_POSITION;
}

int64_t s2_positions_below(const int64_t *positions, int64_t npositions, int64_t bit)
{
    int64_t low = 0, high = npositions;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (positions[middle] < bit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
