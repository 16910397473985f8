// SPDX-License-Identifier: MIT
//
// The operators for the rows of COO gradients; see ops_cpu.cpp.
#include "arguments.h"

namespace {

using namespace s2;

void check_nrows(int64_t nrows, const char *op)
{
    if (nrows < 0 || nrows > S2_MAX_ROWS)
        fail(op, "nrows must lie between 0 and 2^40, but is ", nrows);
}

void coo_sort(const Tensor &indices, int64_t nrows, const Tensor &order, const Tensor &rows,
              const Tensor &starts, const Tensor &count)
{
    const char *op = "coo_sort";
    Longs i = longs(indices, op, "indices");
    Longs o = longs(order, i.numel, op, "order");
    Longs r = longs(rows, i.numel, op, "rows");
    Longs s = longs(starts, i.numel + 1, op, "starts");
    Longs c = longs(count, 1, op, "count");
    check_nrows(nrows, op);
    s2_status status = s2_coo_sort(i.data, i.numel, nrows, o.data, r.data, s.data, c.data);
    if (status == S2_BAD_POSITION)
        fail(op, "indices must lie between 0 and nrows - 1, which is ", nrows - 1);
    if (status == S2_BAD_SIZE)
        fail(op, "indices has too many elements for so many rows: ", i.numel, " and ", nrows,
             ", rounded up to powers of two, must have a product of at most 2^64");
    if (status != S2_OK) fail(op, s2_status_string(status));
}

void coo_sum(const Tensor &values, const Tensor &order, const Tensor &starts, const Tensor &sums,
             bool parallel)
{
    const char *op = "coo_sum";
    Floats v = float_rows(values, op, "values");
    int64_t n = values.size(0), width = values.size(1);
    Longs o = longs(order, n, op, "order");
    Longs s = longs(starts, op, "starts");
    Floats out = float_rows(sums, op, "sums");
    int64_t nunique = s.numel - 1;
    if (nunique < 0) fail(op, "starts must have at least 1 element, but has none");
    if (sums.size(0) != nunique || sums.size(1) != width)
        fail(op, "sums must have the shape [", nunique, ", ", width, "], but has [", sums.size(0),
             ", ", sums.size(1), "]");
    if (out.dtype != v.dtype) fail(op, "sums must have the dtype of values");
    TorchThreads threads(parallel);
    s2_status status =
        s2_coo_sum(v.data, v.dtype, n, width, o.data, s.data, nunique, out.data, threads.get());
    if (status == S2_BAD_POSITION || status == S2_BAD_SIZE)
        fail(op, "order and starts must be what coo_sort gives for ", n, " indices of ", nunique,
             " distinct rows");
    if (status != S2_OK) fail(op, s2_status_string(status));
    threads.check(op);
}

void coo_unite(const Tensor &lists, const Tensor &lengths, int64_t nrows, const Tensor &rows,
               const Tensor &entries, const Tensor &count)
{
    const char *op = "coo_unite";
    Longs l = longs(lists, op, "lists");
    Longs n = longs(lengths, op, "lengths");
    Longs r = longs(rows, l.numel, op, "rows");
    Longs e = longs(entries, l.numel, op, "entries");
    Longs c = longs(count, 1, op, "count");
    check_nrows(nrows, op);
    if (n.numel < 1 || n.numel > S2_MAX_RANKS)
        fail(op, "lengths must have 1 to ", S2_MAX_RANKS, " elements, but has ", n.numel);
    int64_t rest = l.numel; // no sum that could overflow
    for (int64_t rank = 0; rank < n.numel; rank++) {
        if (n.data[rank] < 0 || n.data[rank] > rest)
            fail(op, "lengths must be 0 or more and add up to the ", l.numel,
                 " elements of lists, but one is ", n.data[rank]);
        rest -= n.data[rank];
    }
    if (rest != 0)
        fail(op, "lengths must add up to the ", l.numel, " elements of lists, but leaves ", rest);
    s2_status status = s2_coo_unite(l.data, n.data, n.numel, nrows, r.data, e.data, c.data);
    if (status == S2_BAD_POSITION)
        fail(op, "each of the lists must ascend strictly between 0 and nrows - 1, which is ",
             nrows - 1);
    if (status != S2_OK) fail(op, s2_status_string(status));
}

void coo_bitmaps(const Tensor &entries, int64_t nunion, const Tensor &bitmaps)
{
    const char *op = "coo_bitmaps";
    const char *accepted = "a contiguous CPU tensor of uint8 with a row for each rank";
    Longs e = longs(entries, op, "entries");
    check(bitmaps, op, "bitmaps", accepted, 2);
    check_dtype(bitmaps, ScalarType::Byte, op, "bitmaps", accepted);
    int64_t nranks = bitmaps.size(0), nbytes = bitmaps.size(1);
    if (nunion < 0 || nunion > S2_MAX_ROWS)
        fail(op, "nunion must lie between 0 and 2^40, but is ", nunion);
    if (nranks < 1 || nranks > S2_MAX_RANKS)
        fail(op, "bitmaps must have 1 to ", S2_MAX_RANKS, " rows, but has ", nranks);
    if (nbytes != (nunion + 63) / 64 * 8)
        fail(op, "bitmaps must have ", (nunion + 63) / 64 * 8, " bytes a row for a union of ",
             nunion, ", but has ", nbytes);
    s2_status status = s2_coo_bitmaps(e.data, e.numel, nranks, nunion,
                                      static_cast<uint8_t *>(bitmaps.data_ptr()), nbytes);
    if (status == S2_BAD_POSITION)
        fail(op, "entries must be what coo_unite gives for ", nranks, " ranks and a union of ",
             nunion);
    if (status != S2_OK) fail(op, s2_status_string(status));
}

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(s2reducer, m)
{
    m.def("coo_sort(Tensor indices, int nrows, Tensor(a!) order, Tensor(b!) rows, "
          "Tensor(c!) starts, Tensor(d!) count) -> ()");
    m.def("coo_sum(Tensor values, Tensor order, Tensor starts, Tensor(a!) sums, "
          "bool parallel=True) -> ()");
    m.def("coo_unite(Tensor lists, Tensor lengths, int nrows, Tensor(a!) rows, "
          "Tensor(b!) entries, Tensor(c!) count) -> ()");
    m.def("coo_bitmaps(Tensor entries, int nunion, Tensor(a!) bitmaps) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(s2reducer, CompositeExplicitAutograd, m)
{
    m.impl("coo_sort", TORCH_BOX(&coo_sort));
    m.impl("coo_sum", TORCH_BOX(&coo_sum));
    m.impl("coo_unite", TORCH_BOX(&coo_unite));
    m.impl("coo_bitmaps", TORCH_BOX(&coo_bitmaps));
}
