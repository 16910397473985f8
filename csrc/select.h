/* SPDX-License-Identifier: MIT */
/* What select.c and select_top.c share. */
#ifndef S2_SELECT_H
#define S2_SELECT_H

#include "internal.h"

/* Scores that a kernel is given together: their keys take an eighth of a first-level cache. */
#define S2_SELECT_CHUNK 512

static inline int64_t s2_select_nwords(int64_t n) { return (n + 63) / 64; }

/* That the bitmap has the size for `n` bits, and that nothing is NULL. */
s2_status s2_select_check_bitmap(int64_t n, const uint8_t *bitmap, int64_t nbytes);

/* Sets the bits of the scores with a magnitude above `most`; returns their number. */
int64_t s2_select_above_bits(const float *scores, int64_t n, int32_t most, uint8_t *bitmap,
                             const s2_executor *executor);

#endif /* S2_SELECT_H */
