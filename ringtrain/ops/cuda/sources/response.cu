// Local response normalisation: y = x · scale^-beta, where scale is made of the squares of neighbours, in other
// channels or in other pixels. Neighbours are read again by each that has them: they are in the cache.
#include "spots.cuh"

#define REALS Wide<REAL>::COUNT

// r^-beta. The usual beta, 3/4, takes square roots.
__device__ inline REAL power(REAL r, REAL beta) {
    if (beta != (REAL)0.75) return pow(r, -beta);
    REAL root = (REAL)1 / sqrt(r);
    return root * sqrt(root);
}

// ── channels ─────────────────────────────────────────────────────────────────────────────────────────────────
// A window begins (size - 1)/2 channels before; gradients come from the windows that an element lies in, which begin
// the other way round.
extern "C" __global__ void lrn_across(
    const ACT *x, ACT *y, REAL *scale, long long n, int C, int size, double alpha, double beta, double k) {
    int before = (size - 1) / 2;
    for (long long i = first_index(); i < n; i += index_stride()) {
        int c = (int)(i % C), first = max(c - before, 0), last = min(c - before + size, C);
        REAL sum = 0;
        for (int other = first; other < last; other++) {
            REAL r = to_real(x[i - c + other]);
            sum += r * r;
        }
        REAL s = (REAL)k + (REAL)(alpha / size) * sum;
        scale[i] = s;
        y[i] = to_act(to_real(x[i]) * power(s, (REAL)beta));
    }
}

extern "C" __global__ void lrn_across_back(
    const ACT *x, const ACT *y, const REAL *scale, const ACT *dy, ACT *dx, long long n, int C, int size, double alpha,
    double beta) {
    int before = size - 1 - (size - 1) / 2;
    REAL factor = (REAL)(2 * alpha * beta / size);
    for (long long i = first_index(); i < n; i += index_stride()) {
        int c = (int)(i % C), first = max(c - before, 0), last = min(c - before + size, C);
        REAL sum = 0;
        for (int other = first; other < last; other++) {
            long long j = i - c + other;
            sum += to_real(dy[j]) * to_real(y[j]) / scale[j];
        }
        dx[i] = to_act(to_real(dy[i]) * power(scale[i], (REAL)beta) - factor * to_real(x[i]) * sum);
    }
}

// ── pixels ───────────────────────────────────────────────────────────────────────────────────────────────────
// The square of pixels around a spot, from ``before`` rows and columns before it, inside of the image.
struct Square {
    int top, bottom, left, right;
    __device__ Square(const Spot &at, int before, int size, int H, int W) {
        top = max(at.h - before, 0), bottom = min(at.h - before + size, H);
        left = max(at.w - before, 0), right = min(at.w - before + size, W);
    }
};

template <int COUNT>
__device__ void lrn_within_of(const ACT *__restrict__ x, ACT *__restrict__ y, REAL *__restrict__ scale, int N, int H,
                              int W, int C, int size, double alpha, double beta) {
    int vectors = C / COUNT;
    REAL share = (REAL)(alpha / ((double)size * size));
    long long items = (long long)N * H * W * vectors;
    for (long long i = first_index(); i < items; i += index_stride()) {
        Spot at(i, H, W, vectors, COUNT);
        Square square(at, (size - 1) / 2, size, H, W);
        REAL sum[COUNT] = {};
        for (int h = square.top; h < square.bottom; h++)
            for (int w = square.left; w < square.right; w++) {
                Vector<ACT, COUNT> v = vector_at<COUNT>(x, (at.n * H + h) * W + w, C, at.c);
#pragma unroll
                for (int k = 0; k < COUNT; k++) sum[k] += to_real(v.at[k]) * to_real(v.at[k]);
            }
        Vector<ACT, COUNT> v = ((const Vector<ACT, COUNT> *)x)[i];
        Vector<REAL, COUNT> s;
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            s.at[k] = (REAL)1 + share * sum[k];
            v.at[k] = to_act(to_real(v.at[k]) * power(s.at[k], (REAL)beta));
        }
        ((Vector<REAL, COUNT> *)scale)[i] = s;
        ((Vector<ACT, COUNT> *)y)[i] = v;
    }
}

extern "C" __global__ void lrn_within(
    const ACT *x, ACT *y, REAL *scale, int N, int H, int W, int C, int size, double alpha, double beta, int wide) {
    if (wide)
        lrn_within_of<REALS>(x, y, scale, N, H, W, C, size, alpha, beta);
    else
        lrn_within_of<1>(x, y, scale, N, H, W, C, size, alpha, beta);
}

template <int COUNT>
__device__ void lrn_within_back_of(const ACT *__restrict__ x, const ACT *__restrict__ y, const REAL *__restrict__ scale,
                                   const ACT *__restrict__ dy, ACT *__restrict__ dx, int N, int H, int W, int C,
                                   int size, double alpha, double beta) {
    int vectors = C / COUNT;
    REAL factor = (REAL)(2 * alpha * beta / ((double)size * size));
    long long items = (long long)N * H * W * vectors;
    for (long long i = first_index(); i < items; i += index_stride()) {
        Spot at(i, H, W, vectors, COUNT);
        Square square(at, size - 1 - (size - 1) / 2, size, H, W);
        REAL sum[COUNT] = {};
        for (int h = square.top; h < square.bottom; h++)
            for (int w = square.left; w < square.right; w++) {
                long long pixel = (at.n * H + h) * W + w;
                Vector<ACT, COUNT> d = vector_at<COUNT>(dy, pixel, C, at.c), out = vector_at<COUNT>(y, pixel, C, at.c);
                Vector<REAL, COUNT> s = vector_at<COUNT>(scale, pixel, C, at.c);
#pragma unroll
                for (int k = 0; k < COUNT; k++) sum[k] += to_real(d.at[k]) * to_real(out.at[k]) / s.at[k];
            }
        Vector<ACT, COUNT> d = ((const Vector<ACT, COUNT> *)dy)[i], v = ((const Vector<ACT, COUNT> *)x)[i];
        Vector<REAL, COUNT> s = ((const Vector<REAL, COUNT> *)scale)[i];
#pragma unroll
        for (int k = 0; k < COUNT; k++)
            d.at[k] = to_act(to_real(d.at[k]) * power(s.at[k], (REAL)beta) - factor * to_real(v.at[k]) * sum[k]);
        ((Vector<ACT, COUNT> *)dx)[i] = d;
    }
}

extern "C" __global__ void lrn_within_back(
    const ACT *x, const ACT *y, const REAL *scale, const ACT *dy, ACT *dx, int N, int H, int W, int C, int size,
    double alpha, double beta, int wide) {
    if (wide)
        lrn_within_back_of<REALS>(x, y, scale, dy, dx, N, H, W, C, size, alpha, beta);
    else
        lrn_within_back_of<1>(x, y, scale, dy, dx, N, H, W, C, size, alpha, beta);
}
