// SPDX-License-Identifier: MIT
//
// The operators for the rows of COO gradients on CUDA tensors; see ops_blocks.cpp.
#include "work.h"

#include "../arguments_coo.h"

namespace {

using namespace s2;

void coo_sum(const Tensor &values, const Tensor &order, const Tensor &starts, const Tensor &sums,
             bool /*parallel*/)
{
    const char *op = "coo_sum";
    CooValues c = coo_values_of(values, order, starts, sums, op);
    if (c.nunique > c.n)
        fail(op, "order and starts must be what coo_sort gives for ", c.n, " indices of ",
             c.nunique, " distinct rows");
    Work work(op, {&values, &order, &starts, &sums});
    work.check(s2_cuda_coo_sum(c.values.data, c.values.dtype, c.n, c.width, c.order, c.starts,
                               c.nunique, nullptr, c.sums, work.stream()));
}

void coo_bitmaps(const Tensor &entries, int64_t nunion, const Tensor &bitmaps)
{
    const char *op = "coo_bitmaps";
    CooEntries c = coo_entries_of(entries, nunion, bitmaps, op);
    Work work(op, {&entries, &bitmaps});
    work.check(s2_cuda_coo_bitmaps(c.entries.data, c.entries.numel, nullptr, c.ranks.nranks, nunion,
                                   c.ranks.data, c.ranks.nbytes, work.stream()));
}

} // namespace

S2_OPERATORS(m)
{
    m.impl("coo_sum", TORCH_BOX(&coo_sum));
    m.impl("coo_bitmaps", TORCH_BOX(&coo_bitmaps));
}
