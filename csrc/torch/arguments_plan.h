// SPDX-License-Identifier: MIT
//
// What the operators for position lists and owner plans are given; see arguments.h.
#ifndef S2_TORCH_ARGUMENTS_PLAN_H
#define S2_TORCH_ARGUMENTS_PLAN_H

#include "arguments.h"

namespace s2 {

struct PositionList {
    Longs positions;
    Bytes list;
};

inline PositionList position_list_of(const Tensor &positions, int64_t nbits, const Tensor &list,
                                     const char *op)
{
    PositionList l{longs(positions, op, "positions"), byte_array(list, op, "list")};
    const int64_t count = l.positions.numel;
    int64_t expected = 0;
    if (s2_list_nbytes(nbits, count, &expected) != S2_OK)
        fail(op, "there cannot be ", count, " positions below nbits, which is ", nbits);
    if (l.list.nbytes != expected)
        fail(op, "list must have ", expected, " bytes for ", count, " positions below ", nbits,
             ", but has ", l.list.nbytes);
    return l;
}

// The ranks' bitmaps, and the positions of their union.
struct Union {
    s2_layout layout;
    Bitmaps ranks;
    Longs positions;
};

inline Union union_of(const Tensor &bitmaps, const Tensor &segments, const Tensor &positions,
                      const char *op)
{
    Bitmaps ranks = bitmaps_of(bitmaps, op);
    return {layout_of_bitmap(segments, ranks.nbytes, op), ranks, longs(positions, op, "positions")};
}

inline int16_t *owners_of(const Tensor &owners, const Union &u, const char *op)
{
    const char *accepted = "a contiguous 1-D " S2_DEVICE_NAME " tensor of int16";
    check(owners, op, "owners", accepted, 1);
    check_dtype(owners, ScalarType::Short, op, "owners", accepted);
    check_numel(owners.numel(), u.positions.numel, op, "owners", "positions");
    return static_cast<int16_t *>(owners.data_ptr());
}

inline s2_exchange *exchanges_of(const Tensor &exchanges, const Union &u, const char *op)
{
    static_assert(sizeof(s2_exchange) == 6 * sizeof(int64_t), "a row of exchanges");
    const char *accepted =
        "a contiguous " S2_DEVICE_NAME " tensor of int64 with a row of 6 for each rank";
    check(exchanges, op, "exchanges", accepted, 2);
    check_dtype(exchanges, ScalarType::Long, op, "exchanges", accepted);
    if (exchanges.size(0) != u.ranks.nranks || exchanges.size(1) != 6)
        fail(op, "exchanges must be ", accepted, ", but its shape is [", exchanges.size(0), ", ",
             exchanges.size(1), "]");
    return static_cast<s2_exchange *>(exchanges.data_ptr());
}

// What lists are given beside owners and exchanges: where they go.
struct ListsOfPlan {
    Longs sent;
    Longs received;
    int64_t *owned; // as many as positions
    s2_segment *compact;
};

inline ListsOfPlan lists_of(const Tensor &sent, const Tensor &received, const Tensor &owned,
                            const Tensor &compact, const Union &u, const char *op)
{
    ListsOfPlan l{longs(sent, op, "sent"), longs(received, op, "received"),
                  longs(owned, u.positions.numel, op, "owned").data, nullptr};
    const char *accepted =
        "a contiguous " S2_DEVICE_NAME " tensor of int64 of the shape of segments";
    check(compact, op, "compact", accepted, 2);
    check_dtype(compact, ScalarType::Long, op, "compact", accepted);
    if (compact.size(0) != u.layout.nsegments || compact.size(1) != 4)
        fail(op, "compact must be ", accepted);
    l.compact = static_cast<s2_segment *>(compact.data_ptr());
    return l;
}

inline void check_rank(int64_t rank, const Union &u, const char *op)
{
    if (rank < 0 || rank >= u.ranks.nranks)
        fail(op, "rank must lie between 0 and ", u.ranks.nranks - 1, ", but is ", rank);
}

} // namespace s2

#endif // S2_TORCH_ARGUMENTS_PLAN_H
