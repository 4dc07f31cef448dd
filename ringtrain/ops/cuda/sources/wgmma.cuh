// What only Hopper (sm_90a) has, written in PTX: barriers in shared memory that count bytes, copies of boxes by the TMA
// unit, products of a warpgroup. (The CPU shim has bodies of its own.)
//
// A warpgroup, 4 warps whose first is a multiple of 4, multiplies 64 x 16 by 16 x N elements of 2 bytes, both in shared
// memory. With warp of the warpgroup, group = lane / 4 and place = lane % 4, a lane holds of the 64 x N sums
//
//     d[4 j]     d[4 j + 1]    row 16 warp + group,      columns 8 j + 2 place, 8 j + 2 place + 1
//     d[4 j + 2] d[4 j + 3]    row 16 warp + group + 8,  the same columns
//
// Source: NVIDIA, PTX ISA: "mbarrier", "cp.async.bulk.tensor", "Tensor: im2col mode", "Asynchronous Warpgroup Level
// Matrix Instructions" (register fragments, "Shared Memory Matrix Layout", "Matrix Descriptor Format"), "setmaxnreg".
#pragma once
#include "tile.cuh"

// Its phases have parity 0, 1, 0, ...
typedef unsigned long long Barrier;

#ifdef CUDA_SHIM
#include "cuda_shim_wgmma.h"
#else

// What the driver encodes: a CUtensorMap, which the TMA unit reads where the kernel's parameters are.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// ── barriers ─────────────────────────────────────────────────────────────────────────────────────────────────────
__device__ __forceinline__ void barrier_make(Barrier *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// After barrier_make by the same thread: the TMA unit sees them too. The block waits for it besides.
__device__ __forceinline__ void barriers_made() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrive, and let the phase last until so many bytes more have been copied.
__device__ __forceinline__ void barrier_expect(Barrier *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Whether the phase of this parity is over: true also of a phase before the first, of parity 1. It waits for a while.
__device__ __forceinline__ bool barrier_over(Barrier *barrier, int parity) {
    int over;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.s32 %0, 1, 0, p;\n}"
        : "=r"(over)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return over;
}

__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// A wait this long is a defect: the kernel fails, and does not hang.
#define MOST_NANOSECONDS 20000000000ull

__device__ __forceinline__ void barrier_wait(Barrier *barrier, int parity) {
    if (barrier_over(barrier, parity)) return;
    unsigned long long start = nanoseconds();
    while (!barrier_over(barrier, parity))
        if (nanoseconds() - start > MOST_NANOSECONDS) __trap();
}

// ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────
// The box of an array of three axes whose corner is element (x, y, z); the barrier counts all of its bytes, also those
// of elements outside of the array, which are 0.
__device__ __forceinline__ void copy_box(void *shared, const TensorMap &map, Barrier *barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(shared)),
        "l"(&map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
}

// Channels from ``channel`` on of pixels (w + right, h + down), where (w, h) goes over the corners of windows from the
// given one of image n on: along the map's box, by its stride, row after row, image after image.
__device__ __forceinline__ void copy_pixels(
    void *shared, const TensorMap &map, Barrier *barrier, int channel, int w, int h, int n, int right, int down
) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_address(shared)),
        "l"(&map), "r"(shared_address(barrier)), "r"(channel), "r"(w), "r"(h), "r"(n), "h"((unsigned short)right),
        "h"((unsigned short)down)
        : "memory");
}

// ── warpgroups ───────────────────────────────────────────────────────────────────────────────────────────────────
// All threads of a warpgroup wait for each other. Barrier 0 is that of the whole block.
__device__ __forceinline__ void warpgroup_meet(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(TILE_THREADS) : "memory");
}

template <int COUNT> __device__ __forceinline__ void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Before products: the sums are as they were written.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// The products since the last call are one group.
__device__ __forceinline__ void products_close() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until all but the last PENDING groups are done.
template <int PENDING> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// After the wait for all products: arithmetic on their sums stays behind it. The wait itself names no register, so a
// compiler might move arithmetic before it.
template <int COUNT> __device__ __forceinline__ void products_settle(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

#define FLOATS_8(i)                                                                                                  \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define FLOATS_32(i) FLOATS_8(i), FLOATS_8(i + 8), FLOATS_8(i + 16), FLOATS_8(i + 24)
#define NAMES_32                                                                                               \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "     \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                                               \
    NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "    \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_128                                                                                              \
    NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "    \
    "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "   \
    "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "   \
    "%119, %120, %121, %122, %123, %124, %125, %126, %127"

// d += a · b of two operands in shared memory, by their descriptors. The pointer says which type the elements have.
// FLAT: an operand's neighbours in memory are rows (columns of the right one), and not elements of the sum.
#define MULTIPLY(TYPE, NAME, COUNT, COLUMNS, NAMES, FLOATS, A, B, A_TURNED, B_TURNED)                            \
    template <bool A_FLAT, bool B_FLAT>                                                                          \
    __device__ __forceinline__ void multiply(                                                                    \
        const TYPE *, float (&d)[COUNT], unsigned long long a, unsigned long long b                              \
    ) {                                                                                                          \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." NAME "." NAME " {" NAMES "}, " A ", " B   \
                     ", 1, 1, 1, " A_TURNED ", " B_TURNED ";"                                                     \
                     : FLOATS                                                                                    \
                     : "l"(a), "l"(b), "n"((int)A_FLAT), "n"((int)B_FLAT));                                      \
    }
#define MULTIPLY_OF(TYPE, NAME)                                                                                       \
    MULTIPLY(TYPE, NAME, 32, "64", NAMES_32, FLOATS_32(0), "%32", "%33", "%34", "%35")                                \
    MULTIPLY(TYPE, NAME, 64, "128", NAMES_64, FLOATS_64, "%64", "%65", "%66", "%67")                                  \
    MULTIPLY(TYPE, NAME, 128, "256", NAMES_128, FLOATS_128, "%128", "%129", "%130", "%131")
#define FLOATS_64 FLOATS_32(0), FLOATS_32(32)
#define FLOATS_128 FLOATS_64, FLOATS_32(64), FLOATS_32(96)
MULTIPLY_OF(__half, "f16")
MULTIPLY_OF(__nv_bfloat16, "bf16")
#undef MULTIPLY_OF
#undef MULTIPLY
#endif

// An operand in shared memory, swizzled in lines of 128 bytes whose pattern begins at multiples of 1024: its address,
// ``leading`` (flat operands: from 64 rows to the next 64) and ``stride`` (from 8 lines to the next 8), all in bytes.
__device__ inline unsigned long long operand(unsigned address, unsigned leading, unsigned stride) {
    const unsigned long long SWIZZLE_128 = 1;
    auto encoded = [](unsigned x) { return (unsigned long long)((x & 0x3ffff) >> 4); };
    return encoded(address) | encoded(leading) << 16 | encoded(stride) << 32 | SWIZZLE_128 << 62;
}
