// Counters in memory that processes share, each alone on its cache line: one process advances it, the others wait.
//
// Whoever sees a new count sees all that was written before it: a store releases, a look acquires.
#pragma once
#include "vector.hpp"
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

constexpr Int SLEEP_NS = 500 * 1000;  // at most
constexpr Int SLEEPS = 2;
constexpr Int LONG_YIELD_NS = 1000 * 1000;

// A cache line: words of its owner may stand beside the count. sleepers: how many threads sleep until the count changes
struct Counter { Int count, beside[6], sleepers; };

INLINE void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

INLINE Int counted(const Counter& counter) { return __atomic_load_n(&counter.count, __ATOMIC_ACQUIRE); }

INLINE void wake_sleepers(Counter& counter) {
  if (__atomic_load_n(&counter.sleepers, __ATOMIC_RELAXED)) syscall(SYS_futex, &counter, FUTEX_WAKE, INT_MAX, 0, 0, 0);
}

// No fence orders the look at the sleepers after the store: it would cost more than all else here. A thread that goes to
// sleep in the same instant may be missed, and looks again after SLEEP_NS.
INLINE void set_count(Counter& counter, Int count) {
  __atomic_store_n(&counter.count, count, __ATOMIC_RELEASE);
  wake_sleepers(counter);
}

INLINE void advance(Counter& counter) { set_count(counter, counter.count + 1); }

// Sleep until the count is another than `seen`, which its lower half tells: nobody sleeps for 2^32 counts.
inline void sleep_on(Counter& counter, Int seen) {
  timespec longest = {0, SLEEP_NS};
  __atomic_add_fetch(&counter.sleepers, 1, __ATOMIC_SEQ_CST);
  if (counted(counter) == seen) syscall(SYS_futex, &counter, FUTEX_WAIT, int(seen), &longest, 0, 0);
  __atomic_sub_fetch(&counter.sleepers, 1, __ATOMIC_RELAXED);
}

// How long to wait before the caller, which knows the deadline and the signals, looks around. A wait spins first, since
// most are short, or yields where ranks share cores; in a call of its own it sleeps: the peer may have lost its core.
struct Patience { Int spins, yields, sleeps; };
constexpr Patience NONE = {0, 0, 0}, REST = {0, 0, SLEEPS};

// Yield once. Whether a process has taken the core that does not wait: one that waits gives it back in microseconds.
inline bool yielded_long() {
  timespec began, ended;
  clock_gettime(CLOCK_MONOTONIC, &began);
  sched_yield();
  clock_gettime(CLOCK_MONOTONIC, &ended);
  return (ended.tv_sec - began.tv_sec) * 1000000000 + ended.tv_nsec - began.tv_nsec > LONG_YIELD_NS;
}

// Spin or yield once. Whether it was time for that; if not, it is time to sleep.
INLINE bool stay_awake(Patience& patience) {
  if (patience.spins-- > 0) pause_cpu();
  else if (patience.yields-- > 0) patience.yields = yielded_long() ? 0 : patience.yields;
  else return false;
  return true;
}

// Whether the count has reached `count`, after as much waiting as there may be. What is waited for is taken off.
INLINE bool reached(Counter& counter, Int count, Patience& patience) {
  for (Int seen; (seen = counted(counter)) < count;) {
    if (stay_awake(patience)) continue;
    if (patience.sleeps-- <= 0) return false;
    sleep_on(counter, seen);
  }
  return true;
}
