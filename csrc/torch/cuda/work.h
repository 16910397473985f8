// SPDX-License-Identifier: MIT
//
// What the operators on CUDA tensors share: work that is enqueued on torch's current stream.
#ifndef S2_TORCH_WORK_H
#define S2_TORCH_WORK_H

// S2_EMULATED is for tests/cuda, where these sources are built for CPU tensors, beside an emulated
// device.
#ifdef S2_EMULATED
#define S2_OPERATORS(m)   STABLE_TORCH_LIBRARY_IMPL(s2reducer_emulated, CPU, m)
#define S2_DEFINITIONS(m) STABLE_TORCH_LIBRARY_FRAGMENT(s2reducer_emulated, m)
#else
#define S2_DEVICE_NAME    "CUDA"
#define S2_DEVICE_TYPE    aoti_torch_device_type_cuda
#define S2_OPERATORS(m)   STABLE_TORCH_LIBRARY_IMPL(s2reducer, CUDA, m)
#define S2_DEFINITIONS(m) STABLE_TORCH_LIBRARY_FRAGMENT(s2reducer, m) // of what the CPU has not
#endif

#include "../arguments.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <memory>
#include <vector>

#include "../../cuda/s2_cuda.h"

namespace s2 {

// How long a list is, where that lies on the device: `count` is NULL where the list is full.
inline const int64_t *count_of(const Tensor *count, const char *op)
{
    return count == nullptr ? nullptr : longs(*count, 1, op, "count").data;
}

// One call of an operator: its device is the current one, and what it needs beside its arguments
// lives, until it is gone.  Nothing waits for the work.  Memory that it frees is given by torch's
// allocator to what comes later on the same stream, and to nothing else.
class Work {
  public:
    // `tensors` are those that must lie on the device, one or more.
    Work(const char *op, const std::vector<const Tensor *> &tensors)
        : op_(op), device_(tensors.front()->device())
    {
        for (const Tensor *tensor : tensors) {
            if (tensor->device() != device_)
                fail(op, "all tensors must lie on one device, but they lie on ", S2_DEVICE_NAME,
                     " devices ", device_.index(), " and ", tensor->device().index());
        }
        CUDAGuardHandle guard = nullptr;
        check_torch(aoti_torch_create_cuda_guard(device_.index(), &guard), op,
                    "aoti_torch_create_cuda_guard");
        guard_.reset(guard);
        void *stream = nullptr;
        check_torch(aoti_torch_get_current_cuda_stream(device_.index(), &stream), op,
                    "aoti_torch_get_current_cuda_stream");
        stream_ = static_cast<s2_cuda_stream>(stream);
    }

    s2_cuda_stream stream() const { return stream_; }

    void check(s2_status status) const { check_status(status, op_); }

    void *scratch(int64_t nbytes)
    {
        memory_.push_back(torch::stable::empty({nbytes}, ScalarType::Byte, std::nullopt, device_));
        return memory_.back().data_ptr();
    }

    // Where a kernel writes whether something holds, and how that gets into a tensor of int64.
    Tensor flag()
    {
        memory_.push_back(torch::stable::empty({1}, ScalarType::Int, std::nullopt, device_));
        return memory_.back();
    }

    static void store(const Tensor &flag, Tensor result) { torch::stable::copy_(result, flag); }

    // The copy of the segments does not wait where they are pinned, and hardly elsewhere: they are
    // few.  torch does not use pinned memory again before the copy is done.
    s2_cuda_layout layout(const s2_layout &host, const Tensor &segments)
    {
        memory_.push_back(
            torch::stable::empty(segments.sizes(), ScalarType::Long, std::nullopt, device_));
        torch::stable::copy_(memory_.back(), segments, /*non_blocking=*/true);
        return {&host, static_cast<const s2_segment *>(memory_.back().data_ptr())};
    }

    const s2_cuda_run *runs(const s2_cuda_layout &layout, const int64_t *positions,
                            int64_t capacity)
    {
        const int64_t count = layout.host->nsegments + 1;
        auto *runs =
            static_cast<s2_cuda_run *>(scratch(count * static_cast<int64_t>(sizeof(s2_cuda_run))));
        check(s2_cuda_blocks_runs(&layout, positions, capacity, nullptr, runs, stream_));
        return runs;
    }

    const s2_cuda_run *runs(const s2_cuda_layout &layout, const Longs &positions)
    {
        return runs(layout, positions.data, positions.numel);
    }

  private:
    struct Delete {
        void operator()(CUDAGuardOpaque *guard) const { aoti_torch_delete_cuda_guard(guard); }
    };

    const char *op_;
    torch::stable::Device device_;
    std::unique_ptr<CUDAGuardOpaque, Delete> guard_;
    s2_cuda_stream stream_ = nullptr;
    std::vector<Tensor> memory_;
};

} // namespace s2

#endif // S2_TORCH_WORK_H
