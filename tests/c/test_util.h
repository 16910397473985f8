/* SPDX-License-Identifier: MIT */
/*
 * test_util.h - what all test programs share: checks that say where and with which seed, random
 * numbers, memory between unmapped pages, and the loop over the variants of this machine.
 */
#ifndef S2_TEST_UTIL_H
#define S2_TEST_UTIL_H

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "s2.h"

/* ------------------------------------------ Checks -------------------------------------------- */

/* Ends the program with the place, the case of test_case() and the seed, unless `condition`. */
#define CHECK(condition) ((condition) ? (void)0 : check_failed(__FILE__, __LINE__, #condition))

void check_failed(const char *file, int line, const char *expression);

/* Every main() begins with the first and ends with the second, whose result it returns. */
void test_begin(const char *program);
int test_end(void);

/* Says which case runs now, for the message of a check that fails; and adds to that message. */
void test_case(const char *format, ...);
void test_note(const char *format, ...);

/* ------------------------------------------ Random -------------------------------------------- */

/* The seed is the environment variable S2_TEST_SEED, or the time of day. */
uint64_t random_bits(void);
int64_t random_below(int64_t end); /* in [0, end); `end` is above zero */
int random_chance(int percent);

/* ------------------------------------------ Memory -------------------------------------------- */

/* malloc() that never fails, and takes a size of zero. */
void *test_malloc(int64_t nbytes);

/*
 * Memory with an unmapped page before its first byte and one behind its last, so that a read or a
 * write outside is a fault.  A buffer within it is surrounded by known bytes where it does not
 * touch the unmapped page itself.
 */
typedef struct guarded {
    uint8_t *pages;
    int64_t capacity;
    uint8_t *data; /* of the buffer that was placed last */
    int64_t nbytes;
} guarded;

/* Where a buffer lies: so many bytes behind the first unmapped page, or before the last one. */
typedef struct placement {
    int at_back;
    int64_t distance;
} placement;

guarded guarded_new(int64_t capacity);
void guarded_delete(guarded *memory);

/* Places a buffer, fills it with bytes that mean nothing, and returns its address. */
void *guarded_place(guarded *memory, int64_t nbytes, placement where);

/* The same, with the contents of `source`. */
void *guarded_copy(guarded *memory, const void *source, int64_t nbytes, placement where);

/* Fails when a byte around the buffer has changed. */
void guarded_check(const guarded *memory);

/* A random place whose distance is a multiple of `unit`; often right at an unmapped page. */
placement placement_random(int64_t unit);

/* ---------------------------------------- Executors ------------------------------------------- */

/* Hands out ranges of random lengths, the last one first. */
extern const s2_executor executor_backwards;

/* ----------------------------------------- Variants ------------------------------------------- */

/*
 * for (int v = 0; variant_use(v); v++) { ... } runs its body once under each variant that this
 * machine can run, and leaves the best one behind.
 */
int variant_use(int v);

/* Elements of an array whose size is known here. */
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

#endif /* S2_TEST_UTIL_H */
