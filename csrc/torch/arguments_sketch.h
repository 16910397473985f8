// SPDX-License-Identifier: MIT
//
// What the operators for sketches are given; see arguments.h.
#ifndef S2_TORCH_ARGUMENTS_SKETCH_H
#define S2_TORCH_ARGUMENTS_SKETCH_H

#include "arguments.h"

namespace s2 {

// A table, and the sketch whose shape it has.
struct Table {
    s2_sketch sketch;
    float *data;
};

inline Table table_of(const Tensor &table, int64_t seed, const char *op, const char *name)
{
    const char *accepted =
        "a contiguous " S2_DEVICE_NAME " tensor of float32 of the shape [rows, width, block]";
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

// What most of them take.
struct SketchBlocks {
    Table table;
    Longs ids;
    float *values;
};

inline SketchBlocks sketch_blocks_of(const Tensor &table, int64_t seed, const Tensor &ids,
                                     const Tensor &values, const char *op)
{
    SketchBlocks b{table_of(table, seed, op, "table"), longs(ids, op, "ids"),
                   float32s(values, op, "values", 2).data};
    if (values.size(0) != b.ids.numel || values.size(1) != b.table.sketch.block)
        fail(op, "values must have the shape [", b.ids.numel, ", ", b.table.sketch.block,
             "] for these ids and this table, but has [", values.size(0), ", ", values.size(1),
             "]");
    return b;
}

inline void check_merge(s2_status status, const s2_sketch &table, const s2_sketch &other,
                        const char *op)
{
    if (status == S2_BAD_SKETCH)
        fail(op, "other must have the shape and the seed of table, [", table.rows, ", ",
             table.width, ", ", table.block, "] and ", table.seed, ", but has [", other.rows, ", ",
             other.width, ", ", other.block, "] and ", other.seed);
    check_status(status, op);
}

struct Weights {
    s2_sketch sketch;
    float *magnitudes; // [rows, width]
    Longs ids;
    float *values;
};

inline Weights weights_of(const Tensor &magnitudes, int64_t seed, const Tensor &ids,
                          const Tensor &values, const char *op)
{
    float *m = float32s(magnitudes, op, "magnitudes", 2).data;
    Longs numbers = longs(ids, op, "ids");
    float *v = float32s(values, op, "values", 2).data;
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
    return {sketch, m, numbers, v};
}

// ------------------------------------------------------------------------------------------------
// Peeling
// ------------------------------------------------------------------------------------------------

struct Peel {
    SketchBlocks blocks;
    float *magnitudes; // [rows, width], or NULL
    uint8_t *decoded;  // these three have an element for each block
    float *bounds;
    float *norms;
};

inline float *magnitudes_of(const std::optional<Tensor> &magnitudes, const s2_sketch &sketch,
                            const char *op)
{
    if (!magnitudes.has_value()) return nullptr;
    float *data = float32s(*magnitudes, op, "magnitudes", 2).data;
    if (magnitudes->size(0) != sketch.rows || magnitudes->size(1) != sketch.width)
        fail(op, "magnitudes must have the shape [", sketch.rows, ", ", sketch.width,
             "] for this table, but has [", magnitudes->size(0), ", ", magnitudes->size(1), "]");
    return data;
}

inline uint8_t *flags_of(const Tensor &decoded, int64_t numel, const char *op)
{
    const char *accepted = "a contiguous 1-D " S2_DEVICE_NAME " tensor of bool";
    check(decoded, op, "decoded", accepted, 1);
    check_dtype(decoded, ScalarType::Bool, op, "decoded", accepted);
    check_numel(decoded.numel(), numel, op, "decoded");
    return static_cast<uint8_t *>(decoded.data_ptr());
}

inline float *float_each(const Tensor &tensor, int64_t numel, const char *op, const char *name)
{
    Float32s f = float32s(tensor, op, name);
    check_numel(f.numel, numel, op, name);
    return f.data;
}

inline Peel peel_of(const Tensor &table, int64_t seed, const Tensor &ids, int64_t nranks,
                    const std::optional<Tensor> &magnitudes, const Tensor &values,
                    const Tensor &decoded, const Tensor &bounds, const Tensor &norms,
                    const char *op)
{
    SketchBlocks b = sketch_blocks_of(table, seed, ids, values, op);
    const int64_t n = b.ids.numel;
    Peel p{b, magnitudes_of(magnitudes, b.table.sketch, op), flags_of(decoded, n, op),
           float_each(bounds, n, op, "bounds"), float_each(norms, n, op, "norms")};
    if (nranks < 1 || nranks > S2_MAX_RANKS)
        fail(op, "nranks must lie between 1 and ", S2_MAX_RANKS, ", but is ", nranks);
    return p;
}

} // namespace s2

#endif // S2_TORCH_ARGUMENTS_SKETCH_H
