/* SPDX-License-Identifier: MIT */
/* Runs kernels on the CPU: see cuda_runtime.h. */
#include "cuda_runtime.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#include "emulator.h"

extern "C" {
#include "device.h"
#include "test_util.h"
}

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {

position now;
clock_state clocks;
void (*on_atomic)(const void *address, size_t nbytes) = nullptr;

namespace {

/* ------------------------------------------- Fibers ------------------------------------------- */

enum state { READY, AT_BARRIER, IN_WARP, RETURNED };

struct fiber {
    ucontext_t context;
    char *stack;
    void *fake_stack; /* AddressSanitizer's, while the fiber does not run */
    enum state state;
    place at;         /* where it waits */
    uint32_t mask;    /* of the lanes that it waits for */
    uint64_t operand; /* what it came with */
    uint64_t seen[32];
};

/* What frames under AddressSanitizer take at -O0, and as much again. */
constexpr size_t STACK_NBYTES = 128 * 1024;
constexpr unsigned MAX_THREADS = 1024; /* of a block, as on a device */

struct machine {
    std::vector<std::unique_ptr<fiber>> fibers;
    std::vector<unsigned> ready;
    unsigned nwaiting; /* at a barrier */
    ucontext_t scheduler;
    void *fake_stack;
    const void *stack; /* the scheduler's */
    size_t stack_nbytes;
    const char *kernel;
    const std::function<void()> *body;
    std::map<const void *, std::vector<char>> shared;
} m;

fiber &running() { return *m.fibers[now.thread.x]; }

[[noreturn]] void fail(const char *what)
{
    test_note("%s, block %u, thread %u: %s", m.kernel, now.block.x, now.thread.x, what);
    check_failed(__FILE__, __LINE__, "the kernel is well-formed");
    abort();
}

/* AddressSanitizer is told of every change of stacks: before it, and on the other side. */
void leave(void **fake_stack, const void *stack, size_t nbytes)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(fake_stack, stack, nbytes);
#else
    (void)fake_stack, (void)stack, (void)nbytes;
#endif
}

void arrive(void *fake_stack, const void **stack, size_t *nbytes)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake_stack, stack, nbytes);
#else
    (void)fake_stack, (void)stack, (void)nbytes;
#endif
}

void go_to_scheduler()
{
    fiber &self = running();
    leave(&self.fake_stack, m.stack, m.stack_nbytes);
    swapcontext(&self.context, &m.scheduler);
    arrive(self.fake_stack, &m.stack, &m.stack_nbytes);
}

void go_to(unsigned thread)
{
    fiber &next = *m.fibers[thread];
    now.thread.x = thread;
    leave(&m.fake_stack, next.stack, STACK_NBYTES);
    swapcontext(&m.scheduler, &next.context);
    arrive(m.fake_stack, nullptr, nullptr);
}

/* What a fiber does for good: one thread after the other, of one block after the other. */
void fiber_main()
{
    arrive(nullptr, &m.stack, &m.stack_nbytes);
    for (;;) {
        (*m.body)();
        running().state = RETURNED;
        go_to_scheduler();
    }
}

std::unique_ptr<fiber> fiber_new(char *stack)
{
    auto made = std::make_unique<fiber>();
    made->stack = stack;
    getcontext(&made->context);
    made->context.uc_stack.ss_sp = stack;
    made->context.uc_stack.ss_size = STACK_NBYTES;
    made->context.uc_link = nullptr;
    makecontext(&made->context, fiber_main, 0);
    /* AddressSanitizer would forget, at every change to it, what it knows of a stack of this size.
     */
    made->context.uc_stack.ss_size = 0;
    return made;
}

/* All stacks, with an unmapped page below each. */
void make_fibers()
{
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), each = STACK_NBYTES + page;
    void *memory = mmap(nullptr, MAX_THREADS * each, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (unsigned i = 0; i < MAX_THREADS; i++) {
        char *below = static_cast<char *>(memory) + i * each;
        CHECK(mprotect(below, page, PROT_NONE) == 0);
        m.fibers.push_back(fiber_new(below + page));
    }
    clocks.stacks_begin = reinterpret_cast<uintptr_t>(memory);
    clocks.stacks_end = clocks.stacks_begin + MAX_THREADS * each;
}

/* ------------------------------------------ Scheduler ----------------------------------------- */

void wait(enum state state, place at)
{
    running().state = state;
    running().at = at;
}

void release(unsigned thread)
{
    m.fibers[thread]->state = READY;
    m.ready.push_back(thread);
}

bool same(place a, place b) { return a.line == b.line && strcmp(a.file, b.file) == 0; }

/* Nobody is ready: either all have returned, or some wait for others that will never come. */
void check_returned()
{
    for (unsigned i = 0; i < now.threads.x; i++) {
        const fiber &waiting = *m.fibers[i];
        if (waiting.state == RETURNED) continue;
        test_note("thread %u waits at %s:%d, with the mask %08x", i, waiting.at.file,
                  waiting.at.line, waiting.state == IN_WARP ? waiting.mask : 0);
        fail("threads wait for others that have returned, or wait elsewhere");
    }
}

void run_block()
{
    clocks.block++;
    m.shared.clear();
    for (unsigned i = 0; i < now.threads.x; i++)
        release(i);
    while (!m.ready.empty()) {
        const size_t pick = static_cast<size_t>(random_below(static_cast<int64_t>(m.ready.size())));
        const unsigned next = m.ready[pick];
        m.ready[pick] = m.ready.back();
        m.ready.pop_back();
        go_to(next);
    }
    check_returned();
}

} // namespace

/* ---------------------------------------- For launchers --------------------------------------- */

void run(const char *kernel, int64_t grid, int64_t block, CUstream_st *stream,
         const std::function<void()> &body)
{
    if (m.fibers.empty()) make_fibers();
    m.kernel = kernel;
    m.body = &body;
    CHECK(grid >= 1 && grid <= INT32_MAX && block >= 1 && block <= MAX_THREADS);
    std::vector<unsigned> order(static_cast<size_t>(grid));
    for (size_t i = 0; i < order.size(); i++) { /* shuffled, inside out */
        const size_t j = static_cast<size_t>(random_below(static_cast<int64_t>(i + 1)));
        order[i] = order[j];
        order[j] = static_cast<unsigned>(i);
    }
    now.threads.x = static_cast<unsigned>(block);
    now.blocks.x = static_cast<unsigned>(grid);
    device_work_begin(stream);
    clocks.launch++;
    clocks.in_kernel = true;
    for (unsigned index : order) {
        now.block.x = index;
        run_block();
    }
    clocks.in_kernel = false;
    device_work_end();
}

void set(void *memory, int byte, size_t nbytes, CUstream_st *stream)
{
    device_work_begin(stream);
    std::memset(memory, byte, nbytes);
    device_work_end();
}

void copy(void *to, const void *from, size_t nbytes, CUstream_st *stream)
{
    device_work_begin(stream);
    std::memcpy(to, from, nbytes);
    device_work_end();
}

unsigned max_grid() { return static_cast<unsigned>(1 + random_below(5)); }

/* ----------------------------------------- For kernels ---------------------------------------- */

void *shared(const void *key, size_t nbytes)
{
    std::vector<char> &array = m.shared[key];
    if (array.empty()) {
        array.resize(nbytes);
        for (char &byte : array)
            byte = static_cast<char>(random_bits());
        clocks.new_memory(array.data(), nbytes);
    }
    return array.data();
}

void barrier(place at)
{
    wait(AT_BARRIER, at);
    if (++m.nwaiting == now.threads.x) {
        m.nwaiting = 0;
        for (unsigned i = 0; i < now.threads.x; i++) {
            if (!same(m.fibers[i]->at, at)) fail("threads wait at different barriers");
            release(i);
        }
        clocks.barrier++;
    }
    go_to_scheduler();
}

const uint64_t *exchange(uint32_t mask, uint64_t operand, place at)
{
    const unsigned first = now.thread.x / 32 * 32;
    fiber &self = running();
    bool complete = true;
    if ((mask >> lane() & 1) == 0) fail("a lane is not in its own mask");
    self.mask = mask;
    self.operand = operand;
    wait(IN_WARP, at);
    for (unsigned i = 0; i < 32; i++) {
        if ((mask >> i & 1) == 0) continue;
        if (first + i >= now.threads.x) fail("a mask names a lane that does not exist");
        const fiber &other = *m.fibers[first + i];
        complete &= other.state == IN_WARP && other.mask == mask && same(other.at, at);
    }
    for (unsigned i = 0; complete && i < 32; i++) {
        if ((mask >> i & 1) == 0) continue;
        for (unsigned j = 0; j < 32; j++)
            m.fibers[first + i]->seen[j] = (mask >> j & 1) ? m.fibers[first + j]->operand : 0;
        release(first + i);
    }
    go_to_scheduler();
    return self.seen;
}

uint64_t value_of(uint32_t mask, const uint64_t *values, int lane)
{
    if ((mask >> lane & 1) == 0) fail("a lane reads from one that is not in the mask");
    return values[lane];
}

} // namespace emulator

extern "C" cudaError_t cudaGetLastError()
{
    return device_take_error() ? cudaErrorLaunchFailure : cudaSuccess;
}
