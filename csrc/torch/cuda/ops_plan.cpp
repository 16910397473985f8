// SPDX-License-Identifier: MIT
//
// The operators for owner plans on CUDA tensors, and for making position lists; see ops_blocks.cpp.
//
// Lists are not read here: whether the bytes of another rank are a list at all must be known before
// its positions are used, and that would be to wait.
#include "work.h"

#include "../arguments_plan.h"

namespace {

using namespace s2;

void list_encode(const Tensor &positions, int64_t nbits, const Tensor &list)
{
    const char *op = "list_encode";
    PositionList l = position_list_of(positions, nbits, list, op);
    Work work(op, {&positions, &list});
    work.check(s2_cuda_list_encode(l.positions.data, l.positions.numel, nbits, l.list.data,
                                   l.list.nbytes, work.stream()));
}

void plan_owners(const Tensor &bitmaps, const Tensor &segments, const Tensor &positions,
                 int64_t seed, const Tensor &owners)
{
    const char *op = "plan_owners";
    Union u = union_of(bitmaps, segments, positions, op);
    int16_t *o = owners_of(owners, u, op);
    Work work(op, {&bitmaps, &positions, &owners});
    s2_cuda_layout layout = work.layout(u.layout, segments);
    int64_t nbytes = 0;
    work.check(s2_cuda_plan_owners_scratch_nbytes(u.positions.numel, u.ranks.nranks, &nbytes));
    work.check(s2_cuda_plan_owners(&layout, u.ranks.data, u.ranks.nranks, u.ranks.nbytes,
                                   static_cast<uint64_t>(seed), u.positions.data, u.positions.numel,
                                   work.runs(layout, u.positions), o, work.scratch(nbytes), nbytes,
                                   work.stream()));
}

void plan_exchanges(const Tensor &bitmaps, const Tensor &segments, const Tensor &positions,
                    const Tensor &owners, int64_t rank, const Tensor &exchanges)
{
    const char *op = "plan_exchanges";
    Union u = union_of(bitmaps, segments, positions, op);
    const int16_t *o = owners_of(owners, u, op);
    s2_exchange *e = exchanges_of(exchanges, u, op);
    check_rank(rank, u, op);
    Work work(op, {&bitmaps, &positions, &owners, &exchanges});
    s2_cuda_layout layout = work.layout(u.layout, segments);
    work.check(s2_cuda_plan_exchanges(&layout, u.ranks.data, u.ranks.nranks, u.ranks.nbytes,
                                      u.positions.data, u.positions.numel,
                                      work.runs(layout, u.positions), o, rank, e, work.stream()));
}

void plan_lists(const Tensor &bitmaps, const Tensor &segments, const Tensor &positions,
                const Tensor &owners, int64_t rank, const Tensor &exchanges, const Tensor &sent,
                const Tensor &received, const Tensor &owned, const Tensor &compact)
{
    const char *op = "plan_lists";
    Union u = union_of(bitmaps, segments, positions, op);
    const int16_t *o = owners_of(owners, u, op);
    const s2_exchange *e = exchanges_of(exchanges, u, op);
    ListsOfPlan l = lists_of(sent, received, owned, compact, u, op);
    check_rank(rank, u, op);
    Work work(op, {&bitmaps, &positions, &owners, &exchanges, &sent, &received, &owned, &compact});
    s2_cuda_layout layout = work.layout(u.layout, segments);
    int64_t nbytes = 0;
    work.check(s2_cuda_plan_lists_scratch_nbytes(u.positions.numel, u.ranks.nranks,
                                                 u.layout.nsegments, &nbytes));
    work.check(s2_cuda_plan_lists(
        &layout, u.ranks.data, u.ranks.nranks, u.ranks.nbytes, u.positions.data, u.positions.numel,
        work.runs(layout, u.positions), o, rank, e, l.sent.data, l.sent.numel, l.received.data,
        l.received.numel, l.owned, l.compact, work.scratch(nbytes), nbytes, work.stream()));
}

} // namespace

S2_OPERATORS(m)
{
    m.impl("list_encode", TORCH_BOX(&list_encode));
    m.impl("plan_owners", TORCH_BOX(&plan_owners));
    m.impl("plan_exchanges", TORCH_BOX(&plan_exchanges));
    m.impl("plan_lists", TORCH_BOX(&plan_lists));
}
