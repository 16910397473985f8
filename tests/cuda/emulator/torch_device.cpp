/* SPDX-License-Identifier: MIT */
/*
 * The emulated device as torch's, for the operators of csrc/torch/cuda.
 *
 * Tensors of the device are CPU tensors in the arrays of device.h, and segments lie in an array of
 * the host.  While an operator holds its guard, only kernels and torch's own operators can touch
 * the former, and all but kernels the latter.
 */
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

extern "C" {
#include "device.h"
}

namespace {

case_layout host = {}; /* of which only the memory means anything */
bool in_operator = false;

} // namespace

extern "C" {

void emulated_begin(void)
{
    test_begin("operators");
    device_new();
    host.memory = guarded_new(DEVICE_NBYTES);
}

/* The array of the host, with the contents of `source`. */
void *emulated_host_array(const void *source, int64_t nbytes)
{
    return guarded_copy(&host.memory, source, nbytes, {1, 0});
}

/* ------------------------------------- What torch would do ------------------------------------ */

AOTITorchError aoti_torch_create_cuda_guard(int32_t, CUDAGuardHandle *guard)
{
    CHECK(!in_operator);
    in_operator = true;
    device_call_begin(&host);
    *guard = reinterpret_cast<CUDAGuardHandle>(&host);
    return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_delete_cuda_guard(CUDAGuardHandle)
{
    device_call_end();
    device_check();
    in_operator = false;
    return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void **stream)
{
    CHECK(in_operator);
    *stream = device_stream;
    return AOTI_TORCH_SUCCESS;
}

/* The linker puts the one in place of the other: --wrap. */
AOTITorchError __real_torch_call_dispatcher(const char *, const char *, StableIValue *, uint64_t);
AOTITorchError __wrap_torch_call_dispatcher(const char *name, const char *overload,
                                            StableIValue *stack, uint64_t version)
{
    CHECK(in_operator);
    device_call_end();
    const AOTITorchError error = __real_torch_call_dispatcher(name, overload, stack, version);
    device_call_begin(&host);
    return error;
}

} // extern "C"
