// SPDX-License-Identifier: MIT
//
// The operators for sketches on CUDA tensors; see ops_blocks.cpp.
#include "work.h"

#include "../arguments_sketch.h"

namespace {

using namespace s2;

// Insert and subtract, and what they share with weigh.
using Change = s2_status (*)(const s2_sketch *, float *, const int64_t *, int64_t, const int64_t *,
                             const float *, void *, int64_t, s2_cuda_stream);

void change(Work &work, Change function, const s2_sketch &sketch, float *cells, const Longs &ids,
            const float *values, const char *op)
{
    int64_t nbytes = 0;
    s2_status status = s2_cuda_sketch_scratch_nbytes(&sketch, ids.numel, &nbytes);
    if (status == S2_BAD_SIZE) fail(op, "ids must have fewer than 2^31 elements");
    work.check(status);
    work.check(function(&sketch, cells, ids.data, ids.numel, nullptr, values, work.scratch(nbytes),
                        nbytes, work.stream()));
}

void change_table(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values,
                  Change function, const char *op)
{
    SketchBlocks b = sketch_blocks_of(table, seed, ids, values, op);
    Work work(op, {&table, &ids, &values});
    change(work, function, b.table.sketch, b.table.data, b.ids, b.values, op);
}

void sketch_insert(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values)
{
    change_table(table, seed, ids, values, &s2_cuda_sketch_insert, "sketch_insert");
}

void sketch_subtract(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values)
{
    change_table(table, seed, ids, values, &s2_cuda_sketch_subtract, "sketch_subtract");
}

void sketch_weigh(const Tensor &magnitudes, int64_t seed, const Tensor &ids, const Tensor &values)
{
    const char *op = "sketch_weigh";
    Weights w = weights_of(magnitudes, seed, ids, values, op);
    Work work(op, {&magnitudes, &ids, &values});
    change(work, &s2_cuda_sketch_weigh, w.sketch, w.magnitudes, w.ids, w.values, op);
}

void sketch_estimate(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values)
{
    const char *op = "sketch_estimate";
    SketchBlocks b = sketch_blocks_of(table, seed, ids, values, op);
    Work work(op, {&table, &ids, &values});
    work.check(s2_cuda_sketch_estimate(&b.table.sketch, b.table.data, b.ids.data, b.ids.numel,
                                       nullptr, b.values, work.stream()));
}

void sketch_merge(const Tensor &table, int64_t seed, const Tensor &other, int64_t other_seed)
{
    const char *op = "sketch_merge";
    Table t = table_of(table, seed, op, "table");
    Table o = table_of(other, other_seed, op, "other");
    Work work(op, {&table, &other});
    check_merge(s2_cuda_sketch_merge(&t.sketch, t.data, &o.sketch, o.data, work.stream()), t.sketch,
                o.sketch, op);
}

// The scratch is torch's here, so that of the arguments may be empty.  How many rounds there are
// must be said, since who enqueues them does not wait to see which is the last.
void sketch_peel(const Tensor &table, int64_t seed, const Tensor &ids, int64_t nranks,
                 const std::optional<Tensor> &magnitudes, int64_t max_rounds, const Tensor &values,
                 const Tensor &decoded, const Tensor &bounds, const Tensor &norms,
                 const Tensor &scratch, const Tensor &counts)
{
    const char *op = "sketch_peel";
    Peel p = peel_of(table, seed, ids, nranks, magnitudes, values, decoded, bounds, norms, scratch,
                     counts, op);
    if (max_rounds < 1) fail(op, "max_rounds must be 1 or more on a device, but is ", max_rounds);
    const SketchBlocks &b = p.blocks;
    int64_t nbytes = 0;
    s2_status status = s2_cuda_sketch_peel_scratch_nbytes(&b.table.sketch, b.ids.numel, &nbytes);
    if (status == S2_BAD_SIZE) fail(op, "ids must have fewer than 2^31 elements");
    check_status(status, op);
    Work work(op, {&table, &ids, magnitudes.has_value() ? &*magnitudes : &table, &values, &decoded,
                   &bounds, &norms, &counts});
    work.check(s2_cuda_sketch_peel(&b.table.sketch, b.table.data, b.ids.data, b.ids.numel, nullptr,
                                   nranks, p.magnitudes, max_rounds, b.values, p.decoded, p.bounds,
                                   p.norms, work.scratch(nbytes), nbytes, &p.counts[0],
                                   &p.counts[1], work.stream()));
}

} // namespace

S2_OPERATORS(m)
{
    m.impl("sketch_insert", TORCH_BOX(&sketch_insert));
    m.impl("sketch_subtract", TORCH_BOX(&sketch_subtract));
    m.impl("sketch_weigh", TORCH_BOX(&sketch_weigh));
    m.impl("sketch_estimate", TORCH_BOX(&sketch_estimate));
    m.impl("sketch_merge", TORCH_BOX(&sketch_merge));
    m.impl("sketch_peel", TORCH_BOX(&sketch_peel));
}
