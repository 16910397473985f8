/* SPDX-License-Identifier: MIT */
/*
 * Rows by number: see s2.h.
 *
 * A row's number and where it stands share a word, number above place, so that a sort moves one
 * array, and the two outputs are the two arrays between which it moves.  No memory beside them.
 */
#include "radix.h"

/* ---------------------------------------------------------------------------------------------- */
/* Sorting                                                                                        */
/* ---------------------------------------------------------------------------------------------- */

/* What a look at some numbers tells. */
struct survey {
    uint64_t largest;  /* a negative number counts as a huge one */
    uint64_t any, all; /* their bitwise OR and AND */
    bool ascends;      /* repeats are allowed */
};

static struct survey survey_of(const int64_t *numbers, int64_t n)
{
    struct survey s = {0, 0, ~UINT64_C(0), true};
    uint64_t previous = 0;

    for (int64_t i = 0; i < n; i++) {
        uint64_t number = (uint64_t)numbers[i];
        s.largest = number > s.largest ? number : s.largest;
        s.any |= number;
        s.all &= number;
        s.ascends &= previous <= number;
        previous = number;
    }
    return s;
}

/* The bits in which numbers differ, as s2_radix_sort() wants them; none where there is no need. */
static uint64_t varying_bits(const struct survey *s) { return s->ascends ? 0 : s->any ^ s->all; }

s2_status s2_coo_sort(const int64_t *indices, int64_t n, int64_t nrows, int64_t *order,
                      int64_t *rows, int64_t *starts, int64_t *nunique)
{
    if (n < 0 || n > S2_MAX_NUMEL || nrows < 0 || nrows > S2_MAX_ROWS) return S2_BAD_SIZE;
    const int place_bits = s2_bits_below(n);
    if (place_bits + s2_bits_below(nrows) > 64) return S2_BAD_SIZE;
    if (s2_is_null(indices, n) || s2_is_null(order, n) || s2_is_null(rows, n) || starts == NULL ||
        nunique == NULL)
        return S2_NULL_POINTER;
    const struct survey survey = survey_of(indices, n);
    if (n != 0 && survey.largest >= (uint64_t)nrows) return S2_BAD_POSITION;

    uint64_t *words = (uint64_t *)order;
    for (int64_t i = 0; i < n; i++)
        words[i] = (uint64_t)indices[i] << place_bits | (uint64_t)i;
    words = s2_radix_sort(words, (uint64_t *)rows, n, varying_bits(&survey) << place_bits);

    /* `words` is one of the arrays written to, but what is written lies no further than i.  No
     * branch: whether a row repeats is anybody's guess. */
    const uint64_t place_mask = (UINT64_C(1) << place_bits) - 1;
    uint64_t previous = 0;
    int64_t count = 0; /* of the distinct rows so far */
    starts[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t row = words[i] >> place_bits;
        order[i] = (int64_t)(words[i] & place_mask);
        count += i == 0 || row != previous;
        rows[count - 1] = (int64_t)row;
        starts[count] = i + 1;
        previous = row;
    }
    *nunique = count;
    return S2_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Sums                                                                                           */
/* ---------------------------------------------------------------------------------------------- */

/*
 * BFLOAT16 has the range of FLOAT32, so a sum could overflow on its way to a total that does not.
 * Divided by 2^16, all its values are still multiples of 2^-149, FLOAT32's smallest, and exact; and
 * 2^16 of the largest add up to less than FLOAT32's largest.
 */
#define BFLOAT16_SCALE 0x1p16

struct sums {
    const uint8_t *values;
    uint8_t *sums;
    const int64_t *order, *starts;
    int64_t width; /* elements of a row */
    int64_t row_nbytes;
    int64_t element_nbytes;
    int64_t wide_nbytes;             /* of an element of the sum */
    double scale;                    /* what values are divided by before they are added */
    s2_convert_kernel widen, narrow; /* NULL: copy */
    s2_add_kernel add;
    int64_t ahead; /* entries that are asked for before their turn */
};

static s2_status choose_arithmetic(struct sums *s, s2_dtype dtype)
{
    s2_dtype wide = dtype == S2_FLOAT32 || dtype == S2_FLOAT64 ? S2_FLOAT64 : S2_FLOAT32;

    s->element_nbytes = s2_dtype_nbytes(dtype);
    if (s->element_nbytes == 0) return S2_BAD_DTYPE;
    s->wide_nbytes = s2_dtype_nbytes(wide);
    s->scale = dtype == S2_BFLOAT16 ? BFLOAT16_SCALE : 1.0;
    S2_RETURN_IF_ERROR(s2_convert_kernel_find(dtype, wide, s->scale, &s->widen));
    S2_RETURN_IF_ERROR(s2_convert_kernel_find(wide, dtype, 1.0 / s->scale, &s->narrow));
    s->add = s2_kernels_current()->add[dtype][wide];
    return S2_OK;
}

static void convert(s2_convert_kernel kernel, const void *from, void *to, int64_t n,
                    int64_t to_nbytes, double divisor)
{
    if (kernel != NULL)
        kernel(from, to, n, divisor);
    else
        memcpy(to, from, (size_t)(n * to_nbytes));
}

/* Asks for the values of an entry whose turn comes soon, whatever row it belongs to. */
static inline void prefetch_entry(const struct sums *s, int64_t i, int64_t end)
{
    if (i < end) s2_prefetch_row(s->values + s->order[i] * s->row_nbytes, s->row_nbytes);
}

/* Adds up the entries [begin, end) of the order, some columns at a time; `last` is the end of all
 * that will be asked for. */
static void sum_row(const struct sums *s, int64_t begin, int64_t end, int64_t last, uint8_t *sum)
{
    const int64_t ncolumns = S2_STAGE_NBYTES / s->wide_nbytes;
    union s2_stage total;

    for (int64_t column = 0; column < s->width; column += ncolumns) {
        const uint8_t *values = s->values + column * s->element_nbytes;
        const int64_t n = s2_min(ncolumns, s->width - column);
        for (int64_t i = begin; i < end; i++) {
            const uint8_t *row = values + s->order[i] * s->row_nbytes;
            if (column == 0) prefetch_entry(s, i + s->ahead, last);
            if (i == begin)
                convert(s->widen, row, &total, n, s->wide_nbytes, s->scale);
            else
                s->add(row, &total, n, s->scale);
        }
        convert(s->narrow, &total, sum + column * s->element_nbytes, n, s->element_nbytes,
                1.0 / s->scale);
    }
}

static void sum_range(void *arg, int64_t begin, int64_t end)
{
    const struct sums *s = arg;
    const int64_t last = s->starts[end];
    uint8_t *sum = s->sums + begin * s->row_nbytes;

    for (int64_t k = begin; k < end; k++, sum += s->row_nbytes) {
        int64_t first = s->starts[k];
        if (s->starts[k + 1] == first + 1) {
            prefetch_entry(s, first + s->ahead, last);
            memcpy(sum, s->values + s->order[first] * s->row_nbytes, (size_t)s->row_nbytes);
        } else {
            sum_row(s, first, s->starts[k + 1], last, sum);
        }
    }
}

/* That every entry has a value and every row an entry.  *is_copy: whether all stay where they are.
 */
static s2_status check_order(const int64_t *order, int64_t n, const int64_t *starts,
                             int64_t nunique, bool *is_copy)
{
    bool stays = n == nunique, good = starts[0] == 0 && starts[nunique] == n;

    for (int64_t k = 0; k < nunique; k++)
        good &= starts[k] < starts[k + 1];
    for (int64_t i = 0; i < n; i++) {
        good &= order[i] >= 0 && order[i] < n;
        stays &= order[i] == i;
    }
    *is_copy = stays;
    return good ? S2_OK : S2_BAD_POSITION;
}

s2_status s2_coo_sum(const void *values, s2_dtype dtype, int64_t n, int64_t width,
                     const int64_t *order, const int64_t *starts, int64_t nunique, void *sums,
                     const s2_executor *executor)
{
    struct sums s = {
        .values = values, .sums = sums, .order = order, .starts = starts, .width = width};
    bool is_copy;

    S2_RETURN_IF_ERROR(choose_arithmetic(&s, dtype));
    if (n < 0 || width < 0 || nunique < 0 || nunique > n || n > S2_MAX_NUMEL ||
        (width != 0 && n > S2_MAX_NUMEL / width))
        return S2_BAD_SIZE;
    if (s2_is_null(values, n * width) || s2_is_null(sums, nunique * width) ||
        s2_is_null(order, n) || starts == NULL)
        return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(check_order(order, n, starts, nunique, &is_copy));
    if (n == 0 || width == 0) return S2_OK;

    s.row_nbytes = width * s.element_nbytes;
    s.ahead = s2_rows_ahead(s.row_nbytes);
    if (is_copy) return s2_values_convert(values, dtype, sums, dtype, n * width, 1.0, executor);
    s2_run(executor, nunique, s2_grain(n / nunique * s.row_nbytes), sum_range, &s);
    return S2_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Union                                                                                          */
/* ---------------------------------------------------------------------------------------------- */

#define RANK_BITS 8 /* S2_MAX_RANKS is 256 */

/* Sets *n to what the lists have together. */
static s2_status add_lengths(const int64_t *lengths, int64_t nranks, int64_t *n)
{
    *n = 0;
    if (nranks < 1 || nranks > S2_MAX_RANKS) return S2_BAD_SIZE;
    if (lengths == NULL) return S2_NULL_POINTER;
    for (int64_t rank = 0; rank < nranks; rank++) {
        if (lengths[rank] < 0 || lengths[rank] > S2_MAX_NUMEL - *n) return S2_BAD_SIZE;
        *n += lengths[rank];
    }
    return S2_OK;
}

s2_status s2_coo_unite(const int64_t *lists, const int64_t *lengths, int64_t nranks, int64_t nrows,
                       int64_t *rows, int64_t *entries, int64_t *nunion)
{
    int64_t n, at = 0;

    S2_RETURN_IF_ERROR(add_lengths(lengths, nranks, &n));
    if (nrows < 0 || nrows > S2_MAX_ROWS) return S2_BAD_SIZE;
    if (s2_is_null(lists, n) || s2_is_null(rows, n) || s2_is_null(entries, n) || nunion == NULL)
        return S2_NULL_POINTER;
    for (int64_t rank = 0; rank < nranks; at += lengths[rank++])
        S2_RETURN_IF_ERROR(s2_positions_check(lists + at, lengths[rank], nrows));
    const struct survey survey = survey_of(lists, n);

    uint64_t *words = (uint64_t *)entries;
    at = 0;
    for (int64_t rank = 0; rank < nranks; rank++) {
        for (int64_t end = at + lengths[rank]; at < end; at++)
            words[at] = (uint64_t)lists[at] << RANK_BITS | (uint64_t)rank;
    }
    words = s2_radix_sort(words, (uint64_t *)rows, n, varying_bits(&survey) << RANK_BITS);

    /* As in s2_coo_sort(). */
    uint64_t previous = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t row = words[i] >> RANK_BITS, rank = words[i] & (S2_MAX_RANKS - 1);
        count += i == 0 || row != previous;
        entries[i] = (count - 1) * S2_MAX_RANKS + (int64_t)rank;
        rows[count - 1] = (int64_t)row;
        previous = row;
    }
    *nunion = count;
    return S2_OK;
}

s2_status s2_coo_bitmaps(const int64_t *entries, int64_t n, int64_t nranks, int64_t nunion,
                         uint8_t *bitmaps, int64_t nbytes)
{
    bool good = true;

    if (n < 0 || n > S2_MAX_NUMEL || nranks < 1 || nranks > S2_MAX_RANKS) return S2_BAD_SIZE;
    if (nunion < 0 || nunion > S2_MAX_ROWS || nbytes != (nunion + 63) / 64 * 8) return S2_BAD_SIZE;
    if (s2_is_null(entries, n) || s2_is_null(bitmaps, nbytes)) return S2_NULL_POINTER;
    for (int64_t i = 0; i < n; i++)
        good &= entries[i] >= 0 && entries[i] < nunion * S2_MAX_RANKS &&
                entries[i] % S2_MAX_RANKS < nranks;
    if (!good) return S2_BAD_POSITION;

    if (nbytes != 0) memset(bitmaps, 0, (size_t)(nranks * nbytes));
    for (int64_t i = 0; i < n; i++) {
        int64_t rank = entries[i] % S2_MAX_RANKS, index = entries[i] / S2_MAX_RANKS;
        bitmaps[rank * nbytes + index / 8] |= (uint8_t)(1u << index % 8);
    }
    return S2_OK;
}
