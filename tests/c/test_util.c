/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "test_util.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------ Checks -------------------------------------------- */

static char current_case[256] = "none";
static const char *current_program = "";
static uint64_t seed;
static uint64_t random_state;
static struct sigaction fault_before;

static void print_case(void)
{
    const char *variant = s2_variant_name(s2_variant_current());
    fprintf(stderr, "  case: %s\n  variant: %s\n", current_case, variant ? variant : "?");
    fprintf(stderr, "  again with: S2_TEST_SEED=%" PRIu64 " %s\n", seed, current_program);
}

void check_failed(const char *file, int line, const char *expression)
{
    fprintf(stderr, "%s:%d: CHECK(%s) failed\n", file, line, expression);
    print_case();
    exit(1);
}

/*
 * An unmapped page was touched.  The program ends here, so it may as well print; then the fault
 * happens again, and ends it or is reported by a sanitizer.
 */
static void fault(int number)
{
    fprintf(stderr, "%s: read or wrote outside of a buffer\n", current_program);
    print_case();
    sigaction(number, &fault_before, NULL);
}

void test_begin(const char *program)
{
    const char *wanted = getenv("S2_TEST_SEED");
    seed = wanted ? strtoull(wanted, NULL, 0) : (uint64_t)time(NULL) * 1000003 + (uint64_t)getpid();
    random_state = seed;
    current_program = program;
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = fault;
    CHECK(sigaction(SIGSEGV, &action, &fault_before) == 0);
    printf("%s: S2_TEST_SEED=%" PRIu64 ", variants", program, seed);
    for (int v = 0; variant_use(v); v++)
        printf(" %s", s2_variant_name(s2_variant_current()));
    printf("\n");
    fflush(stdout);
}

int test_end(void)
{
    printf("%s: passed\n", current_program);
    return 0;
}

void test_case(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(current_case, sizeof(current_case), format, arguments);
    va_end(arguments);
}

void test_note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

/* ------------------------------------------ Random -------------------------------------------- */

/* splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
uint64_t random_bits(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t random_below(int64_t end) { return (int64_t)(random_bits() % (uint64_t)end); }

int random_chance(int percent) { return random_below(100) < percent; }

/* ------------------------------------------ Memory -------------------------------------------- */

/* Bytes on each side of a buffer that are known and checked. */
enum { MARGIN = 256 };

static const uint8_t margin_byte = 0xa5;

void *test_malloc(int64_t nbytes)
{
    void *memory = malloc(nbytes > 0 ? (size_t)nbytes : 1);
    CHECK(memory != NULL);
    return memory;
}

guarded guarded_new(int64_t capacity)
{
    int64_t page = sysconf(_SC_PAGESIZE);
    int64_t inner = (capacity + MARGIN + page - 1) / page * page;
    uint8_t *outer =
        mmap(NULL, (size_t)(inner + 2 * page), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(outer != MAP_FAILED);
    CHECK(mprotect(outer + page, (size_t)inner, PROT_READ | PROT_WRITE) == 0);
    guarded memory = {outer + page, inner, outer + page, 0};
    guarded_place(&memory, 0, (placement){0, 0});
    return memory;
}

void guarded_delete(guarded *memory)
{
    int64_t page = sysconf(_SC_PAGESIZE);
    munmap(memory->pages - page, (size_t)(memory->capacity + 2 * page));
    memory->pages = NULL;
}

/* The margins of the buffer: up to MARGIN bytes before it and behind it. */
static void guarded_margins(const guarded *memory, uint8_t **before, uint8_t **behind)
{
    uint8_t *end = memory->pages + memory->capacity;
    uint8_t *data_end = memory->data + memory->nbytes;
    *before = memory->data - memory->pages > MARGIN ? memory->data - MARGIN : memory->pages;
    *behind = end - data_end > MARGIN ? data_end + MARGIN : end;
}

void *guarded_place(guarded *memory, int64_t nbytes, placement where)
{
    CHECK(nbytes >= 0 && nbytes + where.distance <= memory->capacity);
    memory->nbytes = nbytes;
    memory->data = where.at_back ? memory->pages + memory->capacity - where.distance - nbytes
                                 : memory->pages + where.distance;
    uint8_t *before, *behind;
    guarded_margins(memory, &before, &behind);
    memset(before, margin_byte, (size_t)(behind - before));
    memset(memory->data, 0x5c, (size_t)nbytes);
    return memory->data;
}

void *guarded_copy(guarded *memory, const void *source, int64_t nbytes, placement where)
{
    guarded_place(memory, nbytes, where);
    if (nbytes > 0) memcpy(memory->data, source, (size_t)nbytes);
    return memory->data;
}

void guarded_check(const guarded *memory)
{
    uint8_t *before, *behind;
    guarded_margins(memory, &before, &behind);
    for (const uint8_t *p = before; p < memory->data; p++)
        CHECK(*p == margin_byte);
    for (const uint8_t *p = memory->data + memory->nbytes; p < behind; p++)
        CHECK(*p == margin_byte);
}

placement placement_random(int64_t unit)
{
    placement where = {random_chance(50), 0};
    if (random_chance(60)) where.distance = unit * random_below(64 / unit);
    return where;
}

/* ---------------------------------------- Executors ------------------------------------------- */

static void run_backwards(void *self, int64_t begin, int64_t end, int64_t grain, s2_range_body body,
                          void *body_arg)
{
    (void)self, (void)grain;
    while (end > begin) {
        int64_t middle = end - 1 - random_below(end - begin);
        body(body_arg, middle, end);
        end = middle;
    }
}

const s2_executor executor_backwards = {run_backwards, NULL};

/* ----------------------------------------- Variants ------------------------------------------- */

int variant_use(int v)
{
    s2_variant best = s2_variant_best();
    int exists = v <= (int)best;
    CHECK(s2_variant_force(exists ? (s2_variant)v : best) == S2_OK);
    return exists;
}
