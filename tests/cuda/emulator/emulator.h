/* SPDX-License-Identifier: MIT */
/* What emulator.cpp and races.cpp share. */
#ifndef S2_EMULATOR_H
#define S2_EMULATOR_H

#include <cstddef>
#include <cstdint>

namespace emulator {

/* What orders the accesses of threads. */
struct clock_state {
    bool in_kernel;
    uint64_t launch;  /* launches so far */
    uint64_t block;   /* thread blocks so far */
    uint64_t barrier; /* barriers so far */
    uintptr_t stacks_begin, stacks_end;
    void (*on_new_memory)(const void *address, size_t nbytes);

    void new_memory(const void *address, size_t nbytes) const
    {
        if (on_new_memory) on_new_memory(address, nbytes);
    }
};
extern clock_state clocks;

} // namespace emulator

#endif /* S2_EMULATOR_H */
