// SPDX-License-Identifier: MIT
//
// The operators for selection and error feedback on CUDA tensors; see ops_blocks.cpp.
#include "work.h"

#include "../arguments_select.h"

namespace {

using namespace s2;

// ------------------------------------------------------------------------------------------------
// Selection
// ------------------------------------------------------------------------------------------------

// The scratch is torch's here, so that of the arguments may be empty.
void select_top(const Tensor &scores, int64_t keep, const Tensor &bitmap, const Tensor &threshold,
                const Tensor &scratch, bool /*parallel*/)
{
    const char *op = "select_top";
    Top t = top_of(scores, keep, bitmap, threshold, scratch, op);
    int64_t nbytes = 0;
    check_nscores(s2_cuda_select_top_scratch_nbytes(t.scores.numel, &nbytes), t.scores.numel, op);
    Work work(op, {&scores, &bitmap, &threshold});
    work.check(s2_cuda_select_top(t.scores.data, t.scores.numel, keep, t.bitmap.data,
                                  t.bitmap.nbytes, t.threshold, work.scratch(nbytes), nbytes,
                                  work.stream()));
}

void select_above(const Tensor &scores, double threshold, const Tensor &bitmap, const Tensor &count,
                  bool /*parallel*/)
{
    const char *op = "select_above";
    Above a = above_of(scores, bitmap, count, op);
    Work work(op, {&scores, &bitmap, &count});
    s2_status status =
        s2_cuda_select_above(a.scores.data, a.scores.numel, static_cast<float>(threshold),
                             a.bitmap.data, a.bitmap.nbytes, a.count, work.stream());
    check_factor(status, threshold, op, kThreshold);
    work.check(status);
}

void select_random(int64_t seed, int64_t numel, int64_t keep, const Tensor &bitmap)
{
    const char *op = "select_random";
    Bytes b = random_of(numel, keep, bitmap, op);
    int64_t nbytes = 0;
    check_status(s2_cuda_select_random_scratch_nbytes(numel, &nbytes), op);
    Work work(op, {&bitmap});
    work.check(s2_cuda_select_random(static_cast<uint64_t>(seed), numel, keep, b.data, b.nbytes,
                                     work.scratch(nbytes), nbytes, work.stream()));
}

// ------------------------------------------------------------------------------------------------
// Error feedback
// ------------------------------------------------------------------------------------------------

void owed_add(const Tensor &values, const std::optional<Tensor> &before, const Tensor &owed,
              const Tensor &touched, double factor, bool /*parallel*/)
{
    const char *op = "owed_add";
    OwedSum o = owed_sum_of(values, before, owed, touched, op);
    Work work(op, {&values, before.has_value() ? &*before : &values, &owed, &touched});
    Tensor answer = work.flag();
    s2_status status =
        s2_cuda_owed_add(o.values.data, o.values.dtype, o.values.numel, factor, o.before, o.owed,
                         static_cast<int *>(answer.data_ptr()), work.stream());
    check_factor(status, factor, op, kFactor);
    work.check(status);
    work.store(answer, touched);
}

void owed_energies(const Tensor &owed, int64_t block, const Tensor &energies, bool /*parallel*/)
{
    const char *op = "owed_energies";
    Energies e = energies_of(owed, block, energies, op);
    Work work(op, {&owed, &energies});
    work.check(s2_cuda_owed_energies(e.owed.data, e.owed.numel, block, e.energies.data,
                                     e.energies.numel, work.stream()));
}

void owed_deliver(const Tensor &owed, int64_t block, const std::optional<Tensor> &bitmap,
                  const Tensor &values, double scale, bool /*parallel*/)
{
    const char *op = "owed_deliver";
    Delivery d = delivery_of(owed, block, bitmap, values, op);
    Work work(op, {&owed, bitmap.has_value() ? &*bitmap : &owed, &values});
    s2_status status =
        s2_cuda_owed_deliver(d.owed.data, d.owed.numel, block, d.bitmap.data, d.bitmap.nbytes,
                             scale, d.values.data, d.values.dtype, work.stream());
    check_factor(status, scale, op, kScale);
    work.check(status);
}

} // namespace

S2_OPERATORS(m)
{
    m.impl("select_top", TORCH_BOX(&select_top));
    m.impl("select_above", TORCH_BOX(&select_above));
    m.impl("select_random", TORCH_BOX(&select_random));
    m.impl("owed_add", TORCH_BOX(&owed_add));
    m.impl("owed_energies", TORCH_BOX(&owed_energies));
    m.impl("owed_deliver", TORCH_BOX(&owed_deliver));
}
