/* SPDX-License-Identifier: MIT */
/*
 * A real device.  Its arrays are managed memory, which the tests fill and read where the kernels
 * have it.  Each ends or begins now and then where its allocation does, so that compute-sanitizer
 * sees what leaves it; what is written beside it is found by device_check() as well.
 */
#include "device.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

s2_cuda_stream device_stream;

/* An error of the runtime is one of the device as well: what a kernel did comes out later. */
static void check_runtime(cudaError_t error, const char *call)
{
    if (error == cudaSuccess) return;
    test_note("%s: %s", call, cudaGetErrorString(error));
    CHECK(!"the runtime has no error");
}

#define RUNTIME(call) check_runtime(call, #call)

void device_open(void)
{
    int ndevices = 0;
    const cudaError_t error = cudaGetDeviceCount(&ndevices);
    if (error != cudaSuccess || ndevices == 0) {
        fprintf(stderr, "This test needs a CUDA device, and there is none here: %s.\n",
                error == cudaSuccess ? "none is visible" : cudaGetErrorString(error));
        exit(DEVICE_IS_MISSING);
    }
    /* Not the default stream, nor one that waits for it: what is on that by mistake is too late. */
    RUNTIME(cudaStreamCreateWithFlags(&device_stream, cudaStreamNonBlocking));
}

void device_close(void) { RUNTIME(cudaStreamDestroy(device_stream)); }

guarded device_memory_new(int64_t nbytes)
{
    const int64_t capacity = nbytes + 4096; /* and what surrounds an array */
    void *memory = NULL;
    RUNTIME(cudaMallocManaged(&memory, (size_t)capacity, cudaMemAttachGlobal));
    guarded made = {memory, capacity, memory, 0};
    guarded_place(&made, 0, (placement){0, 0});
    return made;
}

void device_memory_delete(guarded *memory) { RUNTIME(cudaFree(memory->pages)); }

void device_call_begin(const case_layout *layout) { (void)layout; }

void device_call_end(void) { RUNTIME(cudaStreamSynchronize(device_stream)); }

/* A device of this number is none; who asks for it next is told as well. */
void device_set_error(void) { CHECK(cudaSetDevice(-1) != cudaSuccess); }
