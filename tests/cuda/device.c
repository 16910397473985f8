/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "device.h"

#include <sys/mman.h>

s2_cuda_stream const device_stream = (s2_cuda_stream)(uintptr_t)0x57a3a;

static guarded arrays[DEVICE_ARRAYS];
static int is_used[DEVICE_ARRAYS];
static const case_layout *host_layout; /* of the call that runs, or NULL */
static int in_call, has_error;

/* ------------------------------------------- Arrays ------------------------------------------- */

void device_new(void)
{
    for (int i = 0; i < DEVICE_ARRAYS; i++)
        arrays[i] = guarded_new(DEVICE_NBYTES);
}

void device_delete(void)
{
    for (int i = 0; i < DEVICE_ARRAYS; i++)
        guarded_delete(&arrays[i]);
}

void *device_array(int array, const void *source, int64_t nbytes, int64_t unit)
{
    placement where = {random_chance(50), random_chance(60) ? unit * random_below(4) : 0};
    if (where.at_back) where.distance += (unit - nbytes % unit) % unit;
    CHECK(array < DEVICE_ARRAYS);
    is_used[array] = 1;
    return source == NULL ? guarded_place(&arrays[array], nbytes, where)
                          : guarded_copy(&arrays[array], source, nbytes, where);
}

s2_cuda_layout device_layout(const case_layout *c)
{
    int64_t nbytes = c->layout.nsegments * (int64_t)sizeof(s2_segment);
    return (s2_cuda_layout){&c->layout, device_array(0, c->layout.segments, nbytes, 8)};
}

case_layout many_segments_new(void)
{
    case_layout c;
    memset(&c, 0, sizeof(c));
    c.memory = guarded_new(MANY_SEGMENTS * (int64_t)sizeof(s2_segment));
    s2_segment *segments =
        guarded_place(&c.memory, MANY_SEGMENTS * (int64_t)sizeof(s2_segment), (placement){1, 0});
    int64_t offset = 0, bit = 0;
    for (int s = 0; s < MANY_SEGMENTS; s++) {
        int64_t block = 1 + random_below(5), numel = random_below(20) * random_below(2);
        offset += random_below(3);
        bit += 64 * (random_below(4) == 0);
        segments[s] = (s2_segment){offset, numel, block, bit};
        offset += numel;
        bit = (bit + (numel + block - 1) / block + 63) / 64 * 64;
        c.nblocks += (numel + block - 1) / block;
    }
    c.layout = (s2_layout){segments, MANY_SEGMENTS, offset};
    CHECK(s2_layout_bitmap_nbytes(&c.layout, &c.bitmap_nbytes) == S2_OK);
    return c;
}

void device_check(void)
{
    for (int i = 0; i < DEVICE_ARRAYS; i++)
        guarded_check(&arrays[i]);
}

/* --------------------------------------- Who may touch it ------------------------------------- */

static void protect(const guarded *memory, int may_touch)
{
    int how = may_touch ? PROT_READ | PROT_WRITE : PROT_NONE;
    CHECK(mprotect(memory->pages, (size_t)memory->capacity, how) == 0);
}

static void allow(int kernels)
{
    for (int i = 0; i < DEVICE_ARRAYS; i++) {
        if (is_used[i]) protect(&arrays[i], kernels);
    }
    if (host_layout != NULL) protect(&host_layout->memory, !kernels);
}

void device_call_begin(const case_layout *layout)
{
    host_layout = layout;
    in_call = 1;
    allow(0);
}

void device_call_end(void)
{
    allow(1);
    if (host_layout != NULL) protect(&host_layout->memory, 1);
    host_layout = NULL;
    in_call = 0;
}

void device_work_begin(s2_cuda_stream stream)
{
    CHECK(stream == device_stream);
    if (in_call) allow(1);
}

void device_work_end(void)
{
    if (in_call) allow(0);
}

/* ------------------------------------------- Errors ------------------------------------------- */

void device_set_error(void) { has_error = 1; }

int device_take_error(void)
{
    int had = has_error;
    has_error = 0;
    return had;
}
