// SPDX-License-Identifier: MIT
//
// The operators for position lists and owner plans; see ops_cpu.cpp.
#include "arguments_plan.h"

namespace {

using namespace s2;

// ------------------------------------------------------------------------------------------------
// Position lists
// ------------------------------------------------------------------------------------------------

void list_encode(const Tensor &positions, int64_t nbits, const Tensor &list)
{
    const char *op = "list_encode";
    PositionList l = position_list_of(positions, nbits, list, op);
    s2_status status =
        s2_list_encode(l.positions.data, l.positions.numel, nbits, l.list.data, l.list.nbytes);
    if (status == S2_BAD_POSITION) fail(op, "positions must ascend strictly and lie below ", nbits);
    check_status(status, op);
}

void list_decode(const Tensor &list, int64_t nbits, const Tensor &positions)
{
    const char *op = "list_decode";
    PositionList l = position_list_of(positions, nbits, list, op);
    s2_status status =
        s2_list_decode(l.list.data, l.list.nbytes, l.positions.numel, nbits, l.positions.data);
    if (status == S2_BAD_POSITION)
        fail(op, "list does not hold ", l.positions.numel, " positions below ", nbits);
    check_status(status, op);
}

// ------------------------------------------------------------------------------------------------
// Owner plans
// ------------------------------------------------------------------------------------------------

void check_plan(s2_status status, const char *op)
{
    if (status == S2_BAD_POSITION)
        fail(op, "positions must be those of the set bits of all bitmaps together, ascending");
    check_status(status, op);
}

// Names the one that is wrong, once the core has found that one is.
void check_ranks(const int16_t *owners, int64_t rank, const Union &u, const char *op)
{
    check_rank(rank, u, op);
    for (int64_t j = 0; j < u.positions.numel; j++) {
        if (owners[j] < 0 || owners[j] >= u.ranks.nranks)
            fail(op, "owners must lie between 0 and ", u.ranks.nranks - 1, ", but one is ",
                 owners[j]);
    }
}

void plan_owners(const Tensor &bitmaps, const Tensor &segments, const Tensor &positions,
                 int64_t seed, const Tensor &owners)
{
    const char *op = "plan_owners";
    Union u = union_of(bitmaps, segments, positions, op);
    int16_t *o = owners_of(owners, u, op);
    check_plan(s2_plan_owners(&u.layout, u.ranks.data, u.ranks.nranks, u.ranks.nbytes,
                              static_cast<uint64_t>(seed), u.positions.data, u.positions.numel, o),
               op);
}

void plan_exchanges(const Tensor &bitmaps, const Tensor &segments, const Tensor &positions,
                    const Tensor &owners, int64_t rank, const Tensor &exchanges)
{
    const char *op = "plan_exchanges";
    Union u = union_of(bitmaps, segments, positions, op);
    const int16_t *o = owners_of(owners, u, op);
    s2_exchange *e = exchanges_of(exchanges, u, op);
    s2_status status = s2_plan_exchanges(&u.layout, u.ranks.data, u.ranks.nranks, u.ranks.nbytes,
                                         u.positions.data, u.positions.numel, o, rank, e);
    if (status == S2_BAD_SIZE) check_ranks(o, rank, u, op);
    check_plan(status, op);
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
    s2_status status =
        s2_plan_lists(&u.layout, u.ranks.data, u.ranks.nranks, u.ranks.nbytes, u.positions.data,
                      u.positions.numel, o, rank, e, l.sent.data, l.sent.numel, l.received.data,
                      l.received.numel, l.owned, l.compact);
    if (status == S2_BAD_SIZE) {
        check_ranks(o, rank, u, op);
        fail(op,
             "exchanges must be what plan_exchanges gives for the same arguments, and sent and "
             "received as long as it says, but they have ",
             l.sent.numel, " and ", l.received.numel, " elements");
    }
    check_plan(status, op);
}

} // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(s2reducer, m)
{
    m.def("list_encode(Tensor positions, int nbits, Tensor(a!) list) -> ()");
    m.def("list_decode(Tensor list, int nbits, Tensor(a!) positions) -> ()");
    m.def("plan_owners(Tensor bitmaps, Tensor segments, Tensor positions, int seed, "
          "Tensor(a!) owners) -> ()");
    m.def("plan_exchanges(Tensor bitmaps, Tensor segments, Tensor positions, Tensor owners, int "
          "rank, "
          "Tensor(a!) exchanges) -> ()");
    m.def("plan_lists(Tensor bitmaps, Tensor segments, Tensor positions, Tensor owners, int rank, "
          "Tensor exchanges, Tensor(a!) sent, Tensor(b!) received, Tensor(c!) owned, "
          "Tensor(d!) compact) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(s2reducer, CompositeExplicitAutograd, m)
{
    m.impl("list_encode", TORCH_BOX(&list_encode));
    m.impl("list_decode", TORCH_BOX(&list_decode));
    m.impl("plan_owners", TORCH_BOX(&plan_owners));
    m.impl("plan_exchanges", TORCH_BOX(&plan_exchanges));
    m.impl("plan_lists", TORCH_BOX(&plan_lists));
}
