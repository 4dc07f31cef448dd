// Counters in memory that processes share, each alone on its cache line: one process advances it, the others wait.
//
// Whoever sees a new count sees all that was written before it: an advance releases, a look acquires.
#pragma once
#include "vector.hpp"
#include <sched.h>

INLINE void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

INLINE Int counted(const Int* counter) { return __atomic_load_n(counter, __ATOMIC_ACQUIRE); }
INLINE void advance(Int* counter) { __atomic_store_n(counter, *counter + 1, __ATOMIC_RELEASE); }

// How long to wait before the caller, which knows the deadline and the signals, looks around: it spins first, and then
// yields its core.
struct Patience { Int spins, yields; };

// Whether the counter has reached `count`, after as much waiting as there may be. What is waited for is taken off.
INLINE bool reached(const Int* counter, Int count, Patience& patience) {
  while (counted(counter) < count) {
    if (patience.spins-- > 0) pause_cpu();
    else if (patience.yields-- > 0) sched_yield();
    else return false;
  }
  return true;
}
