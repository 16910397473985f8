// SPDX-License-Identifier: MIT
//
// The operators for the rows of COO gradients; see ops_cpu.cpp.
#include "arguments_coo.h"
#include "threads.h"

namespace {

using namespace s2;

void coo_sort(const Tensor &indices, int64_t nrows, const Tensor &order, const Tensor &rows,
              const Tensor &starts, const Tensor &count)
{
    const char *op = "coo_sort";
    CooRows c = coo_rows_of(indices, nrows, order, rows, starts, count, op);
    s2_status status =
        s2_coo_sort(c.indices.data, c.indices.numel, nrows, c.order, c.rows, c.starts, c.count);
    if (status == S2_BAD_POSITION)
        fail(op, "indices must lie between 0 and nrows - 1, which is ", nrows - 1);
    check_coo_size(status, c.indices.numel, nrows, op);
    check_status(status, op);
}

void coo_sum(const Tensor &values, const Tensor &order, const Tensor &starts, const Tensor &sums,
             bool parallel)
{
    const char *op = "coo_sum";
    CooValues c = coo_values_of(values, order, starts, sums, op);
    TorchThreads threads(parallel);
    s2_status status = s2_coo_sum(c.values.data, c.values.dtype, c.n, c.width, c.order, c.starts,
                                  c.nunique, c.sums, threads.get());
    if (status == S2_BAD_POSITION || status == S2_BAD_SIZE)
        fail(op, "order and starts must be what coo_sort gives for ", c.n, " indices of ",
             c.nunique, " distinct rows");
    check_status(status, op);
    threads.check(op);
}

void coo_unite(const Tensor &lists, const Tensor &lengths, int64_t nrows, const Tensor &rows,
               const Tensor &entries, const Tensor &count)
{
    const char *op = "coo_unite";
    CooLists c = coo_lists_of(lists, lengths, nrows, rows, entries, count, op);
    s2_status status = s2_coo_unite(c.lists.data, c.lengths.data, c.lengths.numel, nrows, c.rows,
                                    c.entries, c.count);
    if (status == S2_BAD_POSITION)
        fail(op, "each of the lists must ascend strictly between 0 and nrows - 1, which is ",
             nrows - 1);
    check_status(status, op);
}

void coo_bitmaps(const Tensor &entries, int64_t nunion, const Tensor &bitmaps)
{
    const char *op = "coo_bitmaps";
    CooEntries c = coo_entries_of(entries, nunion, bitmaps, op);
    s2_status status = s2_coo_bitmaps(c.entries.data, c.entries.numel, c.ranks.nranks, nunion,
                                      c.ranks.data, c.ranks.nbytes);
    if (status == S2_BAD_POSITION)
        fail(op, "entries must be what coo_unite gives for ", c.ranks.nranks,
             " ranks and a union of ", nunion);
    check_status(status, op);
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
