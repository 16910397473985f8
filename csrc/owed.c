/* SPDX-License-Identifier: MIT */
/* Error feedback: what is owed grows by gradients, and shrinks by what is delivered. */
#include <math.h>

#include "internal.h"

static bool is_factor(float factor) { return isfinite(factor) && factor > 0.0f; }

static s2_status check_numel(int64_t numel)
{
    return numel < 0 || numel > S2_MAX_NUMEL ? S2_BAD_SIZE : S2_OK;
}

/* Floats of a stage, through which the other dtypes go. */
#define STAGE_NUMEL (S2_STAGE_NBYTES / 4)

/* ---------------------------------------------------------------------------------------------- */
/* Add                                                                                            */
/* ---------------------------------------------------------------------------------------------- */

struct addition {
    const struct s2_kernels *kernels;
    s2_convert_kernel widen; /* NULL: the values are FLOAT32 */
    const uint8_t *values;
    int64_t width;
    float factor;
    const float *before; /* or NULL */
    float *owed;
    int touched;
};

static void add_range(void *arg, int64_t begin, int64_t end)
{
    struct addition *a = arg;
    union s2_stage stage;
    bool touched = false;

    for (int64_t at = begin, n; at < end; at += n) {
        const uint8_t *values = a->values + at * a->width;
        const float *before = a->before == NULL ? NULL : a->before + at;
        const float *wide = (const float *)(const void *)values;
        n = end - at;
        if (a->widen != NULL) {
            n = s2_min(n, STAGE_NUMEL);
            a->widen(values, stage.floats, n, 1.0);
            wide = stage.floats;
        }
        touched |= a->kernels->owed_add(wide, n, a->factor, before, a->owed + at);
    }
    if (touched) __atomic_store_n(&a->touched, 1, __ATOMIC_RELAXED);
}

s2_status s2_owed_add(const void *values, s2_dtype dtype, int64_t numel, double factor,
                      const float *before, float *owed, int *touched, const s2_executor *executor)
{
    struct addition a = {.kernels = s2_kernels_current(),
                         .values = values,
                         .width = s2_dtype_nbytes(dtype),
                         .factor = (float)factor,
                         .before = before,
                         .owed = owed,
                         .touched = 0};

    S2_RETURN_IF_ERROR(s2_convert_kernel_find(dtype, S2_FLOAT32, 1.0, &a.widen));
    S2_RETURN_IF_ERROR(check_numel(numel));
    if (!is_factor(a.factor)) return S2_BAD_FACTOR;
    if (s2_is_null(values, numel) || s2_is_null(owed, numel) || touched == NULL)
        return S2_NULL_POINTER;
    if (numel != 0) s2_run(executor, numel, s2_grain(a.width + 8), add_range, &a);
    *touched = a.touched;
    return S2_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Energies                                                                                       */
/* ---------------------------------------------------------------------------------------------- */

struct measurement {
    const struct s2_kernels *kernels;
    const float *owed;
    int64_t numel;
    int64_t block;
    float *energies;
};

static void measure_blocks(void *arg, int64_t begin, int64_t end)
{
    const struct measurement *m = arg;
    const int64_t first = begin * m->block;
    /* Not the product where it could overflow, behind the last block. */
    const int64_t last = end > m->numel / m->block ? m->numel : end * m->block;

    m->kernels->owed_energies(m->owed + first, last - first, m->block, m->energies + begin);
}

/* Blocks of an array; 0 where the sizes are not allowed or the array is empty. */
static int64_t nblocks_of(int64_t numel, int64_t block)
{
    return numel < 1 || block < 1 ? 0 : (numel - 1) / block + 1;
}

s2_status s2_owed_energies(const float *owed, int64_t numel, int64_t block, float *energies,
                           int64_t nblocks, const s2_executor *executor)
{
    S2_RETURN_IF_ERROR(check_numel(numel));
    if (block < 1 || nblocks != nblocks_of(numel, block)) return S2_BAD_SIZE;
    if (s2_is_null(owed, numel) || s2_is_null(energies, nblocks)) return S2_NULL_POINTER;
    if (numel == 0) return S2_OK;

    struct measurement m = {.kernels = s2_kernels_current(),
                            .owed = owed,
                            .numel = numel,
                            .block = s2_min(block, numel),
                            .energies = energies};
    s2_run(executor, nblocks, s2_grain(4 * m.block), measure_blocks, &m);
    return S2_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Deliver                                                                                        */
/* ---------------------------------------------------------------------------------------------- */

/* Cut at words of the bitmap, so that its bits are looked at a word at a time. */
struct delivery {
    const struct s2_kernels *kernels;
    s2_convert_kernel narrow, widen; /* NULL: the values are FLOAT32 */
    float *owed;
    int64_t numel;
    int64_t block;
    const uint8_t *bitmap; /* NULL: all bits are set */
    float scale, factor;
    uint8_t *values;
    int64_t width;
};

static void clear_values(const struct delivery *d, int64_t at, int64_t n)
{
    memset(d->values + at * d->width, 0, (size_t)(n * d->width));
}

/* Delivers n elements, a stage at a time; of blocks of one element those whose bits are set. */
static void deliver_run(const struct delivery *d, int64_t at, int64_t n, const uint8_t *bitmap)
{
    union s2_stage stage;

    for (int64_t end = at + n; at < end; at += n) {
        uint8_t *values = d->values + at * d->width;
        float *wide = d->narrow == NULL ? (float *)(void *)values : stage.floats;
        n = s2_min(STAGE_NUMEL, end - at);
        d->kernels->owed_scale(d->owed + at, n, d->scale, wide);
        if (bitmap != NULL) {
            d->kernels->owed_clear(wide, n, bitmap);
            bitmap += STAGE_NUMEL / 8;
        }
        if (d->narrow != NULL) {
            d->narrow(wide, values, n, 1.0);
            d->widen(values, wide, n, 1.0);
        }
        d->kernels->owed_subtract(wide, n, d->factor, d->owed + at);
    }
}

/* The n elements from `at` on, the blocks of one word, in runs of blocks that are alike. */
static void deliver_word(const struct delivery *d, int64_t at, int64_t n, uint64_t word)
{
    for (int64_t end = at + n; at < end;) {
        const bool selected = word & 1;
        const uint64_t others = selected ? ~word : word;
        const int length = others == 0 ? 64 : s2_lowest_bit(others);
        const int64_t left = end - at;
        const int64_t run = left / d->block < length ? left : length * d->block;
        if (selected)
            deliver_run(d, at, run, NULL);
        else
            clear_values(d, at, run);
        at += run;
        word = length == 64 ? 0 : word >> length;
    }
}

static void deliver_words(void *arg, int64_t begin, int64_t end)
{
    const struct delivery *d = arg;
    const int64_t first = 64 * begin * d->block;
    /* The last word may stand for more than there is, and a product of it overflow. */
    const int64_t last = end > d->numel / d->block / 64 ? d->numel : 64 * end * d->block;

    if (d->bitmap == NULL || d->block == 1) {
        const uint8_t *bitmap = d->bitmap == NULL ? NULL : d->bitmap + 8 * begin;
        deliver_run(d, first, last - first, bitmap);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        const int64_t at = 64 * i * d->block;
        const int64_t n = (last - at) / 64 >= d->block ? 64 * d->block : last - at;
        deliver_word(d, at, n, s2_load_word(d->bitmap + 8 * i));
    }
}

s2_status s2_owed_deliver(float *owed, int64_t numel, int64_t block, const uint8_t *bitmap,
                          int64_t nbytes, double scale, void *values, s2_dtype dtype,
                          const s2_executor *executor)
{
    struct delivery d = {.kernels = s2_kernels_current(),
                         .owed = owed,
                         .numel = numel,
                         .bitmap = bitmap,
                         .scale = (float)scale,
                         .factor = (float)(1.0 / scale),
                         .values = values,
                         .width = s2_dtype_nbytes(dtype)};

    S2_RETURN_IF_ERROR(s2_convert_kernel_find(S2_FLOAT32, dtype, 1.0, &d.narrow));
    S2_RETURN_IF_ERROR(s2_convert_kernel_find(dtype, S2_FLOAT32, 1.0, &d.widen));
    S2_RETURN_IF_ERROR(check_numel(numel));
    if (block < 1) return S2_BAD_SIZE;
    const int64_t wanted = (nblocks_of(numel, block) + 63) / 64 * 8;
    if (nbytes != (bitmap == NULL ? 0 : wanted)) return S2_BAD_SIZE;
    if (!is_factor(d.scale) || !is_factor(d.factor)) return S2_BAD_FACTOR;
    if (s2_is_null(owed, numel) || s2_is_null(values, numel)) return S2_NULL_POINTER;
    if (numel == 0) return S2_OK;

    /* Where all is delivered, blocks do not matter. */
    d.block = bitmap == NULL ? 1 : s2_min(block, numel);
    const int64_t nwords = (nblocks_of(numel, d.block) + 63) / 64;
    const int64_t word_numel = nwords > 1 ? 64 * d.block : numel;
    s2_run(executor, nwords, s2_grain(4 * word_numel), deliver_words, &d);
    return S2_OK;
}
