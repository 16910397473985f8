/* SPDX-License-Identifier: MIT */
/*
 * Sums of the ranks' blocks: see s2.h.
 *
 * A warp sums a block.  Each lane finds by itself where one of the ranks has it; then each adds up
 * some of its elements, rank by rank, in a register.  So rows are read once and sums written once,
 * and nothing else goes to memory, unless there are more ranks than a warp has lanes: then each
 * launch takes so many of them, and hands the totals to the next in scratch.
 */
#include "block.cuh"
#include "owed.cuh"

/* What BFLOAT16 is divided by before it is added: see csrc/sums.c. */
#define BFLOAT16_SCALE 256.0

/* The ranks of a launch, within the 4 KB that its arguments may have. */
struct some_ranks {
    s2_cuda_packed ranks[S2_WARP];
    int n;
};

/* What rows are divided by, and then their sums: these, or what is kept in FLOAT32 of them. */
template <typename Element, typename Sum> struct sum_arithmetic {
    typedef Element element;
    typedef Sum sum;

    s2_division<Element, Sum> before;
    s2_division<Sum, Element> after;
    s2_division<Sum, float> lose;
};

/* What all launches are given. */
struct sum_call {
    const s2_segment *segments;
    int64_t nsegments;
    int64_t nbits;
    void *sums;
    float *lost; /* or NULL */
};

/* ---------------------------------------------------------------------------------------------- */
/* Kernels                                                                                        */
/* ---------------------------------------------------------------------------------------------- */

/* Where a rank has a block of segment s among its packed elements; -1 where it has none. */
static __device__ inline int64_t find_packed(const s2_cuda_packed &rank, const sum_call &c,
                                             int64_t s, int64_t bit)
{
    const int64_t n = s2_length(&rank.runs[c.nsegments].first, rank.capacity);
    const int64_t i = s2_below(rank.positions, n, bit);
    if (i == n || rank.positions[i] != bit) return -1;

    const int64_t block = c.segments[s].block;
    const int64_t at = rank.runs[s].packed + (i - rank.runs[s].first) * block;
    return at >= 0 && at <= rank.numel - block ? at : -1;
}

template <typename Arithmetic>
static __device__ inline void write_sum(const sum_call &c, const Arithmetic &a,
                                        typename Arithmetic::sum total, int64_t at)
{
    typename Arithmetic::element *sum = (typename Arithmetic::element *)c.sums + at;

    if (c.lost == nullptr) {
        a.after(total, sum);
        return;
    }
    float mean;
    a.lose(total, &mean);
    s2_deliver(&mean, 1.0f, 1.0f, sum);
    c.lost[at] = mean;
}

/* Goes on with the totals `from` where that is not NULL, and leaves them in `to` where that is not.
 * All lanes of a warp take part in every turn. */
template <typename Arithmetic>
static __global__ void sum_blocks(sum_call c, some_ranks some, Arithmetic a,
                                  const typename Arithmetic::sum *from,
                                  typename Arithmetic::sum *to)
{
    typedef typename Arithmetic::element element;

    for (int64_t bit = s2_warp(); bit < c.nbits; bit += s2_nwarps()) {
        const int64_t s = s2_segment_of(c.segments, c.nsegments, bit);
        const s2_segment segment = s < 0 ? s2_segment{0, 0, 1, 0} : c.segments[s];
        const int64_t number = bit - segment.first_bit;
        if (!s2_has_block(segment, number)) continue;

        const int64_t before = number * segment.block, first = segment.offset + before;
        const int64_t present = s2_min(segment.block, segment.numel - before);
        const int lane = s2_lane();
        const int64_t own = lane < some.n ? find_packed(some.ranks[lane], c, s, bit) : -1;
        for (int64_t begin = 0; begin < present; begin += S2_WARP) {
            const int64_t e = begin + lane;
            const bool is_there = e < present;
            typename Arithmetic::sum total = 0, value;
            if (is_there && from != nullptr) total = from[first + e];
            for (int r = 0; r < some.n; r++) {
                const int64_t packed = __shfl_sync(S2_ALL_LANES, own, r);
                if (packed < 0 || !is_there) continue;
                a.before(((const element *)some.ranks[r].packed)[packed + e], &value);
                total += value;
            }
            if (is_there && to != nullptr)
                to[first + e] = total;
            else if (is_there)
                write_sum(c, a, total, first + e);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

s2_status s2_cuda_blocks_sum_scratch_nbytes(int64_t numel, int64_t nranks, int64_t *nbytes)
{
    if (numel < 0 || numel > S2_MAX_NUMEL || nranks < 1 || nranks > S2_MAX_RANKS)
        return S2_BAD_SIZE;
    if (nbytes == nullptr) return S2_NULL_POINTER;
    *nbytes = nranks <= S2_WARP ? 0 : numel * (int64_t)sizeof(double);
    return S2_OK;
}

static s2_status check_rank(const s2_cuda_packed &rank, int64_t width)
{
    S2_RETURN_IF_ERROR(s2_check_positions(rank.positions, rank.capacity));
    if (rank.numel < 0 || rank.numel > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (rank.runs == nullptr || s2_is_null(rank.packed, rank.numel)) return S2_NULL_POINTER;
    return s2_is_aligned(rank.packed, (uint64_t)width) ? S2_OK : S2_BAD_ADDRESS;
}

template <typename Source, typename Target>
static s2_status set_division(double divisor, s2_division<Source, Target> *division)
{
    return s2_with_types<Source, Target>(divisor, [=](auto rounded) { *division = rounded; });
}

/* Calls the function with the arithmetic of a dtype, if it has the divisors. */
template <typename Element, typename Sum, typename Function>
static s2_status with_divisors(double before, double after, Function function)
{
    sum_arithmetic<Element, Sum> a = {};

    S2_RETURN_IF_ERROR(set_division(before, &a.before));
    S2_RETURN_IF_ERROR(set_division(after, &a.after));
    S2_RETURN_IF_ERROR(set_division(after, &a.lose));
    return function(a);
}

template <typename Function>
static s2_status with_arithmetic(s2_dtype dtype, double divisor, Function function)
{
    if (!s2_is_divisor(divisor)) return S2_BAD_DIVISOR;
    if (dtype == S2_FLOAT64) return with_divisors<double, double>(divisor, 1, function);
    if (dtype == S2_FLOAT32) return with_divisors<float, double>(1, divisor, function);
    if (dtype == S2_FLOAT16) return with_divisors<s2_float16, float>(1, divisor, function);
    return with_divisors<s2_bfloat16, float>(BFLOAT16_SCALE, divisor / BFLOAT16_SCALE, function);
}

template <typename Arithmetic>
static void launch_sums(const sum_call &c, const s2_cuda_packed *ranks, int64_t nranks,
                        const Arithmetic &a, void *scratch, cudaStream_t stream)
{
    typename Arithmetic::sum *totals = (typename Arithmetic::sum *)scratch;

    for (int64_t begin = 0; begin < nranks; begin += S2_WARP) {
        const bool is_last = nranks - begin <= S2_WARP;
        some_ranks some = {};
        some.n = is_last ? (int)(nranks - begin) : S2_WARP;
        for (int r = 0; r < some.n; r++)
            some.ranks[r] = ranks[begin + r];
        S2_LAUNCH(sum_blocks<Arithmetic>, s2_grid(c.nbits, S2_WARP), S2_THREADS, stream, c, some, a,
                  begin == 0 ? nullptr : totals, is_last ? nullptr : totals);
    }
}

s2_status s2_cuda_blocks_sum(const s2_cuda_layout *layout, const s2_cuda_packed *ranks,
                             int64_t nranks, s2_dtype dtype, double divisor, void *sums,
                             float *lost, void *scratch, int64_t scratch_nbytes,
                             cudaStream_t stream)
{
    int64_t wanted, nbytes;

    S2_RETURN_IF_ERROR(s2_check_values(layout, sums, dtype));
    if (nranks < 1 || nranks > S2_MAX_RANKS) return S2_BAD_SIZE;
    if (ranks == nullptr) return S2_NULL_POINTER;
    for (int64_t r = 0; r < nranks; r++)
        S2_RETURN_IF_ERROR(check_rank(ranks[r], s2_dtype_nbytes(dtype)));
    if (!s2_is_aligned(lost, sizeof(float))) return S2_BAD_ADDRESS;
    S2_RETURN_IF_ERROR(s2_cuda_blocks_sum_scratch_nbytes(layout->host->numel, nranks, &wanted));
    S2_RETURN_IF_ERROR(s2_check_scratch(scratch, scratch_nbytes, wanted));
    S2_RETURN_IF_ERROR(s2_layout_bitmap_nbytes(layout->host, &nbytes));

    const sum_call c = {layout->segments, layout->host->nsegments, 8 * nbytes, sums, lost};
    return with_arithmetic(dtype, divisor, [=](auto arithmetic) {
        if (nbytes != 0) launch_sums(c, ranks, nranks, arithmetic, scratch, stream);
        return s2_launched();
    });
}
