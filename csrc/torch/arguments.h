// SPDX-License-Identifier: MIT
//
// What the operators share: from a tensor to a pointer and a size, with one sentence for whatever
// cannot be used.
#ifndef S2_TORCH_ARGUMENTS_H
#define S2_TORCH_ARGUMENTS_H

#define TORCH_TARGET_VERSION 0x020b000000000000

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>

#include "../s2.h"

namespace s2 {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// ------------------------------------------------------------------------------------------------
// Arguments
// ------------------------------------------------------------------------------------------------

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

// What all tensors here have in common; `accepted` describes the one that `name` should be.
inline void check(const Tensor &tensor, const char *op, const char *name, const char *accepted,
                  int64_t dim)
{
    int32_t layout = -1;
    int32_t device = -1;
    check_torch(aoti_torch_get_layout(tensor.get(), &layout), op, "aoti_torch_get_layout");
    check_torch(aoti_torch_get_device_type(tensor.get(), &device), op,
                "aoti_torch_get_device_type");
    if (device != aoti_torch_device_type_cpu())
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

struct Floats {
    void *data;
    int64_t numel;
    s2_dtype dtype;
};

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
    return floats(tensor, op, name,
                  "a contiguous 1-D CPU tensor of float32, float64, float16 or bfloat16", 1);
}

inline Floats float_rows(const Tensor &tensor, const char *op, const char *name)
{
    return floats(tensor, op, name,
                  "a contiguous 2-D CPU tensor of float32, float64, float16 or bfloat16", 2);
}

struct Bytes {
    uint8_t *data;
    int64_t nbytes;
};

inline Bytes byte_array(const Tensor &tensor, const char *op, const char *name)
{
    const char *accepted = "a contiguous 1-D CPU tensor of uint8";
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
    const char *accepted = "a contiguous 1-D CPU tensor of int64";
    check(tensor, op, name, accepted, 1);
    check_dtype(tensor, ScalarType::Long, op, name, accepted);
    return {static_cast<int64_t *>(tensor.data_ptr()), tensor.numel()};
}

inline Longs longs(const Tensor &tensor, int64_t numel, const char *op, const char *name)
{
    Longs result = longs(tensor, op, name);
    if (result.numel != numel)
        fail(op, name, " must have ", numel, " elements, but has ", result.numel);
    return result;
}

// The layout of a bucket of `numel` elements, from a row of four numbers a segment.
inline s2_layout layout_from(const Tensor &segments, int64_t numel, const char *op)
{
    static_assert(sizeof(s2_segment) == 4 * sizeof(int64_t), "a row of segments is an s2_segment");
    const char *accepted =
        "a contiguous CPU tensor of int64 with the columns offset, numel, block, first_bit";
    check(segments, op, "segments", accepted, 2);
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

inline void check_divisor(s2_status status, double divisor, const char *op)
{
    if (status == S2_BAD_DIVISOR)
        fail(op, "divisor must be a finite number above zero, but is ", divisor);
}

inline const char *dtype_name(s2_dtype dtype)
{
    constexpr const char *names[] = {"float32", "float64", "float16", "bfloat16"};
    return names[dtype];
}

inline void check_pair(s2_status status, const char *op, const char *from, const Floats &source,
                       const char *to, const Floats &target, const char *accepted)
{
    if (status == S2_BAD_DTYPE)
        fail(op, "the dtypes of ", from, " and ", to, " must be one of the pairs ", accepted,
             ", but are ", dtype_name(source.dtype), " and ", dtype_name(target.dtype));
}

constexpr const char *kConvertPairs =
    "(float16, float32), (bfloat16, float32), (float32, any), (float64, float64), "
    "(float64, float32), or, with a divisor of 1, (any, the same)";
constexpr const char *kAddPairs =
    "(float16, float32), (bfloat16, float32), (float32, float32), (float32, float64), "
    "(float64, float64)";

// The errors that a call on packed blocks can return once its tensors have been looked at.
inline void check_packed(s2_status status, const s2_layout &layout, const Longs &positions,
                         const Floats &packed, const char *op)
{
    if (status == S2_BAD_POSITION)
        fail(op, "positions must ascend strictly and name blocks of the segments");
    int64_t numel = 0;
    if (status == S2_BAD_SIZE &&
        s2_blocks_packed_numel(&layout, positions.data, positions.numel, &numel) == S2_OK)
        fail(op, "packed must have ", numel, " elements for these positions, but has ",
             packed.numel);
    if (status != S2_OK) fail(op, s2_status_string(status));
}

// ------------------------------------------------------------------------------------------------
// Threads
// ------------------------------------------------------------------------------------------------

// torch's pool behind the core's interface.  An error is kept until the core has returned: C frames
// are no place for an exception.
class TorchThreads {
  public:
    explicit TorchThreads(bool parallel) : executor_{&run, this}, parallel_(parallel) {}

    const s2_executor *get() const { return parallel_ ? &executor_ : nullptr; }

    void check(const char *op) const { check_torch(error_, op, "torch_parallel_for"); }

  private:
    struct Task {
        s2_range_body body;
        void *body_arg;
    };

    static void run(void *self, int64_t begin, int64_t end, int64_t grain, s2_range_body body,
                    void *body_arg)
    {
        Task task{body, body_arg};
        AOTITorchError error = torch_parallel_for(
            begin, end, grain,
            [](int64_t range_begin, int64_t range_end, void *arg) {
                const Task *range_task = static_cast<const Task *>(arg);
                range_task->body(range_task->body_arg, range_begin, range_end);
            },
            &task);
        if (error != AOTI_TORCH_SUCCESS) static_cast<TorchThreads *>(self)->error_ = error;
    }

    s2_executor executor_;
    bool parallel_;
    AOTITorchError error_ = AOTI_TORCH_SUCCESS;
};

} // namespace s2

#endif // S2_TORCH_ARGUMENTS_H
