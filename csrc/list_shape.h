/* SPDX-License-Identifier: MIT */
/* Where the two parts of a list lie, and how positions are cut in two: see s2.h. */
#ifndef S2_LIST_SHAPE_H
#define S2_LIST_SHAPE_H

#include <stdint.h>

#include "inline.h"

typedef struct s2_list_shape {
    int low_bits;
    int64_t low_nbytes;
    int64_t high_nbits; /* of the second part that can be set */
    int64_t nbytes;
} s2_list_shape;

S2_INLINE int64_t s2_list_words_nbytes(int64_t nbits) { return (nbits + 63) / 64 * 8; }

/* For 0 <= count <= nbits.  No product overflows: count <= nbits / 2^low_bits, so that
 * count * low_bits <= nbits / 2. */
S2_INLINE s2_list_shape s2_list_shape_of(int64_t nbits, int64_t count)
{
    s2_list_shape shape = {0, 0, 0, 0};

    if (count == 0) return shape;
    while (nbits >> (shape.low_bits + 1) >= count)
        shape.low_bits++;
    shape.low_nbytes = s2_list_words_nbytes(count * shape.low_bits);
    shape.high_nbits = count + ((nbits - 1) >> shape.low_bits);
    shape.nbytes = shape.low_nbytes + s2_list_words_nbytes(shape.high_nbits);
    return shape;
}

#endif /* S2_LIST_SHAPE_H */
