/* SPDX-License-Identifier: MIT */
/*
 * The largest `keep` of n scores, exactly.
 *
 * The threshold, the magnitude of number `keep` from the top, is not known before all scores have
 * been seen; but a small sample brackets it.  Then one pass over the scores is enough: what is
 * above the bracket is selected at once, what is below is not, and what is inside, some percent, is
 * kept as a list of keys, of which the largest are found by their digits.
 *
 * Where many scores are equal the bracket may hold more than the list does, or be a single
 * magnitude.  But what many have is what the ends of the bracket are drawn from: so it is tried
 * whether one of these is the threshold, by a pass that selects what is above it and one that adds
 * as many of the equal ones as are wanted, and ends there.  In all other cases the threshold is
 * found by three passes that count digits of 11, 10 and 10 bits.
 *
 * Keys are unique, and everything that decides is a count over all scores: so neither the sample
 * nor the order in which ranges are handed out shows in the result.
 */
#include <math.h>

#include "cpu/select_portable.h"
#include "hash.h"
#include "radix.h"
#include "select.h"

#define LARGEST INT32_MAX /* the magnitude that none is above */

#define DIGIT_BITS 11
#define NDIGITS    (1 << DIGIT_BITS)

/* ---------------------------------------------------------------------------------------------- */
/* Sizes                                                                                          */
/* ---------------------------------------------------------------------------------------------- */

/*
 * To draw and sort a sample costs as much for each as to read some 40 scores; of one in 256 that is
 * a sixth.  With 16384 the bracket of the middle of all scores holds 3 % of them, and is not worth
 * a longer sample.
 */
#define MIN_SAMPLE    INT64_C(256)
#define MAX_SAMPLE    INT64_C(16384)
#define SAMPLE_STRIDE INT64_C(256)

/* Up to here no sample is taken: all scores are inside. */
#define FEW INT64_C(4096)

/*
 * Keys that the scratch holds.  The widest bracket, that of the middle, is some 10 % of the scores
 * with a sample of 2048, which is that of 2^19 scores, less of more and with longer samples.  Two
 * samples fit in as well.
 */
static int64_t capacity(int64_t n) { return n <= 65536 ? n : s2_max(65536, n / 8); }

s2_status s2_select_scratch_nbytes(int64_t n, int64_t *nbytes)
{
    if (n < 0 || n > S2_MAX_SELECT_SCORES) return S2_BAD_SIZE;
    if (nbytes == NULL) return S2_NULL_POINTER;
    *nbytes = 8 * capacity(n);
    return S2_OK;
}

/* One call. */
struct selection {
    const struct s2_kernels *kernels;
    const float *scores;
    int64_t n;
    int64_t keep;
    uint8_t *bitmap;
    uint64_t *keys;
    int64_t capacity;
    const s2_executor *executor;

    int32_t low, high; /* magnitudes of the bracket: above `low`, and not above `high` */
    int64_t nkeys;     /* inside the bracket; the list is of use up to its capacity */
    int64_t nabove;    /* above it */
    int32_t threshold; /* the result */
};

/* ---------------------------------------------------------------------------------------------- */
/* Bracket                                                                                        */
/* ---------------------------------------------------------------------------------------------- */

/* One score from each of `size` stretches of equal length, at a place that a hash picks there, so
 * that no regularity of the scores is that of the places. */
static void draw_sample(const struct selection *s, uint64_t *sample, int64_t size)
{
    const int64_t length = s->n / size;

    for (int64_t i = 0; i < size; i++) {
        const int64_t at =
            i * length + (int64_t)s2_hash_below(s2_hash(0, (uint64_t)i), (uint32_t)length);
        sample[i] = (uint64_t)s2_magnitude(s->scores[at]);
    }
}

/*
 * The threshold has rank r = keep size / n in the sample, give or take a standard deviation of
 * sqrt(r (1 - r / size)).  With four of them and 8 ranks more on either side, which small ranks
 * need, distributed as Poisson says, the threshold is outside once in ten thousand times.
 */
static void find_bracket(struct selection *s)
{
    s->low = -1;
    s->high = LARGEST;
    if (s->n <= FEW) return;

    const int64_t size = s2_max(MIN_SAMPLE, s2_min(MAX_SAMPLE, s->n / SAMPLE_STRIDE));
    draw_sample(s, s->keys, size);
    const uint64_t *sorted = s2_radix_sort(s->keys, s->keys + size, size, LARGEST);
    const double rank = (double)s->keep / (double)s->n * (double)size;
    const double margin = 4 * sqrt(rank * (1 - rank / (double)size)) + 8;
    const int64_t below = (int64_t)(rank + margin) + 1, above = (int64_t)floor(rank - margin);
    if (below < size) s->low = (int32_t)sorted[size - 1 - below];
    if (above >= 0) s->high = (int32_t)sorted[size - 1 - above];
}

/* ---------------------------------------------------------------------------------------------- */
/* One pass                                                                                       */
/* ---------------------------------------------------------------------------------------------- */

/* Appends keys to the list; false when there is no room for them. */
static bool append(struct selection *s, const uint64_t *keys, int64_t n)
{
    const int64_t at = n == 0 ? 0 : __atomic_fetch_add(&s->nkeys, n, __ATOMIC_RELAXED);

    if (n > s->capacity - at) return false;
    memcpy(s->keys + at, keys, (size_t)(8 * n));
    return true;
}

static void split_words(void *arg, int64_t begin, int64_t end)
{
    struct selection *s = arg;
    const int64_t last = s2_min(s->n, 64 * end);
    uint64_t keys[2 * S2_SELECT_CHUNK + 2];
    int64_t nkeys = 0, nabove = 0;

    for (int64_t at = 64 * begin; at < last; at += S2_SELECT_CHUNK) {
        const int64_t n = s2_min(S2_SELECT_CHUNK, last - at);
        int64_t more;
        nabove += s->kernels->select_split(s->scores + at, n, at, s->low, s->high,
                                           s->bitmap + at / 8, keys + nkeys, &more);
        nkeys += more;
        if (nkeys < S2_SELECT_CHUNK) continue;
        if (!append(s, keys, nkeys)) return;
        nkeys = 0;
    }
    append(s, keys, nkeys);
    __atomic_fetch_add(&s->nabove, nabove, __ATOMIC_RELAXED);
}

static void set_bit(uint8_t *bitmap, int64_t bit) { bitmap[bit / 8] |= (uint8_t)(1u << bit % 8); }

/* Number of the digit that holds key number `keep` from the top; *keep becomes the key's number
 * among those of this digit. */
static int64_t digit_of(const int64_t *counts, int64_t *keep)
{
    int64_t digit = NDIGITS - 1;

    for (; counts[digit] < *keep; digit--)
        *keep -= counts[digit];
    return digit;
}

/*
 * Selects the `keep` largest keys, at least one, and sets the threshold.  From the highest digit
 * down: keys with a larger one than that of key number `keep` are selected, those with a smaller
 * one are not, and those with the same are what the next round is about.
 */
static void take_largest_keys(struct selection *s, int64_t keep)
{
    uint64_t *keys = s->keys;
    int64_t n = s->nkeys;
    /* Above these bits all keys are alike. */
    int nbits = s2_bits_below((int64_t)((s->low + 1) ^ s->high) + 1) + S2_SELECT_POSITION_BITS;

    while (keep < n) {
        const int shift = nbits > DIGIT_BITS ? nbits - DIGIT_BITS : 0;
        const uint64_t mask = (UINT64_C(1) << (nbits - shift)) - 1;
        int64_t counts[NDIGITS] = {0}, same = 0;
        for (int64_t i = 0; i < n; i++)
            counts[keys[i] >> shift & mask]++;
        const uint64_t digit = (uint64_t)digit_of(counts, &keep);
        for (int64_t i = 0; i < n; i++) {
            const uint64_t own = keys[i] >> shift & mask;
            const int64_t position = s2_select_position(keys[i]);
            s->bitmap[position / 8] |= (uint8_t)((own > digit) << position % 8);
            keys[same] = keys[i];
            same += own == digit;
        }
        n = same;
        nbits = shift;
    }
    uint64_t least = UINT64_MAX;
    for (int64_t i = 0; i < n; i++) {
        set_bit(s->bitmap, s2_select_position(keys[i]));
        least = keys[i] < least ? keys[i] : least;
    }
    s->threshold = (int32_t)(least >> S2_SELECT_POSITION_BITS);
}

/* False where the bracket does not hold the threshold, or the list not the bracket. */
static bool select_in_bracket(struct selection *s)
{
    s->nkeys = s->nabove = 0;
    s2_run(s->executor, s2_select_nwords(s->n), s2_grain(64 * 4), split_words, s);
    if (s->nkeys > s->capacity || s->nabove >= s->keep || s->nabove + s->nkeys < s->keep)
        return false;
    take_largest_keys(s, s->keep - s->nabove);
    return true;
}

/* ---------------------------------------------------------------------------------------------- */
/* A known threshold                                                                              */
/* ---------------------------------------------------------------------------------------------- */

static uint64_t lowest_bits(uint64_t word, int64_t count)
{
    uint64_t rest = word;

    for (; count > 0; count--)
        rest &= rest - 1;
    return word & ~rest;
}

/* Adds the first `count` scores that are as large as the threshold to the bitmap, which has all
 * that are larger; returns how many are missing. */
static int64_t add_ties(const struct selection *s, int64_t count)
{
    uint8_t stage[S2_SELECT_CHUNK / 8];

    for (int64_t at = 0; at < s->n && count > 0; at += S2_SELECT_CHUNK) {
        const int64_t n = s2_min(S2_SELECT_CHUNK, s->n - at);
        s->kernels->select_above(s->scores + at, n, s->threshold - 1, stage);
        for (int64_t i = 0; i < s2_select_nwords(n) && count > 0; i++) {
            uint8_t *byte = s->bitmap + at / 8 + 8 * i;
            const uint64_t larger = s2_load_word(byte);
            uint64_t equal = s2_load_word(stage + 8 * i) & ~larger;
            if (s2_popcount(equal) > count) equal = lowest_bits(equal, count);
            s2_store_word(byte, larger | equal);
            count -= s2_popcount(equal);
        }
    }
    return count;
}

/* False where that is not the threshold. */
static bool select_by_threshold(struct selection *s, int32_t threshold)
{
    s->threshold = threshold;
    s->nabove = s2_select_above_bits(s->scores, s->n, threshold, s->bitmap, s->executor);
    return s->nabove < s->keep && add_ties(s, s->keep - s->nabove) == 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* By digits                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

struct histogram {
    const float *scores;
    int nbits;      /* bits of magnitudes that are not known yet */
    int shift;      /* of the digit */
    int32_t prefix; /* the bits that are known */
    int64_t counts[NDIGITS];
};

static void count_digits(void *arg, int64_t begin, int64_t end)
{
    struct histogram *h = arg;
    const int nbits = h->nbits, shift = h->shift;
    const int32_t prefix = h->prefix, mask = (1 << (nbits - shift)) - 1;
    int64_t counts[NDIGITS] = {0};

    for (int64_t i = begin; i < end; i++) {
        const int32_t magnitude = s2_magnitude(h->scores[i]);
        counts[magnitude >> shift & mask] += (int64_t)magnitude >> nbits == prefix;
    }
    for (int64_t digit = 0; digit <= mask; digit++) {
        if (counts[digit] != 0)
            __atomic_fetch_add(&h->counts[digit], counts[digit], __ATOMIC_RELAXED);
    }
}

static int32_t find_threshold(const struct selection *s)
{
    struct histogram h = {.scores = s->scores, .nbits = 31, .prefix = 0};
    int64_t keep = s->keep;

    while (h.nbits > 0) {
        h.shift = h.nbits > 20 ? 20 : h.nbits - 10;
        memset(h.counts, 0, sizeof(h.counts));
        s2_run(s->executor, s->n, s2_grain(4), count_digits, &h);
        const int32_t digit = (int32_t)digit_of(h.counts, &keep);
        h.prefix = h.prefix << (h.nbits - h.shift) | digit;
        h.nbits = h.shift;
    }
    return h.prefix;
}

/* ---------------------------------------------------------------------------------------------- */
/* All of it                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

s2_status s2_select_top(const float *scores, int64_t n, int64_t keep, uint8_t *bitmap,
                        int64_t nbytes, float *threshold, void *scratch, int64_t scratch_nbytes,
                        const s2_executor *executor)
{
    int64_t wanted;

    S2_RETURN_IF_ERROR(s2_select_scratch_nbytes(n, &wanted));
    S2_RETURN_IF_ERROR(s2_select_check_bitmap(n, bitmap, nbytes));
    if (keep < 0 || keep > n || scratch_nbytes != wanted) return S2_BAD_SIZE;
    if (s2_is_null(scores, n) || s2_is_null(scratch, wanted) || threshold == NULL)
        return S2_NULL_POINTER;

    struct selection s = {.kernels = s2_kernels_current(),
                          .scores = scores,
                          .n = n,
                          .keep = keep,
                          .bitmap = bitmap,
                          .keys = scratch,
                          .capacity = capacity(n),
                          .executor = executor,
                          .threshold = LARGEST};
    if (keep == 0) {
        if (nbytes != 0) memset(bitmap, 0, (size_t)nbytes);
    } else {
        find_bracket(&s);
        bool done = s.low < s.high && select_in_bracket(&s);
        done = done || select_by_threshold(&s, s.high) || select_by_threshold(&s, s.low);
        if (!done) select_by_threshold(&s, find_threshold(&s));
    }
    *threshold = s2_float_from_bits((uint32_t)s.threshold);
    return S2_OK;
}
