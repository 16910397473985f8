/* SPDX-License-Identifier: MIT */
/*
 * s2_cuda.h - the functions of s2.h on arrays that lie on a CUDA device.
 *
 * Each function here is the twin of the one in s2.h whose name it has behind "s2_cuda_".  What it
 * computes is said there, and comes out with the same bits, but for the payload of NaNs.  Here is
 * only what is different.  For all of them:
 *
 *   - Arrays lie on the device that is current, and so do results, such as counts, unless a name
 *     says "host".  Shapes, sizes, dtypes and divisors are the host's.
 *   - The stream comes last.  A function returns when its work is enqueued there; it never waits
 *     for the device, and allocates nothing, so that calls can be captured in a graph.  Arrays
 *     belong to that work until it is done.
 *   - It returns S2_OK, or the first of the errors that its arguments deserve: then nothing has
 *     been enqueued.  S2_CUDA_ERROR says that the runtime refused a launch, or had an error pending
 *     from before, which is cleared; then outputs mean nothing.
 *   - What lies on the device cannot be looked at by the checks.  Where it breaks a rule of s2.h,
 *     positions that do not ascend or owners that are no ranks, the results mean nothing; but no
 *     memory outside of the arrays is touched.
 *   - Results do not depend on how threads happen to run: no sum of floats has an order that is
 *     left open.
 *   - `scratch` is the caller's as well, of exactly the size that a function whose name ends in
 *     "scratch_nbytes" gives for the same arguments.  What it holds means nothing to others.
 *   - Arrays of elements are aligned for their element type, bitmaps and segments to 8 bytes,
 *     scratch to 16: else S2_BAD_ADDRESS.
 *
 * Lists have a capacity, which sizes arrays and launches, and a number of entries that may lie on
 * the device, so that nobody has to wait for it.  Arguments of the name
 *
 *   count      point to that number, or are NULL where the list is full.  If it is above the
 *              capacity, the list is that long, and lacks the rest.
 *
 * The header needs none of CUDA's.
 */
#ifndef S2_CUDA_H
#define S2_CUDA_H

#include "../s2.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *s2_cuda_stream; /* what CUDA calls a cudaStream_t */

/* A layout, with a copy of its segments on the device. */
typedef struct s2_cuda_layout {
    const s2_layout *host;
    const s2_segment *segments;
} s2_cuda_layout;

/* ============================================================================================== */
/*                                            Bitmap                                              */
/* ============================================================================================== */

s2_status s2_cuda_bitmap_from_nonzero(const s2_cuda_layout *layout, const void *values,
                                      s2_dtype dtype, uint8_t *bitmap, int64_t nbytes,
                                      int64_t *negative_zeros, s2_cuda_stream stream);

s2_status s2_cuda_bitmap_or(uint8_t *bitmap, const uint8_t *other, int64_t nbytes,
                            s2_cuda_stream stream);
s2_status s2_cuda_bitmap_andnot(uint8_t *bitmap, const uint8_t *other, int64_t nbytes,
                                s2_cuda_stream stream);

/* Where bits are counted, those of no segment must be zero: those of a gap are counted with the
 * segment before. */
s2_status s2_cuda_bitmap_count(const s2_cuda_layout *layout, const uint8_t *bitmap, int64_t nbytes,
                               int64_t *counts, s2_cuda_stream stream);

s2_status s2_cuda_bitmap_unite(const s2_cuda_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                               int64_t nbytes, uint8_t *bitmap, int64_t *counts,
                               s2_cuda_stream stream);

/* Sets *scratch_nbytes to what s2_cuda_bitmap_positions() needs. */
s2_status s2_cuda_bitmap_scratch_nbytes(int64_t nbytes, int64_t *scratch_nbytes);

/* Sets *count to the number of set bits, and lists the first `capacity` of them. */
s2_status s2_cuda_bitmap_positions(const uint8_t *bitmap, int64_t nbytes, int64_t *positions,
                                   int64_t capacity, int64_t *count, void *scratch,
                                   int64_t scratch_nbytes, s2_cuda_stream stream);

s2_status s2_cuda_bitmap_from_positions(const int64_t *positions, int64_t capacity,
                                        const int64_t *count, uint8_t *bitmap, int64_t nbytes,
                                        s2_cuda_stream stream);

/* ============================================================================================== */
/*                                            Blocks                                              */
/* ============================================================================================== */

/* Where the blocks of a segment begin. */
typedef struct s2_cuda_run {
    int64_t first;  /* among the positions */
    int64_t packed; /* among the packed elements */
} s2_cuda_run;

/*
 * The twin of s2_blocks_packed_numel().  Fills `runs`, one for each segment and one more, which
 * holds the ends: the number of positions, and of packed elements.  The other functions of this
 * section, and those of plans, take the runs with the positions that they were made of.
 */
s2_status s2_cuda_blocks_runs(const s2_cuda_layout *layout, const int64_t *positions,
                              int64_t capacity, const int64_t *count, s2_cuda_run *runs,
                              s2_cuda_stream stream);

/* `packed_numel` is how many elements there is room for; blocks beyond are left out. */
s2_status s2_cuda_blocks_gather(const s2_cuda_layout *layout, const void *values, s2_dtype dtype,
                                const int64_t *positions, int64_t capacity, const s2_cuda_run *runs,
                                void *packed, s2_dtype packed_dtype, int64_t packed_numel,
                                double divisor, s2_cuda_stream stream);

s2_status s2_cuda_blocks_scatter(const s2_cuda_layout *layout, const void *packed,
                                 s2_dtype packed_dtype, int64_t packed_numel,
                                 const int64_t *positions, int64_t capacity,
                                 const s2_cuda_run *runs, void *values, s2_dtype dtype,
                                 double divisor, s2_cuda_stream stream);

/* The ranks' blocks are added in rank order by calls in rank order on one stream. */
s2_status s2_cuda_blocks_add(const s2_cuda_layout *layout, const void *packed,
                             s2_dtype packed_dtype, int64_t packed_numel, const int64_t *positions,
                             int64_t capacity, const s2_cuda_run *runs, void *accumulator,
                             s2_dtype accumulator_dtype, s2_cuda_stream stream);

/* The twin of s2_packed.  `numel` is how many elements `packed` has; blocks beyond are left out. */
typedef struct s2_cuda_packed {
    const void *packed;
    int64_t numel;
    const int64_t *positions;
    int64_t capacity;
    const s2_cuda_run *runs;
} s2_cuda_packed;

/* `numel` is that of the layout.  Up to 32 ranks need no scratch. */
s2_status s2_cuda_blocks_sum_scratch_nbytes(int64_t numel, int64_t nranks, int64_t *nbytes);

/* The array `ranks` is the host's, what it points to the device's.  Every 32 ranks are a launch. */
s2_status s2_cuda_blocks_sum(const s2_cuda_layout *layout, const s2_cuda_packed *ranks,
                             int64_t nranks, s2_dtype dtype, double divisor, void *sums,
                             float *lost, void *scratch, int64_t scratch_nbytes,
                             s2_cuda_stream stream);

s2_status s2_cuda_blocks_clear_dead(const s2_cuda_layout *layout, const uint8_t *bitmap,
                                    int64_t nbytes, void *values, s2_dtype dtype,
                                    s2_cuda_stream stream);

/* ============================================================================================== */
/*                                            Values                                              */
/* ============================================================================================== */

/* Subnormals are kept everywhere. */
s2_status s2_cuda_values_convert(const void *src, s2_dtype src_dtype, void *dst, s2_dtype dst_dtype,
                                 int64_t numel, double divisor, s2_cuda_stream stream);

s2_status s2_cuda_values_finite(const void *values, s2_dtype dtype, int64_t numel, int *finite,
                                s2_cuda_stream stream);

/* ============================================================================================== */
/*                                        Position lists                                          */
/* ============================================================================================== */

/* `count` is the host's here, since the size of a list follows from it: s2_list_nbytes(). */

s2_status s2_cuda_list_encode(const int64_t *positions, int64_t count, int64_t nbits, uint8_t *list,
                              int64_t nbytes, s2_cuda_stream stream);

s2_status s2_cuda_list_scratch_nbytes(int64_t nbits, int64_t count, int64_t *scratch_nbytes);

/* Sets *valid to 1, or to 0 where s2_list_decode() says S2_BAD_POSITION: then the positions mean
 * nothing. */
s2_status s2_cuda_list_decode(const uint8_t *list, int64_t nbytes, int64_t count, int64_t nbits,
                              int64_t *positions, int *valid, void *scratch, int64_t scratch_nbytes,
                              s2_cuda_stream stream);

/* ============================================================================================== */
/*                                          Owner plan                                            */
/* ============================================================================================== */

/*
 * `positions`, `capacity` and `runs` are those of the union.  Owners are made for as many positions
 * as the runs say.
 */

s2_status s2_cuda_plan_owners_scratch_nbytes(int64_t capacity, int64_t nranks, int64_t *nbytes);

s2_status s2_cuda_plan_owners(const s2_cuda_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                              int64_t nbytes, uint64_t seed, const int64_t *positions,
                              int64_t capacity, const s2_cuda_run *runs, int16_t *owners,
                              void *scratch, int64_t scratch_nbytes, s2_cuda_stream stream);

s2_status s2_cuda_plan_exchanges(const s2_cuda_layout *layout, const uint8_t *bitmaps,
                                 int64_t nranks, int64_t nbytes, const int64_t *positions,
                                 int64_t capacity, const s2_cuda_run *runs, const int16_t *owners,
                                 int64_t rank, s2_exchange *exchanges, s2_cuda_stream stream);

s2_status s2_cuda_plan_lists_scratch_nbytes(int64_t capacity, int64_t nranks, int64_t nsegments,
                                            int64_t *nbytes);

/* `nsent` and `nreceived` are how many entries there is room for, and `owned` has room for
 * `capacity`; what is beyond is left out.  A caller reads the exchanges, to know how many there
 * are. */
s2_status s2_cuda_plan_lists(const s2_cuda_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                             int64_t nbytes, const int64_t *positions, int64_t capacity,
                             const s2_cuda_run *runs, const int16_t *owners, int64_t rank,
                             const s2_exchange *exchanges, int64_t *sent, int64_t nsent,
                             int64_t *received, int64_t nreceived, int64_t *owned,
                             s2_segment *compact, void *scratch, int64_t scratch_nbytes,
                             s2_cuda_stream stream);

/* ============================================================================================== */
/*                                             Rows                                               */
/* ============================================================================================== */

/* Sets *nbytes to what s2_cuda_coo_sort() needs, or s2_cuda_coo_unite() for n entries in all. */
s2_status s2_cuda_coo_scratch_nbytes(int64_t n, int64_t *nbytes);

/* Sets *valid to 1, or to 0 where the twin says S2_BAD_POSITION: then the rest means nothing. */
s2_status s2_cuda_coo_sort(const int64_t *indices, int64_t n, int64_t nrows, int64_t *order,
                           int64_t *rows, int64_t *starts, int64_t *nunique, int *valid,
                           void *scratch, int64_t scratch_nbytes, s2_cuda_stream stream);

/* The same for *valid; the lengths of the lists are the host's, and may be changed at once. */
s2_status s2_cuda_coo_unite(const int64_t *lists, const int64_t *host_lengths, int64_t nranks,
                            int64_t nrows, int64_t *rows, int64_t *entries, int64_t *nunion,
                            int *valid, void *scratch, int64_t scratch_nbytes,
                            s2_cuda_stream stream);

/* The `capacity` is of distinct rows here, at most n, and `starts` has one element more than there
 * are. */
s2_status s2_cuda_coo_sum(const void *values, s2_dtype dtype, int64_t n, int64_t width,
                          const int64_t *order, const int64_t *starts, int64_t capacity,
                          const int64_t *count, void *sums, s2_cuda_stream stream);

s2_status s2_cuda_coo_bitmaps(const int64_t *entries, int64_t capacity, const int64_t *count,
                              int64_t nranks, int64_t nunion, uint8_t *bitmaps, int64_t nbytes,
                              s2_cuda_stream stream);

/* ============================================================================================== */
/*                                            Sketch                                              */
/* ============================================================================================== */

/*
 * Fewer than 2^31 blocks.  Cells take their blocks in the order of their ids, from lists that are
 * made anew by every call; time and scratch are in proportion to the cells and to the blocks, as
 * long as few blocks share a cell.
 */

/* For s2_cuda_sketch_insert(), s2_cuda_sketch_subtract() and s2_cuda_sketch_weigh(). */
s2_status s2_cuda_sketch_scratch_nbytes(const s2_sketch *sketch, int64_t capacity, int64_t *nbytes);

s2_status s2_cuda_sketch_insert(const s2_sketch *sketch, float *table, const int64_t *ids,
                                int64_t capacity, const int64_t *count, const float *values,
                                void *scratch, int64_t scratch_nbytes, s2_cuda_stream stream);
s2_status s2_cuda_sketch_subtract(const s2_sketch *sketch, float *table, const int64_t *ids,
                                  int64_t capacity, const int64_t *count, const float *values,
                                  void *scratch, int64_t scratch_nbytes, s2_cuda_stream stream);

s2_status s2_cuda_sketch_merge(const s2_sketch *sketch, float *table, const s2_sketch *other,
                               const float *other_table, s2_cuda_stream stream);

s2_status s2_cuda_sketch_weigh(const s2_sketch *sketch, float *magnitudes, const int64_t *ids,
                               int64_t capacity, const int64_t *count, const float *values,
                               void *scratch, int64_t scratch_nbytes, s2_cuda_stream stream);

s2_status s2_cuda_sketch_estimate(const s2_sketch *sketch, const float *table, const int64_t *ids,
                                  int64_t capacity, const int64_t *count, float *values,
                                  s2_cuda_stream stream);

s2_status s2_cuda_sketch_peel_scratch_nbytes(const s2_sketch *sketch, int64_t capacity,
                                             int64_t *nbytes);

/*
 * `max_rounds` is 1 or more: so many rounds are enqueued, since the host does not wait to see which
 * is the last.  Those behind the last do nothing, each for the time of three launches.
 */
s2_status s2_cuda_sketch_peel(const s2_sketch *sketch, float *table, const int64_t *ids,
                              int64_t capacity, const int64_t *count, int64_t nranks,
                              const float *magnitudes, int64_t max_rounds, float *values,
                              uint8_t *decoded, float *bounds, float *norms, void *scratch,
                              int64_t scratch_nbytes, int64_t *ndecoded, int64_t *nrounds,
                              s2_cuda_stream stream);

/* ============================================================================================== */
/*                                          Selection                                             */
/* ============================================================================================== */

s2_status s2_cuda_select_top_scratch_nbytes(int64_t n, int64_t *nbytes);

/* Reads the scores four times, whatever they are: the host does not see them. */
s2_status s2_cuda_select_top(const float *scores, int64_t n, int64_t keep, uint8_t *bitmap,
                             int64_t nbytes, float *threshold, void *scratch,
                             int64_t scratch_nbytes, s2_cuda_stream stream);

s2_status s2_cuda_select_above(const float *scores, int64_t n, float threshold, uint8_t *bitmap,
                               int64_t nbytes, int64_t *count, s2_cuda_stream stream);

/* 8 bytes for each of the n. */
s2_status s2_cuda_select_random_scratch_nbytes(int64_t n, int64_t *nbytes);

s2_status s2_cuda_select_random(uint64_t seed, int64_t n, int64_t keep, uint8_t *bitmap,
                                int64_t nbytes, void *scratch, int64_t scratch_nbytes,
                                s2_cuda_stream stream);

/* ============================================================================================== */
/*                                        Error feedback                                          */
/* ============================================================================================== */

/* Subnormals are kept everywhere. */

s2_status s2_cuda_owed_add(const void *values, s2_dtype dtype, int64_t numel, double factor,
                           const float *before, float *owed, int *touched, s2_cuda_stream stream);

s2_status s2_cuda_owed_energies(const float *owed, int64_t numel, int64_t block, float *energies,
                                int64_t nblocks, s2_cuda_stream stream);

s2_status s2_cuda_owed_deliver(float *owed, int64_t numel, int64_t block, const uint8_t *bitmap,
                               int64_t nbytes, double scale, void *values, s2_dtype dtype,
                               s2_cuda_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* S2_CUDA_H */
