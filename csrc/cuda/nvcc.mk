# SPDX-License-Identifier: MIT
#
# How nvcc compiles the kernels: by two files of options, which setup.py gives it as well.
#
# The bits of the C core need -fmad=false: see launch.h.  The code for 8.0 runs on 8.6 and 8.9 as
# well, and from the PTX comes that for what is newer than 9.0.

NVCC_OPTIONS := $(dir $(lastword $(MAKEFILE_LIST)))
NVCC ?= nvcc
NVCC_ARCHS ?= --options-file $(NVCC_OPTIONS)nvcc_archs.txt
NVCC_FLAGS := --options-file $(NVCC_OPTIONS)nvcc_flags.txt --threads 2 \
              -Werror all-warnings -Xcompiler -Wall,-Wextra
