/* SPDX-License-Identifier: MIT */
/* The device that tests/cuda/emulator runs kernels of. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "device.h"

#include <sys/mman.h>

s2_cuda_stream device_stream = (s2_cuda_stream)(uintptr_t)0x57a3a;

static const case_layout *host_layout; /* of the call that runs, or NULL */
static int in_call, has_error;

void device_open(void) {}
void device_close(void) {}
guarded device_memory_new(int64_t nbytes) { return guarded_new(nbytes); }
void device_memory_delete(guarded *memory) { guarded_delete(memory); }

/* --------------------------------------- Who may touch it ------------------------------------- */

static void protect(const guarded *memory, int may_touch)
{
    int how = may_touch ? PROT_READ | PROT_WRITE : PROT_NONE;
    CHECK(mprotect(memory->pages, (size_t)memory->capacity, how) == 0);
}

static void allow(int kernels)
{
    for (int i = 0; i < DEVICE_ARRAYS; i++) {
        if (device_array_is_used[i]) protect(&device_arrays[i], kernels);
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
