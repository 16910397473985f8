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
enum { NLAYOUT_CALLS = 8 };
extern const layout_call layout_calls[NLAYOUT_CALLS];

/* All functions that take positions; `numel` is that of the packed array, 7 when it is good. */
typedef s2_status (*blocks_call)(const int64_t *positions, int64_t npositions, int64_t numel);
enum { NBLOCKS_CALLS = 4 };
extern const blocks_call blocks_calls[NBLOCKS_CALLS];

s2_status call_from_nonzero(const s2_layout *layout, int64_t nbytes);
s2_status call_count(const s2_layout *layout, int64_t nbytes);
s2_status call_clear_dead(const s2_layout *layout, int64_t nbytes);
s2_status positions_packed_numel(const int64_t *positions, int64_t npositions, int64_t numel);

#endif /* S2_WORLD_H */
