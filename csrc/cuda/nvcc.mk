# SPDX-License-Identifier: MIT
#
# How nvcc compiles the kernels.
#
# The code for 8.0 runs on 8.6 and 8.9 as well, and from the PTX comes that for what is newer than
# 9.0.  The bits of the C core need -fmad=false: see launch.h.

NVCC ?= nvcc
NVCC_ARCHS ?= -gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80 \
              -gencode arch=compute_90,code=[sm_90,compute_90]
NVCC_FLAGS := -std=c++17 -O3 -fmad=false --threads 2 -Werror all-warnings \
              -Xcompiler -Wall,-Wextra,-fPIC,-fvisibility=hidden
