// SPDX-License-Identifier: MIT
//
// What the operators for the rows of COO gradients are given; see arguments.h.
#ifndef S2_TORCH_ARGUMENTS_COO_H
#define S2_TORCH_ARGUMENTS_COO_H

#include "arguments.h"

namespace s2 {

inline void check_nrows(int64_t nrows, const char *op)
{
    if (nrows < 0 || nrows > S2_MAX_ROWS)
        fail(op, "nrows must lie between 0 and 2^40, but is ", nrows);
}

struct CooRows {
    Longs indices;
    int64_t *order;
    int64_t *rows;
    int64_t *starts; // one element more
    int64_t *count;
};

inline CooRows coo_rows_of(const Tensor &indices, int64_t nrows, const Tensor &order,
                           const Tensor &rows, const Tensor &starts, const Tensor &count,
                           const char *op)
{
    Longs i = longs(indices, op, "indices");
    CooRows c{i, longs(order, i.numel, op, "order").data, longs(rows, i.numel, op, "rows").data,
              longs(starts, i.numel + 1, op, "starts").data, longs(count, 1, op, "count").data};
    check_nrows(nrows, op);
    return c;
}

inline void check_coo_size(s2_status status, int64_t n, int64_t nrows, const char *op)
{
    if (status == S2_BAD_SIZE)
        fail(op, "indices has too many elements for so many rows: ", n, " and ", nrows,
             ", rounded up to powers of two, must have a product of at most 2^64");
}

struct CooValues {
    Floats values; // [n, width]
    int64_t n;
    int64_t width;
    int64_t *order;
    int64_t *starts;
    int64_t nunique;
    void *sums; // [nunique, width]
};

inline CooValues coo_values_of(const Tensor &values, const Tensor &order, const Tensor &starts,
                               const Tensor &sums, const char *op)
{
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
    return {v, n, width, o.data, s.data, nunique, out.data};
}

// Lists of rows, one behind the other; their lengths are on the CPU always.
struct CooLists {
    Longs lists;
    Longs lengths;
    int64_t *rows;
    int64_t *entries;
    int64_t *count;
};

inline CooLists coo_lists_of(const Tensor &lists, const Tensor &lengths, int64_t nrows,
                             const Tensor &rows, const Tensor &entries, const Tensor &count,
                             const char *op)
{
    const char *accepted = "a contiguous 1-D CPU tensor of int64";
    Longs l = longs(lists, op, "lists");
    check(lengths, op, "lengths", accepted, 1, aoti_torch_device_type_cpu());
    check_dtype(lengths, ScalarType::Long, op, "lengths", accepted);
    Longs n{static_cast<int64_t *>(lengths.data_ptr()), lengths.numel()};
    CooLists c{l, n, longs(rows, l.numel, op, "rows").data,
               longs(entries, l.numel, op, "entries").data, longs(count, 1, op, "count").data};
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
    return c;
}

struct CooEntries {
    Longs entries;
    Bitmaps ranks;
};

inline CooEntries coo_entries_of(const Tensor &entries, int64_t nunion, const Tensor &bitmaps,
                                 const char *op)
{
    CooEntries c{longs(entries, op, "entries"), bitmaps_of(bitmaps, op)};
    if (nunion < 0 || nunion > S2_MAX_ROWS)
        fail(op, "nunion must lie between 0 and 2^40, but is ", nunion);
    const int64_t expected = (nunion + 63) / 64 * 8;
    if (c.ranks.nbytes != expected)
        fail(op, "bitmaps must have ", expected, " bytes a row for a union of ", nunion,
             ", but has ", c.ranks.nbytes);
    return c;
}

} // namespace s2

#endif // S2_TORCH_ARGUMENTS_COO_H
