/* SPDX-License-Identifier: MIT */
/*
 * s2.h - sparse aggregation of gradients: the C core of s2reducer.
 *
 * The picture, from the outside in:
 *
 *   bucket     a flat array of `numel` elements of one dtype: the gradients of several parameters,
 *              one behind the other, as torch's DistributedDataParallel hands them out.
 *   segment    one parameter's part of the bucket: offset, number of elements, block length.
 *   block      `block` consecutive elements of a segment (a row of an embedding, say); the last
 *              block of a segment may be short.  A block is *live* when any of its elements is
 *              neither +0.0 nor -0.0; a NaN makes it live.
 *   bitmap     one bit a block.  Bit b of the bitmap is bit b % 8 (least significant first) of
 *              byte b / 8.  Every segment begins at a bit that is a multiple of 64, and the
 *              bitmap ends at one, so that no two segments share a 64-bit word.  Bits that belong
 *              to no block are zero.
 *   positions  the numbers of the set bits, ascending: the same set as a list.
 *   packed     the live blocks alone, one behind the other, in the order of their positions.  Each
 *              takes `block` elements of its own segment; a short last block is filled up with
 *              zeros.  So the size of a packed array follows from the positions alone.
 *
 * A bucket of 10 elements in two segments, blocks of 2 and of 3:
 *
 *   elements    0 0 | 5 1 | 0 0        0 0 0 | 7          (the last block is short)
 *   bits          0     1     0 ..        64   65
 *   positions   { 1, 65 }
 *   packed      5 1   7 0 0
 *
 * Conventions that hold for every function here, unless it says otherwise:
 *
 *   - It returns S2_OK, or the first of the errors that its arguments deserve; then nothing that
 *     it could have written has been written.
 *   - It allocates nothing, keeps no pointer, prints nothing, starts no thread.  All memory is the
 *     caller's.
 *   - Arrays of elements are aligned for their element type; bitmaps may lie at any address.
 *   - Outputs do not overlap other arguments.
 *   - A pointer may be NULL where the size that goes with it is zero.
 *   - Sizes and positions are int64_t and are checked; products of them are checked for overflow.
 *     No array has more than S2_MAX_NUMEL elements (S2_BAD_SIZE), so that bytes are int64_t too.
 *   - Calls on different memory may run at the same time in different threads.
 */
#ifndef S2_H
#define S2_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define S2_VERSION "0.1.0"

#define S2_MAX_NUMEL (INT64_MAX / 8)

/* ============================================================================================== */
/*                                       Errors and types                                         */
/* ============================================================================================== */

typedef enum s2_status {
    S2_OK = 0,
    S2_NULL_POINTER, /* a pointer is NULL and the size that goes with it is not zero */
    S2_BAD_DTYPE,    /* not one of s2_dtype, or a pair of dtypes that the function does not take */
    S2_BAD_LAYOUT,   /* a segment breaks a rule of s2_layout */
    S2_BAD_SIZE,     /* a size is negative, or is not the one that the other arguments imply */
    S2_BAD_POSITION, /* positions do not ascend strictly, or one names no block or row */
    S2_BAD_DIVISOR,  /* a divisor is not a finite number above zero */
    S2_BAD_SKETCH,   /* a shape breaks a rule of s2_sketch, or two sketches are not of one kind */
    S2_BAD_FACTOR,   /* a factor, a scale or a threshold is not a number that the function takes */
    S2_BAD_VARIANT,  /* not one of s2_variant, or not one that this machine can run */
    S2_BAD_ADDRESS,  /* a device pointer is not aligned as cuda/s2_cuda.h wants it */
    S2_CUDA_ERROR,   /* the CUDA runtime refused a launch, or had an error pending before it */
} s2_status;

/* A sentence fragment for `status`, such as "a segment breaks a rule of the layout"; never NULL. */
const char *s2_status_string(s2_status status);

typedef enum s2_dtype {
    S2_FLOAT32 = 0,
    S2_FLOAT64 = 1,
    S2_FLOAT16 = 2,  /* IEEE 754 binary16 */
    S2_BFLOAT16 = 3, /* the upper half of a binary32 */
} s2_dtype;

/* Bytes of one element; 0 for a value that is no dtype. */
int64_t s2_dtype_nbytes(s2_dtype dtype);

/*
 * How to run a loop on several threads.  The core starts no thread of its own; a caller who has a
 * pool passes one of these as the last argument, and NULL otherwise.
 *
 * parallel_for() calls body(body_arg, b, e) for ranges [b, e) that together cover [begin, end) once
 * each, in any order and on any threads, and returns when all are done.  A range should have
 * about `grain` numbers or more, to be worth handing out.  Results never depend on the cuts.
 */
typedef void (*s2_range_body)(void *body_arg, int64_t begin, int64_t end);

typedef struct s2_executor {
    void (*parallel_for)(void *self, int64_t begin, int64_t end, int64_t grain, s2_range_body body,
                         void *body_arg);
    void *self;
} s2_executor;

/* ============================================================================================== */
/*                                            Layout                                              */
/* ============================================================================================== */

typedef struct s2_segment {
    int64_t offset;    /* of its first element in the bucket */
    int64_t numel;     /* elements; 0 is allowed */
    int64_t block;     /* elements of a block, at least 1 */
    int64_t first_bit; /* of its first block in the bitmap; a multiple of 64 */
} s2_segment;

/*
 * The segments of a bucket.  They ascend by offset and by bit, and overlap in neither; gaps are
 * allowed in both.  Elements in a gap are never read or written.
 */
typedef struct s2_layout {
    const s2_segment *segments;
    int64_t nsegments;
    int64_t numel; /* elements of the bucket */
} s2_layout;

/* Blocks of a segment: numel / block, rounded up. */
int64_t s2_segment_nblocks(const s2_segment *segment);

/*
 * Checks every rule above and sets *nbytes to the size of the layout's bitmap: the end of the last
 * segment's bits, rounded up to a multiple of 64 bits, in bytes.
 */
s2_status s2_layout_bitmap_nbytes(const s2_layout *layout, int64_t *nbytes);

/* ============================================================================================== */
/*                                            Bitmap                                              */
/* ============================================================================================== */

/*
 * Sets each bit of `bitmap` to whether its block is live, and all other bits to zero.  `nbytes` is
 * the size that s2_layout_bitmap_nbytes() gives.
 *
 * *negative_zeros becomes the number of blocks that are not live but hold a -0.0.  The bits cannot
 * show those; who needs dead blocks to be the same everywhere calls s2_blocks_clear_dead().
 */
s2_status s2_bitmap_from_nonzero(const s2_layout *layout, const void *values, s2_dtype dtype,
                                 uint8_t *bitmap, int64_t nbytes, int64_t *negative_zeros,
                                 const s2_executor *executor);

/* bitmap |= other, and bitmap &= ~other.  `nbytes` is a multiple of 8. */
s2_status s2_bitmap_or(uint8_t *bitmap, const uint8_t *other, int64_t nbytes);
s2_status s2_bitmap_andnot(uint8_t *bitmap, const uint8_t *other, int64_t nbytes);

/* Sets counts[i] to the number of set bits of segment i, for all `nsegments` of the layout. */
s2_status s2_bitmap_count(const s2_layout *layout, const uint8_t *bitmap, int64_t nbytes,
                          int64_t *counts);

/*
 * The union of the ranks' bitmaps, which stand one behind the other, `nbytes` each, and what is set
 * in all of them: `counts` are nranks + 1 times what s2_bitmap_count() gives, of each rank's bitmap
 * and then of the union.  1 to S2_MAX_RANKS ranks, else S2_BAD_SIZE.
 */
s2_status s2_bitmap_unite(const s2_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                          int64_t nbytes, uint8_t *bitmap, int64_t *counts);

/*
 * Writes the numbers of the set bits, ascending.  `npositions` must be their exact number (the sum
 * of s2_bitmap_count()), else S2_BAD_SIZE.
 */
s2_status s2_bitmap_positions(const uint8_t *bitmap, int64_t nbytes, int64_t *positions,
                              int64_t npositions);

/* The way back: the bitmap whose set bits these are; positions ascend strictly below 8 nbytes. */
s2_status s2_bitmap_from_positions(const int64_t *positions, int64_t npositions, uint8_t *bitmap,
                                   int64_t nbytes);

/* ============================================================================================== */
/*                                            Blocks                                              */
/* ============================================================================================== */

/*
 * All functions of this section take `positions` that ascend strictly and name blocks of the
 * layout.  They check that before they write.
 */

/* Sets *numel to the number of elements that these blocks take when packed. */
s2_status s2_blocks_packed_numel(const s2_layout *layout, const int64_t *positions,
                                 int64_t npositions, int64_t *numel);

/*
 * packed = values / divisor, block by block.  The dtypes are any pair that s2_values_convert()
 * takes, with its arithmetic.  The filling of a short last block is +0.0.
 */
s2_status s2_blocks_gather(const s2_layout *layout, const void *values, s2_dtype dtype,
                           const int64_t *positions, int64_t npositions, void *packed,
                           s2_dtype packed_dtype, int64_t packed_numel, double divisor,
                           const s2_executor *executor);

/*
 * The way back: values = packed / divisor in the blocks that are named; all others are left alone.
 * What fills up a short last block is ignored.
 */
s2_status s2_blocks_scatter(const s2_layout *layout, const void *packed, s2_dtype packed_dtype,
                            int64_t packed_numel, const int64_t *positions, int64_t npositions,
                            void *values, s2_dtype dtype, double divisor,
                            const s2_executor *executor);

/*
 * accumulator += packed in the blocks that are named, in the accumulator's arithmetic: FLOAT64 for
 * FLOAT32 and FLOAT64, or FLOAT32 for FLOAT32, FLOAT16 and BFLOAT16.  The layout is that of the
 * accumulator.
 */
s2_status s2_blocks_add(const s2_layout *layout, const void *packed, s2_dtype packed_dtype,
                        int64_t packed_numel, const int64_t *positions, int64_t npositions,
                        void *accumulator, s2_dtype accumulator_dtype, const s2_executor *executor);

/* What a rank has of the blocks of a layout, packed: `numel` elements at `npositions` positions. */
typedef struct s2_packed {
    const void *packed;
    int64_t numel;
    const int64_t *positions;
    int64_t npositions;
} s2_packed;

/*
 * sums = (the sum of what the ranks have) / divisor, block by block, rounded once.  The ranks, 1 to
 * S2_MAX_RANKS (else S2_BAD_SIZE), are added in their order to +0.0, which stays where none has a
 * block.  The layout is that of the sums.
 *
 * FLOAT32 is summed in FLOAT64, and FLOAT16 in FLOAT32, which no sum of that many overflows.  Two
 * dtypes have no type of a wider range to be summed in, and are divided before that, so that no sum
 * overflows although the result does not:
 *
 *     FLOAT64     by the divisor, in FLOAT64
 *     BFLOAT16    by 256, S2_MAX_RANKS, in FLOAT32; the sum is then divided by divisor / 256.  All
 *                 are multiples of 2^-141 then, above FLOAT32's smallest, so that this is exact but
 *                 where the thread flushes subnormals
 *
 * `lost` is NULL, or has an element for each of the sums.  Then it becomes what they have lost by
 * rounding: with m the mean rounded to FLOAT32 alone, sums = m rounded to `dtype` and lost = m less
 * that, as s2_owed_deliver() with a scale of 1 leaves of m.
 */
s2_status s2_blocks_sum(const s2_layout *layout, const s2_packed *ranks, int64_t nranks,
                        s2_dtype dtype, double divisor, void *sums, float *lost,
                        const s2_executor *executor);

/*
 * Sets to +0.0 every element of every block whose bit in `bitmap` is clear.  Blocks whose bit is
 * set, and elements outside segments, are left alone.
 */
s2_status s2_blocks_clear_dead(const s2_layout *layout, const uint8_t *bitmap, int64_t nbytes,
                               void *values, s2_dtype dtype, const s2_executor *executor);

/* ============================================================================================== */
/*                                            Values                                              */
/* ============================================================================================== */

/*
 * dst = src / divisor, element by element: divided in the wider of the two types, then rounded once
 * to nearest, ties to even.  A NaN stays a NaN, too large a value becomes an infinity, subnormals
 * are kept between half types and FLOAT32 and in copies (elsewhere as the thread's floating-point
 * mode says).  The pairs:
 *
 *     from FLOAT16 or BFLOAT16    to FLOAT32
 *     from FLOAT32                to any
 *     from FLOAT64                to FLOAT64 or FLOAT32
 *     from any                    to itself, with a divisor of 1: the bits are copied
 *
 * The divisor is first rounded to the type of the division, and must be a divisor still.  dst may
 * be src where the dtypes are equal.
 */
s2_status s2_values_convert(const void *src, s2_dtype src_dtype, void *dst, s2_dtype dst_dtype,
                            int64_t numel, double divisor, const s2_executor *executor);

/* Sets *finite to 0 where an element is infinite or a NaN, and to 1 where none is. */
s2_status s2_values_finite(const void *values, s2_dtype dtype, int64_t numel, int *finite,
                           const s2_executor *executor);

/* ============================================================================================== */
/*                                        Position lists                                          */
/* ============================================================================================== */

/*
 * Strictly ascending positions below `nbits`, packed: where few bits of a bitmap are set, a list of
 * them is smaller.  Elias-Fano: with l = floor(log2(nbits / count)), the low l bits of all
 * positions stand one behind the other; then, in a field of bits of its own, bit (position >> l) +
 * i is set for the i-th position.  Both fields are little endian and end at a word.  That is at
 * most count (3 + l) bits, and the size follows from `nbits` and `count` alone.
 *
 * With nbits = 32 and the positions 3, 12, 13, 27: l = 3; low bits 3, 4, 5, 3; upper parts
 * 0, 1, 1, 3, so that bits 0, 2, 3 and 6 are set.
 */

/* Sets *nbytes to the size of a list of `count` positions; 0 <= count <= nbits <= S2_MAX_NUMEL. */
s2_status s2_list_nbytes(int64_t nbits, int64_t count, int64_t *nbytes);

/* `nbytes` is the size that s2_list_nbytes() gives. */
s2_status s2_list_encode(const int64_t *positions, int64_t count, int64_t nbits, uint8_t *list,
                         int64_t nbytes);

/* S2_BAD_POSITION where `list` is no list of so many positions; any bytes may be passed. */
s2_status s2_list_decode(const uint8_t *list, int64_t nbytes, int64_t count, int64_t nbits,
                         int64_t *positions);

/* ============================================================================================== */
/*                                          Owner plan                                            */
/* ============================================================================================== */

/*
 * Who sums which block.  Once every rank has the bitmaps of all ranks, each block of their union
 * gets an *owner*, one of the ranks that touched it unless that would load a rank too much.  The
 * others send their rows of the block to the owner, which adds them in rank order and sends the
 * result to everybody.  All ranks compute the same plan from the same bitmaps, so neither positions
 * nor sizes travel with the rows.
 *
 * Step 1.  The candidate for a block is picked, by a hash of its position, among the ranks that
 * touched it.
 *
 * Step 2.  No rank should own more than its cap.  That is an even share of the numel elements of
 * the union and a twentieth: floor((numel + floor(numel / 20)) / nranks) + 1.
 *
 * But a rank sends what it has, less what it owns, and what it owns to nranks - 1 others; so the
 * ranks that have most elements may have to own less.  With live elements on a rank, cap(level) is
 * floor((level - live) / (nranks - 1)) + 1, or 0 where live is not below the level: what the rank
 * may own to send about as much as the level.  Let it be the least at which the caps add up to
 * numel.  With three ranks or more, where
 *
 *     most live + (nranks - 2) even share  >  level + floor(level / 10)
 *
 * the caps are cap(level) instead.  All are rounded up to multiples of the union's longest block.
 * Taken in the order of their positions, a rank owns its candidates as long as the sum of their
 * lengths is within its cap.
 *
 * Step 3.  Blocks left over go to ranks that have room.  Left-over elements and free elements are
 * numbered, in the order of positions and of ranks; a block goes to the rank whose room has the
 * number of its first element.  So no rank owns as much as its cap and one longest block more, or,
 * where all blocks have one length, more than its cap.
 *
 * Steps 2 and 3 are prefix sums, so that a parallel machine can find the same plan.
 *
 * All functions of this section take the layout of the bucket and `bitmaps`: those of ranks 0 to
 * nranks - 1, one behind the other, `nbytes` each.  `positions` are those of the union, `nunion` of
 * them; S2_BAD_POSITION where they are not.  `owners` and `rank` lie below nranks, else
 * S2_BAD_SIZE.
 *
 * Unlike elsewhere, s2_plan_owners() and s2_plan_lists() may find a wrong position, and the latter
 * a wrong part of `exchanges`, when they have begun to write.  No memory but the outputs is ever
 * touched, whatever the arguments hold; but after an error what the outputs hold means nothing.
 */

#define S2_MAX_RANKS 256

/* Sets owners[j] to the rank that owns the block at positions[j]. */
s2_status s2_plan_owners(const s2_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                         int64_t nbytes, uint64_t seed, const int64_t *positions, int64_t nunion,
                         int16_t *owners);

/* What one rank, "this rank", exchanges with one other, or with itself; blocks are as packed. */
typedef struct s2_exchange {
    int64_t sent_blocks;     /* live on this rank, owned by the other */
    int64_t sent_numel;      /* elements of those */
    int64_t received_blocks; /* live on the other, owned by this rank */
    int64_t received_numel;
    int64_t owned_blocks; /* owned by the other, whoever touched them */
    int64_t owned_numel;
} s2_exchange;

/* Fills exchanges[r] for every rank r, seen from `rank`.  `owners` may be any ranks.  After an
 * error nothing has been written. */
s2_status s2_plan_exchanges(const s2_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                            int64_t nbytes, const int64_t *positions, int64_t nunion,
                            const int16_t *owners, int64_t rank, s2_exchange *exchanges);

/*
 * The lists that go with `exchanges`, which must be what s2_plan_exchanges() gave for the same
 * arguments, else S2_BAD_SIZE.  Each has a part for every rank, in rank order, as long as its count
 * there says, and each part ascends:
 *
 *   sent      positions of the blocks that this rank sends to the other
 *   received  where the blocks that the other sends are among those that this rank owns: their
 *             positions in the layout `compact`
 *   owned     positions of the blocks that the other owns
 *
 * `compact` becomes the layout of the blocks that this rank owns, packed: a segment for each of the
 * bucket's, with the same block length, without gaps among the elements.
 */
s2_status s2_plan_lists(const s2_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                        int64_t nbytes, const int64_t *positions, int64_t nunion,
                        const int16_t *owners, int64_t rank, const s2_exchange *exchanges,
                        int64_t *sent, int64_t nsent, int64_t *received, int64_t nreceived,
                        int64_t *owned, s2_segment *compact);

/* ============================================================================================== */
/*                                             Rows                                               */
/* ============================================================================================== */

/*
 * COO gradients: a row of `width` elements for each time that a row of a table was used, beside a
 * list of the rows' numbers, unsorted and with repeats.  Nothing here has the length of the table.
 *
 * On each rank, s2_coo_sort() and s2_coo_sum() turn them into ascending rows without repeats.  Once
 * every rank has the lists of all ranks, s2_coo_unite() and s2_coo_bitmaps() number the rows of the
 * union: then they are the blocks of a layout with one segment of `nunion` blocks, and every
 * function for blocks and plans can be used.
 *
 *   indices 7 2 7  ->  order 1 0 2, rows 2 7, starts 0 1 3  ->  sums v1, v0 + v2
 *   lists 2 7 | 5 7 of two ranks  ->  union 2 5 7, bitmaps 101 and 011 (lowest bit first)
 *
 * Numbers of rows lie in 0 .. nrows - 1, else S2_BAD_POSITION; nrows is at most S2_MAX_ROWS.
 */

#define S2_MAX_ROWS (INT64_C(1) << 40)

/*
 * Sorts `n` numbers of rows and finds the distinct ones, *nunique of them.  `order` and `rows` have
 * room for n elements and `starts` for n + 1; of the latter two what lies behind is left undefined:
 *
 *   rows[k]    the distinct numbers, ascending, for k < *nunique
 *   order[i]   where among the indices the sorted ones stood, repeats in the order of appearance
 *   starts[k]  row k is that of order[starts[k]] to order[starts[k + 1] - 1]; starts[*nunique] is n
 *
 * In time proportional to n, and in one walk where the indices ascend already.  A number and a
 * place share a word: S2_BAD_SIZE where n and nrows, both rounded up to powers of two, have a
 * product above 2^64 (2^24 indices of 2^40 rows).
 */
s2_status s2_coo_sort(const int64_t *indices, int64_t n, int64_t nrows, int64_t *order,
                      int64_t *rows, int64_t *starts, int64_t *nunique);

/*
 * sums[k] = the sum of the rows of values[n][width] that `order` and `starts` give, for `nunique`
 * rows of `width` elements; S2_BAD_POSITION where these are no such lists.
 *
 * Repeats are added in the order of appearance, in FLOAT64 for FLOAT32 and FLOAT64 and in FLOAT32
 * for the half types, and rounded once; a row that does not repeat keeps its bits.  Where the sum
 * fits into a half type no partial sum overflows, for up to 2^16 repeats: BFLOAT16 is scaled down
 * for it, exactly but where the thread flushes subnormals.
 */
s2_status s2_coo_sum(const void *values, s2_dtype dtype, int64_t n, int64_t width,
                     const int64_t *order, const int64_t *starts, int64_t nunique, void *sums,
                     const s2_executor *executor);

/*
 * The union of the ranks' lists, which stand one behind the other in `lists`, lengths[r] of rank r;
 * each ascends strictly, else S2_BAD_POSITION.  `rows` and `entries` have room for as many elements
 * as all lists together.  Sets *nunion, rows[k] to the union, ascending, for k < *nunion (what lies
 * behind is left undefined), and entries[i] to k * S2_MAX_RANKS + r, ascending, for each r that has
 * rows[k].
 */
s2_status s2_coo_unite(const int64_t *lists, const int64_t *lengths, int64_t nranks, int64_t nrows,
                       int64_t *rows, int64_t *entries, int64_t *nunion);

/*
 * Sets bit k of bitmap r, for each of those `n` entries, and clears all others.  The bitmaps of the
 * ranks stand one behind the other, `nbytes` each, which is 8 for every 64 rows of the union or
 * part of them.  S2_BAD_POSITION where an entry names no such bit.
 */
s2_status s2_coo_bitmaps(const int64_t *entries, int64_t n, int64_t nranks, int64_t nunion,
                         uint8_t *bitmaps, int64_t nbytes);

/* ============================================================================================== */
/*                                            Sketch                                              */
/* ============================================================================================== */

/*
 * Count sketches of live blocks.  A table has `rows` rows of `width` cells, and a cell is as long
 * as a block.  Each block has one cell in every row, and a sign there, by a hash of its id: it is
 * inserted by adding it, with the sign, to all of them.  So the sum of the ranks' tables is the
 * table of the sum, and one AllReduce adds up what no rank has to place.  Who knows which blocks
 * are in it, from the bitmaps, can read the sums:
 *
 *   estimated  the median of a block's cells, each with its sign: right as far as the other blocks
 *              in them cancel.  On average that is the sum; with one row and K blocks of one size
 *              among `width` cells, the error is sqrt(K / width) of it.
 *   peeled     a block that is alone in a cell is there to be read.  Taken away from its other
 *              cells it leaves others alone.  Three rows give back all blocks, as good as always
 *              for a thousand or more, where the table has 1.3 cells for each; with less than 1.22
 *              many are stuck, blocks that have no cell to themselves.
 *
 * Three blocks of one element, 5, 7 and 9, with the ids 0, 1 and 2, in two rows of three cells,
 * with the seed 3:
 *
 *   row 0        0 |  9 - 7 | -5     so the cells are 0  2 -5
 *   row 1        0 |  5 - 7 |  9                      0 -2  9
 *   estimates    5 and -2 for the first block, -2 and 2 for the second, 2 and 9 for the third: of
 *                two rows the means, 1.5, 0 and 5.5
 *   peeled       the first and the third are alone in the last cells, and the second is what is
 *                left in those in the middle: 5, 7, 9
 *
 * All functions of this section take `table`, of s2_sketch_numel() elements, cells of one row one
 * behind the other, rows one behind the other; it is cleared by setting it to zeros.  They take
 * `ids`, `n` numbers of 0 or more that ascend strictly (S2_BAD_POSITION), such as positions, and
 * `values`, a block for each, packed.  Everything is FLOAT32; what that adds to blocks' errors is
 * said where they are peeled.  What is not finite spreads: to all blocks that share a cell with it,
 * and when peeled to those that share one with these; so s2_values_finite() should see the table
 * first.  A zero comes out as +0.0, whatever its sign was.
 *
 * S2_BAD_SKETCH where the shape breaks a rule:
 */

#define S2_MAX_SKETCH_ROWS  8
#define S2_MAX_SKETCH_WIDTH UINT32_MAX

typedef struct s2_sketch {
    int64_t rows;  /* 1 to S2_MAX_SKETCH_ROWS */
    int64_t width; /* cells of a row, 1 to S2_MAX_SKETCH_WIDTH */
    int64_t block; /* elements of a cell, at least 1 */
    uint64_t seed; /* of the hash; ranks agree on one, and a fresh one has fresh collisions */
} s2_sketch;

/* Sets *numel to the elements of a table: the product of the shape, at most S2_MAX_NUMEL. */
s2_status s2_sketch_numel(const s2_sketch *sketch, int64_t *numel);

/* Adds the blocks to the table, or takes them away again, in the order of their ids. */
s2_status s2_sketch_insert(const s2_sketch *sketch, float *table, const int64_t *ids, int64_t n,
                           const float *values);
s2_status s2_sketch_subtract(const s2_sketch *sketch, float *table, const int64_t *ids, int64_t n,
                             const float *values);

/* table += other_table.  S2_BAD_SKETCH unless both have the same shape and seed. */
s2_status s2_sketch_merge(const s2_sketch *sketch, float *table, const s2_sketch *other,
                          const float *other_table);

/*
 * Adds the largest magnitude in each block to the entries of the block's cells in `magnitudes`, one
 * for each cell of a table: rows x width of them.  Summed over the ranks, as the tables are, they
 * bound what has been in the cells, of which the sums of ranks that cancel each other say nothing.
 */
s2_status s2_sketch_weigh(const s2_sketch *sketch, float *magnitudes, const int64_t *ids, int64_t n,
                          const float *values);

/*
 * values = the median of the block's cells, with their signs, element by element.  Of an even
 * number of rows that is the mean of the two in the middle, halved before they are added; of one
 * row it is the cell itself.  -0.0 counts as less than +0.0, and a NaN as more than an infinity of
 * its sign.
 */
s2_status s2_sketch_estimate(const s2_sketch *sketch, const float *table, const int64_t *ids,
                             int64_t n, float *values);

/* Sets *nbytes to the scratch that s2_sketch_peel() needs for `n` blocks, fewer than 2^32. */
s2_status s2_sketch_scratch_nbytes(const s2_sketch *sketch, int64_t n, int64_t *nbytes);

/*
 * Reads blocks as long as one is alone.  `ids` must name all blocks that are in the table, and no
 * others.  The table is the sum of those of `nranks` ranks, 1 to S2_MAX_RANKS, each of which had
 * some of the blocks; `magnitudes` are the sum of what they weighed, or NULL where that is not
 * known.
 *
 * In rounds, so that the same values come out of any machine.  A round takes all blocks that are
 * alone in a cell when it begins, each from the first row where it is.  Then these are subtracted
 * from their other cells, in the order of their ids, where blocks are left.  The last round is the
 * one that leaves none to be taken, or is number max_rounds, unless that is 0.
 *
 * Sets *ndecoded and *nrounds, and for every block
 *
 *   values   the block, or +0.0 where it is stuck
 *   decoded  1, or 0 where it is stuck
 *   bounds   how far its elements are likely to be from the exact sums at most, before they are
 *            cleared; infinite where it is stuck
 *   norms    the largest magnitude in `values`
 *
 * The table is used up: cells with stuck blocks hold the sums of these, and others mean nothing.
 * `scratch` is aligned for uint64_t.
 *
 * The bound.  With u = 2^-24, a sum of two is off by u of itself at most.  A cell that began with k
 * blocks has seen no more than k - 1 additions on the ranks, nranks - 1 between them and k - 1
 * subtractions, and none gave more than the magnitudes of its blocks together.  So a block of a
 * largest magnitude m has a part in no more than 2 k + nranks - 3 errors of the cell, each u m at
 * most.  Errors of roundings are as good as independent, and hashes give them their signs, so that
 * it is squares that add up.  To the square of the cell's bound each block that is read or was
 * subtracted gives (2 u m)^2 as many times, their number rounded up to a power of two, and one that
 * was subtracted gives the square of its own bound as well.  With twice the largest error that a
 * rounding can have, no element is likely to be outside; were all errors at their largest and of
 * one sign, it could be.
 *
 * Those are magnitudes of sums.  Where ranks cancel each other, their parts of a block were larger,
 * and so were the errors, which stay behind in all blocks that shared a cell with it.  That is what
 * `magnitudes` are for: k blocks of M together are taken for k of M / k each, whose squares come to
 * (2 u)^2 M^2 / k as many times, and with that the square of the cell's bound begins.  Were one of
 * them all of M, on two ranks that cancel, there would be 2 (k - 1) errors of u M / 2 at most, and
 * about 0.6 of it in the mean, together u M sqrt((k - 1) / 6): with 2 blocks the bound is 7 times
 * as much, with 6 blocks 3.6 times, with 10, which one cell in several thousand has, 2.9 times.
 * Where the sum of magnitudes is infinite, so are bounds.
 *
 * Clearing.  An element that is zero on all ranks is read as what roundings in the cell have left,
 * small, but a full step for an optimizer that divides gradients by their size.  So in blocks that
 * were not alone in a cell to begin with, elements of a magnitude of bound / sqrt(block) or less
 * become +0.0, once the block has been subtracted.  There are no more than `block` of them, so that
 * the 2-norm of what a block loses is no more than the bound either.  In blocks that were alone
 * zeros are zeros, and all is left as it is.
 */
s2_status s2_sketch_peel(const s2_sketch *sketch, float *table, const int64_t *ids, int64_t n,
                         int64_t nranks, const float *magnitudes, int64_t max_rounds, float *values,
                         uint8_t *decoded, float *bounds, float *norms, void *scratch,
                         int64_t scratch_nbytes, int64_t *ndecoded, int64_t *nrounds);

/* ============================================================================================== */
/*                                          Selection                                             */
/* ============================================================================================== */

/*
 * Which blocks, or elements, of an array to send when not all are sent.  Each has a score: its
 * energy (see s2_owed_energies()), or of blocks of one element the element itself.  Scores are
 * FLOAT32, and it is their magnitudes that count, in the order of the bits of |score|: that of the
 * numbers, infinities above them and NaNs above those.
 *
 * The functions set bit i of `bitmap` to whether score i is selected, and all bits behind the last
 * one to zero.  `nbytes` is 8 for every 64 scores or part of them.
 *
 * Of the scores 3, -5, 0, 5 and a NaN
 *
 *   top 2        are the NaN and the -5, the first of two that are as large; the threshold is 5
 *   above 3      are all but the 0
 */

/* Scores that s2_select_top() takes at most. */
#define S2_MAX_SELECT_SCORES (INT64_C(1) << 33)

/* Sets *nbytes to the scratch that s2_select_top() needs for `n` scores: 8 bytes for each of the
 * first 65536, or one for each of all if that is more. */
s2_status s2_select_scratch_nbytes(int64_t n, int64_t *nbytes);

/*
 * Selects the `keep` scores of largest magnitude, 0 to n, and among equal ones those that come
 * first.  Sets *threshold to the least magnitude that was selected; to a NaN where keep is 0.
 * `scratch` is aligned for uint64_t.
 *
 * Reads the scores once, as good as always: a sample of them says between which two magnitudes the
 * threshold should lie, and only what lies between these is looked at again.  Where the sample
 * misled, once in some ten thousand calls, or where more than an eighth of the scores lies there,
 * as may happen where many are equal, there are ten readings at most.  The result never depends on
 * the sample.
 */
s2_status s2_select_top(const float *scores, int64_t n, int64_t keep, uint8_t *bitmap,
                        int64_t nbytes, float *threshold, void *scratch, int64_t scratch_nbytes,
                        const s2_executor *executor);

/*
 * Selects the scores whose magnitude is `threshold` or more, NaNs always unless the threshold is
 * one; sets *count to their number.  S2_BAD_FACTOR where the threshold is below zero.
 */
s2_status s2_select_above(const float *scores, int64_t n, float threshold, uint8_t *bitmap,
                          int64_t nbytes, int64_t *count, const s2_executor *executor);

/*
 * Selects `keep` of `n`, 0 to n, without looking at any: all choices of so many are equally likely,
 * and the same seed gives the same one everywhere.  Floyd's algorithm (Bentley and Floyd, A sample
 * of brilliance, 1987): for each j from n - keep to n - 1, i = floor(s2_hash(seed, j) (j + 1) /
 * 2^64) is selected, or j itself where i already is.
 */
s2_status s2_select_random(uint64_t seed, int64_t n, int64_t keep, uint8_t *bitmap, int64_t nbytes);

/* ============================================================================================== */
/*                                        Error feedback                                          */
/* ============================================================================================== */

/*
 * What was not sent is owed: kept in FLOAT32, in the units of the true gradient, and added to the
 * next one.  A step with a gradient that is multiplied by `scale`, a loss scaler's, is
 *
 *   s2_owed_add()         owed = before + gradient / scale, into other memory than `before`, so
 *                         that a step whose result is not finite can be undone
 *   s2_owed_energies()    scores, from which a bitmap is selected
 *   s2_owed_deliver()     gradient = owed * scale in the blocks that were selected, 0 elsewhere;
 *                         what was delivered, as it was rounded, is owed no more
 *
 * The arrays are cut into blocks of `block` elements, the last of which may be short; bit b of a
 * bitmap, of 8 bytes for every 64 blocks or part of them, is block b.  Products and sums are
 * rounded one by one, subnormals as the thread's floating-point mode says.
 */

/*
 * owed = before + values * factor.  The values are first rounded to FLOAT32, and the factor, which
 * must be a finite number above zero then (S2_BAD_FACTOR).  `before` may be NULL, for zeros.  Sets
 * *touched to 1 where a value so rounded was neither +0.0 nor -0.0, else to 0.
 */
s2_status s2_owed_add(const void *values, s2_dtype dtype, int64_t numel, double factor,
                      const float *before, float *owed, int *touched, const s2_executor *executor);

/*
 * energies = the sums of the squares of the elements of each of the `nblocks` blocks.  A block with
 * a NaN has a NaN, of which there is one pattern, and any other with an infinity has an infinity;
 * sums too large for FLOAT32 become the largest finite number.
 *
 * Squares are exact in FLOAT64.  Element i of a block is added to sum i mod 16, in order; then
 * sums 8 to 15 are added to 0 to 7, 4 to 7 to 0 to 3, and so on.  That makes block / 16 + 4
 * roundings of a relative 2^-53 at most and one of 2^-24, which is that of the result; below
 * 2^-126 its unit is 2^-149.
 */
s2_status s2_owed_energies(const float *owed, int64_t numel, int64_t block, float *energies,
                           int64_t nblocks, const s2_executor *executor);

/*
 * In blocks whose bit is set, or in all where `bitmap` is NULL and `nbytes` 0:
 *
 *   values = owed * scale, rounded to FLOAT32 and then to `dtype`
 *   owed -= values * factor, where that product is finite; `factor` is 1 / scale, rounded once
 *
 * So with a dtype of FLOAT32 or FLOAT64 and a scale of 1 nothing is owed any more but +0.0.  What
 * is too large for a half type is delivered as an infinity, as any gradient would be, and stays
 * owed: no rank can use the sum, and who undoes the step has lost nothing.  The same holds for what
 * was owed and not finite.
 *
 * In all other blocks values = +0.0, and what is owed stays.  `values` need not have the dtype of
 * the gradient: a narrower one rounds, and the rest stays owed.  S2_BAD_FACTOR where the scale or
 * the factor is not a finite number above zero in FLOAT32.
 */
s2_status s2_owed_deliver(float *owed, int64_t numel, int64_t block, const uint8_t *bitmap,
                          int64_t nbytes, double scale, void *values, s2_dtype dtype,
                          const s2_executor *executor);

/* ============================================================================================== */
/*                                       Choice of kernels                                        */
/* ============================================================================================== */

/* The instruction sets that kernels are written for, from the narrowest. */
typedef enum s2_variant {
    S2_PORTABLE = 0, /* C99 */
    S2_AVX2 = 1,     /* AVX2, F16C, BMI1, POPCNT */
    S2_AVX512 = 2,   /* AVX-512 F, BW, DQ, VL, and all of the above */
} s2_variant;

/* The widest variant that this processor and its operating system can run. */
s2_variant s2_variant_best(void);

/* The variant that calls use now: the best, unless a test forced another. */
s2_variant s2_variant_current(void);

/*
 * For tests and benchmarks alone: makes all later calls in this process use `variant`, the one
 * setting in the core that outlives a call.  Results have the same bits under every variant, but
 * for the payload of NaNs.
 */
s2_status s2_variant_force(s2_variant variant);

/* "portable", "avx2", "avx512"; NULL for a value that is no variant. */
const char *s2_variant_name(s2_variant variant);

#ifdef __cplusplus
}
#endif

#endif /* S2_H */
