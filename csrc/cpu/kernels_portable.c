/* SPDX-License-Identifier: MIT */
/* The kernels in C99, for every processor, and the yardstick of the other variants. */
#include "../internal.h"
#include "bitmap_portable.h"
#include "convert.h"
#include "kernels.h"
#include "owed.h"
#include "select_portable.h"

/* ---------------------------------------------------------------------------------------------- */
/* Bitmap                                                                                         */
/* ---------------------------------------------------------------------------------------------- */

#define NAME nonzero_blocks
#define TARGET
#define MASK_TYPE   uint64_t
#define MASK_FROM   s2_magnitude_mask
#define BLOCK_STATE s2_block_state_portable
#include "nonzero_blocks_template.h"

/* An element of 2, 4 or 8 bytes in the low end of a word, its sign bit cut off by doubling. */
#define NONZERO_ELEMENTS(type)                                                                     \
    for (int64_t i = 0; i < n; i += 64) {                                                          \
        const int64_t end = s2_min(n, i + 64);                                                     \
        uint64_t live = 0, any = 0;                                                                \
        for (int64_t j = i; j < end; j++) {                                                        \
            type element;                                                                          \
            memcpy(&element, values + j * (int64_t)sizeof(type), sizeof(type));                    \
            live |= (uint64_t)((type)(element << 1) != 0) << (j - i);                              \
            any |= (uint64_t)(element != 0) << (j - i);                                            \
        }                                                                                          \
        s2_store_word(bitmap + i / 8, live);                                                       \
        negative_zeros += s2_popcount(any & ~live);                                                \
    }

static int64_t nonzero_elements(const uint8_t *values, int64_t n, int64_t width, uint8_t *bitmap)
{
    int64_t negative_zeros = 0;

    if (width == 8) {
        NONZERO_ELEMENTS(uint64_t)
    } else if (width == 4) {
        NONZERO_ELEMENTS(uint32_t)
    } else {
        NONZERO_ELEMENTS(uint16_t)
    }
    return negative_zeros;
}

/* ---------------------------------------------------------------------------------------------- */
/* Rows                                                                                           */
/* ---------------------------------------------------------------------------------------------- */

static inline void copy_row(uint8_t *to, const uint8_t *from, int64_t nbytes)
{
    memcpy(to, from, (size_t)nbytes);
}

#define TARGET
#define COPY_ROW       copy_row
#define STREAM_ROW     copy_row
#define STREAM_FENCE() (void)0
#include "rows_template.h"
#undef TARGET

/* ---------------------------------------------------------------------------------------------- */
/* Sketch                                                                                         */
/* ---------------------------------------------------------------------------------------------- */

#define TARGET
#include "sketch_template.h"
#undef TARGET

/* ---------------------------------------------------------------------------------------------- */
/* Selection and error feedback                                                                   */
/* ---------------------------------------------------------------------------------------------- */

#define TARGET
#define ABOVE_64(p, most) s2_above_portable(p, 64, most)
#define POPCOUNT(word)    s2_popcount(word)
#include "owed_template.h"
#include "select_template.h"
#undef TARGET

/* ---------------------------------------------------------------------------------------------- */
/* Conversion                                                                                     */
/* ---------------------------------------------------------------------------------------------- */

#define TARGET
#define SUFFIX(name) name##_portable
#include "convert_template.h"
#include "finite_template.h"
#define RUN_NBYTES     128
#define STREAM_ROW     copy_row
#define STREAM_FENCE() (void)0
#include "sums_template.h"

const struct s2_kernels s2_kernels_portable = {
    .nonzero_blocks = nonzero_blocks,
    .nonzero_elements = nonzero_elements,
    .gather_rows = gather_rows,
    .scatter_rows = scatter_rows,
    .convert = CONVERT_TABLE,
    .add = ADD_TABLE,
    .add_rows = ADD_ROWS_TABLE,
    .sum = SUM_TABLE,
    .all_finite = all_finite,
    .sketch_add = sketch_add,
    .sketch_take = sketch_take,
    .sketch_largest = sketch_largest,
    .sketch_clear = sketch_clear,
    .sketch_median = sketch_median,
    .select_above = select_above,
    .select_split = select_split,
    .owed_add = owed_add,
    .owed_scale = owed_scale,
    .owed_subtract = owed_subtract,
    .owed_clear = owed_clear,
    .owed_energies = owed_energies,
};
