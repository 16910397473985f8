/* SPDX-License-Identifier: MIT */
/*
 * Sums of the ranks' blocks.
 *
 * Rows that are long enough are summed block by block, in registers: lists of some blocks say where
 * each has its rows.  Of short rows such lists would be half of the work.  They are summed piece by
 * piece, in an accumulator that stays in the caches: what all ranks have of a piece is added to it,
 * then it is divided and written.  Either way rows are read once and sums written once, and nothing
 * else goes to memory.
 */
#include "rows.h"

/* A first-level cache.  The longer a piece, the longer the runs in which a rank's rows are read:
 * from half of this on they are several pages, and a piece of twice this would not fit. */
#define PIECE_NBYTES 32768

/* Rows are asked for so many bytes before their turn, some at a time: a rank's rows are read in
 * runs, with those of the other ranks between, and the hardware takes some lines to follow each. */
#define AHEAD_NBYTES 8192
#define STEP_NBYTES  2048

/* Shorter rows are summed in the accumulator: below two cache lines, the lists and the loop over a
 * block's rows cost more than they save. */
#define LONG_ROW_NBYTES 128

/* Blocks and rows of the lists: 16 KB, half of a first-level cache, for eight blocks or more with a
 * row of every rank. */
#define LISTED_BLOCKS 64
#define LISTED_ROWS   2048

/* So much of all ranks' rows together is asked for before its turn: a quarter of a first-level
 * cache, and what a core reads in some hundred nanoseconds.  Of each rank it is some lines at
 * least, which a second-level cache holds for all ranks. */
#define LISTED_AHEAD_NBYTES 8192
#define LEAST_AHEAD_NBYTES  256

union piece {
    float floats[PIECE_NBYTES / 4];
    double doubles[PIECE_NBYTES / 8];
};

/* What a rank has of a segment, or has left of it. */
struct part {
    const uint8_t *packed;
    const int64_t *positions;
    int64_t npositions;
};

struct sums {
    s2_dtype dtype;
    int64_t width, wide_width; /* bytes of an element, and of one of the accumulator */
    double divisor;
    double before, after; /* what rows are divided by, and then their sums */
    s2_sum_kernel sum;
    bool stream; /* sums go past the caches, where they can */
    s2_add_kernel add;
    s2_add_rows_kernel add_rows;
    s2_convert_kernel narrow; /* NULL: copy */
    s2_convert_kernel lose;   /* to FLOAT32; NULL: copy */
    uint8_t *sums;
    float *lost; /* or NULL */

    const s2_segment *segment; /* the one that is being summed */
    struct part parts[S2_MAX_RANKS];
    int64_t nparts;
};

/* ---------------------------------------------------------------------------------------------- */
/* A piece, in the accumulator                                                                    */
/* ---------------------------------------------------------------------------------------------- */

/* Elements of a segment, all in one block or the whole of some blocks but what a short one lacks.
 */
struct range {
    int64_t block, nblocks;
    int64_t column, numel; /* the first element, counted in the first block; and how many */
};

static void convert(s2_convert_kernel kernel, const void *from, void *to, int64_t n,
                    int64_t to_width, double divisor)
{
    if (kernel != NULL)
        kernel(from, to, n, divisor);
    else
        memcpy(to, from, (size_t)(n * to_width));
}

/* Inlined by force, as s2_prefetch_row() is. */
static inline __attribute__((always_inline)) void prefetch_ahead(const uint8_t *packed,
                                                                 int64_t nbytes)
{
    for (int64_t at = 0; at < nbytes; at += S2_CACHE_LINE_NBYTES)
        __builtin_prefetch(packed + AHEAD_NBYTES + at, 0, 2);
}

/* Adds the first rows of a part, which are in the range: whole rows, but for a short last one. */
static void add_rows(const struct sums *s, const struct part *part, int64_t nrows,
                     const struct range *range, union piece *total)
{
    const int64_t block = s->segment->block, row_nbytes = block * s->width;
    const int64_t first_bit = s->segment->first_bit + range->block;
    const int64_t last_bit = first_bit + range->nblocks - 1;
    const int64_t step = s2_max(1, STEP_NBYTES / row_nbytes);
    struct s2_rows rows = {.positions = part->positions,
                           .first_bit = first_bit,
                           .block = block,
                           .values = (uint8_t *)total,
                           .value_width = s->wide_width,
                           .packed = (uint8_t *)(uintptr_t)part->packed,
                           .packed_width = s->width,
                           .add = s->add,
                           .add_rows = s->add_rows,
                           .divisor = s->before,
                           .cached = true};

    for (int64_t left = nrows, n; left > 0; left -= n) {
        n = s2_min(step, left);
        rows.tail = rows.positions[n - 1] == last_bit ? range->numel % block : 0;
        prefetch_ahead(rows.packed, n * row_nbytes);
        s2_rows_add(rows, n, NULL);
        rows.positions += n;
        rows.packed += n * row_nbytes;
    }
}

static void write_sums(const struct sums *s, int64_t at, int64_t n, const union piece *total)
{
    uint8_t *sums = s->sums + at * s->width;

    if (s->lost == NULL) {
        convert(s->narrow, total, sums, n, s->width, s->after);
        return;
    }
    convert(s->lose, total, s->lost + at, n, 4, s->after);
    s2_owed_deliver(s->lost + at, n, n, NULL, 0, 1.0, sums, s->dtype, NULL);
}

static inline int64_t rows_before(const struct part *part, int64_t bit)
{
    /* Of many ranks most may have nothing there. */
    if (part->npositions == 0 || part->positions[0] >= bit) return 0;
    return s2_positions_below(part->positions, part->npositions, bit);
}

static void sum_piece(const struct sums *s, const struct part *parts, const struct range *range)
{
    const s2_segment *segment = s->segment;
    union piece total;

    memset(&total, 0, (size_t)(range->numel * s->wide_width));
    for (int64_t r = 0; r < s->nparts; r++) {
        const int64_t end = segment->first_bit + range->block + range->nblocks;
        const int64_t nrows = rows_before(&parts[r], end);
        if (nrows == 0) continue;
        if (range->numel < segment->block) /* some columns of one row */
            s->add(parts[r].packed + range->column * s->width, &total, range->numel, s->before);
        else
            add_rows(s, &parts[r], nrows, range, &total);
    }
    write_sums(s, segment->offset + range->block * segment->block + range->column, range->numel,
               &total);
}

/* ---------------------------------------------------------------------------------------------- */
/* A segment                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

/* Leaves the part without its rows of blocks before this bit. */
static void drop_rows(const struct sums *s, struct part *part, int64_t bit)
{
    const int64_t n = rows_before(part, bit);

    if (n == 0) return; /* or the product may overflow */
    part->packed += n * s->segment->block * s->width;
    part->positions += n;
    part->npositions -= n;
}

static void sum_blocks(void *arg, int64_t begin, int64_t end)
{
    const struct sums *s = arg;
    const s2_segment *segment = s->segment;
    const int64_t most = PIECE_NBYTES / s->wide_width;
    const int64_t step = s2_max(1, most / segment->block);
    struct part parts[S2_MAX_RANKS];

    memcpy(parts, s->parts, (size_t)s->nparts * sizeof(*parts));
    for (int64_t block = begin; block < end; block += step) {
        struct range range = {.block = block, .nblocks = s2_min(step, end - block)};
        const int64_t first = block * segment->block;
        const int64_t numel = s2_min(range.nblocks * segment->block, segment->numel - first);
        for (int64_t r = 0; r < s->nparts; r++)
            drop_rows(s, &parts[r], segment->first_bit + block);
        for (; range.column < numel; range.column += most) {
            range.numel = s2_min(most, numel - range.column);
            sum_piece(s, parts, &range);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* A segment of long rows                                                                         */
/* ---------------------------------------------------------------------------------------------- */

struct lists {
    const uint8_t *rows[LISTED_ROWS]; /* those of block b from b * nparts on, in rank order */
    int32_t nrows[LISTED_BLOCKS];
};

/* Takes the rows of these blocks off the parts. */
static void list_rows(const struct sums *s, struct part *parts, int64_t block, int64_t nblocks,
                      struct lists *lists)
{
    const int64_t first_bit = s->segment->first_bit + block;
    const size_t row_nbytes = (size_t)s->segment->block * (size_t)s->width;

    memset(lists->nrows, 0, (size_t)nblocks * sizeof(*lists->nrows));
    for (int64_t r = 0; r < s->nparts; r++) {
        struct part *part = &parts[r];
        for (; part->npositions != 0 && part->positions[0] < first_bit + nblocks;
             part->positions++, part->npositions--, part->packed += row_nbytes) {
            const int64_t b = part->positions[0] - first_bit;
            lists->rows[b * s->nparts + lists->nrows[b]++] = part->packed;
        }
    }
}

static void sum_lists(const struct sums *s, const struct lists *lists, int64_t block,
                      int64_t nblocks)
{
    const s2_segment *segment = s->segment;
    const int64_t first = block * segment->block, left = segment->numel - first;
    const int64_t nfull = s2_min(nblocks, left / segment->block), numel = nfull * segment->block;
    struct s2_stacks stacks = {.rows = lists->rows,
                               .nrows = lists->nrows,
                               .stride = s->nparts,
                               .nblocks = nfull,
                               .length = segment->block,
                               .ahead =
                                   s2_max(LEAST_AHEAD_NBYTES, LISTED_AHEAD_NBYTES / s->nparts)};
    uint8_t *sums = s->sums + (segment->offset + first) * s->width;
    const uintptr_t lines = (uintptr_t)sums | (uintptr_t)segment->block * (uintptr_t)s->width;

    s->sum(&stacks, s->divisor, sums, s->stream && lines % S2_CACHE_LINE_NBYTES == 0);
    if (nfull != nblocks) { /* the last block is short */
        stacks.rows += nfull * stacks.stride;
        stacks.nrows += nfull;
        stacks.nblocks = 1;
        stacks.length = left - numel;
        s->sum(&stacks, s->divisor, sums + numel * s->width, false);
    }
}

static void sum_long_blocks(void *arg, int64_t begin, int64_t end)
{
    const struct sums *s = arg;
    const int64_t step = s2_min(LISTED_BLOCKS, LISTED_ROWS / s->nparts);
    struct part parts[S2_MAX_RANKS];
    struct lists lists;

    memcpy(parts, s->parts, (size_t)s->nparts * sizeof(*parts));
    for (int64_t r = 0; r < s->nparts; r++)
        drop_rows(s, &parts[r], s->segment->first_bit + begin);
    for (int64_t block = begin; block < end; block += step) {
        const int64_t nblocks = s2_min(step, end - block);
        list_rows(s, parts, block, nblocks, &lists);
        sum_lists(s, &lists, block, nblocks);
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* All                                                                                            */
/* ---------------------------------------------------------------------------------------------- */

/* Takes what the parts have of the segment `s->segment` from `left` into `s->parts`. */
static void take_segment(struct sums *s, struct part *left)
{
    const s2_segment *segment = s->segment;
    const int64_t end_bit = segment->first_bit + s2_segment_nblocks(segment);

    for (int64_t r = 0; r < s->nparts; r++) {
        s->parts[r] = left[r];
        s->parts[r].npositions = rows_before(&left[r], end_bit);
        drop_rows(s, &left[r], end_bit);
    }
}

static s2_status choose_arithmetic(struct sums *s, double divisor)
{
    const bool in_double = s->dtype == S2_FLOAT32 || s->dtype == S2_FLOAT64;
    const s2_dtype wide = in_double ? S2_FLOAT64 : S2_FLOAT32;
    s2_convert_kernel widen; /* the pair's checks; it is the addition that widens */

    s->width = s2_dtype_nbytes(s->dtype);
    s->wide_width = s2_dtype_nbytes(wide);
    s->divisor = divisor;
    s->before = s->dtype == S2_BFLOAT16  ? S2_BFLOAT16_SCALE
                : s->dtype == S2_FLOAT64 ? divisor
                                         : 1.0;
    s->after = s->dtype == S2_BFLOAT16  ? divisor / S2_BFLOAT16_SCALE
               : s->dtype == S2_FLOAT64 ? 1.0
                                        : divisor;
    S2_RETURN_IF_ERROR(s2_convert_kernel_find(s->dtype, wide, s->before, &widen));
    S2_RETURN_IF_ERROR(s2_convert_kernel_find(wide, s->dtype, s->after, &s->narrow));
    S2_RETURN_IF_ERROR(s2_convert_kernel_find(wide, S2_FLOAT32, s->after, &s->lose));
    s->sum = s2_kernels_current()->sum[s->dtype];
    s->add = s2_kernels_current()->add[s->dtype][wide];
    s->add_rows = s2_kernels_current()->add_rows[s->dtype][wide];
    return S2_OK;
}

s2_status s2_blocks_sum(const s2_layout *layout, const s2_packed *ranks, int64_t nranks,
                        s2_dtype dtype, double divisor, void *sums, float *lost,
                        const s2_executor *executor)
{
    struct sums s = {.dtype = dtype, .sums = sums, .lost = lost, .nparts = nranks};
    struct part left[S2_MAX_RANKS];

    S2_RETURN_IF_ERROR(s2_layout_check_values(layout, sums, dtype));
    S2_RETURN_IF_ERROR(choose_arithmetic(&s, divisor));
    s.stream = layout->numel >= S2_STREAM_NBYTES / s.width;
    if (nranks < 1 || nranks > S2_MAX_RANKS) return S2_BAD_SIZE;
    if (ranks == NULL) return S2_NULL_POINTER;
    for (int64_t r = 0; r < nranks; r++) {
        S2_RETURN_IF_ERROR(s2_blocks_check_packed(layout, ranks[r].positions, ranks[r].npositions,
                                                  ranks[r].packed, ranks[r].numel));
        left[r] = (struct part){ranks[r].packed, ranks[r].positions, ranks[r].npositions};
    }

    for (int64_t i = 0; i < layout->nsegments; i++) {
        const s2_segment *segment = &layout->segments[i];
        const int64_t block = s2_min(segment->block, segment->numel);
        if (segment->numel == 0) continue;
        s.segment = segment;
        take_segment(&s, left);
        const bool listed = s.sum != NULL && lost == NULL && block * s.width >= LONG_ROW_NBYTES;
        s2_run(executor, s2_segment_nblocks(segment), s2_grain(block * s.wide_width),
               listed ? sum_long_blocks : sum_blocks, &s);
    }
    return S2_OK;
}
