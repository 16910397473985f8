// SPDX-License-Identifier: MIT
//
// The operators for selection and error feedback; see ops_cpu.cpp.
#include "arguments_select.h"
#include "threads.h"

namespace {

using namespace s2;

// ------------------------------------------------------------------------------------------------
// Selection
// ------------------------------------------------------------------------------------------------

void select_top(const Tensor &scores, int64_t keep, const Tensor &bitmap, const Tensor &threshold,
                const Tensor &scratch, bool parallel)
{
    const char *op = "select_top";
    Top t = top_of(scores, keep, bitmap, threshold, scratch, op);
    int64_t nbytes = 0;
    check_nscores(s2_select_scratch_nbytes(t.scores.numel, &nbytes), t.scores.numel, op);
    if (t.scratch.nbytes != nbytes)
        fail(op, "scratch must have ", nbytes, " bytes for ", t.scores.numel, " scores, but has ",
             t.scratch.nbytes);
    if (reinterpret_cast<uintptr_t>(t.scratch.data) % alignof(uint64_t) != 0)
        fail(op, "scratch must begin at a multiple of 8 bytes");
    TorchThreads threads(parallel);
    check_status(s2_select_top(t.scores.data, t.scores.numel, keep, t.bitmap.data, t.bitmap.nbytes,
                               t.threshold, t.scratch.data, t.scratch.nbytes, threads.get()),
                 op);
    threads.check(op);
}

void select_above(const Tensor &scores, double threshold, const Tensor &bitmap, const Tensor &count,
                  bool parallel)
{
    const char *op = "select_above";
    Above a = above_of(scores, bitmap, count, op);
    TorchThreads threads(parallel);
    s2_status status = s2_select_above(a.scores.data, a.scores.numel, static_cast<float>(threshold),
                                       a.bitmap.data, a.bitmap.nbytes, a.count, threads.get());
    check_factor(status, threshold, op, kThreshold);
    check_status(status, op);
    threads.check(op);
}

void select_random(int64_t seed, int64_t numel, int64_t keep, const Tensor &bitmap)
{
    const char *op = "select_random";
    Bytes b = random_of(numel, keep, bitmap, op);
    check_status(s2_select_random(static_cast<uint64_t>(seed), numel, keep, b.data, b.nbytes), op);
}

// ------------------------------------------------------------------------------------------------
// Error feedback
// ------------------------------------------------------------------------------------------------

void owed_add(const Tensor &values, const std::optional<Tensor> &before, const Tensor &owed,
              const Tensor &touched, double factor, bool parallel)
{
    const char *op = "owed_add";
    OwedSum o = owed_sum_of(values, before, owed, touched, op);
    TorchThreads threads(parallel);
    int answer = 0;
    s2_status status = s2_owed_add(o.values.data, o.values.dtype, o.values.numel, factor, o.before,
                                   o.owed, &answer, threads.get());
    check_factor(status, factor, op, kFactor);
    check_status(status, op);
    threads.check(op);
    *o.touched = answer;
}

void owed_energies(const Tensor &owed, int64_t block, const Tensor &energies, bool parallel)
{
    const char *op = "owed_energies";
    Energies e = energies_of(owed, block, energies, op);
    TorchThreads threads(parallel);
    check_status(s2_owed_energies(e.owed.data, e.owed.numel, block, e.energies.data,
                                  e.energies.numel, threads.get()),
                 op);
    threads.check(op);
}

void owed_deliver(const Tensor &owed, int64_t block, const std::optional<Tensor> &bitmap,
                  const Tensor &values, double scale, bool parallel)
{
    const char *op = "owed_deliver";
    Delivery d = delivery_of(owed, block, bitmap, values, op);
    TorchThreads threads(parallel);
    s2_status status =
        s2_owed_deliver(d.owed.data, d.owed.numel, block, d.bitmap.data, d.bitmap.nbytes, scale,
                        d.values.data, d.values.dtype, threads.get());
    check_factor(status, scale, op, kScale);
    check_status(status, op);
    threads.check(op);
}

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(s2reducer, m)
{
    m.def("select_top(Tensor scores, int keep, Tensor(a!) bitmap, Tensor(b!) threshold, "
          "Tensor(c!) scratch, bool parallel=True) -> ()");
    m.def("select_above(Tensor scores, float threshold, Tensor(a!) bitmap, Tensor(b!) count, "
          "bool parallel=True) -> ()");
    m.def("select_random(int seed, int numel, int keep, Tensor(a!) bitmap) -> ()");
    m.def("owed_add(Tensor values, Tensor? before, Tensor(a!) owed, Tensor(b!) touched, "
          "float factor=1.0, bool parallel=True) -> ()");
    m.def("owed_energies(Tensor owed, int block, Tensor(a!) energies, bool parallel=True) -> ()");
    m.def("owed_deliver(Tensor(a!) owed, int block, Tensor? bitmap, Tensor(b!) values, "
          "float scale=1.0, bool parallel=True) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(s2reducer, CompositeExplicitAutograd, m)
{
    m.impl("select_top", TORCH_BOX(&select_top));
    m.impl("select_above", TORCH_BOX(&select_above));
    m.impl("select_random", TORCH_BOX(&select_random));
    m.impl("owed_add", TORCH_BOX(&owed_add));
    m.impl("owed_energies", TORCH_BOX(&owed_energies));
    m.impl("owed_deliver", TORCH_BOX(&owed_deliver));
}
