/* SPDX-License-Identifier: MIT */
/*
 * device.h - arrays of a device, and calls of s2_cuda.h.
 *
 * The device is the emulated one, whose memory only kernels can touch, or a real one: which of them
 * depends on what a test is linked with, device_emulated.c or device_real.c.
 */
#ifndef S2_DEVICE_H
#define S2_DEVICE_H

#include "cases.h"
#include "cuda/s2_cuda.h"
#include "test_util.h"

/* RACES is 1 where races are looked for, else 0: among nonsense two threads may well write to one
 * place, so that this is left out there. */
enum { NONSENSE = !RACES };

/* The stream that all work must be enqueued on. */
extern s2_cuda_stream device_stream;

/* How many arguments of a call lie on the device, and bytes of the largest. */
enum { DEVICE_ARRAYS = 16, DEVICE_NBYTES = 1 << 22 };

/* An array of the device, with the contents of `source`, or bytes without meaning if that is NULL.
 * Its address is a multiple of `unit`.  `array` is a number below DEVICE_ARRAYS. */
void *device_array(int array, const void *source, int64_t nbytes, int64_t unit);

/* The layout, with its segments in array 0. */
s2_cuda_layout device_layout(const case_layout *c);

/* A layout of more segments than a thread block has threads, empty ones and gaps among them. */
enum { MANY_SEGMENTS = 600 };
case_layout many_segments_new(void);

/* Ends the program with DEVICE_IS_MISSING, and a sentence, where there is no device. */
enum { DEVICE_IS_MISSING = 77 };
void device_new(void);
void device_delete(void);

/* Fails where memory around an array has changed. */
void device_check(void);

/*
 * Calls a function of s2_cuda.h, whose last argument is device_stream, and waits for the device.
 * Until the call returns, arrays of the emulated device can be touched by kernels alone, and
 * `layout` by the host alone: here they share their addresses, and without that neither mistake
 * would show.
 */
#define ON_DEVICE(layout, call)                                                                    \
    do {                                                                                           \
        device_call_begin(layout);                                                                 \
        s2_status status_ = (call);                                                                \
        device_call_end();                                                                         \
        CHECK(status_ == S2_OK);                                                                   \
        device_check();                                                                            \
    } while (0)

/* The runtime has an error, which cudaGetLastError() says once. */
void device_set_error(void);

/* --------------------------------- Of each device, for device.c ------------------------------- */

void device_open(void);
void device_close(void);
guarded device_memory_new(int64_t nbytes);
void device_memory_delete(guarded *memory);
void device_call_begin(const case_layout *layout);
void device_call_end(void);

extern guarded device_arrays[DEVICE_ARRAYS];
extern int device_array_is_used[DEVICE_ARRAYS];

/* ------------------------------------ For the emulator alone ---------------------------------- */

void device_work_begin(s2_cuda_stream stream);
void device_work_end(void);
int device_take_error(void);

#endif /* S2_DEVICE_H */
