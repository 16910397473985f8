// SPDX-License-Identifier: MIT
//
// What the operators share: from a tensor to a pointer and a size, with one sentence for whatever
// cannot be used.  arguments_*.h go on with what the operators of a family are given.
#ifndef S2_TORCH_ARGUMENTS_H
#define S2_TORCH_ARGUMENTS_H

#define TORCH_TARGET_VERSION 0x020b000000000000

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "../s2.h"

// Where tensors must lie, but for segments, which are on the CPU always; cuda/work.h has another.
#ifndef S2_DEVICE_NAME
#define S2_DEVICE_NAME "CPU"
#define S2_DEVICE_TYPE aoti_torch_device_type_cpu
#endif

namespace s2 {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// One sentence made of the parts.
template <typename... Parts> [[noreturn]] void fail(const char *op, const Parts &...parts)
{
    std::ostringstream sentence;
    sentence << "s2reducer::" << op << ": ";
    (sentence << ... << parts);
    throw std::runtime_error(sentence.str());
}

inline void check_torch(AOTITorchError error, const char *op, const char *call)
{
    if (error != AOTI_TORCH_SUCCESS) fail(op, call, " failed in libtorch");
}

inline void check_status(s2_status status, const char *op)
{
    if (status != S2_OK) fail(op, s2_status_string(status));
}

// What all tensors here have in common; `accepted` describes the one that `name` should be.
inline void check(const Tensor &tensor, const char *op, const char *name, const char *accepted,
                  int64_t dim, int32_t device_type = S2_DEVICE_TYPE())
{
    int32_t layout = -1;
    int32_t device = -1;
    check_torch(aoti_torch_get_layout(tensor.get(), &layout), op, "aoti_torch_get_layout");
    check_torch(aoti_torch_get_device_type(tensor.get(), &device), op,
                "aoti_torch_get_device_type");
    if (device != device_type)
        fail(op, name, " must be ", accepted, ", but it is on another device");
    if (layout != aoti_torch_layout_strided())
        fail(op, name, " must be ", accepted, ", but it is sparse");
    if (tensor.dim() != dim)
        fail(op, name, " must be ", accepted, ", but it has ", tensor.dim(), " dimensions");
    if (!tensor.is_contiguous())
        fail(op, name, " must be ", accepted, ", but it is not contiguous");
}

inline void check_dtype(const Tensor &tensor, ScalarType dtype, const char *op, const char *name,
                        const char *accepted)
{
    if (tensor.scalar_type() != dtype)
        fail(op, name, " must be ", accepted, ", but its dtype is ",
             torch::headeronly::toString(tensor.scalar_type()));
}

// `whose` names the argument that the number comes from, where it is not plain.
inline void check_numel(int64_t numel, int64_t expected, const char *op, const char *name,
                        const char *whose = nullptr)
{
    if (numel == expected) return;
    if (whose == nullptr) fail(op, name, " must have ", expected, " elements, but has ", numel);
    fail(op, name, " must have the ", expected, " elements of ", whose, ", but has ", numel);
}

// ------------------------------------------------------------------------------------------------
// Arrays
// ------------------------------------------------------------------------------------------------

struct Floats {
    void *data;
    int64_t numel;
    s2_dtype dtype;
};

inline const char *dtype_name(s2_dtype dtype)
{
    constexpr const char *names[] = {"float32", "float64", "float16", "bfloat16"};
    return names[dtype];
}

inline Floats floats(const Tensor &tensor, const char *op, const char *name, const char *accepted,
                     int64_t dim)
{
    check(tensor, op, name, accepted, dim);
    Floats result{tensor.data_ptr(), tensor.numel(), S2_FLOAT32};
    switch (tensor.scalar_type()) {
    case ScalarType::Float:
        result.dtype = S2_FLOAT32;
        break;
    case ScalarType::Double:
        result.dtype = S2_FLOAT64;
        break;
    case ScalarType::Half:
        result.dtype = S2_FLOAT16;
        break;
    case ScalarType::BFloat16:
        result.dtype = S2_BFLOAT16;
        break;
    default:
        fail(op, name, " must be ", accepted, ", but its dtype is ",
             torch::headeronly::toString(tensor.scalar_type()));
    }
    return result;
}

inline Floats floats(const Tensor &tensor, const char *op, const char *name)
{
    return floats(
        tensor, op, name,
        "a contiguous 1-D " S2_DEVICE_NAME " tensor of float32, float64, float16 or bfloat16", 1);
}

inline Floats float_rows(const Tensor &tensor, const char *op, const char *name)
{
    return floats(
        tensor, op, name,
        "a contiguous 2-D " S2_DEVICE_NAME " tensor of float32, float64, float16 or bfloat16", 2);
}

struct Float32s {
    float *data;
    int64_t numel;
};

inline Float32s float32s(const Tensor &tensor, const char *op, const char *name, int64_t dim = 1)
{
    const char *accepted = dim == 2 ? "a contiguous 2-D " S2_DEVICE_NAME " tensor of float32"
                                    : "a contiguous 1-D " S2_DEVICE_NAME " tensor of float32";
    check(tensor, op, name, accepted, dim);
    check_dtype(tensor, ScalarType::Float, op, name, accepted);
    return {static_cast<float *>(tensor.data_ptr()), tensor.numel()};
}

struct Bytes {
    uint8_t *data;
    int64_t nbytes;
};

inline Bytes byte_array(const Tensor &tensor, const char *op, const char *name)
{
    const char *accepted = "a contiguous 1-D " S2_DEVICE_NAME " tensor of uint8";
    check(tensor, op, name, accepted, 1);
    check_dtype(tensor, ScalarType::Byte, op, name, accepted);
    return {static_cast<uint8_t *>(tensor.data_ptr()), tensor.numel()};
}

struct Longs {
    int64_t *data;
    int64_t numel;
};

inline Longs longs(const Tensor &tensor, const char *op, const char *name)
{
    const char *accepted = "a contiguous 1-D " S2_DEVICE_NAME " tensor of int64";
    check(tensor, op, name, accepted, 1);
    check_dtype(tensor, ScalarType::Long, op, name, accepted);
    return {static_cast<int64_t *>(tensor.data_ptr()), tensor.numel()};
}

inline Longs longs(const Tensor &tensor, int64_t numel, const char *op, const char *name)
{
    Longs result = longs(tensor, op, name);
    check_numel(result.numel, numel, op, name);
    return result;
}

// ------------------------------------------------------------------------------------------------
// Layouts and bitmaps
// ------------------------------------------------------------------------------------------------

// The layout of a bucket of `numel` elements, from a row of four numbers a segment.
inline s2_layout layout_from(const Tensor &segments, int64_t numel, const char *op)
{
    static_assert(sizeof(s2_segment) == 4 * sizeof(int64_t), "a row of segments is an s2_segment");
    const char *accepted =
        "a contiguous CPU tensor of int64 with the columns offset, numel, block, first_bit";
    check(segments, op, "segments", accepted, 2, aoti_torch_device_type_cpu());
    check_dtype(segments, ScalarType::Long, op, "segments", accepted);
    if (segments.size(1) != 4)
        fail(op, "segments must be ", accepted, ", but it has ", segments.size(1), " columns");
    s2_layout layout{static_cast<const s2_segment *>(segments.data_ptr()), segments.size(0), numel};
    int64_t nbytes = 0;
    s2_status status = s2_layout_bitmap_nbytes(&layout, &nbytes);
    if (status != S2_OK)
        fail(op, "segments must ascend without overlap within the ", numel,
             " elements of the bucket, with blocks of at least 1 element and first bits that are "
             "multiples of 64, but ",
             s2_status_string(status));
    return layout;
}

inline void check_bitmap_size(const s2_layout &layout, int64_t nbytes, const char *op)
{
    int64_t expected = 0;
    s2_layout_bitmap_nbytes(&layout, &expected); // checked by layout_from()
    if (nbytes != expected)
        fail(op, "bitmap must have ", expected, " bytes for these segments, but has ", nbytes);
}

// A bitmap says nothing of the bucket's length: any that the segments fit into will do.
inline s2_layout layout_of_bitmap(const Tensor &segments, int64_t nbytes, const char *op)
{
    s2_layout layout = layout_from(segments, S2_MAX_NUMEL, op);
    check_bitmap_size(layout, nbytes, op);
    return layout;
}

// A bitmap of any layout.
inline Bytes bitmap_words(const Tensor &bitmap, const char *op)
{
    Bytes b = byte_array(bitmap, op, "bitmap");
    if (b.nbytes % 8 != 0) fail(op, "bitmap must have a multiple of 8 bytes, but has ", b.nbytes);
    return b;
}

// Those of all ranks.
struct Bitmaps {
    uint8_t *data;
    int64_t nranks;
    int64_t nbytes; // of each
};

inline Bitmaps bitmaps_of(const Tensor &bitmaps, const char *op)
{
    const char *accepted =
        "a contiguous " S2_DEVICE_NAME " tensor of uint8 with a row for each rank";
    check(bitmaps, op, "bitmaps", accepted, 2);
    check_dtype(bitmaps, ScalarType::Byte, op, "bitmaps", accepted);
    Bitmaps b{static_cast<uint8_t *>(bitmaps.data_ptr()), bitmaps.size(0), bitmaps.size(1)};
    if (b.nranks < 1 || b.nranks > S2_MAX_RANKS)
        fail(op, "bitmaps must have 1 to ", S2_MAX_RANKS, " rows, but has ", b.nranks);
    return b;
}

} // namespace s2

#endif // S2_TORCH_ARGUMENTS_H
