// SPDX-License-Identifier: MIT
//
// The operators of ../ops_cpu.cpp on CUDA tensors: the same arguments, and the functions of
// s2_cuda.h.
//
// What lies on the device is not looked at, since that would be to wait for it.  So positions that
// do not ascend, or of which there are more or fewer than the other arguments say, are no error
// here: results mean nothing then, but nothing outside of the arguments is touched.  `segments` are
// on the CPU here too, and `parallel` means nothing.
#include "work.h"

#include "../arguments_blocks.h"

namespace {

using namespace s2;

// ------------------------------------------------------------------------------------------------
// Bitmaps
// ------------------------------------------------------------------------------------------------

void bitmap_from_nonzero(const Tensor &values, const Tensor &segments, const Tensor &bitmap,
                         const Tensor &negative_zeros, bool /*parallel*/)
{
    const char *op = "bitmap_from_nonzero";
    Marked m = marked_of(values, segments, bitmap, op);
    Longs zeros = longs(negative_zeros, 1, op, "negative_zeros");
    Work work(op, {&values, &bitmap, &negative_zeros});
    s2_cuda_layout layout = work.layout(m.layout, segments);
    work.check(s2_cuda_bitmap_from_nonzero(&layout, m.values.data, m.values.dtype, m.bitmap.data,
                                           m.bitmap.nbytes, zeros.data, work.stream()));
}

void bitmap_or(const Tensor &bitmap, const Tensor &other)
{
    const char *op = "bitmap_or";
    BitmapPair p = bitmap_pair_of(bitmap, other, op);
    Work work(op, {&bitmap, &other});
    work.check(s2_cuda_bitmap_or(p.bitmap.data, p.other.data, p.bitmap.nbytes, work.stream()));
}

void bitmap_andnot(const Tensor &bitmap, const Tensor &other)
{
    const char *op = "bitmap_andnot";
    BitmapPair p = bitmap_pair_of(bitmap, other, op);
    Work work(op, {&bitmap, &other});
    work.check(s2_cuda_bitmap_andnot(p.bitmap.data, p.other.data, p.bitmap.nbytes, work.stream()));
}

void bitmap_count(const Tensor &bitmap, const Tensor &segments, const Tensor &counts)
{
    const char *op = "bitmap_count";
    Bytes b = byte_array(bitmap, op, "bitmap");
    s2_layout host = layout_of_bitmap(segments, b.nbytes, op);
    Longs c = longs(counts, host.nsegments, op, "counts");
    Work work(op, {&bitmap, &counts});
    s2_cuda_layout layout = work.layout(host, segments);
    work.check(s2_cuda_bitmap_count(&layout, b.data, b.nbytes, c.data, work.stream()));
}

void bitmap_unite(const Tensor &bitmaps, const Tensor &segments, const Tensor &bitmap,
                  const Tensor &counts)
{
    const char *op = "bitmap_unite";
    United u = united_of(bitmaps, segments, bitmap, counts, op);
    Work work(op, {&bitmaps, &bitmap, &counts});
    s2_cuda_layout layout = work.layout(u.layout, segments);
    work.check(s2_cuda_bitmap_unite(&layout, u.ranks.data, u.ranks.nranks, u.ranks.nbytes,
                                    u.bitmap.data, u.counts, work.stream()));
}

void bitmap_positions(const Tensor &bitmap, const Tensor &positions)
{
    const char *op = "bitmap_positions";
    Bytes b = bitmap_words(bitmap, op);
    Longs p = longs(positions, op, "positions");
    Work work(op, {&bitmap, &positions});
    auto *count = static_cast<int64_t *>(work.scratch(sizeof(int64_t)));
    int64_t nbytes = 0;
    work.check(s2_cuda_bitmap_scratch_nbytes(b.nbytes, &nbytes));
    work.check(s2_cuda_bitmap_positions(b.data, b.nbytes, p.data, p.numel, count,
                                        work.scratch(nbytes), nbytes, work.stream()));
}

void bitmap_from_positions(const Tensor &positions, const Tensor &bitmap)
{
    const char *op = "bitmap_from_positions";
    Longs p = longs(positions, op, "positions");
    Bytes b = bitmap_words(bitmap, op);
    Work work(op, {&positions, &bitmap});
    work.check(
        s2_cuda_bitmap_from_positions(p.data, p.numel, nullptr, b.data, b.nbytes, work.stream()));
}

// ------------------------------------------------------------------------------------------------
// Blocks and values
// ------------------------------------------------------------------------------------------------

void blocks_gather(const Tensor &values, const Tensor &segments, const Tensor &positions,
                   const Tensor &packed, double divisor, bool /*parallel*/)
{
    const char *op = "blocks_gather";
    Blocks b = blocks_of(values, "values", segments, positions, packed, op);
    Work work(op, {&values, &positions, &packed});
    s2_cuda_layout layout = work.layout(b.layout, segments);
    s2_status status =
        s2_cuda_blocks_gather(&layout, b.values.data, b.values.dtype, b.positions.data,
                              b.positions.numel, work.runs(layout, b.positions), b.packed.data,
                              b.packed.dtype, b.packed.numel, divisor, work.stream());
    check_divisor(status, divisor, op);
    check_pair(status, op, "values", b.values, "packed", b.packed, kConvertPairs);
    work.check(status);
}

void blocks_scatter(const Tensor &packed, const Tensor &segments, const Tensor &positions,
                    const Tensor &values, double divisor, bool /*parallel*/)
{
    const char *op = "blocks_scatter";
    Blocks b = blocks_of(values, "values", segments, positions, packed, op);
    Work work(op, {&values, &positions, &packed});
    s2_cuda_layout layout = work.layout(b.layout, segments);
    s2_status status = s2_cuda_blocks_scatter(
        &layout, b.packed.data, b.packed.dtype, b.packed.numel, b.positions.data, b.positions.numel,
        work.runs(layout, b.positions), b.values.data, b.values.dtype, divisor, work.stream());
    check_divisor(status, divisor, op);
    check_pair(status, op, "packed", b.packed, "values", b.values, kConvertPairs);
    work.check(status);
}

void blocks_add(const Tensor &packed, const Tensor &segments, const Tensor &positions,
                const Tensor &accumulator, bool /*parallel*/)
{
    const char *op = "blocks_add";
    Blocks b = blocks_of(accumulator, "accumulator", segments, positions, packed, op);
    Work work(op, {&accumulator, &positions, &packed});
    s2_cuda_layout layout = work.layout(b.layout, segments);
    s2_status status = s2_cuda_blocks_add(
        &layout, b.packed.data, b.packed.dtype, b.packed.numel, b.positions.data, b.positions.numel,
        work.runs(layout, b.positions), b.values.data, b.values.dtype, work.stream());
    check_pair(status, op, "packed", b.packed, "accumulator", b.values, kAddPairs);
    work.check(status);
}

void blocks_sum(const std::vector<Tensor> &packed, const Tensor &segments,
                const std::vector<Tensor> &positions, const Tensor &sums,
                const std::optional<Tensor> &lost, double divisor, bool /*parallel*/)
{
    const char *op = "blocks_sum";
    BlocksOfRanks b = blocks_of_ranks(packed, segments, positions, sums, lost, op);
    const int64_t nranks = static_cast<int64_t>(b.ranks.size());
    std::vector<const Tensor *> tensors{&sums, lost.has_value() ? &*lost : &sums};
    for (size_t r = 0; r < b.ranks.size(); r++)
        tensors.insert(tensors.end(), {&packed[r], &positions[r]});
    Work work(op, tensors);
    s2_cuda_layout layout = work.layout(b.layout, segments);
    std::vector<s2_cuda_packed> ranks;
    for (const s2_packed &rank : b.ranks)
        ranks.push_back({rank.packed, rank.numel, rank.positions, rank.npositions,
                         work.runs(layout, rank.positions, rank.npositions)});
    int64_t nbytes = 0;
    work.check(s2_cuda_blocks_sum_scratch_nbytes(b.sums.numel, nranks, &nbytes));
    s2_status status =
        s2_cuda_blocks_sum(&layout, ranks.data(), nranks, b.sums.dtype, divisor, b.sums.data,
                           b.lost, work.scratch(nbytes), nbytes, work.stream());
    check_divisor(status, divisor, op);
    work.check(status);
}

void blocks_clear_dead(const Tensor &bitmap, const Tensor &segments, const Tensor &values,
                       bool /*parallel*/)
{
    const char *op = "blocks_clear_dead";
    Marked m = marked_of(values, segments, bitmap, op);
    Work work(op, {&values, &bitmap});
    s2_cuda_layout layout = work.layout(m.layout, segments);
    work.check(s2_cuda_blocks_clear_dead(&layout, m.bitmap.data, m.bitmap.nbytes, m.values.data,
                                         m.values.dtype, work.stream()));
}

void values_convert(const Tensor &src, const Tensor &dst, double divisor, bool /*parallel*/)
{
    const char *op = "values_convert";
    Conversion c = conversion_of(src, dst, op);
    Work work(op, {&src, &dst});
    s2_status status = s2_cuda_values_convert(c.src.data, c.src.dtype, c.dst.data, c.dst.dtype,
                                              c.src.numel, divisor, work.stream());
    check_divisor(status, divisor, op);
    check_pair(status, op, "src", c.src, "dst", c.dst, kConvertPairs);
    work.check(status);
}

void values_finite(const Tensor &values, const Tensor &finite, bool /*parallel*/)
{
    const char *op = "values_finite";
    Floats v = floats(values, op, "values");
    longs(finite, 1, op, "finite");
    Work work(op, {&values, &finite});
    Tensor answer = work.flag();
    work.check(s2_cuda_values_finite(v.data, v.dtype, v.numel,
                                     static_cast<int *>(answer.data_ptr()), work.stream()));
    work.store(answer, finite);
}

} // namespace

S2_OPERATORS(m)
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
