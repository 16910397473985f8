/* SPDX-License-Identifier: MIT */
#ifndef S2_CPU_FEATURES_H
#define S2_CPU_FEATURES_H

#include "../s2.h"

/* The widest variant that the processor has and whose registers the operating system saves. */
s2_variant s2_cpu_detect_variant(void);

#endif /* S2_CPU_FEATURES_H */
