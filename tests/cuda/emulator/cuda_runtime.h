/* SPDX-License-Identifier: MIT */
/*
 * cuda_runtime.h - as much of CUDA as the files in csrc/cuda use, on the CPU: found in place of the
 * real one, it lets a C++ compiler take the same .cu files, and runs what they launch.
 *
 * The thread blocks of a launch run one after the other, in random order.  Each thread of a block
 * is a fiber; which one goes on next, wherever one waits for others, is drawn at random.  A launch
 * is over when S2_LAUNCH() returns.  The random numbers are those of tests/c/test_util.h, so that
 * the seed which a test prints repeats all of it.  Memory of the device is out of the launchers'
 * reach, and that of the host out of the kernels': see device.h.
 *
 * These end the program with a message:
 *
 *   - a barrier or an operation of a warp that not all threads reach that it waits for: some have
 *     returned, wait at another line or, in a warp, came with another mask
 *   - a lane that is not in its own mask, or reads from one that is not
 *   - a launch on another stream than the caller's
 *   - under AddressSanitizer, any access outside of a shared array or of the caller's memory
 *   - with RACES=1, any two threads that access the same byte, not both of them to read it nor both
 *     by an atomic operation, without a barrier in between: see races.cpp
 *
 * Shared memory begins as random bytes, for every block anew, so that who reads it first gets wrong
 * results.
 *
 * What it does not show: how fast anything is; races among lanes that the hardware runs in lockstep
 * or not, but for those that RACES=1 finds; the memory model, since here every write is seen at
 * once by everybody; two launches that overlap, on one stream or two; what nvcc makes of the code,
 * such as a product and a sum that it fuses; the limits of a device on registers, shared memory and
 * grids; NaNs, whose payload is another on a device.
 */
#ifndef S2_EMULATED_CUDA_RUNTIME_H
#define S2_EMULATED_CUDA_RUNTIME_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

/* ------------------------------------------ Language ------------------------------------------ */

#define __global__
#define __device__
#define __host__

/* The two constructs that have no spelling in C++: see launch.h. */
#define S2_LAUNCH(kernel, grid, block, stream, ...)                                                \
    emulator::run(#kernel, grid, block, stream, [=]() { kernel(__VA_ARGS__); })
#define S2_SHARED(type, name, count)                                                               \
    static const char name##_key = 0;                                                              \
    type *const name = static_cast<type *>(emulator::shared(&name##_key, sizeof(type) * (count)))

/* Few, so that loops over what is beyond the grid have something to do. */
#define S2_MAX_GRID (emulator::max_grid())

struct CUstream_st;

namespace emulator {

struct index {
    unsigned x;
};

/* Of the thread that runs now. */
struct position {
    index thread, block, threads, blocks;
};
extern position now;

/* Where in the source a thread waits. */
struct place {
    const char *file;
    int line;
};

void run(const char *kernel, int64_t grid, int64_t block, CUstream_st *stream,
         const std::function<void()> &body);
void set(void *memory, int byte, size_t nbytes, CUstream_st *stream);
void copy(void *to, const void *from, size_t nbytes, CUstream_st *stream);
unsigned max_grid();
void *shared(const void *key, size_t nbytes);
void barrier(place at);

/* Waits for the lanes of `mask`; what each of the 32 came with, until the thread waits again. */
const uint64_t *exchange(uint32_t mask, uint64_t operand, place at);

/* The value of another lane. */
uint64_t value_of(uint32_t mask, const uint64_t *values, int lane);

/* Tells races.cpp, if it is there. */
extern void (*on_atomic)(const void *address, size_t nbytes);

} // namespace emulator

#define threadIdx (emulator::now.thread)
#define blockIdx  (emulator::now.block)
#define blockDim  (emulator::now.threads)
#define gridDim   (emulator::now.blocks)

/* -------------------------------------- Barriers and warps ------------------------------------ */

#define EMULATOR_HERE (emulator::place{__FILE__, __LINE__})

#define __syncthreads()                    emulator::barrier(EMULATOR_HERE)
#define __ballot_sync(mask, predicate)     emulator::ballot(mask, predicate, EMULATOR_HERE)
#define __shfl_up_sync(mask, value, delta) emulator::shuffle_up(mask, value, delta, EMULATOR_HERE)
#define __shfl_xor_sync(mask, value, bits) emulator::shuffle_xor(mask, value, bits, EMULATOR_HERE)
#define __shfl_sync(mask, value, lane)     emulator::shuffle(mask, value, lane, EMULATOR_HERE)
#define __match_any_sync(mask, value)      emulator::match_any(mask, value, EMULATOR_HERE)

namespace emulator {

inline int lane() { return static_cast<int>(now.thread.x % 32); }

inline uint32_t ballot(uint32_t mask, bool predicate, place at)
{
    const uint64_t *votes = exchange(mask, predicate, at);
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++)
        bits |= static_cast<uint32_t>((mask >> i & 1) & votes[i]) << i;
    return bits;
}

inline uint32_t match_any(uint32_t mask, uint32_t value, place at)
{
    const uint64_t *values = exchange(mask, value, at);
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++)
        bits |= ((mask >> i & 1) & static_cast<uint32_t>(values[i] == value)) << i;
    return bits;
}

template <typename T> T shuffle(uint32_t mask, T value, int source, place at)
{
    uint64_t bits = 0;
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "as on a device");
    std::memcpy(&bits, &value, sizeof(T));
    const uint64_t *values = exchange(mask, bits, at);
    bits = value_of(mask, values, source % 32);
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

template <typename T> T shuffle_up(uint32_t mask, T value, int delta, place at)
{
    return shuffle(mask, value, lane() < delta ? lane() : lane() - delta, at);
}

template <typename T> T shuffle_xor(uint32_t mask, T value, int bits, place at)
{
    return shuffle(mask, value, lane() ^ bits, at);
}

/* ------------------------------------------- Atomics ------------------------------------------ */

/* With RACES=1 the accesses in here are not seen, but for the call that tells of them. */
template <typename T, typename Change>
__attribute__((no_sanitize_thread)) T atomic(T *address, Change change)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "as on a device");
    if (on_atomic) on_atomic(address, sizeof(T));
    const T old = *address;
    *address = change(old);
    return old;
}

} // namespace emulator

#define EMULATOR_ATOMIC(name, type, result)                                                        \
    __attribute__((no_sanitize_thread)) inline type name(type *address, type value)                \
    {                                                                                              \
        return emulator::atomic(address, [=](type old) -> type { return result; });                \
    }

EMULATOR_ATOMIC(atomicAdd, unsigned, old + value)
EMULATOR_ATOMIC(atomicSub, unsigned, old - value)
EMULATOR_ATOMIC(atomicOr, unsigned, old | value)
EMULATOR_ATOMIC(atomicAnd, int, old &value)
EMULATOR_ATOMIC(atomicAdd, unsigned long long, old + value)
EMULATOR_ATOMIC(atomicOr, unsigned long long, old | value)
EMULATOR_ATOMIC(atomicMax, unsigned long long, old > value ? old : value)

/* ------------------------------------------ Functions ----------------------------------------- */

inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline int __popcll(unsigned long long word) { return __builtin_popcountll(word); }
inline int __ffsll(long long word) { return __builtin_ffsll(word); }

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    __extension__ typedef unsigned __int128 wide;
    return static_cast<unsigned long long>(static_cast<wide>(a) * b >> 64);
}

/* ------------------------------------------- Runtime ------------------------------------------ */

typedef CUstream_st *cudaStream_t;
typedef enum cudaError { cudaSuccess = 0, cudaErrorLaunchFailure = 719 } cudaError_t;
typedef enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3 } cudaMemcpyKind;

extern "C" cudaError_t cudaGetLastError();

inline cudaError_t cudaMemsetAsync(void *memory, int byte, size_t nbytes, cudaStream_t stream)
{
    emulator::set(memory, byte, nbytes, stream);
    return cudaSuccess;
}

inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t nbytes, cudaMemcpyKind,
                                   cudaStream_t stream)
{
    emulator::copy(to, from, nbytes, stream);
    return cudaSuccess;
}

struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};

#endif /* S2_EMULATED_CUDA_RUNTIME_H */
