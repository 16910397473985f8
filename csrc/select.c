/* SPDX-License-Identifier: MIT */
/* Selection by a threshold and at random; select_top.c selects an exact number of the largest. */
#include "select.h"

#include "cpu/select_portable.h"
#include "hash.h"

s2_status s2_select_check_bitmap(int64_t n, const uint8_t *bitmap, int64_t nbytes)
{
    if (n < 0 || n > S2_MAX_NUMEL || nbytes != s2_select_nwords(n) * 8) return S2_BAD_SIZE;
    return s2_is_null(bitmap, nbytes) ? S2_NULL_POINTER : S2_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Threshold                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

struct comparison {
    const struct s2_kernels *kernels;
    const float *scores;
    int64_t n;
    int32_t most;
    uint8_t *bitmap;
    int64_t count;
};

static void compare_words(void *arg, int64_t begin, int64_t end)
{
    struct comparison *c = arg;
    const int64_t n = s2_min(c->n, 64 * end) - 64 * begin;
    const int64_t count =
        c->kernels->select_above(c->scores + 64 * begin, n, c->most, c->bitmap + 8 * begin);

    __atomic_fetch_add(&c->count, count, __ATOMIC_RELAXED);
}

int64_t s2_select_above_bits(const float *scores, int64_t n, int32_t most, uint8_t *bitmap,
                             const s2_executor *executor)
{
    struct comparison c = {.kernels = s2_kernels_current(),
                           .scores = scores,
                           .n = n,
                           .most = most,
                           .bitmap = bitmap,
                           .count = 0};
    if (n != 0) s2_run(executor, s2_select_nwords(n), s2_grain(64 * 4), compare_words, &c);
    return c.count;
}

s2_status s2_select_above(const float *scores, int64_t n, float threshold, uint8_t *bitmap,
                          int64_t nbytes, int64_t *count, const s2_executor *executor)
{
    S2_RETURN_IF_ERROR(s2_select_check_bitmap(n, bitmap, nbytes));
    if (s2_is_null(scores, n) || count == NULL) return S2_NULL_POINTER;
    if (threshold < 0.0f) return S2_BAD_FACTOR;
    *count = s2_select_above_bits(scores, n, s2_magnitude(threshold) - 1, bitmap, executor);
    return S2_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Random                                                                                         */
/* ---------------------------------------------------------------------------------------------- */

s2_status s2_select_random(uint64_t seed, int64_t n, int64_t keep, uint8_t *bitmap, int64_t nbytes)
{
    S2_RETURN_IF_ERROR(s2_select_check_bitmap(n, bitmap, nbytes));
    if (keep < 0 || keep > n) return S2_BAD_SIZE;

    if (nbytes != 0) memset(bitmap, 0, (size_t)nbytes);
    for (int64_t last = n - keep; last < n; last++) {
        const uint64_t hash = s2_hash(seed, (uint64_t)last);
        int64_t chosen = (int64_t)s2_hash_below_wide(hash, (uint64_t)last + 1);
        if (bitmap[chosen / 8] >> chosen % 8 & 1) chosen = last;
        bitmap[chosen / 8] |= (uint8_t)(1u << chosen % 8);
    }
    return S2_OK;
}
