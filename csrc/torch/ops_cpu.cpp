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
#include "arguments.h"

namespace {

using namespace s2;

// ------------------------------------------------------------------------------------------------
// Bitmaps
// ------------------------------------------------------------------------------------------------

void bitmap_from_nonzero(const Tensor &values, const Tensor &segments, const Tensor &bitmap,
                         const Tensor &negative_zeros, bool parallel)
{
    const char *op = "bitmap_from_nonzero";
    Floats v = floats(values, op, "values");
    Bytes b = byte_array(bitmap, op, "bitmap");
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
    Bytes b = byte_array(bitmap, op, "bitmap");
    Bytes o = byte_array(other, op, "other");
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
    Bytes b = byte_array(bitmap, op, "bitmap");
    // A bitmap says nothing of the bucket's length: any that the segments fit into will do.
    s2_layout layout = layout_from(segments, S2_MAX_NUMEL, op);
    check_bitmap_size(layout, b.nbytes, op);
    Longs c = longs(counts, layout.nsegments, op, "counts");
    s2_status status = s2_bitmap_count(&layout, b.data, b.nbytes, c.data);
    if (status != S2_OK) fail(op, s2_status_string(status));
}

void bitmap_unite(const Tensor &bitmaps, const Tensor &segments, const Tensor &bitmap,
                  const Tensor &counts)
{
    const char *op = "bitmap_unite";
    const char *accepted = "a contiguous CPU tensor of uint8 with a row for each rank";
    check(bitmaps, op, "bitmaps", accepted, 2);
    check_dtype(bitmaps, ScalarType::Byte, op, "bitmaps", accepted);
    int64_t nranks = bitmaps.size(0);
    if (nranks < 1 || nranks > S2_MAX_RANKS)
        fail(op, "bitmaps must have 1 to ", S2_MAX_RANKS, " rows, but has ", nranks);
    Bytes b = byte_array(bitmap, op, "bitmap");
    s2_layout layout = layout_from(segments, S2_MAX_NUMEL, op);
    check_bitmap_size(layout, b.nbytes, op);
    if (bitmaps.size(1) != b.nbytes)
        fail(op, "bitmaps must have rows of the ", b.nbytes, " bytes of bitmap, but has ",
             bitmaps.size(1));
    const char *accepted_counts =
        "a contiguous CPU tensor of int64 with a row for each rank and one for the union";
    check(counts, op, "counts", accepted_counts, 2);
    check_dtype(counts, ScalarType::Long, op, "counts", accepted_counts);
    if (counts.size(0) != nranks + 1 || counts.size(1) != layout.nsegments)
        fail(op, "counts must have the shape [", nranks + 1, ", ", layout.nsegments, "], but has [",
             counts.size(0), ", ", counts.size(1), "]");
    s2_status status =
        s2_bitmap_unite(&layout, static_cast<const uint8_t *>(bitmaps.data_ptr()), nranks, b.nbytes,
                        b.data, static_cast<int64_t *>(counts.data_ptr()));
    if (status != S2_OK) fail(op, s2_status_string(status));
}

void bitmap_positions(const Tensor &bitmap, const Tensor &positions)
{
    const char *op = "bitmap_positions";
    Bytes b = byte_array(bitmap, op, "bitmap");
    if (b.nbytes % 8 != 0) fail(op, "bitmap must have a multiple of 8 bytes, but has ", b.nbytes);
    Longs p = longs(positions, op, "positions");
    s2_status status = s2_bitmap_positions(b.data, b.nbytes, p.data, p.numel);
    if (status == S2_BAD_SIZE)
        fail(op, "positions must have one element for each set bit of bitmap, but has ", p.numel);
    if (status != S2_OK) fail(op, s2_status_string(status));
}

void bitmap_from_positions(const Tensor &positions, const Tensor &bitmap)
{
    const char *op = "bitmap_from_positions";
    Longs p = longs(positions, op, "positions");
    Bytes b = byte_array(bitmap, op, "bitmap");
    if (b.nbytes % 8 != 0) fail(op, "bitmap must have a multiple of 8 bytes, but has ", b.nbytes);
    s2_status status = s2_bitmap_from_positions(p.data, p.numel, b.data, b.nbytes);
    if (status == S2_BAD_POSITION)
        fail(op, "positions must ascend strictly and lie below the ", 8 * b.nbytes,
             " bits of bitmap");
    if (status != S2_OK) fail(op, s2_status_string(status));
}

// ------------------------------------------------------------------------------------------------
// Blocks and values
// ------------------------------------------------------------------------------------------------

// What gather, scatter and add are given; `values` are the bucket, whatever a function calls it.
struct Blocks {
    Floats values;
    s2_layout layout;
    Longs positions;
    Floats packed;
};

Blocks blocks_of(const Tensor &values, const char *name, const Tensor &segments,
                 const Tensor &positions, const Tensor &packed, const char *op)
{
    Floats v = floats(values, op, name);
    return {v, layout_from(segments, v.numel, op), longs(positions, op, "positions"),
            floats(packed, op, "packed")};
}

void check_blocks(s2_status status, const Blocks &b, const TorchThreads &threads, const char *op)
{
    check_packed(status, b.layout, b.positions, b.packed, op);
    threads.check(op);
}

void blocks_gather(const Tensor &values, const Tensor &segments, const Tensor &positions,
                   const Tensor &packed, double divisor, bool parallel)
{
    const char *op = "blocks_gather";
    Blocks b = blocks_of(values, "values", segments, positions, packed, op);
    TorchThreads threads(parallel);
    s2_status status = s2_blocks_gather(&b.layout, b.values.data, b.values.dtype, b.positions.data,
                                        b.positions.numel, b.packed.data, b.packed.dtype,
                                        b.packed.numel, divisor, threads.get());
    check_divisor(status, divisor, op);
    check_pair(status, op, "values", b.values, "packed", b.packed, kConvertPairs);
    check_blocks(status, b, threads, op);
}

void blocks_scatter(const Tensor &packed, const Tensor &segments, const Tensor &positions,
                    const Tensor &values, double divisor, bool parallel)
{
    const char *op = "blocks_scatter";
    Blocks b = blocks_of(values, "values", segments, positions, packed, op);
    TorchThreads threads(parallel);
    s2_status status = s2_blocks_scatter(&b.layout, b.packed.data, b.packed.dtype, b.packed.numel,
                                         b.positions.data, b.positions.numel, b.values.data,
                                         b.values.dtype, divisor, threads.get());
    check_divisor(status, divisor, op);
    check_pair(status, op, "packed", b.packed, "values", b.values, kConvertPairs);
    check_blocks(status, b, threads, op);
}

void blocks_add(const Tensor &packed, const Tensor &segments, const Tensor &positions,
                const Tensor &accumulator, bool parallel)
{
    const char *op = "blocks_add";
    Blocks b = blocks_of(accumulator, "accumulator", segments, positions, packed, op);
    TorchThreads threads(parallel);
    s2_status status =
        s2_blocks_add(&b.layout, b.packed.data, b.packed.dtype, b.packed.numel, b.positions.data,
                      b.positions.numel, b.values.data, b.values.dtype, threads.get());
    check_pair(status, op, "packed", b.packed, "accumulator", b.values, kAddPairs);
    check_blocks(status, b, threads, op);
}

void blocks_sum(const std::vector<Tensor> &packed, const Tensor &segments,
                const std::vector<Tensor> &positions, const Tensor &sums,
                const std::optional<Tensor> &lost, double divisor, bool parallel)
{
    const char *op = "blocks_sum";
    Floats s = floats(sums, op, "sums");
    s2_layout layout = layout_from(segments, s.numel, op);
    if (packed.empty() || packed.size() > S2_MAX_RANKS)
        fail(op, "packed must have 1 to ", S2_MAX_RANKS, " tensors, but has ", packed.size());
    if (positions.size() != packed.size())
        fail(op, "positions must have the ", packed.size(), " tensors of packed, but has ",
             positions.size());
    std::vector<Blocks> blocks;
    std::vector<s2_packed> ranks;
    for (size_t r = 0; r < packed.size(); r++) {
        Blocks &b = blocks.emplace_back(Blocks{s, layout, longs(positions[r], op, "positions"),
                                               floats(packed[r], op, "packed")});
        if (b.packed.dtype != s.dtype)
            fail(op, "packed must have the dtype of sums, ", dtype_name(s.dtype), ", but has ",
                 dtype_name(b.packed.dtype));
        ranks.push_back({b.packed.data, b.packed.numel, b.positions.data, b.positions.numel});
    }
    float *rest = nullptr;
    if (lost.has_value()) {
        const char *accepted = "a contiguous 1-D CPU tensor of float32";
        Floats l = floats(*lost, op, "lost", accepted, 1);
        check_dtype(*lost, ScalarType::Float, op, "lost", accepted);
        if (l.numel != s.numel)
            fail(op, "lost must have the ", s.numel, " elements of sums, but has ", l.numel);
        rest = static_cast<float *>(l.data);
    }
    TorchThreads threads(parallel);
    s2_status status = s2_blocks_sum(&layout, ranks.data(), static_cast<int64_t>(ranks.size()),
                                     s.dtype, divisor, s.data, rest, threads.get());
    check_divisor(status, divisor, op);
    for (size_t r = 0; status != S2_OK && r < blocks.size(); r++) {
        const Blocks &b = blocks[r];
        int64_t numel = 0;
        s2_status status_of_rank =
            s2_blocks_packed_numel(&layout, b.positions.data, b.positions.numel, &numel);
        if (status_of_rank == S2_OK && numel != b.packed.numel) status_of_rank = S2_BAD_SIZE;
        check_packed(status_of_rank, layout, b.positions, b.packed, op);
    }
    if (status != S2_OK) fail(op, s2_status_string(status));
    threads.check(op);
}

void blocks_clear_dead(const Tensor &bitmap, const Tensor &segments, const Tensor &values,
                       bool parallel)
{
    const char *op = "blocks_clear_dead";
    Bytes b = byte_array(bitmap, op, "bitmap");
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
    check_pair(status, op, "src", s, "dst", d, kConvertPairs);
    if (status != S2_OK) fail(op, s2_status_string(status));
    threads.check(op);
}

void values_finite(const Tensor &values, const Tensor &finite, bool parallel)
{
    const char *op = "values_finite";
    Floats v = floats(values, op, "values");
    Longs f = longs(finite, 1, op, "finite");
    TorchThreads threads(parallel);
    int answer = 0;
    s2_status status = s2_values_finite(v.data, v.dtype, v.numel, &answer, threads.get());
    if (status != S2_OK) fail(op, s2_status_string(status));
    threads.check(op);
    f.data[0] = answer;
}

} // namespace

STABLE_TORCH_LIBRARY(s2reducer, m)
{
    m.def("bitmap_from_nonzero(Tensor values, Tensor segments, Tensor(a!) bitmap, "
          "Tensor(b!) negative_zeros, bool parallel=True) -> ()");
    m.def("bitmap_or(Tensor(a!) bitmap, Tensor other) -> ()");
    m.def("bitmap_andnot(Tensor(a!) bitmap, Tensor other) -> ()");
    m.def("bitmap_count(Tensor bitmap, Tensor segments, Tensor(a!) counts) -> ()");
    m.def("bitmap_unite(Tensor bitmaps, Tensor segments, Tensor(a!) bitmap, "
          "Tensor(b!) counts) -> ()");
    m.def("bitmap_positions(Tensor bitmap, Tensor(a!) positions) -> ()");
    m.def("bitmap_from_positions(Tensor positions, Tensor(a!) bitmap) -> ()");
    m.def("blocks_gather(Tensor values, Tensor segments, Tensor positions, Tensor(a!) packed, "
          "float divisor=1.0, bool parallel=True) -> ()");
    m.def("blocks_scatter(Tensor packed, Tensor segments, Tensor positions, Tensor(a!) values, "
          "float divisor=1.0, bool parallel=True) -> ()");
    m.def("blocks_add(Tensor packed, Tensor segments, Tensor positions, Tensor(a!) accumulator, "
          "bool parallel=True) -> ()");
    m.def("blocks_sum(Tensor[] packed, Tensor segments, Tensor[] positions, Tensor(a!) sums, "
          "Tensor(b!)? lost=None, float divisor=1.0, bool parallel=True) -> ()");
    m.def("blocks_clear_dead(Tensor bitmap, Tensor segments, Tensor(a!) values, "
          "bool parallel=True) -> ()");
    m.def(
        "values_convert(Tensor src, Tensor(a!) dst, float divisor=1.0, bool parallel=True) -> ()");
    m.def("values_finite(Tensor values, Tensor(a!) finite, bool parallel=True) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(s2reducer, CompositeExplicitAutograd, m)
{
    m.impl("bitmap_from_nonzero", TORCH_BOX(&bitmap_from_nonzero));
    m.impl("bitmap_or", TORCH_BOX(&bitmap_or));
    m.impl("bitmap_andnot", TORCH_BOX(&bitmap_andnot));
    m.impl("bitmap_count", TORCH_BOX(&bitmap_count));
    m.impl("bitmap_unite", TORCH_BOX(&bitmap_unite));
    m.impl("bitmap_positions", TORCH_BOX(&bitmap_positions));
    m.impl("bitmap_from_positions", TORCH_BOX(&bitmap_from_positions));
    m.impl("blocks_gather", TORCH_BOX(&blocks_gather));
    m.impl("blocks_scatter", TORCH_BOX(&blocks_scatter));
    m.impl("blocks_add", TORCH_BOX(&blocks_add));
    m.impl("blocks_sum", TORCH_BOX(&blocks_sum));
    m.impl("blocks_clear_dead", TORCH_BOX(&blocks_clear_dead));
    m.impl("values_convert", TORCH_BOX(&values_convert));
    m.impl("values_finite", TORCH_BOX(&values_finite));
}
