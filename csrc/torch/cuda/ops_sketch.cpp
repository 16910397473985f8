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
            const int64_t *count, const float *values, const char *op)
{
    int64_t nbytes = 0;
    s2_status status = s2_cuda_sketch_scratch_nbytes(&sketch, ids.numel, &nbytes);
    if (status == S2_BAD_SIZE) fail(op, "ids must have fewer than 2^31 elements");
    work.check(status);
    work.check(function(&sketch, cells, ids.data, ids.numel, count, values, work.scratch(nbytes),
                        nbytes, work.stream()));
}

void change_table(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor *count,
                  const Tensor &values, Change function, const char *op)
{
    SketchBlocks b = sketch_blocks_of(table, seed, ids, values, op);
    const int64_t *nblocks = count_of(count, op);
    Work work(op, {&table, &ids, count != nullptr ? count : &ids, &values});
    change(work, function, b.table.sketch, b.table.data, b.ids, nblocks, b.values, op);
}

void weigh(const Tensor &magnitudes, int64_t seed, const Tensor &ids, const Tensor *count,
           const Tensor &values, const char *op)
{
    Weights w = weights_of(magnitudes, seed, ids, values, op);
    const int64_t *nblocks = count_of(count, op);
    Work work(op, {&magnitudes, &ids, count != nullptr ? count : &ids, &values});
    change(work, &s2_cuda_sketch_weigh, w.sketch, w.magnitudes, w.ids, nblocks, w.values, op);
}

void estimate(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor *count,
              const Tensor &values, const char *op)
{
    SketchBlocks b = sketch_blocks_of(table, seed, ids, values, op);
    const int64_t *nblocks = count_of(count, op);
    Work work(op, {&table, &ids, count != nullptr ? count : &ids, &values});
    work.check(s2_cuda_sketch_estimate(&b.table.sketch, b.table.data, b.ids.data, b.ids.numel,
                                       nblocks, b.values, work.stream()));
}

// `found` is where the blocks and the rounds are counted.  How many rounds there are at most must
// be said, since who enqueues them does not wait to see which is the last.
void peel(Work &work, const Peel &p, const int64_t *count, int64_t nranks, int64_t max_rounds,
          int64_t *found, const char *op)
{
    if (max_rounds < 1) fail(op, "max_rounds must be 1 or more on a device, but is ", max_rounds);
    const SketchBlocks &b = p.blocks;
    int64_t nbytes = 0;
    s2_status status = s2_cuda_sketch_peel_scratch_nbytes(&b.table.sketch, b.ids.numel, &nbytes);
    if (status == S2_BAD_SIZE) fail(op, "ids must have fewer than 2^31 elements");
    work.check(status);
    work.check(s2_cuda_sketch_peel(&b.table.sketch, b.table.data, b.ids.data, b.ids.numel, count,
                                   nranks, p.magnitudes, max_rounds, b.values, p.decoded, p.bounds,
                                   p.norms, work.scratch(nbytes), nbytes, &found[0], &found[1],
                                   work.stream()));
}

// ------------------------------------------------------------------------------------------------
// Lists that are full
// ------------------------------------------------------------------------------------------------

void sketch_insert(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values)
{
    change_table(table, seed, ids, nullptr, values, &s2_cuda_sketch_insert, "sketch_insert");
}

void sketch_subtract(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values)
{
    change_table(table, seed, ids, nullptr, values, &s2_cuda_sketch_subtract, "sketch_subtract");
}

void sketch_weigh(const Tensor &magnitudes, int64_t seed, const Tensor &ids, const Tensor &values)
{
    weigh(magnitudes, seed, ids, nullptr, values, "sketch_weigh");
}

void sketch_estimate(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values)
{
    estimate(table, seed, ids, nullptr, values, "sketch_estimate");
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

// The scratch is torch's here, so that of the arguments may be empty.
void sketch_peel(const Tensor &table, int64_t seed, const Tensor &ids, int64_t nranks,
                 const std::optional<Tensor> &magnitudes, int64_t max_rounds, const Tensor &values,
                 const Tensor &decoded, const Tensor &bounds, const Tensor &norms,
                 const Tensor &scratch, const Tensor &counts)
{
    const char *op = "sketch_peel";
    Peel p = peel_of(table, seed, ids, nranks, magnitudes, values, decoded, bounds, norms, op);
    byte_array(scratch, op, "scratch");
    int64_t *found = longs(counts, 2, op, "counts").data;
    Work work(op, {&table, &ids, magnitudes.has_value() ? &*magnitudes : &table, &values, &decoded,
                   &bounds, &norms, &counts});
    peel(work, p, nullptr, nranks, max_rounds, found, op);
}

// ------------------------------------------------------------------------------------------------
// Lists of which only the device knows how long they are
// ------------------------------------------------------------------------------------------------

void sketch_insert_counted(const Tensor &table, int64_t seed, const Tensor &ids,
                           const Tensor &count, const Tensor &values)
{
    change_table(table, seed, ids, &count, values, &s2_cuda_sketch_insert, "sketch_insert_counted");
}

void sketch_weigh_counted(const Tensor &magnitudes, int64_t seed, const Tensor &ids,
                          const Tensor &count, const Tensor &values)
{
    weigh(magnitudes, seed, ids, &count, values, "sketch_weigh_counted");
}

void sketch_estimate_counted(const Tensor &table, int64_t seed, const Tensor &ids,
                             const Tensor &count, const Tensor &values)
{
    estimate(table, seed, ids, &count, values, "sketch_estimate_counted");
}

void sketch_peel_counted(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &count,
                         int64_t nranks, const std::optional<Tensor> &magnitudes,
                         int64_t max_rounds, const Tensor &values, const Tensor &decoded,
                         const Tensor &bounds, const Tensor &norms)
{
    const char *op = "sketch_peel_counted";
    Peel p = peel_of(table, seed, ids, nranks, magnitudes, values, decoded, bounds, norms, op);
    const int64_t *nblocks = count_of(&count, op);
    Work work(op, {&table, &ids, &count, magnitudes.has_value() ? &*magnitudes : &table, &values,
                   &decoded, &bounds, &norms});
    auto *found = static_cast<int64_t *>(work.scratch(2 * sizeof(int64_t)));
    peel(work, p, nblocks, nranks, max_rounds, found, op);
}

} // namespace

// Who calls them does so where they are defined at all: device_lists.py.
S2_DEFINITIONS(m)
{
    m.def("sketch_insert_counted(Tensor(a!) table, int seed, Tensor ids, Tensor count, "
          "Tensor values) -> ()");
    m.def("sketch_weigh_counted(Tensor(a!) magnitudes, int seed, Tensor ids, Tensor count, "
          "Tensor values) -> ()");
    m.def("sketch_estimate_counted(Tensor table, int seed, Tensor ids, Tensor count, "
          "Tensor(a!) values) -> ()");
    m.def("sketch_peel_counted(Tensor(a!) table, int seed, Tensor ids, Tensor count, int nranks, "
          "Tensor? magnitudes, int max_rounds, Tensor(b!) values, Tensor(c!) decoded, "
          "Tensor(d!) bounds, Tensor(e!) norms) -> ()");
}

S2_OPERATORS(m)
{
    m.impl("sketch_insert", TORCH_BOX(&sketch_insert));
    m.impl("sketch_subtract", TORCH_BOX(&sketch_subtract));
    m.impl("sketch_weigh", TORCH_BOX(&sketch_weigh));
    m.impl("sketch_estimate", TORCH_BOX(&sketch_estimate));
    m.impl("sketch_merge", TORCH_BOX(&sketch_merge));
    m.impl("sketch_peel", TORCH_BOX(&sketch_peel));
    m.impl("sketch_insert_counted", TORCH_BOX(&sketch_insert_counted));
    m.impl("sketch_weigh_counted", TORCH_BOX(&sketch_weigh_counted));
    m.impl("sketch_estimate_counted", TORCH_BOX(&sketch_estimate_counted));
    m.impl("sketch_peel_counted", TORCH_BOX(&sketch_peel_counted));
}
