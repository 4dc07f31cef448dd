// CUDA's device code as C++ of the host: blocks one after another, the threads of a block as fibers.
//
// The threads of a block run one at a time, in the order of their indices, each until it waits for others; so a thread
// that reads what another has still to write finds poison, and one that does not wait is seen to run ahead. A fiber is
// only made when one waits: threads that never do share a single one.
//
//     thread 0 ── __syncthreads ┐              ┌─ ... ── end
//     thread 1 ── __syncthreads ┤ all are here ├─ ... ── end
//     thread 2 ── __syncthreads ┘              └─ ... ── end
//
// With CUDA_SHIM_BACKWARDS in the environment the last warp goes first, and each as far ahead of the others as it gets
// without them: who reads or overwrites what another has still to read is seen in one order or the other.
//
// What cannot be on a device ends the launch with a message: waiting at different barriers, lanes that never come,
// writing beyond dynamic shared memory.
#pragma once
#define CUDA_SHIM
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __global__ __attribute__((visibility("hidden")))
#define __shared__ static __attribute__((section("shared_memory")))

struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct uint3 { unsigned x, y, z; };

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

// ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────
namespace shim {

const int MOST_THREADS = 1024, LANES = 32, GROUPS = 16, DYNAMIC_BYTES = 227 * 1024, GUARD_BYTES = 4096;
const size_t STACK_BYTES = 256 * 1024;
const unsigned char POISON = 0xff, GUARD = 0xc3;  // of every floating-point type 0xff... is a NaN
enum State { RUNS, AT_BLOCK, AT_LANES, AT_CONDITION, ENDED };

struct Fiber {
    ucontext_t start;
    jmp_buf at;
    bool begun;
    int thread;  // the one that it runs now
};

// The lanes of a warp that wait for each other under one mask.
struct Group {
    unsigned mask, arrived;
    unsigned long long meetings;
    uint64_t slots[2][LANES][2];  // of odd and even meetings: a lane may still read the last one's
};

struct Warp { Group groups[GROUPS]; };

// AT_CONDITION: a thread waits until ``ready(of, value)``.
struct Thread {
    State state;
    int line;
    Fiber *fiber;
    bool (*ready)(void *of, int value);
    void *of;
    int value;
};

static Thread threads[MOST_THREADS];
static Warp warps[MOST_THREADS / LANES];
static Fiber fibers[MOST_THREADS];
static Fiber *idle[MOST_THREADS];  // fibers without a thread
static int made, idle_count, count, next_thread, ended, arrived, barrier_line;
static char *stacks;
static jmp_buf scheduler;
static ucontext_t scheduler_context;
static char message[512];
static int failed;
static void (*body)(void **);
static void **body_arguments;
alignas(1024) static unsigned char dynamic_shared[DYNAMIC_BYTES + GUARD_BYTES];

// The first message counts.
template <typename... Values> static void fail(const char *format, Values... values) {
    if (!failed) snprintf(message, sizeof message, format, values...);
    failed = 1;
}

static void place(int thread) {
    threadIdx.x = thread % blockDim.x;
    threadIdx.y = thread / blockDim.x % blockDim.y;
    threadIdx.z = thread / (blockDim.x * blockDim.y);
}

static Fiber *current;
static int self() { return current->thread; }

static bool backwards;

// The thread whose turn it is, and the turn of the first one of its warp.
static int thread_of(int turn) { return backwards ? count - 1 - turn : turn; }
static int turn_of_warp(int thread) {
    int last = thread / LANES * LANES + LANES - 1;
    return count - 1 - (last < count ? last : count - 1);
}

// A fiber runs the threads that nobody has begun yet, one after another; then it waits for more, of a later block.
static void work() {
    Fiber *fiber = current;
    while (true) {
        while (next_thread < count && !failed) {
            fiber->thread = thread_of(next_thread++);
            threads[fiber->thread].fiber = fiber;
            place(fiber->thread);
            body(body_arguments);
            threads[fiber->thread].state = ENDED;
            ended++;
        }
        idle[idle_count++] = fiber;
        if (!_setjmp(fiber->at)) _longjmp(scheduler, 1);
    }
}

static void resume(Fiber *fiber) {
    if (_setjmp(scheduler)) return;
    current = fiber;
    if (fiber->begun) _longjmp(fiber->at, 1);
    fiber->begun = true;
    getcontext(&fiber->start);
    fiber->start.uc_stack.ss_sp = stacks + STACK_BYTES * (size_t)(fiber - fibers);
    fiber->start.uc_stack.ss_size = STACK_BYTES;
    fiber->start.uc_link = 0;
    makecontext(&fiber->start, work, 0);
    setcontext(&fiber->start);
}

// Let others run until this thread's state is RUNS again.
static void pause() {
    Fiber *fiber = current;
    if (!_setjmp(fiber->at)) _longjmp(scheduler, 1);
    place(fiber->thread);
}

static void release_block() {
    if (!arrived || arrived + ended < count) return;
    for (int t = 0; t < count; t++) if (threads[t].state == AT_BLOCK) threads[t].state = RUNS;
    arrived = 0;
}

static void wait_for_block(int line) {
    if (arrived && line != barrier_line)
        fail("threads of a block wait at different __syncthreads, of lines %d and %d", barrier_line, line);
    barrier_line = line;
    arrived++;
    threads[self()].state = AT_BLOCK;
    threads[self()].line = line;
    pause();
}

static void wait_until(bool (*ready)(void *, int), void *of, int value, int line) {
    if (ready(of, value)) return;
    Thread &own = threads[self()];
    own.state = AT_CONDITION, own.line = line, own.ready = ready, own.of = of, own.value = value;
    pause();
}

static void release_ready() {
    for (int t = 0; t < count; t++) {
        Thread &thread = threads[t];
        if (thread.state == AT_CONDITION && thread.ready(thread.of, thread.value)) thread.state = RUNS;
    }
}

static Group *group_of(unsigned mask, int line) {
    Warp &warp = warps[self() / LANES];
    for (Group &group : warp.groups) {
        if (!group.mask) group.mask = mask;
        if (group.mask == mask) return &group;
    }
    fail("line %d: a warp uses more than %d masks", line, GROUPS);
    return &warp.groups[0];
}

// Give 16 bytes to the lanes of the mask, and wait for theirs: what the lanes gave, by lane.
static uint64_t (*exchange(unsigned mask, uint64_t low, uint64_t high, int line))[2] {
    int lane = self() % LANES, first = self() / LANES * LANES;
    if (!(mask >> lane & 1)) fail("line %d: lane %d is not in its own mask %08x", line, lane, mask);
    Group *group = group_of(mask, line);
    auto slots = group->slots[group->meetings % 2];
    slots[lane][0] = low;
    slots[lane][1] = high;
    group->arrived |= 1u << lane;
    if (group->arrived == mask) {
        group->arrived = 0;
        group->meetings++;
        for (int i = 0; i < LANES; i++)
            if (mask >> i & 1 && first + i < count) threads[first + i].state = RUNS;
        if (!failed) return slots;
    }
    threads[self()].state = AT_LANES;
    threads[self()].line = line;
    pause();
    return slots;
}

static void explain_deadlock() {
    for (int t = 0; t < count; t++)
        if (threads[t].state == AT_LANES)
            return fail("thread %d waits in line %d for lanes that never come", t, threads[t].line);
    for (int t = 0; t < count; t++)
        if (threads[t].state == AT_CONDITION)
            return fail("thread %d waits in line %d for a barrier that is never over", t, threads[t].line);
    fail("threads wait for each other forever");
}

static void run_block() {
    next_thread = ended = arrived = 0;
    memset(warps, 0, sizeof(Warp) * ((count + LANES - 1) / LANES));
    for (int t = 0; t < count; t++) threads[t] = {RUNS};
    while (ended < count && !failed) {
        bool moved = false;
        for (int turn = 0; turn < count && !failed; turn++) {
            int t = thread_of(turn);
            if (threads[t].state != RUNS) continue;
            Fiber *fiber = threads[t].fiber;
            if (!fiber) fiber = idle_count ? idle[--idle_count] : &fibers[made++];
            resume(fiber);
            moved = true;
            if (backwards) turn = turn_of_warp(t) - 1;
        }
        release_block();
        release_ready();
        if (!moved) {
            bool stuck = true;
            for (int t = 0; t < count; t++) stuck = stuck && threads[t].state != RUNS;
            if (stuck && ended < count) explain_deadlock();
        }
    }
}

extern "C" unsigned char __start_shared_memory[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_shared_memory[] __attribute__((weak, visibility("hidden")));

static void poison_shared(size_t dynamic_bytes) {
    memset(__start_shared_memory, POISON, __stop_shared_memory - __start_shared_memory);
    memset(dynamic_shared, POISON, dynamic_bytes);
    memset(dynamic_shared + dynamic_bytes, GUARD, GUARD_BYTES);
}

static void check_shared(size_t dynamic_bytes) {
    for (int i = 0; i < GUARD_BYTES; i++)
        if (dynamic_shared[dynamic_bytes + i] != GUARD)
            return fail("wrote beyond the %zu bytes of dynamic shared memory", dynamic_bytes);
}

// Of what a header has added: called after each block.
static void (*block_ended)() = 0;

// After a failure some are in the middle of a thread.
static void forget_fibers() {
    made = idle_count = 0;
    for (Fiber &fiber : fibers) fiber.begun = false;
}

static const char *launch(void (*function)(void **), void **arguments, const unsigned *dims, size_t dynamic_bytes) {
    gridDim = {dims[0], dims[1], dims[2]};
    blockDim = {dims[3], dims[4], dims[5]};
    count = dims[3] * dims[4] * dims[5];
    body = function, body_arguments = arguments;
    backwards = getenv("CUDA_SHIM_BACKWARDS") != 0;
    if (failed) forget_fibers();
    failed = 0;
    if (!stacks)
        stacks = (char *)mmap(0, STACK_BYTES * MOST_THREADS, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (blockIdx.z = 0; blockIdx.z < gridDim.z && !failed; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y && !failed; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x && !failed; blockIdx.x++) {
                poison_shared(dynamic_bytes);
                run_block();
                check_shared(dynamic_bytes);
                if (block_ended) block_ended();
            }
    return failed ? message : 0;
}

template <typename T> void split(T value, uint64_t &low, uint64_t &high) {
    static_assert(sizeof(T) <= 16, "a shuffle moves up to 16 bytes");
    uint64_t words[2] = {0, 0};
    memcpy(words, &value, sizeof value);
    low = words[0], high = words[1];
}

template <typename T> T from_lane(unsigned mask, T value, int source, int line) {
    uint64_t low, high;
    split(value, low, high);
    auto slots = exchange(mask, low, high, line);
    T result = value;
    if (source >= 0 && mask >> source & 1) memcpy(&result, slots[source], sizeof result);
    return result;
}

static unsigned ballot(unsigned mask, bool vote, int line) {
    auto slots = exchange(mask, vote, 0, line);
    unsigned all = 0;
    for (int lane = 0; lane < LANES; lane++) all |= (mask >> lane & 1 && slots[lane][0]) ? 1u << lane : 0;
    return all;
}

static int lane() { return self() % LANES; }

template <typename To, typename From> To same_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &value, sizeof to);
    return to;
}

}  // namespace shim

// ── waiting, shuffles, votes ─────────────────────────────────────────────────────────────────────────────────
static inline void __syncthreads(int line = __builtin_LINE()) { shim::wait_for_block(line); }

template <typename T> T __shfl_xor_sync(unsigned mask, T v, int with, int line = __builtin_LINE()) {
    return shim::from_lane(mask, v, shim::lane() ^ with, line);
}
static inline unsigned __ballot_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
    return shim::ballot(mask, vote, line);
}

// ── atomic operations, of whole numbers ──────────────────────────────────────────────────────────────────────
template <typename T, typename U> T atomicAdd(T *at, U v) { T old = *at; *at = old + (T)v; return old; }
static inline unsigned atomicInc(unsigned *at, unsigned most) { unsigned old = *at; *at = old >= most ? 0 : old + 1; return old; }
static inline void __threadfence() {}
static inline void __trap() { shim::fail("a trap"); }
template <typename T> T __ldcg(const T *at) { return *at; }

// ── vectors ──────────────────────────────────────────────────────────────────────────────────────────────────
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

// ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────
static inline unsigned __float_as_uint(float x) { return shim::same_bits<unsigned>(x); }
static inline float __uint_as_float(unsigned x) { return shim::same_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return shim::same_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return shim::same_bits<double>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
template <typename A, typename B> auto min(A a, B b) -> decltype(a + b) { return b < a ? b : a; }
template <typename A, typename B> auto max(A a, B b) -> decltype(a + b) { return a < b ? b : a; }

// ── 16-bit numbers ───────────────────────────────────────────────────────────────────────────────────────────
struct __half { unsigned short bits; };
struct __nv_bfloat16 { unsigned short bits; };

static inline float __half2float(__half h) {
    unsigned sign = (h.bits & 0x8000u) << 16, exponent = h.bits >> 10 & 31, mantissa = h.bits & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
    float small = mantissa * 0x1p-24f;
    return sign ? -small : small;
}
static inline __half __float2half_rn(float x) {
    unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return {(unsigned short)0x7fff};
    if (size >= 0x477ff000u) return {(unsigned short)(sign | 0x7c00)};
    if (size < 0x38800000u)  // the sum's last bit is 2^-24: it is rounded by the addition itself
        return {(unsigned short)(sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u))};
    return {(unsigned short)(sign | (size - 0x38000000u + 0xfff + (size >> 13 & 1)) >> 13)};
}
static inline float __bfloat162float(__nv_bfloat16 b) { return __uint_as_float((unsigned)b.bits << 16); }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    unsigned bits = __float_as_uint(x);
    if (x != x) return {(unsigned short)0x7fff};
    return {(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
static inline unsigned short __half_as_ushort(__half h) { return h.bits; }
static inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
