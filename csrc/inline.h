/* SPDX-License-Identifier: MIT */
/* Functions that C, C++ and CUDA compilers take alike, so that all of them compute the same. */
#ifndef S2_INLINE_H
#define S2_INLINE_H

#ifdef __CUDACC__
#define S2_INLINE static __host__ __device__ inline
#else
#define S2_INLINE static inline
#endif

#endif /* S2_INLINE_H */
