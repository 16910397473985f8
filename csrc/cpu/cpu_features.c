/* SPDX-License-Identifier: MIT */
#include "cpu_features.h"

#include <stdbool.h>

#include "kernels.h"

#if S2_X86
#include <cpuid.h>

#define ALL_OF(value, mask) (((value) & (mask)) == (mask))

/* Extended control register 0: which registers the operating system saves at a context switch. */
static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Bits of CPUID and XCR0 by their names in the Intel SDM, volume 2 (CPUID) and volume 1 (13.3). */
s2_variant s2_cpu_detect_variant(void)
{
    const uint32_t leaf1_ecx =
        1u << 23 /* POPCNT */ | 1u << 27 /* OSXSAVE */ | 1u << 28 /* AVX */ | 1u << 29 /* F16C */;
    const uint32_t leaf7_avx2 = 1u << 3 /* BMI1 */ | 1u << 5 /* AVX2 */;
    const uint32_t leaf7_avx512 =
        1u << 16 /* F */ | 1u << 17 /* DQ */ | 1u << 30 /* BW */ | 1u << 31 /* VL */;
    const uint64_t xcr0_avx = 1u << 1 /* XMM */ | 1u << 2 /* YMM */;
    const uint64_t xcr0_avx512 = xcr0_avx | 7u << 5 /* masks, ZMM 0-15, ZMM 16-31 */;
    uint32_t eax, ebx, ecx, edx;

    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !ALL_OF(ecx, leaf1_ecx)) return S2_PORTABLE;
    uint64_t xcr0 = read_xcr0();
    if (!ALL_OF(xcr0, xcr0_avx)) return S2_PORTABLE;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return S2_PORTABLE;
    if (!ALL_OF(ebx, leaf7_avx2)) return S2_PORTABLE;
    if (!ALL_OF(ebx, leaf7_avx512) || !ALL_OF(xcr0, xcr0_avx512)) return S2_AVX2;
    return S2_AVX512;
}

#else

s2_variant s2_cpu_detect_variant(void) { return S2_PORTABLE; }

#endif
