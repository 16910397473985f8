// SPDX-License-Identifier: MIT
//
// The operators for position lists and owner plans; see ops_cpu.cpp.
#include "arguments.h"

namespace {

using namespace s2;

// ------------------------------------------------------------------------------------------------
// Position lists
// ------------------------------------------------------------------------------------------------

Bytes list_bytes(const Tensor &list, int64_t nbits, int64_t count, const char *op)
{
    Bytes bytes = byte_array(list, op, "list");
    int64_t expected = 0;
    if (s2_list_nbytes(nbits, count, &expected) != S2_OK)
        fail(op, "there cannot be ", count, " positions below nbits, which is ", nbits);
    if (bytes.nbytes != expected)
        fail(op, "list must have ", expected, " bytes for ", count, " positions below ", nbits,
             ", but has ", bytes.nbytes);
    return bytes;
}

void list_encode(const Tensor &positions, int64_t nbits, const Tensor &list)
{
    const char *op = "list_encode";
    Longs p = longs(positions, op, "positions");
    Bytes bytes = list_bytes(list, nbits, p.numel, op);
    s2_status status = s2_list_encode(p.data, p.numel, nbits, bytes.data, bytes.nbytes);
    if (status == S2_BAD_POSITION) fail(op, "positions must ascend strictly and lie below ", nbits);
    if (status != S2_OK) fail(op, s2_status_string(status));
}

void list_decode(const Tensor &list, int64_t nbits, const Tensor &positions)
{
    const char *op = "list_decode";
    Longs p = longs(positions, op, "positions");
    Bytes bytes = list_bytes(list, nbits, p.numel, op);
    s2_status status = s2_list_decode(bytes.data, bytes.nbytes, p.numel, nbits, p.data);
    if (status == S2_BAD_POSITION)
        fail(op, "list does not hold ", p.numel, " positions below ", nbits);
    if (status != S2_OK) fail(op, s2_status_string(status));
}

// ------------------------------------------------------------------------------------------------
// Owner plans
// ------------------------------------------------------------------------------------------------

struct Union {
    s2_layout layout;
    const uint8_t *bitmaps;
    int64_t nranks;
    int64_t nbytes;
    Longs positions;
};

Union union_of(const Tensor &bitmaps, const Tensor &segments, const Tensor &positions,
               const char *op)
{
    const char *accepted = "a contiguous CPU tensor of uint8 with a row for each rank";
    check(bitmaps, op, "bitmaps", accepted, 2);
    check_dtype(bitmaps, ScalarType::Byte, op, "bitmaps", accepted);
    Union u{layout_from(segments, S2_MAX_NUMEL, op),
            static_cast<const uint8_t *>(bitmaps.data_ptr()), bitmaps.size(0), bitmaps.size(1),
            longs(positions, op, "positions")};
    if (u.nranks < 1 || u.nranks > S2_MAX_RANKS)
        fail(op, "bitmaps must have 1 to ", S2_MAX_RANKS, " rows, but has ", u.nranks);
    check_bitmap_size(u.layout, u.nbytes, op);
    return u;
}

struct Owners {
    int16_t *data;
    int64_t numel;
};

Owners owners_of(const Tensor &owners, const Union &u, const char *op)
{
    const char *accepted = "a contiguous 1-D CPU tensor of int16";
    check(owners, op, "owners", accepted, 1);
    check_dtype(owners, ScalarType::Short, op, "owners", accepted);
    if (owners.numel() != u.positions.numel)
        fail(op, "owners must have the ", u.positions.numel, " elements of positions, but has ",
             owners.numel());
    return {static_cast<int16_t *>(owners.data_ptr()), owners.numel()};
}

s2_exchange *exchanges_of(const Tensor &exchanges, const Union &u, const char *op)
{
    static_assert(sizeof(s2_exchange) == 6 * sizeof(int64_t), "a row of exchanges");
    const char *accepted = "a contiguous CPU tensor of int64 with a row of 6 for each rank";
    check(exchanges, op, "exchanges", accepted, 2);
    check_dtype(exchanges, ScalarType::Long, op, "exchanges", accepted);
    if (exchanges.size(0) != u.nranks || exchanges.size(1) != 6)
        fail(op, "exchanges must be ", accepted, ", but its shape is [", exchanges.size(0), ", ",
             exchanges.size(1), "]");
    return static_cast<s2_exchange *>(exchanges.data_ptr());
}

void check_plan(s2_status status, const char *op)
{
    if (status == S2_BAD_POSITION)
        fail(op, "positions must be those of the set bits of all bitmaps together, ascending");
    if (status != S2_OK) fail(op, s2_status_string(status));
}

// Names the one that is wrong, once the core has found that one is.
void check_rank(const Owners &owners, int64_t rank, const Union &u, const char *op)
{
    if (rank < 0 || rank >= u.nranks)
        fail(op, "rank must lie between 0 and ", u.nranks - 1, ", but is ", rank);
    for (int64_t j = 0; j < owners.numel; j++) {
        if (owners.data[j] < 0 || owners.data[j] >= u.nranks)
            fail(op, "owners must lie between 0 and ", u.nranks - 1, ", but one is ",
                 owners.data[j]);
    }
}

void plan_owners(const Tensor &bitmaps, const Tensor &segments, const Tensor &positions,
                 int64_t seed, const Tensor &owners)
{
    const char *op = "plan_owners";
    Union u = union_of(bitmaps, segments, positions, op);
    Owners o = owners_of(owners, u, op);
    check_plan(s2_plan_owners(&u.layout, u.bitmaps, u.nranks, u.nbytes, static_cast<uint64_t>(seed),
                              u.positions.data, u.positions.numel, o.data),
               op);
}

void plan_exchanges(const Tensor &bitmaps, const Tensor &segments, const Tensor &positions,
                    const Tensor &owners, int64_t rank, const Tensor &exchanges)
{
    const char *op = "plan_exchanges";
    Union u = union_of(bitmaps, segments, positions, op);
    Owners o = owners_of(owners, u, op);
    s2_exchange *e = exchanges_of(exchanges, u, op);
    s2_status status = s2_plan_exchanges(&u.layout, u.bitmaps, u.nranks, u.nbytes, u.positions.data,
                                         u.positions.numel, o.data, rank, e);
    if (status == S2_BAD_SIZE) check_rank(o, rank, u, op);
    check_plan(status, op);
}

void plan_lists(const Tensor &bitmaps, const Tensor &segments, const Tensor &positions,
                const Tensor &owners, int64_t rank, const Tensor &exchanges, const Tensor &sent,
                const Tensor &received, const Tensor &owned, const Tensor &compact)
{
    const char *op = "plan_lists";
    Union u = union_of(bitmaps, segments, positions, op);
    Owners o = owners_of(owners, u, op);
    const s2_exchange *e = exchanges_of(exchanges, u, op);
    Longs s = longs(sent, op, "sent");
    Longs r = longs(received, op, "received");
    Longs w = longs(owned, u.positions.numel, op, "owned");
    const char *accepted = "a contiguous CPU tensor of int64 of the shape of segments";
    check(compact, op, "compact", accepted, 2);
    check_dtype(compact, ScalarType::Long, op, "compact", accepted);
    if (compact.size(0) != u.layout.nsegments || compact.size(1) != 4)
        fail(op, "compact must be ", accepted);
    s2_status status = s2_plan_lists(
        &u.layout, u.bitmaps, u.nranks, u.nbytes, u.positions.data, u.positions.numel, o.data, rank,
        e, s.data, s.numel, r.data, r.numel, w.data, static_cast<s2_segment *>(compact.data_ptr()));
    if (status == S2_BAD_SIZE) {
        check_rank(o, rank, u, op);
        fail(op,
             "exchanges must be what plan_exchanges gives for the same arguments, and sent and "
             "received as long as it says, but they have ",
             s.numel, " and ", r.numel, " elements");
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
