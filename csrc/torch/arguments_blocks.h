// SPDX-License-Identifier: MIT
//
// What the operators for bitmaps, blocks and values are given; see arguments.h.
#ifndef S2_TORCH_ARGUMENTS_BLOCKS_H
#define S2_TORCH_ARGUMENTS_BLOCKS_H

#include <vector>

#include "arguments.h"

namespace s2 {

// ------------------------------------------------------------------------------------------------
// Bitmaps
// ------------------------------------------------------------------------------------------------

// A bucket, and a bitmap of its blocks.
struct Marked {
    Floats values;
    s2_layout layout;
    Bytes bitmap;
};

inline Marked marked_of(const Tensor &values, const Tensor &segments, const Tensor &bitmap,
                        const char *op)
{
    Floats v = floats(values, op, "values");
    Marked m{v, layout_from(segments, v.numel, op), byte_array(bitmap, op, "bitmap")};
    check_bitmap_size(m.layout, m.bitmap.nbytes, op);
    return m;
}

struct BitmapPair {
    Bytes bitmap;
    Bytes other;
};

inline BitmapPair bitmap_pair_of(const Tensor &bitmap, const Tensor &other, const char *op)
{
    BitmapPair p{bitmap_words(bitmap, op), byte_array(other, op, "other")};
    if (p.other.nbytes != p.bitmap.nbytes)
        fail(op, "other must have the ", p.bitmap.nbytes, " bytes of bitmap, but has ",
             p.other.nbytes);
    return p;
}

struct United {
    Bitmaps ranks;
    s2_layout layout;
    Bytes bitmap;
    int64_t *counts; // [nranks + 1, nsegments]
};

inline United united_of(const Tensor &bitmaps, const Tensor &segments, const Tensor &bitmap,
                        const Tensor &counts, const char *op)
{
    Bitmaps ranks = bitmaps_of(bitmaps, op);
    Bytes b = byte_array(bitmap, op, "bitmap");
    s2_layout layout = layout_of_bitmap(segments, b.nbytes, op);
    if (ranks.nbytes != b.nbytes)
        fail(op, "bitmaps must have rows of the ", b.nbytes, " bytes of bitmap, but has ",
             ranks.nbytes);
    const char *accepted = "a contiguous " S2_DEVICE_NAME
                           " tensor of int64 with a row for each rank and one for the union";
    check(counts, op, "counts", accepted, 2);
    check_dtype(counts, ScalarType::Long, op, "counts", accepted);
    if (counts.size(0) != ranks.nranks + 1 || counts.size(1) != layout.nsegments)
        fail(op, "counts must have the shape [", ranks.nranks + 1, ", ", layout.nsegments,
             "], but has [", counts.size(0), ", ", counts.size(1), "]");
    return {ranks, layout, b, static_cast<int64_t *>(counts.data_ptr())};
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

inline Blocks blocks_of(const Tensor &values, const char *name, const Tensor &segments,
                        const Tensor &positions, const Tensor &packed, const char *op)
{
    Floats v = floats(values, op, name);
    return {v, layout_from(segments, v.numel, op), longs(positions, op, "positions"),
            floats(packed, op, "packed")};
}

// What a sum is given: blocks of each rank, of one layout and dtype.
struct BlocksOfRanks {
    Floats sums;
    s2_layout layout;
    std::vector<s2_packed> ranks;
    float *lost; // or NULL
};

inline BlocksOfRanks blocks_of_ranks(const std::vector<Tensor> &packed, const Tensor &segments,
                                     const std::vector<Tensor> &positions, const Tensor &sums,
                                     const std::optional<Tensor> &lost, const char *op)
{
    Floats s = floats(sums, op, "sums");
    BlocksOfRanks b{s, layout_from(segments, s.numel, op), {}, nullptr};
    if (packed.empty() || packed.size() > S2_MAX_RANKS)
        fail(op, "packed must have 1 to ", S2_MAX_RANKS, " tensors, but has ", packed.size());
    if (positions.size() != packed.size())
        fail(op, "positions must have the ", packed.size(), " tensors of packed, but has ",
             positions.size());
    for (size_t r = 0; r < packed.size(); r++) {
        Longs where = longs(positions[r], op, "positions");
        Floats p = floats(packed[r], op, "packed");
        if (p.dtype != s.dtype)
            fail(op, "packed must have the dtype of sums, ", dtype_name(s.dtype), ", but has ",
                 dtype_name(p.dtype));
        b.ranks.push_back({p.data, p.numel, where.data, where.numel});
    }
    if (lost.has_value()) {
        Float32s l = float32s(*lost, op, "lost");
        check_numel(l.numel, s.numel, op, "lost", "sums");
        b.lost = l.data;
    }
    return b;
}

struct Conversion {
    Floats src;
    Floats dst;
};

inline Conversion conversion_of(const Tensor &src, const Tensor &dst, const char *op)
{
    Conversion c{floats(src, op, "src"), floats(dst, op, "dst")};
    check_numel(c.dst.numel, c.src.numel, op, "dst", "src");
    return c;
}

// ------------------------------------------------------------------------------------------------
// Errors
// ------------------------------------------------------------------------------------------------

inline void check_divisor(s2_status status, double divisor, const char *op)
{
    if (status == S2_BAD_DIVISOR)
        fail(op, "divisor must be a finite number above zero, but is ", divisor);
}

inline void check_pair(s2_status status, const char *op, const char *from, const Floats &source,
                       const char *to, const Floats &target, const char *accepted)
{
    if (status == S2_BAD_DTYPE)
        fail(op, "the dtypes of ", from, " and ", to, " must be one of the pairs ", accepted,
             ", but are ", dtype_name(source.dtype), " and ", dtype_name(target.dtype));
}

constexpr const char *kConvertPairs =
    "(float16, float32), (bfloat16, float32), (float32, any), (float64, float64), "
    "(float64, float32), or, with a divisor of 1, (any, the same)";
constexpr const char *kAddPairs =
    "(float16, float32), (bfloat16, float32), (float32, float32), (float32, float64), "
    "(float64, float64)";

} // namespace s2

#endif // S2_TORCH_ARGUMENTS_BLOCKS_H
