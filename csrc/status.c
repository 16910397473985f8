/* SPDX-License-Identifier: MIT */
#include "s2.h"

const char *s2_status_string(s2_status status)
{
    switch (status) {
    case S2_OK:
        return "no error";
    case S2_NULL_POINTER:
        return "a pointer is NULL and the size that goes with it is not zero";
    case S2_BAD_DTYPE:
        return "a dtype, or a pair of dtypes, is not one that the function takes";
    case S2_BAD_LAYOUT:
        return "a segment breaks a rule of the layout";
    case S2_BAD_SIZE:
        return "a size is negative, or is not the one that the other arguments imply";
    case S2_BAD_POSITION:
        return "positions do not ascend strictly, or one of them names no block or row";
    case S2_BAD_DIVISOR:
        return "a divisor is not a finite number above zero";
    case S2_BAD_SKETCH:
        return "a sketch has a shape that is not allowed, or another shape or seed than the other";
    case S2_BAD_FACTOR:
        return "a factor, a scale or a threshold is not a number that the function takes";
    case S2_BAD_VARIANT:
        return "a kernel variant is unknown, or this machine cannot run it";
    case S2_BAD_ADDRESS:
        return "a device pointer is not aligned";
    case S2_CUDA_ERROR:
        return "the CUDA runtime refused a launch, or had an error pending before it";
    }
    return "an unknown status";
}

int64_t s2_dtype_nbytes(s2_dtype dtype)
{
    switch (dtype) {
    case S2_FLOAT64:
        return 8;
    case S2_FLOAT32:
        return 4;
    case S2_FLOAT16:
    case S2_BFLOAT16:
        return 2;
    }
    return 0;
}
