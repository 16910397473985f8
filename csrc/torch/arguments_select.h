// SPDX-License-Identifier: MIT
//
// What the operators for selection and error feedback are given; see arguments.h.
#ifndef S2_TORCH_ARGUMENTS_SELECT_H
#define S2_TORCH_ARGUMENTS_SELECT_H

#include "arguments.h"

namespace s2 {

// The bitmap of `nbits` blocks or elements, which are called `what`.
inline Bytes bitmap_of(const Tensor &bitmap, int64_t nbits, const char *op, const char *what)
{
    Bytes b = byte_array(bitmap, op, "bitmap");
    int64_t expected = (nbits / 64 + (nbits % 64 != 0)) * 8;
    if (b.nbytes != expected)
        fail(op, "bitmap must have ", expected, " bytes for ", nbits, " ", what, ", but has ",
             b.nbytes);
    return b;
}

inline void check_keep(int64_t keep, int64_t numel, const char *op)
{
    if (keep < 0 || keep > numel)
        fail(op, "keep must lie between 0 and ", numel, ", but is ", keep);
}

inline int64_t nblocks_of(int64_t numel, int64_t block, const char *op)
{
    if (block < 1) fail(op, "block must be 1 or more, but is ", block);
    return numel / block + (numel % block != 0);
}

inline void check_factor(s2_status status, double factor, const char *op, const char *accepted)
{
    if (status == S2_BAD_FACTOR) fail(op, accepted, ", but is ", factor);
}

constexpr const char *kThreshold = "threshold must not be below zero";
constexpr const char *kFactor = "factor must be a finite number above zero in float32";
constexpr const char *kScale =
    "scale must be, and its reciprocal, a finite number above zero in float32";

// ------------------------------------------------------------------------------------------------
// Selection
// ------------------------------------------------------------------------------------------------

struct Top {
    Float32s scores;
    Bytes bitmap;
    float *threshold;
    Bytes scratch;
};

inline Top top_of(const Tensor &scores, int64_t keep, const Tensor &bitmap, const Tensor &threshold,
                  const Tensor &scratch, const char *op)
{
    Float32s s = float32s(scores, op, "scores");
    check_keep(keep, s.numel, op);
    Bytes b = bitmap_of(bitmap, s.numel, op, "scores");
    Float32s t = float32s(threshold, op, "threshold");
    check_numel(t.numel, 1, op, "threshold");
    return {s, b, t.data, byte_array(scratch, op, "scratch")};
}

inline void check_nscores(s2_status status, int64_t n, const char *op)
{
    if (status != S2_OK) fail(op, "scores must have 2^33 elements at most, but has ", n);
}

struct Above {
    Float32s scores;
    Bytes bitmap;
    int64_t *count;
};

inline Above above_of(const Tensor &scores, const Tensor &bitmap, const Tensor &count,
                      const char *op)
{
    Float32s s = float32s(scores, op, "scores");
    return {s, bitmap_of(bitmap, s.numel, op, "scores"), longs(count, 1, op, "count").data};
}

inline Bytes random_of(int64_t numel, int64_t keep, const Tensor &bitmap, const char *op)
{
    if (numel < 0 || numel > S2_MAX_NUMEL)
        fail(op, "numel must lie between 0 and 2^60 - 1, but is ", numel);
    check_keep(keep, numel, op);
    return bitmap_of(bitmap, numel, op, "elements");
}

// ------------------------------------------------------------------------------------------------
// Error feedback
// ------------------------------------------------------------------------------------------------

struct OwedSum {
    Floats values;
    float *before; // or NULL
    float *owed;
    int64_t *touched;
};

inline OwedSum owed_sum_of(const Tensor &values, const std::optional<Tensor> &before,
                           const Tensor &owed, const Tensor &touched, const char *op)
{
    Floats v = floats(values, op, "values");
    Float32s b = before.has_value() ? float32s(*before, op, "before") : Float32s{nullptr, v.numel};
    Float32s o = float32s(owed, op, "owed");
    check_numel(b.numel, v.numel, op, "before");
    check_numel(o.numel, v.numel, op, "owed");
    return {v, b.data, o.data, longs(touched, 1, op, "touched").data};
}

struct Energies {
    Float32s owed;
    Float32s energies;
};

inline Energies energies_of(const Tensor &owed, int64_t block, const Tensor &energies,
                            const char *op)
{
    Energies e{float32s(owed, op, "owed"), float32s(energies, op, "energies")};
    check_numel(e.energies.numel, nblocks_of(e.owed.numel, block, op), op, "energies");
    return e;
}

struct Delivery {
    Float32s owed;
    Bytes bitmap; // NULL where all is delivered
    Floats values;
};

inline Delivery delivery_of(const Tensor &owed, int64_t block, const std::optional<Tensor> &bitmap,
                            const Tensor &values, const char *op)
{
    Float32s o = float32s(owed, op, "owed");
    int64_t nblocks = nblocks_of(o.numel, block, op);
    Bytes b = bitmap.has_value() ? bitmap_of(*bitmap, nblocks, op, "blocks") : Bytes{nullptr, 0};
    Floats v = floats(values, op, "values");
    check_numel(v.numel, o.numel, op, "values");
    return {o, b, v};
}

} // namespace s2

#endif // S2_TORCH_ARGUMENTS_SELECT_H
