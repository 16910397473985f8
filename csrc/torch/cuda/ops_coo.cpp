// SPDX-License-Identifier: MIT
//
// The operators for the rows of COO gradients on CUDA tensors; see ops_blocks.cpp.
#include "work.h"

#include "../arguments_coo.h"

namespace {

using namespace s2;

void sum(const Tensor &values, const Tensor &order, const Tensor &starts, const Tensor *count,
         const Tensor &sums, const char *op)
{
    CooValues c = coo_values_of(values, order, starts, sums, op);
    if (c.nunique > c.n)
        fail(op, "order and starts must be what coo_sort gives for ", c.n, " indices of ",
             c.nunique, " distinct rows");
    const int64_t *nunique = count_of(count, op);
    Work work(op, {&values, &order, &starts, count != nullptr ? count : &order, &sums});
    work.check(s2_cuda_coo_sum(c.values.data, c.values.dtype, c.n, c.width, c.order, c.starts,
                               c.nunique, nunique, c.sums, work.stream()));
}

void coo_sum(const Tensor &values, const Tensor &order, const Tensor &starts, const Tensor &sums,
             bool /*parallel*/)
{
    sum(values, order, starts, nullptr, sums, "coo_sum");
}

void coo_bitmaps(const Tensor &entries, int64_t nunion, const Tensor &bitmaps)
{
    const char *op = "coo_bitmaps";
    CooEntries c = coo_entries_of(entries, nunion, bitmaps, op);
    Work work(op, {&entries, &bitmaps});
    work.check(s2_cuda_coo_bitmaps(c.entries.data, c.entries.numel, nullptr, c.ranks.nranks, nunion,
                                   c.ranks.data, c.ranks.nbytes, work.stream()));
}

// ------------------------------------------------------------------------------------------------
// Rows of which only the device knows how many there are
// ------------------------------------------------------------------------------------------------

void coo_sort_counted(const Tensor &indices, int64_t nrows, const Tensor &order, const Tensor &rows,
                      const Tensor &starts, const Tensor &count, const Tensor &valid)
{
    const char *op = "coo_sort_counted";
    CooRows c = coo_rows_of(indices, nrows, order, rows, starts, count, op);
    longs(valid, 1, op, "valid");
    Work work(op, {&indices, &order, &rows, &starts, &count, &valid});
    int64_t nbytes = 0;
    work.check(s2_cuda_coo_scratch_nbytes(c.indices.numel, &nbytes));
    Tensor answer = work.flag();
    s2_status status = s2_cuda_coo_sort(c.indices.data, c.indices.numel, nrows, c.order, c.rows,
                                        c.starts, c.count, static_cast<int *>(answer.data_ptr()),
                                        work.scratch(nbytes), nbytes, work.stream());
    check_coo_size(status, c.indices.numel, nrows, op);
    work.check(status);
    work.store(answer, valid);
}

void coo_sum_counted(const Tensor &values, const Tensor &order, const Tensor &starts,
                     const Tensor &count, const Tensor &sums)
{
    sum(values, order, starts, &count, sums, "coo_sum_counted");
}

} // namespace

// Who calls them does so where they are defined at all: device_rows.py.
S2_DEFINITIONS(m)
{
    m.def("coo_sort_counted(Tensor indices, int nrows, Tensor(a!) order, Tensor(b!) rows, "
          "Tensor(c!) starts, Tensor(d!) count, Tensor(e!) valid) -> ()");
    m.def("coo_sum_counted(Tensor values, Tensor order, Tensor starts, Tensor count, "
          "Tensor(a!) sums) -> ()");
}

S2_OPERATORS(m)
{
    m.impl("coo_sort_counted", TORCH_BOX(&coo_sort_counted));
    m.impl("coo_sum_counted", TORCH_BOX(&coo_sum_counted));
    m.impl("coo_sum", TORCH_BOX(&coo_sum));
    m.impl("coo_bitmaps", TORCH_BOX(&coo_bitmaps));
}
