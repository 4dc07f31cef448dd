// Pooling of NHWC images. A thread makes COUNT channels of one pixel, whole or 16 bytes of them, so that neighbouring
// threads touch memory that lies together. Gradients are gathered, by the pixel: nothing is added to in parallel.
#include "columns.cuh"
#include "spots.cuh"

typedef unsigned char Where;

#define EXTENTS int H, int W, int C, int P, int Q, int size, int stride, int pad

// The part of a window, from ``start`` on, that lies inside.
struct Line {
    int start, first, last;
    __device__ Line(int index, int extent, int size, int stride, int pad) {
        start = index * stride - pad;
        first = max(start, 0);
        last = min(start + size, extent);
    }
};

// The windows that an element lies in: from first up to last.
struct Windows {
    int first, last;
    __device__ Windows(int at, int count, int size, int stride, int pad) {
        int before = at + pad - size;
        first = before < 0 ? 0 : before / stride + 1;
        last = min((at + pad) / stride + 1, count);
    }
};

// 1 over the elements of a window, with the padding, but not what lies beyond it.
__device__ inline REAL share_of(int p, int q, int H, int W, int size, int stride, int pad) {
    int top = p * stride - pad, left = q * stride - pad;
    int height = min(top + size, H + pad) - top, width = min(left + size, W + pad) - left;
    return (REAL)1 / (REAL)(height * width);
}

// ── maximum ──────────────────────────────────────────────────────────────────────────────────────────────────
template <int COUNT>
__device__ void max_pool_of(const ACT *__restrict__ x, ACT *__restrict__ y, Where *__restrict__ where, int N, EXTENTS) {
    int vectors = C / COUNT;
    long long items = (long long)N * P * Q * vectors;
    for (long long i = first_index(); i < items; i += index_stride()) {
        Spot at(i, P, Q, vectors, COUNT);
        Line rows(at.h, H, size, stride, pad), columns(at.w, W, size, stride, pad);
        REAL best[COUNT] = {};
        Vector<Where, COUNT> element = {};
        bool seen = false;
        for (int h = rows.first; h < rows.last; h++)
            for (int w = columns.first; w < columns.last; w++) {
                Vector<ACT, COUNT> v = vector_at<COUNT>(x, (at.n * H + h) * W + w, C, at.c);
                Where here = (Where)((h - rows.start) * size + w - columns.start);
#pragma unroll
                for (int k = 0; k < COUNT; k++) {
                    REAL r = to_real(v.at[k]);
                    bool better = !seen || (!(r <= best[k]) && best[k] == best[k]);  // a NaN is greater than any number
                    best[k] = better ? r : best[k];
                    element.at[k] = better ? here : element.at[k];
                }
                seen = true;
            }
        Vector<ACT, COUNT> out;
#pragma unroll
        for (int k = 0; k < COUNT; k++) out.at[k] = to_act(best[k]);
        ((Vector<ACT, COUNT> *)y)[i] = out;
        ((Vector<Where, COUNT> *)where)[i] = element;
    }
}

extern "C" __global__ void max_pool(
    const ACT *x, ACT *y, unsigned char *where, int N,
    int H, int W, int C, int P, int Q, int size, int stride, int pad, int wide) {
    if (wide)
        max_pool_of<ACTS>(x, y, where, N, H, W, C, P, Q, size, stride, pad);
    else
        max_pool_of<1>(x, y, where, N, H, W, C, P, Q, size, stride, pad);
}

template <int COUNT>
__device__ void max_pool_back_of(const ACT *__restrict__ dy, const Where *__restrict__ where, ACT *__restrict__ dx,
                                 int N, EXTENTS) {
    int vectors = C / COUNT;
    long long items = (long long)N * H * W * vectors;
    for (long long i = first_index(); i < items; i += index_stride()) {
        Spot at(i, H, W, vectors, COUNT);
        Windows rows(at.h, P, size, stride, pad), columns(at.w, Q, size, stride, pad);
        REAL sum[COUNT] = {};
        for (int p = rows.first; p < rows.last; p++)
            for (int q = columns.first; q < columns.last; q++) {
                long long pixel = (at.n * P + p) * Q + q;
                Where here = (Where)((at.h - (p * stride - pad)) * size + at.w - (q * stride - pad));
                Vector<Where, COUNT> element = vector_at<COUNT>(where, pixel, C, at.c);
                Vector<ACT, COUNT> d = vector_at<COUNT>(dy, pixel, C, at.c);
#pragma unroll
                for (int k = 0; k < COUNT; k++) sum[k] += element.at[k] == here ? to_real(d.at[k]) : (REAL)0;
            }
        Vector<ACT, COUNT> out;
#pragma unroll
        for (int k = 0; k < COUNT; k++) out.at[k] = to_act(sum[k]);
        ((Vector<ACT, COUNT> *)dx)[i] = out;
    }
}

extern "C" __global__ void max_pool_back(
    const ACT *dy, const unsigned char *where, ACT *dx, int N,
    int H, int W, int C, int P, int Q, int size, int stride, int pad, int wide) {
    if (wide)
        max_pool_back_of<ACTS>(dy, where, dx, N, H, W, C, P, Q, size, stride, pad);
    else
        max_pool_back_of<1>(dy, where, dx, N, H, W, C, P, Q, size, stride, pad);
}

// ── mean ─────────────────────────────────────────────────────────────────────────────────────────────────────
template <int COUNT> __device__ void avg_pool_of(const ACT *__restrict__ x, ACT *__restrict__ y, int N, EXTENTS) {
    int vectors = C / COUNT;
    long long items = (long long)N * P * Q * vectors;
    for (long long i = first_index(); i < items; i += index_stride()) {
        Spot at(i, P, Q, vectors, COUNT);
        Line rows(at.h, H, size, stride, pad), columns(at.w, W, size, stride, pad);
        REAL sum[COUNT] = {}, share = share_of(at.h, at.w, H, W, size, stride, pad);
        for (int h = rows.first; h < rows.last; h++)
            for (int w = columns.first; w < columns.last; w++) {
                Vector<ACT, COUNT> v = vector_at<COUNT>(x, (at.n * H + h) * W + w, C, at.c);
#pragma unroll
                for (int k = 0; k < COUNT; k++) sum[k] += to_real(v.at[k]);
            }
        Vector<ACT, COUNT> out;
#pragma unroll
        for (int k = 0; k < COUNT; k++) out.at[k] = to_act(sum[k] * share);
        ((Vector<ACT, COUNT> *)y)[i] = out;
    }
}

extern "C" __global__ void avg_pool(
    const ACT *x, ACT *y, int N, int H, int W, int C, int P, int Q, int size, int stride, int pad, int wide) {
    if (wide)
        avg_pool_of<ACTS>(x, y, N, H, W, C, P, Q, size, stride, pad);
    else
        avg_pool_of<1>(x, y, N, H, W, C, P, Q, size, stride, pad);
}

template <int COUNT>
__device__ void avg_pool_back_of(const ACT *__restrict__ dy, ACT *__restrict__ dx, int N, EXTENTS) {
    int vectors = C / COUNT;
    long long items = (long long)N * H * W * vectors;
    for (long long i = first_index(); i < items; i += index_stride()) {
        Spot at(i, H, W, vectors, COUNT);
        Windows rows(at.h, P, size, stride, pad), columns(at.w, Q, size, stride, pad);
        REAL sum[COUNT] = {};
        for (int p = rows.first; p < rows.last; p++)
            for (int q = columns.first; q < columns.last; q++) {
                REAL share = share_of(p, q, H, W, size, stride, pad);
                Vector<ACT, COUNT> d = vector_at<COUNT>(dy, (at.n * P + p) * Q + q, C, at.c);
#pragma unroll
                for (int k = 0; k < COUNT; k++) sum[k] += share * to_real(d.at[k]);
            }
        Vector<ACT, COUNT> out;
#pragma unroll
        for (int k = 0; k < COUNT; k++) out.at[k] = to_act(sum[k]);
        ((Vector<ACT, COUNT> *)dx)[i] = out;
    }
}

extern "C" __global__ void avg_pool_back(
    const ACT *dy, ACT *dx, int N, int H, int W, int C, int P, int Q, int size, int stride, int pad, int wide) {
    if (wide)
        avg_pool_back_of<ACTS>(dy, dx, N, H, W, C, P, Q, size, stride, pad);
    else
        avg_pool_back_of<1>(dy, dx, N, H, W, C, P, Q, size, stride, pad);
}

// ── mean of the whole image ──────────────────────────────────────────────────────────────────────────────────
// blockIdx.x: the example; the rest as in columns.cuh, where its pixels are the rows.
template <int COUNT>
__device__ void global_avg_pool_of(const ACT *__restrict__ x, ACT *__restrict__ y, int pixels, int C, REAL *lanes) {
    int c = (blockIdx.y * blockDim.x + threadIdx.x) * COUNT;
    long long start = (long long)blockIdx.x * pixels;
    REAL sum[COUNT] = {};
#pragma unroll 4
    for (int i = c < C ? threadIdx.y : pixels; i < pixels; i += blockDim.y) {
        Vector<ACT, COUNT> v = vector_at<COUNT>(x, start + i, C, c);
#pragma unroll
        for (int k = 0; k < COUNT; k++) sum[k] += to_real(v.at[k]);
    }
    column_sum(sum, lanes);
    if (threadIdx.y || c >= C) return;
    Vector<ACT, COUNT> out;
#pragma unroll
    for (int k = 0; k < COUNT; k++) out.at[k] = to_act(sum[k] / (REAL)pixels);
    vector_at<COUNT>(y, blockIdx.x, C, c) = out;
}

extern "C" __global__ void __launch_bounds__(BLOCK) global_avg_pool(
    const ACT *x, ACT *y, int pixels, int C, int wide) {
    __shared__ REAL lanes[BLOCK * ACTS];
    if (wide)
        global_avg_pool_of<ACTS>(x, y, pixels, C, lanes);
    else
        global_avg_pool_of<1>(x, y, pixels, C, lanes);
}

template <int COUNT>
__device__ void global_avg_pool_back_of(const ACT *__restrict__ dy, ACT *__restrict__ dx, int N, int pixels, int C) {
    int vectors = C / COUNT;
    long long items = (long long)N * pixels * vectors;
    for (long long i = first_index(); i < items; i += index_stride()) {
        Spot at(i, 1, pixels, vectors, COUNT);
        Vector<ACT, COUNT> v = vector_at<COUNT>(dy, at.n, C, at.c);
#pragma unroll
        for (int k = 0; k < COUNT; k++) v.at[k] = to_act(to_real(v.at[k]) / (REAL)pixels);
        ((Vector<ACT, COUNT> *)dx)[i] = v;
    }
}

extern "C" __global__ void global_avg_pool_back(const ACT *dy, ACT *dx, int N, int pixels, int C, int wide) {
    if (wide)
        global_avg_pool_back_of<ACTS>(dy, dx, N, pixels, C);
    else
        global_avg_pool_back_of<1>(dy, dx, N, pixels, C);
}
