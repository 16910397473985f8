// SPDX-License-Identifier: MIT
//
// The operators torch.ops.s2reducer.*: the functions of s2.h on tensors.
//
// This file knows what tensors are and the core does not.  It turns each argument into a pointer
// and a size, says in one sentence which argument cannot be used and why, and calls the core.  It
// uses libtorch's stable C interface alone, so that one build serves every torch from 2.11 on.
//
// The operators are registered for all devices on purpose: a tensor that is not on the CPU then
// reaches check() and is named there, while the dispatcher would only say that no kernel exists.
#define TORCH_TARGET_VERSION 0x020b000000000000

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>

#include "../s2.h"

namespace {

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

void check_torch(AOTITorchError error, const char *op, const char *call)
{
    if (error != AOTI_TORCH_SUCCESS) fail(op, call, " failed in libtorch");
}

// What all tensors here have in common; `accepted` describes the one that `name` should be.
void check(const Tensor &tensor, const char *op, const char *name, const char *accepted,
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

void check_dtype(const Tensor &tensor, ScalarType dtype, const char *op, const char *name,
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

Floats floats(const Tensor &tensor, const char *op, const char *name)
{
    const char *accepted = "a contiguous 1-D CPU tensor of float32, float64, float16 or bfloat16";
    check(tensor, op, name, accepted, 1);
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

struct Bytes {
    uint8_t *data;
    int64_t nbytes;
};

Bytes bitmap_bytes(const Tensor &tensor, const char *op, const char *name)
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

Longs longs(const Tensor &tensor, const char *op, const char *name)
{
    const char *accepted = "a contiguous 1-D CPU tensor of int64";
    check(tensor, op, name, accepted, 1);
    check_dtype(tensor, ScalarType::Long, op, name, accepted);
    return {static_cast<int64_t *>(tensor.data_ptr()), tensor.numel()};
}

Longs longs(const Tensor &tensor, int64_t numel, const char *op, const char *name)
{
    Longs result = longs(tensor, op, name);
    if (result.numel != numel)
        fail(op, name, " must have ", numel, " elements, but has ", result.numel);
    return result;
}

// The layout of a bucket of `numel` elements, from a row of four numbers a segment.
s2_layout layout_from(const Tensor &segments, int64_t numel, const char *op)
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

void check_bitmap_size(const s2_layout &layout, int64_t nbytes, const char *op)
{
    int64_t expected = 0;
    s2_layout_bitmap_nbytes(&layout, &expected); // checked by layout_from()
    if (nbytes != expected)
        fail(op, "bitmap must have ", expected, " bytes for these segments, but has ", nbytes);
}

void check_divisor(s2_status status, double divisor, const char *op)
{
    if (status == S2_BAD_DIVISOR)
        fail(op, "divisor must be a finite number above zero, but is ", divisor);
}

void check_pair(s2_status status, const char *op, const char *from, const char *to,
                const char *accepted)
{
    if (status == S2_BAD_DTYPE)
        fail(op, "the dtypes of ", from, " and ", to, " must be one of the pairs ", accepted);
}

constexpr const char *kConvertPairs =
    "(float16, float32), (bfloat16, float32), (float32, any), (float64, float64), "
    "(float64, float32), or, with a divisor of 1, (any, the same)";
constexpr const char *kAddPairs =
    "(float16, float32), (bfloat16, float32), (float32, float32), (float32, float64), "
    "(float64, float64)";

// The errors that a call on packed blocks can return once its tensors have been looked at.
void check_packed(s2_status status, const s2_layout &layout, const Longs &positions,
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

// ------------------------------------------------------------------------------------------------
// Bitmaps
// ------------------------------------------------------------------------------------------------

void bitmap_from_nonzero(const Tensor &values, const Tensor &segments, const Tensor &bitmap,
                         const Tensor &negative_zeros, bool parallel)
{
    const char *op = "bitmap_from_nonzero";
    Floats v = floats(values, op, "values");
    Bytes b = bitmap_bytes(bitmap, op, "bitmap");
    s2_layout layout = layout_from(segments, v.numel, op);
    check_bitmap_size(layout, b.nbytes, op);
    Longs zeros = longs(negative_zeros, 1, op, "negative_zeros");
    TorchThreads threads(parallel);
    s2_status status = s2_bitmap_from_nonzero(&layout, v.data, v.dtype, b.data, b.nbytes,
                                              zeros.data, threads.get());
    if (status != S2_OK) fail(op, s2_status_string(status));
    threads.check(op);
}

using Combine = s2_status (*)(uint8_t *, const uint8_t *, int64_t);

void combine(const Tensor &bitmap, const Tensor &other, const char *op, Combine function)
{
    Bytes b = bitmap_bytes(bitmap, op, "bitmap");
    Bytes o = bitmap_bytes(other, op, "other");
    if (b.nbytes % 8 != 0) fail(op, "bitmap must have a multiple of 8 bytes, but has ", b.nbytes);
    if (o.nbytes != b.nbytes)
        fail(op, "other must have the ", b.nbytes, " bytes of bitmap, but has ", o.nbytes);
    s2_status status = function(b.data, o.data, b.nbytes);
    if (status != S2_OK) fail(op, s2_status_string(status));
}

void bitmap_or(const Tensor &bitmap, const Tensor &other)
{
    combine(bitmap, other, "bitmap_or", &s2_bitmap_or);
}

void bitmap_andnot(const Tensor &bitmap, const Tensor &other)
{
    combine(bitmap, other, "bitmap_andnot", &s2_bitmap_andnot);
}

void bitmap_count(const Tensor &bitmap, const Tensor &segments, const Tensor &counts)
{
    const char *op = "bitmap_count";
    Bytes b = bitmap_bytes(bitmap, op, "bitmap");
    // A bitmap says nothing of the bucket's length: any that the segments fit into will do.
    s2_layout layout = layout_from(segments, S2_MAX_NUMEL, op);
    check_bitmap_size(layout, b.nbytes, op);
    Longs c = longs(counts, layout.nsegments, op, "counts");
    s2_status status = s2_bitmap_count(&layout, b.data, b.nbytes, c.data);
    if (status != S2_OK) fail(op, s2_status_string(status));
}

void bitmap_positions(const Tensor &bitmap, const Tensor &positions)
{
    const char *op = "bitmap_positions";
    Bytes b = bitmap_bytes(bitmap, op, "bitmap");
    if (b.nbytes % 8 != 0) fail(op, "bitmap must have a multiple of 8 bytes, but has ", b.nbytes);
    Longs p = longs(positions, op, "positions");
    s2_status status = s2_bitmap_positions(b.data, b.nbytes, p.data, p.numel);
    if (status == S2_BAD_SIZE)
        fail(op, "positions must have one element for each set bit of bitmap, but has ", p.numel);
    if (status != S2_OK) fail(op, s2_status_string(status));
}

// ------------------------------------------------------------------------------------------------
// Blocks and values
// ------------------------------------------------------------------------------------------------

void blocks_gather(const Tensor &values, const Tensor &segments, const Tensor &positions,
                   const Tensor &packed, double divisor, bool parallel)
{
    const char *op = "blocks_gather";
    Floats v = floats(values, op, "values");
    s2_layout layout = layout_from(segments, v.numel, op);
    Longs p = longs(positions, op, "positions");
    Floats k = floats(packed, op, "packed");
    TorchThreads threads(parallel);
    s2_status status = s2_blocks_gather(&layout, v.data, v.dtype, p.data, p.numel, k.data, k.dtype,
                                        k.numel, divisor, threads.get());
    check_divisor(status, divisor, op);
    check_pair(status, op, "values", "packed", kConvertPairs);
    check_packed(status, layout, p, k, op);
    threads.check(op);
}

void blocks_scatter(const Tensor &packed, const Tensor &segments, const Tensor &positions,
                    const Tensor &values, double divisor, bool parallel)
{
    const char *op = "blocks_scatter";
    Floats k = floats(packed, op, "packed");
    Floats v = floats(values, op, "values");
    s2_layout layout = layout_from(segments, v.numel, op);
    Longs p = longs(positions, op, "positions");
    TorchThreads threads(parallel);
    s2_status status = s2_blocks_scatter(&layout, k.data, k.dtype, k.numel, p.data, p.numel, v.data,
                                         v.dtype, divisor, threads.get());
    check_divisor(status, divisor, op);
    check_pair(status, op, "packed", "values", kConvertPairs);
    check_packed(status, layout, p, k, op);
    threads.check(op);
}

void blocks_add(const Tensor &packed, const Tensor &segments, const Tensor &positions,
                const Tensor &accumulator, bool parallel)
{
    const char *op = "blocks_add";
    Floats k = floats(packed, op, "packed");
    Floats a = floats(accumulator, op, "accumulator");
    s2_layout layout = layout_from(segments, a.numel, op);
    Longs p = longs(positions, op, "positions");
    TorchThreads threads(parallel);
    s2_status status = s2_blocks_add(&layout, k.data, k.dtype, k.numel, p.data, p.numel, a.data,
                                     a.dtype, threads.get());
    check_pair(status, op, "packed", "accumulator", kAddPairs);
    check_packed(status, layout, p, k, op);
    threads.check(op);
}

void blocks_clear_dead(const Tensor &bitmap, const Tensor &segments, const Tensor &values,
                       bool parallel)
{
    const char *op = "blocks_clear_dead";
    Bytes b = bitmap_bytes(bitmap, op, "bitmap");
    Floats v = floats(values, op, "values");
    s2_layout layout = layout_from(segments, v.numel, op);
    check_bitmap_size(layout, b.nbytes, op);
    TorchThreads threads(parallel);
    s2_status status =
        s2_blocks_clear_dead(&layout, b.data, b.nbytes, v.data, v.dtype, threads.get());
    if (status != S2_OK) fail(op, s2_status_string(status));
    threads.check(op);
}

void values_convert(const Tensor &src, const Tensor &dst, double divisor, bool parallel)
{
    const char *op = "values_convert";
    Floats s = floats(src, op, "src");
    Floats d = floats(dst, op, "dst");
    if (d.numel != s.numel)
        fail(op, "dst must have the ", s.numel, " elements of src, but has ", d.numel);
    TorchThreads threads(parallel);
    s2_status status =
        s2_values_convert(s.data, s.dtype, d.data, d.dtype, s.numel, divisor, threads.get());
    check_divisor(status, divisor, op);
    check_pair(status, op, "src", "dst", kConvertPairs);
    if (status != S2_OK) fail(op, s2_status_string(status));
    threads.check(op);
}

} // namespace

STABLE_TORCH_LIBRARY(s2reducer, m)
{
    m.def("bitmap_from_nonzero(Tensor values, Tensor segments, Tensor(a!) bitmap, "
          "Tensor(b!) negative_zeros, bool parallel=True) -> ()");
    m.def("bitmap_or(Tensor(a!) bitmap, Tensor other) -> ()");
    m.def("bitmap_andnot(Tensor(a!) bitmap, Tensor other) -> ()");
    m.def("bitmap_count(Tensor bitmap, Tensor segments, Tensor(a!) counts) -> ()");
    m.def("bitmap_positions(Tensor bitmap, Tensor(a!) positions) -> ()");
    m.def("blocks_gather(Tensor values, Tensor segments, Tensor positions, Tensor(a!) packed, "
          "float divisor=1.0, bool parallel=True) -> ()");
    m.def("blocks_scatter(Tensor packed, Tensor segments, Tensor positions, Tensor(a!) values, "
          "float divisor=1.0, bool parallel=True) -> ()");
    m.def("blocks_add(Tensor packed, Tensor segments, Tensor positions, Tensor(a!) accumulator, "
          "bool parallel=True) -> ()");
    m.def("blocks_clear_dead(Tensor bitmap, Tensor segments, Tensor(a!) values, "
          "bool parallel=True) -> ()");
    m.def(
        "values_convert(Tensor src, Tensor(a!) dst, float divisor=1.0, bool parallel=True) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(s2reducer, CompositeExplicitAutograd, m)
{
    m.impl("bitmap_from_nonzero", TORCH_BOX(&bitmap_from_nonzero));
    m.impl("bitmap_or", TORCH_BOX(&bitmap_or));
    m.impl("bitmap_andnot", TORCH_BOX(&bitmap_andnot));
    m.impl("bitmap_count", TORCH_BOX(&bitmap_count));
    m.impl("bitmap_positions", TORCH_BOX(&bitmap_positions));
    m.impl("blocks_gather", TORCH_BOX(&blocks_gather));
    m.impl("blocks_scatter", TORCH_BOX(&blocks_scatter));
    m.impl("blocks_add", TORCH_BOX(&blocks_add));
    m.impl("blocks_clear_dead", TORCH_BOX(&blocks_clear_dead));
    m.impl("values_convert", TORCH_BOX(&values_convert));
}
