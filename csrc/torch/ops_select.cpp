// SPDX-License-Identifier: MIT
//
// The operators for selection and error feedback; see ops_cpu.cpp.
#include "arguments.h"

#include <optional>

namespace {

using namespace s2;

struct Float32s {
    float *data;
    int64_t numel;
};

Float32s float32s(const Tensor &tensor, const char *op, const char *name)
{
    const char *accepted = "a contiguous 1-D CPU tensor of float32";
    check(tensor, op, name, accepted, 1);
    check_dtype(tensor, ScalarType::Float, op, name, accepted);
    return {static_cast<float *>(tensor.data_ptr()), tensor.numel()};
}

void check_numel(int64_t numel, int64_t expected, const char *op, const char *name)
{
    if (numel != expected) fail(op, name, " must have ", expected, " elements, but has ", numel);
}

// The bitmap of `nbits` blocks or elements, which are called `what`.
Bytes bitmap_of(const Tensor &bitmap, int64_t nbits, const char *op, const char *what)
{
    Bytes b = byte_array(bitmap, op, "bitmap");
    int64_t expected = (nbits / 64 + (nbits % 64 != 0)) * 8;
    if (b.nbytes != expected)
        fail(op, "bitmap must have ", expected, " bytes for ", nbits, " ", what, ", but has ",
             b.nbytes);
    return b;
}

void check_keep(int64_t keep, int64_t numel, const char *op)
{
    if (keep < 0 || keep > numel)
        fail(op, "keep must lie between 0 and ", numel, ", but is ", keep);
}

int64_t nblocks_of(int64_t numel, int64_t block, const char *op)
{
    if (block < 1) fail(op, "block must be 1 or more, but is ", block);
    return numel / block + (numel % block != 0);
}

void check_factor(s2_status status, double factor, const char *op, const char *accepted)
{
    if (status == S2_BAD_FACTOR) fail(op, accepted, ", but is ", factor);
}

// ------------------------------------------------------------------------------------------------
// Selection
// ------------------------------------------------------------------------------------------------

void select_top(const Tensor &scores, int64_t keep, const Tensor &bitmap, const Tensor &threshold,
                const Tensor &scratch, bool parallel)
{
    const char *op = "select_top";
    Float32s s = float32s(scores, op, "scores");
    check_keep(keep, s.numel, op);
    Bytes b = bitmap_of(bitmap, s.numel, op, "scores");
    Float32s t = float32s(threshold, op, "threshold");
    check_numel(t.numel, 1, op, "threshold");
    Bytes memory = byte_array(scratch, op, "scratch");
    int64_t nbytes = 0;
    if (s2_select_scratch_nbytes(s.numel, &nbytes) != S2_OK)
        fail(op, "scores must have 2^33 elements at most, but has ", s.numel);
    if (memory.nbytes != nbytes)
        fail(op, "scratch must have ", nbytes, " bytes for ", s.numel, " scores, but has ",
             memory.nbytes);
    if (reinterpret_cast<uintptr_t>(memory.data) % alignof(uint64_t) != 0)
        fail(op, "scratch must begin at a multiple of 8 bytes");
    TorchThreads threads(parallel);
    s2_status status = s2_select_top(s.data, s.numel, keep, b.data, b.nbytes, t.data, memory.data,
                                     memory.nbytes, threads.get());
    if (status != S2_OK) fail(op, s2_status_string(status));
    threads.check(op);
}

void select_above(const Tensor &scores, double threshold, const Tensor &bitmap, const Tensor &count,
                  bool parallel)
{
    const char *op = "select_above";
    Float32s s = float32s(scores, op, "scores");
    Bytes b = bitmap_of(bitmap, s.numel, op, "scores");
    Longs c = longs(count, 1, op, "count");
    TorchThreads threads(parallel);
    s2_status status = s2_select_above(s.data, s.numel, static_cast<float>(threshold), b.data,
                                       b.nbytes, c.data, threads.get());
    check_factor(status, threshold, op, "threshold must not be below zero");
    if (status != S2_OK) fail(op, s2_status_string(status));
    threads.check(op);
}

void select_random(int64_t seed, int64_t numel, int64_t keep, const Tensor &bitmap)
{
    const char *op = "select_random";
    if (numel < 0 || numel > S2_MAX_NUMEL)
        fail(op, "numel must lie between 0 and 2^60 - 1, but is ", numel);
    check_keep(keep, numel, op);
    Bytes b = bitmap_of(bitmap, numel, op, "elements");
    s2_status status = s2_select_random(static_cast<uint64_t>(seed), numel, keep, b.data, b.nbytes);
    if (status != S2_OK) fail(op, s2_status_string(status));
}

// ------------------------------------------------------------------------------------------------
// Error feedback
// ------------------------------------------------------------------------------------------------

constexpr const char *kFactor = "factor must be a finite number above zero in float32";
constexpr const char *kScale =
    "scale must be, and its reciprocal, a finite number above zero in float32";

void owed_add(const Tensor &values, const std::optional<Tensor> &before, const Tensor &owed,
              const Tensor &touched, double factor, bool parallel)
{
    const char *op = "owed_add";
    Floats v = floats(values, op, "values");
    Float32s b = before.has_value() ? float32s(*before, op, "before") : Float32s{nullptr, v.numel};
    Float32s o = float32s(owed, op, "owed");
    check_numel(b.numel, v.numel, op, "before");
    check_numel(o.numel, v.numel, op, "owed");
    Longs t = longs(touched, 1, op, "touched");
    TorchThreads threads(parallel);
    int answer = 0;
    s2_status status =
        s2_owed_add(v.data, v.dtype, v.numel, factor, b.data, o.data, &answer, threads.get());
    check_factor(status, factor, op, kFactor);
    if (status != S2_OK) fail(op, s2_status_string(status));
    threads.check(op);
    t.data[0] = answer;
}

void owed_energies(const Tensor &owed, int64_t block, const Tensor &energies, bool parallel)
{
    const char *op = "owed_energies";
    Float32s o = float32s(owed, op, "owed");
    Float32s e = float32s(energies, op, "energies");
    check_numel(e.numel, nblocks_of(o.numel, block, op), op, "energies");
    TorchThreads threads(parallel);
    s2_status status = s2_owed_energies(o.data, o.numel, block, e.data, e.numel, threads.get());
    if (status != S2_OK) fail(op, s2_status_string(status));
    threads.check(op);
}

void owed_deliver(const Tensor &owed, int64_t block, const std::optional<Tensor> &bitmap,
                  const Tensor &values, double scale, bool parallel)
{
    const char *op = "owed_deliver";
    Float32s o = float32s(owed, op, "owed");
    int64_t nblocks = nblocks_of(o.numel, block, op);
    Bytes b = bitmap.has_value() ? bitmap_of(*bitmap, nblocks, op, "blocks") : Bytes{nullptr, 0};
    Floats v = floats(values, op, "values");
    check_numel(v.numel, o.numel, op, "values");
    TorchThreads threads(parallel);
    s2_status status = s2_owed_deliver(o.data, o.numel, block, b.data, b.nbytes, scale, v.data,
                                       v.dtype, threads.get());
    check_factor(status, scale, op, kScale);
    if (status != S2_OK) fail(op, s2_status_string(status));
    threads.check(op);
}

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(s2reducer, m)
{
    m.def("select_top(Tensor scores, int keep, Tensor(a!) bitmap, Tensor(b!) threshold, "
          "Tensor(c!) scratch, bool parallel=True) -> ()");
    m.def("select_above(Tensor scores, float threshold, Tensor(a!) bitmap, Tensor(b!) count, "
          "bool parallel=True) -> ()");
    m.def("select_random(int seed, int numel, int keep, Tensor(a!) bitmap) -> ()");
    m.def("owed_add(Tensor values, Tensor? before, Tensor(a!) owed, Tensor(b!) touched, "
          "float factor=1.0, bool parallel=True) -> ()");
    m.def("owed_energies(Tensor owed, int block, Tensor(a!) energies, bool parallel=True) -> ()");
    m.def("owed_deliver(Tensor(a!) owed, int block, Tensor? bitmap, Tensor(b!) values, "
          "float scale=1.0, bool parallel=True) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(s2reducer, CompositeExplicitAutograd, m)
{
    m.impl("select_top", TORCH_BOX(&select_top));
    m.impl("select_above", TORCH_BOX(&select_above));
    m.impl("select_random", TORCH_BOX(&select_random));
    m.impl("owed_add", TORCH_BOX(&owed_add));
    m.impl("owed_energies", TORCH_BOX(&owed_energies));
    m.impl("owed_deliver", TORCH_BOX(&owed_deliver));
}
