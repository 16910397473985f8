// SPDX-License-Identifier: MIT
//
// torch's threads, for the operators on CPU tensors.
#ifndef S2_TORCH_THREADS_H
#define S2_TORCH_THREADS_H

#include "arguments.h"

namespace s2 {

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

#endif // S2_TORCH_THREADS_H
