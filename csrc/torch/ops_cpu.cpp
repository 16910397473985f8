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
// On CUDA tensors those of cuda/ come before them, where they are loaded.
#include "arguments_blocks.h"
#include "threads.h"

namespace {

using namespace s2;

// ------------------------------------------------------------------------------------------------
// Bitmaps
// ------------------------------------------------------------------------------------------------

void bitmap_from_nonzero(const Tensor &values, const Tensor &segments, const Tensor &bitmap,
                         const Tensor &negative_zeros, bool parallel)
{
    const char *op = "bitmap_from_nonzero";
    Marked m = marked_of(values, segments, bitmap, op);
    Longs zeros = longs(negative_zeros, 1, op, "negative_zeros");
    TorchThreads threads(parallel);
    check_status(s2_bitmap_from_nonzero(&m.layout, m.values.data, m.values.dtype, m.bitmap.data,
                                        m.bitmap.nbytes, zeros.data, threads.get()),
                 op);
    threads.check(op);
}

void bitmap_or(const Tensor &bitmap, const Tensor &other)
{
    const char *op = "bitmap_or";
    BitmapPair p = bitmap_pair_of(bitmap, other, op);
    check_status(s2_bitmap_or(p.bitmap.data, p.other.data, p.bitmap.nbytes), op);
}

void bitmap_andnot(const Tensor &bitmap, const Tensor &other)
{
    const char *op = "bitmap_andnot";
    BitmapPair p = bitmap_pair_of(bitmap, other, op);
    check_status(s2_bitmap_andnot(p.bitmap.data, p.other.data, p.bitmap.nbytes), op);
}

void bitmap_count(const Tensor &bitmap, const Tensor &segments, const Tensor &counts)
{
    const char *op = "bitmap_count";
    Bytes b = byte_array(bitmap, op, "bitmap");
    s2_layout layout = layout_of_bitmap(segments, b.nbytes, op);
    Longs c = longs(counts, layout.nsegments, op, "counts");
    check_status(s2_bitmap_count(&layout, b.data, b.nbytes, c.data), op);
}

void bitmap_unite(const Tensor &bitmaps, const Tensor &segments, const Tensor &bitmap,
                  const Tensor &counts)
{
    const char *op = "bitmap_unite";
    United u = united_of(bitmaps, segments, bitmap, counts, op);
    check_status(s2_bitmap_unite(&u.layout, u.ranks.data, u.ranks.nranks, u.ranks.nbytes,
                                 u.bitmap.data, u.counts),
                 op);
}

void bitmap_positions(const Tensor &bitmap, const Tensor &positions)
{
    const char *op = "bitmap_positions";
    Bytes b = bitmap_words(bitmap, op);
    Longs p = longs(positions, op, "positions");
    s2_status status = s2_bitmap_positions(b.data, b.nbytes, p.data, p.numel);
    if (status == S2_BAD_SIZE)
        fail(op, "positions must have one element for each set bit of bitmap, but has ", p.numel);
    check_status(status, op);
}

void bitmap_from_positions(const Tensor &positions, const Tensor &bitmap)
{
    const char *op = "bitmap_from_positions";
    Longs p = longs(positions, op, "positions");
    Bytes b = bitmap_words(bitmap, op);
    s2_status status = s2_bitmap_from_positions(p.data, p.numel, b.data, b.nbytes);
    if (status == S2_BAD_POSITION)
        fail(op, "positions must ascend strictly and lie below the ", 8 * b.nbytes,
             " bits of bitmap");
    check_status(status, op);
}

// ------------------------------------------------------------------------------------------------
// Blocks and values
// ------------------------------------------------------------------------------------------------

// The errors that a call on packed blocks can return once its tensors have been looked at.
void check_packed(s2_status status, const s2_layout &layout, const s2_packed &packed,
                  const char *op)
{
    if (status == S2_BAD_POSITION)
        fail(op, "positions must ascend strictly and name blocks of the segments");
    int64_t numel = 0;
    if (status == S2_BAD_SIZE &&
        s2_blocks_packed_numel(&layout, packed.positions, packed.npositions, &numel) == S2_OK)
        fail(op, "packed must have ", numel, " elements for these positions, but has ",
             packed.numel);
    check_status(status, op);
}

void check_blocks(s2_status status, const Blocks &b, const TorchThreads &threads, const char *op)
{
    check_packed(status, b.layout,
                 {b.packed.data, b.packed.numel, b.positions.data, b.positions.numel}, op);
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
    BlocksOfRanks b = blocks_of_ranks(packed, segments, positions, sums, lost, op);
    TorchThreads threads(parallel);
    s2_status status =
        s2_blocks_sum(&b.layout, b.ranks.data(), static_cast<int64_t>(b.ranks.size()), b.sums.dtype,
                      divisor, b.sums.data, b.lost, threads.get());
    check_divisor(status, divisor, op);
    for (size_t r = 0; status != S2_OK && r < b.ranks.size(); r++) {
        const s2_packed &rank = b.ranks[r];
        int64_t numel = 0;
        s2_status status_of_rank =
            s2_blocks_packed_numel(&b.layout, rank.positions, rank.npositions, &numel);
        if (status_of_rank == S2_OK && numel != rank.numel) status_of_rank = S2_BAD_SIZE;
        check_packed(status_of_rank, b.layout, rank, op);
    }
    check_status(status, op);
    threads.check(op);
}

void blocks_clear_dead(const Tensor &bitmap, const Tensor &segments, const Tensor &values,
                       bool parallel)
{
    const char *op = "blocks_clear_dead";
    Marked m = marked_of(values, segments, bitmap, op);
    TorchThreads threads(parallel);
    check_status(s2_blocks_clear_dead(&m.layout, m.bitmap.data, m.bitmap.nbytes, m.values.data,
                                      m.values.dtype, threads.get()),
                 op);
    threads.check(op);
}

void values_convert(const Tensor &src, const Tensor &dst, double divisor, bool parallel)
{
    const char *op = "values_convert";
    Conversion c = conversion_of(src, dst, op);
    TorchThreads threads(parallel);
    s2_status status = s2_values_convert(c.src.data, c.src.dtype, c.dst.data, c.dst.dtype,
                                         c.src.numel, divisor, threads.get());
    check_divisor(status, divisor, op);
    check_pair(status, op, "src", c.src, "dst", c.dst, kConvertPairs);
    check_status(status, op);
    threads.check(op);
}

void values_finite(const Tensor &values, const Tensor &finite, bool parallel)
{
    const char *op = "values_finite";
    Floats v = floats(values, op, "values");
    Longs f = longs(finite, 1, op, "finite");
    TorchThreads threads(parallel);
    int answer = 0;
    check_status(s2_values_finite(v.data, v.dtype, v.numel, &answer, threads.get()), op);
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
