// SPDX-License-Identifier: MIT
//
// The operators for sketches; see ops_cpu.cpp.
#include "arguments.h"

#include <optional>

namespace {

using namespace s2;

// A table, and the sketch whose shape it has.
struct Table {
    s2_sketch sketch;
    float *data;
};

Table table_of(const Tensor &table, int64_t seed, const char *op, const char *name)
{
    const char *accepted = "a contiguous CPU tensor of float32 of the shape [rows, width, block]";
    check(table, op, name, accepted, 3);
    check_dtype(table, ScalarType::Float, op, name, accepted);
    Table t{{table.size(0), table.size(1), table.size(2), static_cast<uint64_t>(seed)},
            static_cast<float *>(table.data_ptr())};
    int64_t numel = 0;
    if (s2_sketch_numel(&t.sketch, &numel) != S2_OK)
        fail(op, name, " must have 1 to ", S2_MAX_SKETCH_ROWS,
             " rows, a width of 1 to 2^32 - 1 and a block of at least 1, but has the shape [",
             t.sketch.rows, ", ", t.sketch.width, ", ", t.sketch.block, "]");
    return t;
}

float *float32_of(const Tensor &tensor, int64_t dim, const char *op, const char *name)
{
    const char *accepted = dim == 2 ? "a contiguous 2-D CPU tensor of float32"
                                    : "a contiguous 1-D CPU tensor of float32";
    check(tensor, op, name, accepted, dim);
    check_dtype(tensor, ScalarType::Float, op, name, accepted);
    return static_cast<float *>(tensor.data_ptr());
}

// What most of them take.
struct Blocks {
    Table table;
    Longs ids;
    float *values;
};

Blocks blocks_of(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values,
                 const char *op)
{
    Blocks b{table_of(table, seed, op, "table"), longs(ids, op, "ids"),
             float32_of(values, 2, op, "values")};
    if (values.size(0) != b.ids.numel || values.size(1) != b.table.sketch.block)
        fail(op, "values must have the shape [", b.ids.numel, ", ", b.table.sketch.block,
             "] for these ids and this table, but has [", values.size(0), ", ", values.size(1),
             "]");
    return b;
}

void check_blocks(s2_status status, const char *op)
{
    if (status == S2_BAD_POSITION) fail(op, "ids must ascend strictly from 0 or more");
    if (status != S2_OK) fail(op, s2_status_string(status));
}

void sketch_insert(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values)
{
    const char *op = "sketch_insert";
    Blocks b = blocks_of(table, seed, ids, values, op);
    check_blocks(s2_sketch_insert(&b.table.sketch, b.table.data, b.ids.data, b.ids.numel, b.values),
                 op);
}

void sketch_subtract(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values)
{
    const char *op = "sketch_subtract";
    Blocks b = blocks_of(table, seed, ids, values, op);
    check_blocks(
        s2_sketch_subtract(&b.table.sketch, b.table.data, b.ids.data, b.ids.numel, b.values), op);
}

void sketch_estimate(const Tensor &table, int64_t seed, const Tensor &ids, const Tensor &values)
{
    const char *op = "sketch_estimate";
    Blocks b = blocks_of(table, seed, ids, values, op);
    check_blocks(
        s2_sketch_estimate(&b.table.sketch, b.table.data, b.ids.data, b.ids.numel, b.values), op);
}

void sketch_merge(const Tensor &table, int64_t seed, const Tensor &other, int64_t other_seed)
{
    const char *op = "sketch_merge";
    Table t = table_of(table, seed, op, "table");
    Table o = table_of(other, other_seed, op, "other");
    s2_status status = s2_sketch_merge(&t.sketch, t.data, &o.sketch, o.data);
    if (status == S2_BAD_SKETCH)
        fail(op, "other must have the shape and the seed of table, [", t.sketch.rows, ", ",
             t.sketch.width, ", ", t.sketch.block, "] and ", t.sketch.seed, ", but has [",
             o.sketch.rows, ", ", o.sketch.width, ", ", o.sketch.block, "] and ", o.sketch.seed);
    if (status != S2_OK) fail(op, s2_status_string(status));
}

void sketch_weigh(const Tensor &magnitudes, int64_t seed, const Tensor &ids, const Tensor &values)
{
    const char *op = "sketch_weigh";
    float *m = float32_of(magnitudes, 2, op, "magnitudes");
    Longs numbers = longs(ids, op, "ids");
    float *v = float32_of(values, 2, op, "values");
    s2_sketch sketch{magnitudes.size(0), magnitudes.size(1), values.size(1),
                     static_cast<uint64_t>(seed)};
    int64_t numel = 0;
    if (s2_sketch_numel(&sketch, &numel) != S2_OK)
        fail(op, "magnitudes must have 1 to ", S2_MAX_SKETCH_ROWS,
             " rows and a width of 1 to 2^32 - 1, and values a block of at least 1, but they have "
             "the shapes [",
             sketch.rows, ", ", sketch.width, "] and [", values.size(0), ", ", sketch.block, "]");
    if (values.size(0) != numbers.numel)
        fail(op, "values must have ", numbers.numel, " rows for these ids, but has ",
             values.size(0));
    check_blocks(s2_sketch_weigh(&sketch, m, numbers.data, numbers.numel, v), op);
}

// An argument of a peel that has one element for each block.
float *float_each(const Tensor &tensor, int64_t numel, const char *op, const char *name)
{
    float *data = float32_of(tensor, 1, op, name);
    if (tensor.numel() != numel)
        fail(op, name, " must have ", numel, " elements, but has ", tensor.numel());
    return data;
}

const float *magnitudes_of(const std::optional<Tensor> &magnitudes, const s2_sketch &sketch,
                           const char *op)
{
    if (!magnitudes.has_value()) return nullptr;
    const float *data = float32_of(*magnitudes, 2, op, "magnitudes");
    if (magnitudes->size(0) != sketch.rows || magnitudes->size(1) != sketch.width)
        fail(op, "magnitudes must have the shape [", sketch.rows, ", ", sketch.width,
             "] for this table, but has [", magnitudes->size(0), ", ", magnitudes->size(1), "]");
    return data;
}

uint8_t *flags_of(const Tensor &decoded, int64_t numel, const char *op)
{
    const char *accepted = "a contiguous 1-D CPU tensor of bool";
    check(decoded, op, "decoded", accepted, 1);
    check_dtype(decoded, ScalarType::Bool, op, "decoded", accepted);
    if (decoded.numel() != numel)
        fail(op, "decoded must have ", numel, " elements, but has ", decoded.numel());
    return static_cast<uint8_t *>(decoded.data_ptr());
}

void sketch_peel(const Tensor &table, int64_t seed, const Tensor &ids, int64_t nranks,
                 const std::optional<Tensor> &magnitudes, int64_t max_rounds, const Tensor &values,
                 const Tensor &decoded, const Tensor &bounds, const Tensor &norms,
                 const Tensor &scratch, const Tensor &counts)
{
    const char *op = "sketch_peel";
    Blocks b = blocks_of(table, seed, ids, values, op);
    uint8_t *d = flags_of(decoded, b.ids.numel, op);
    const float *m = magnitudes_of(magnitudes, b.table.sketch, op);
    float *e = float_each(bounds, b.ids.numel, op, "bounds");
    float *largest = float_each(norms, b.ids.numel, op, "norms");
    Bytes s = byte_array(scratch, op, "scratch");
    Longs c = longs(counts, 2, op, "counts");
    if (nranks < 1 || nranks > S2_MAX_RANKS)
        fail(op, "nranks must lie between 1 and ", S2_MAX_RANKS, ", but is ", nranks);
    if (max_rounds < 0) fail(op, "max_rounds must be 0 or more, but is ", max_rounds);
    int64_t nbytes = 0;
    s2_status status = s2_sketch_scratch_nbytes(&b.table.sketch, b.ids.numel, &nbytes);
    if (status == S2_BAD_SIZE) fail(op, "ids must have fewer than 2^32 elements");
    if (s.nbytes != nbytes)
        fail(op, "scratch must have ", nbytes, " bytes for this table and these ids, but has ",
             s.nbytes);
    if (reinterpret_cast<uintptr_t>(s.data) % alignof(uint64_t) != 0)
        fail(op, "scratch must begin at a multiple of 8 bytes");
    check_blocks(s2_sketch_peel(&b.table.sketch, b.table.data, b.ids.data, b.ids.numel, nranks, m,
                                max_rounds, b.values, d, e, largest, s.data, s.nbytes, &c.data[0],
                                &c.data[1]),
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
