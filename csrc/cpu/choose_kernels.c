/* SPDX-License-Identifier: MIT */
/* The only file that decides which variant runs. */
#include <stddef.h>

#include "cpu_features.h"
#include "kernels.h"

#define UNKNOWN (-1)

/* Caches of what never changes, and of what only tests change: an s2_variant or UNKNOWN.  Two
 * threads that find UNKNOWN both detect and both store the same. */
static int best_variant = UNKNOWN;
static int forced_variant = UNKNOWN;

s2_variant s2_variant_best(void)
{
    int best = __atomic_load_n(&best_variant, __ATOMIC_RELAXED);
    if (best == UNKNOWN) {
        best = (int)s2_cpu_detect_variant();
        __atomic_store_n(&best_variant, best, __ATOMIC_RELAXED);
    }
    return (s2_variant)best;
}

s2_variant s2_variant_current(void)
{
    int forced = __atomic_load_n(&forced_variant, __ATOMIC_RELAXED);
    return forced == UNKNOWN ? s2_variant_best() : (s2_variant)forced;
}

s2_status s2_variant_force(s2_variant variant)
{
    if (s2_variant_name(variant) == NULL || variant > s2_variant_best()) return S2_BAD_VARIANT;
    __atomic_store_n(&forced_variant, (int)variant, __ATOMIC_RELAXED);
    return S2_OK;
}

const char *s2_variant_name(s2_variant variant)
{
    switch (variant) {
    case S2_PORTABLE:
        return "portable";
    case S2_AVX2:
        return "avx2";
    case S2_AVX512:
        return "avx512";
    }
    return NULL;
}

const struct s2_kernels *s2_kernels_current(void)
{
#if S2_X86
    switch (s2_variant_current()) {
    case S2_AVX512:
        return &s2_kernels_avx512;
    case S2_AVX2:
        return &s2_kernels_avx2;
    case S2_PORTABLE:
        break;
    }
#endif
    return &s2_kernels_portable;
}
