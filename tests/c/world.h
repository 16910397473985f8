/* SPDX-License-Identifier: MIT */
/*
 * world.h - one good call of each function, for tests that spoil one argument of it.
 */
#ifndef S2_WORLD_H
#define S2_WORLD_H

#include "s2.h"
#include "test_util.h"

/*
 * The arrays that the calls work on.
 *
 *   elements    10, in segments of 6 (blocks of 2) and 4 (blocks of 3)
 *   bits        0 1 2 of the first, 64 65 of the second
 *   positions   1 2 65: 2 + 2 + 3 elements when packed
 *   list        those, of 128 bits: 15 low bits and 6 others, so 16 bytes
 *   bitmaps     of two ranks: rank 0 touched 1 and 65, rank 1 touched 2 and 65
 *   owners      rank 0 of 1 and 65, rank 1 of 2; the exchanges and lists are those of rank 0
 */
typedef struct world {
    s2_segment segments[2];
    s2_layout layout;
    float values[10];
    double wide[10];
    uint8_t bitmap[16];
    uint8_t other[16];
    int64_t counts[2];
    int64_t positions[3];
    float packed[7];
    uint16_t halves[10];
    int64_t negative_zeros;
    int64_t numel;
    uint8_t list[16];
    uint8_t bitmaps[2 * 16];
    int16_t owners[4]; /* three, and no padding */
    s2_exchange exchanges[2];
    int64_t sent[2];
    int64_t received[3];
    int64_t owned[3];
    s2_segment compact[2];
} world;

extern world w, w_before;
extern const char *spoilt; /* what is wrong, where the call does not show it */

/* Makes all as it should be. */
void world_reset(void);

/* Fails unless the call returns the status and leaves the world as it was. */
#define REFUSES(status, call)                                                                      \
    do {                                                                                           \
        test_case("%s (%s)", #call, spoilt);                                                       \
        w_before = w;                                                                              \
        s2_status got_ = (call);                                                                   \
        if (got_ != (status))                                                                      \
            test_note("got status %d, \"%s\"", (int)got_, s2_status_string(got_));                 \
        CHECK(got_ == (status));                                                                   \
        CHECK(memcmp(&w_before, &w, sizeof(w)) == 0);                                              \
    } while (0)

#define ACCEPTS(call)                                                                              \
    do {                                                                                           \
        test_case("%s", #call);                                                                    \
        CHECK((call) == S2_OK);                                                                    \
    } while (0)

/* All functions that take a layout; `nbytes` is the bitmap's, 16 when it is good. */
typedef s2_status (*layout_call)(const s2_layout *layout, int64_t nbytes);
enum { NLAYOUT_CALLS = 11 };
extern const layout_call layout_calls[NLAYOUT_CALLS];

/* All functions that take positions; `numel` is that of the packed array, 7 when it is good. */
typedef s2_status (*blocks_call)(const int64_t *positions, int64_t npositions, int64_t numel);
enum { NBLOCKS_CALLS = 4 };
extern const blocks_call blocks_calls[NBLOCKS_CALLS];

/* All functions of the owner plan; 2 ranks, 16 bytes and 3 positions when it is good. */
typedef s2_status (*plan_call)(int64_t nranks, int64_t nbytes, const int64_t *positions,
                               int64_t nunion);
enum { NPLAN_CALLS = 3 };
extern const plan_call plan_calls[NPLAN_CALLS];

s2_status call_from_nonzero(const s2_layout *layout, int64_t nbytes);
s2_status call_count(const s2_layout *layout, int64_t nbytes);
s2_status call_clear_dead(const s2_layout *layout, int64_t nbytes);
s2_status plan_owners(int64_t nranks, int64_t nbytes, const int64_t *positions, int64_t nunion);
s2_status plan_exchanges(int64_t nranks, int64_t nbytes, const int64_t *positions, int64_t nunion);
s2_status positions_packed_numel(const int64_t *positions, int64_t npositions, int64_t numel);

#endif /* S2_WORLD_H */
