// What all sources share: conversions, sums over a block in a fixed order, random numbers of keys.
//
// REAL: weights, gradients, arithmetic (float or double). ACT: activations (REAL, or __half or __nv_bfloat16).
#pragma once
#ifndef CUDA_SHIM
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#define WARP 32
#define ALL_LANES 0xffffffffu

// ── conversions ──────────────────────────────────────────────────────────────────────────────────────────────
// To 16 bits: to nearest, ties to even; what is too large becomes infinite.
template <typename T> struct As;
template <> struct As<float> { static __device__ float from(REAL r) { return (float)r; } };
template <> struct As<double> { static __device__ double from(REAL r) { return (double)r; } };
template <> struct As<__half> { static __device__ __half from(REAL r) { return __float2half_rn((float)r); } };
template <> struct As<__nv_bfloat16> {
    static __device__ __nv_bfloat16 from(REAL r) { return __float2bfloat16_rn((float)r); }
};

__device__ inline REAL to_real(float x) { return (REAL)x; }
__device__ inline REAL to_real(double x) { return (REAL)x; }
__device__ inline REAL to_real(__half x) { return (REAL)__half2float(x); }
__device__ inline REAL to_real(__nv_bfloat16 x) { return (REAL)__bfloat162float(x); }

__device__ inline ACT to_act(REAL r) { return As<ACT>::from(r); }

// max(r, 0); a NaN stays a NaN.
__device__ inline REAL relu_of(REAL r) { return r <= (REAL)0 ? (REAL)0 : r; }

// ── several elements at a time ───────────────────────────────────────────────────────────────────────────────
template <typename T, int COUNT> struct alignas(sizeof(T) * COUNT) Vector { T at[COUNT]; };

// How many elements of T are 16 bytes.
template <typename T> struct Wide { static const int COUNT = 16 / (int)sizeof(T); };

__device__ inline bool aligned(const void *p, int bytes) { return (unsigned long long)p % bytes == 0; }

__device__ inline long long first_index() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline long long index_stride() { return (long long)gridDim.x * blockDim.x; }

// ── sums over a block ────────────────────────────────────────────────────────────────────────────────────────
// Always in the same order: within each warp by halves, then the warps' sums likewise. blockDim.x: whole warps.
template <typename T> __device__ T warp_sum(T value) {
    for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

// The sum in every thread. All threads of the block must call it.
template <typename T> __device__ T block_sum(T value) {
    __shared__ T sums[WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    value = warp_sum(value);
    __syncthreads();  // of an earlier call
    if (lane == 0) sums[warp] = value;
    __syncthreads();
    return warp_sum(lane < warps ? sums[lane] : (T)0);
}

// ── the last block ───────────────────────────────────────────────────────────────────────────────────────────
// Whether this block is the last of ``count`` that come here, in every thread of it: then it sees, by __ldcg, what the
// others have written. ``ticket`` is 0 before and after.
static __device__ bool is_last_block(unsigned *ticket, unsigned count) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) last = atomicInc(ticket, count - 1) == count - 1;
    __syncthreads();
    if (last) __threadfence();
    return last;
}

// ── random numbers of keys: see ops/keys.py ──────────────────────────────────────────────────────────────────
typedef unsigned long long Key;

__device__ inline Key scramble(Key state) {
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
    return state ^ (state >> 31);
}

__device__ inline Key absorb(Key state, Key number) { return scramble(state + 0x9E3779B97F4A7C15ull + number); }
