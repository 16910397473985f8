// SPDX-License-Identifier: MIT
//
// The operators for sketches; see ops_cpu.cpp.
#include "arguments_sketch.h"

namespace {

using namespace s2;

void check_blocks(s2_status status, const char *op)
{
    if (status == S2_BAD_POSITION) fail(op, "ids must ascend strictly from 0 or more");
    check_status(status, op);
}

void sketch_insert(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values)
{
    const char *op = "sketch_insert";
    SketchBlocks b = sketch_blocks_of(table, seed, ids, values, op);
    check_blocks(s2_sketch_insert(&b.table.sketch, b.table.data, b.ids.data, b.ids.numel, b.values),
                 op);
}

void sketch_subtract(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values)
{
    const char *op = "sketch_subtract";
    SketchBlocks b = sketch_blocks_of(table, seed, ids, values, op);
    check_blocks(
        s2_sketch_subtract(&b.table.sketch, b.table.data, b.ids.data, b.ids.numel, b.values), op);
}

void sketch_estimate(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values)
{
    const char *op = "sketch_estimate";
    SketchBlocks b = sketch_blocks_of(table, seed, ids, values, op);
    check_blocks(
        s2_sketch_estimate(&b.table.sketch, b.table.data, b.ids.data, b.ids.numel, b.values), op);
}

void sketch_merge(const Tensor &table, int64_t seed, const Tensor &other, int64_t other_seed)
{
    const char *op = "sketch_merge";
    Table t = table_of(table, seed, op, "table");
    Table o = table_of(other, other_seed, op, "other");
    check_merge(s2_sketch_merge(&t.sketch, t.data, &o.sketch, o.data), t.sketch, o.sketch, op);
}

void sketch_weigh(const Tensor &magnitudes, int64_t seed, const Tensor &ids, const Tensor &values)
{
    const char *op = "sketch_weigh";
    Weights w = weights_of(magnitudes, seed, ids, values, op);
    check_blocks(s2_sketch_weigh(&w.sketch, w.magnitudes, w.ids.data, w.ids.numel, w.values), op);
}

void sketch_peel(const Tensor &table, int64_t seed, const Tensor &ids, int64_t nranks,
                 const std::optional<Tensor> &magnitudes, int64_t max_rounds, const Tensor &values,
                 const Tensor &decoded, const Tensor &bounds, const Tensor &norms,
                 const Tensor &scratch, const Tensor &counts)
{
    const char *op = "sketch_peel";
    Peel p = peel_of(table, seed, ids, nranks, magnitudes, values, decoded, bounds, norms, op);
    Bytes memory = byte_array(scratch, op, "scratch");
    int64_t *found = longs(counts, 2, op, "counts").data; // blocks and rounds
    if (max_rounds < 0) fail(op, "max_rounds must be 0 or more, but is ", max_rounds);
    const SketchBlocks &b = p.blocks;
    int64_t nbytes = 0;
    s2_status status = s2_sketch_scratch_nbytes(&b.table.sketch, b.ids.numel, &nbytes);
    if (status == S2_BAD_SIZE) fail(op, "ids must have fewer than 2^32 elements");
    if (memory.nbytes != nbytes)
        fail(op, "scratch must have ", nbytes, " bytes for this table and these ids, but has ",
             memory.nbytes);
    if (reinterpret_cast<uintptr_t>(memory.data) % alignof(uint64_t) != 0)
        fail(op, "scratch must begin at a multiple of 8 bytes");
    check_blocks(s2_sketch_peel(&b.table.sketch, b.table.data, b.ids.data, b.ids.numel, nranks,
                                p.magnitudes, max_rounds, b.values, p.decoded, p.bounds, p.norms,
                                memory.data, memory.nbytes, &found[0], &found[1]),
                 op);
}

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(s2reducer, m)
{
    m.def("sketch_insert(Tensor(a!) table, int seed, Tensor ids, Tensor values) -> ()");
    m.def("sketch_subtract(Tensor(a!) table, int seed, Tensor ids, Tensor values) -> ()");
    m.def("sketch_weigh(Tensor(a!) magnitudes, int seed, Tensor ids, Tensor values) -> ()");
    m.def("sketch_estimate(Tensor table, int seed, Tensor ids, Tensor(a!) values) -> ()");
    m.def("sketch_merge(Tensor(a!) table, int seed, Tensor other, int other_seed) -> ()");
    m.def("sketch_peel(Tensor(a!) table, int seed, Tensor ids, int nranks, "
          "Tensor? magnitudes, int max_rounds, Tensor(b!) values, Tensor(c!) decoded, "
          "Tensor(d!) bounds, Tensor(e!) norms, Tensor(f!) scratch, Tensor(g!) counts) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(s2reducer, CompositeExplicitAutograd, m)
{
    m.impl("sketch_insert", TORCH_BOX(&sketch_insert));
    m.impl("sketch_subtract", TORCH_BOX(&sketch_subtract));
    m.impl("sketch_weigh", TORCH_BOX(&sketch_weigh));
    m.impl("sketch_estimate", TORCH_BOX(&sketch_estimate));
    m.impl("sketch_merge", TORCH_BOX(&sketch_merge));
    m.impl("sketch_peel", TORCH_BOX(&sketch_peel));
}
