/* SPDX-License-Identifier: MIT */
/*
 * Finds races of kernels on the CPU.  The .cu files are compiled with -fsanitize=thread, which puts
 * a call before every access to memory, and are linked with the functions below in place of
 * ThreadSanitizer's, which knows nothing of fibers and barriers.
 *
 * Two accesses to one byte race if they are of one launch and of two threads, unless both read, or
 * both are atomic, or a barrier of the thread block stands between them.  An operation of a warp is
 * no barrier: CUDA promises nothing of memory for a ballot or a shuffle.
 *
 * Of the past of a byte no more is kept than its last write and its last two readers, of which one
 * at least is not the thread that writes next.  What is forgotten for that may hide a race, never
 * show one that is not there.
 */
#include "cuda_runtime.h"

#include <unordered_map>

#include "emulator.h"

extern "C" {
#include "test_util.h"
}

namespace {

using emulator::clocks;

enum kind { READ, WRITE, ATOMIC };

struct access {
    uint64_t launch, block, barrier;
    unsigned thread;
    enum kind kind;
};

struct history {
    access write, readers[2];
};

constexpr uintptr_t PAGE = 4096;
struct page {
    history bytes[PAGE];
};

std::unordered_map<uintptr_t, page> pages;

bool is_ordered(const access &before, const access &after)
{
    if (before.launch != after.launch) return true; /* or there was none */
    if (before.block != after.block) return false;
    return before.thread == after.thread || before.barrier < after.barrier;
}

void check(const access &before, const access &after, uintptr_t address)
{
    static const char *const names[] = {"read", "written", "changed by an atomic operation"};
    if (is_ordered(before, after)) return;
    if (before.kind == ATOMIC && after.kind == ATOMIC) return;
    test_note("a race: %s by thread %u, and then %s by thread %u of %s block, at %#lx",
              names[before.kind], before.thread, names[after.kind], after.thread,
              before.block == after.block ? "the same" : "another",
              static_cast<unsigned long>(address));
    CHECK(!"a race");
}

void remember_reader(history &byte, const access &reader)
{
    for (access &known : byte.readers) {
        if (is_ordered(known, reader)) {
            known = reader;
            return;
        }
    }
}

void note(const void *memory, size_t nbytes, enum kind kind)
{
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
    if (!clocks.in_kernel || (begin >= clocks.stacks_begin && begin < clocks.stacks_end)) return;
    const access after = {clocks.launch, clocks.block, clocks.barrier, emulator::now.thread.x,
                          kind};
    for (uintptr_t at = begin; at < begin + nbytes; at++) {
        history &byte = pages[at / PAGE].bytes[at % PAGE];
        check(byte.write, after, at);
        if (kind == READ) {
            remember_reader(byte, after);
        } else {
            for (const access &reader : byte.readers)
                check(reader, after, at);
            byte.write = after;
        }
    }
}

void note_atomic(const void *address, size_t nbytes) { note(address, nbytes, ATOMIC); }

/* A shared array: whatever was at the address before it is over. */
void forget(const void *address, size_t nbytes)
{
    const uintptr_t begin = reinterpret_cast<uintptr_t>(address);
    for (uintptr_t at = begin; at < begin + nbytes; at++)
        pages[at / PAGE].bytes[at % PAGE] = history{};
}

const bool installed = [] {
    emulator::on_atomic = note_atomic;
    clocks.on_new_memory = forget;
    return true;
}();

} // namespace

extern "C" {

#define ACCESSES(nbytes)                                                                           \
    void __tsan_read##nbytes(void *p) { note(p, nbytes, READ); }                                   \
    void __tsan_write##nbytes(void *p) { note(p, nbytes, WRITE); }                                 \
    void __tsan_unaligned_read##nbytes(void *p) { note(p, nbytes, READ); }                         \
    void __tsan_unaligned_write##nbytes(void *p) { note(p, nbytes, WRITE); }

ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_read_range(void *p, size_t nbytes) { note(p, nbytes, READ); }
void __tsan_write_range(void *p, size_t nbytes) { note(p, nbytes, WRITE); }
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_init() {}

} // extern "C"
