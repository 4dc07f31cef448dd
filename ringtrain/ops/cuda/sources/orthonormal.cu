// Columns of length 1 at right angles, by Gram-Schmidt, twice. See Ops.orthonormalise.
//
// One block does all of a matrix: each step needs sums over all rows of the one before, and the matrices have few
// columns. A thread has the same rows throughout, so that only the sums are shared. What lies along some columns is
// measured at once and then taken away; the second time leaves no more than roundings of it.
#include "common.cuh"

#define ORTHONORMAL_BLOCK 1024
#define TOGETHER 4     // columns that are projected on at once
#define NOTHING_LEFT 16  // roundings: a column of which no more is left has no direction of its own
#define DRAWN_BITS 24  // of a random number: DROPOUT_BITS of ops/keys.py

__device__ inline double length_of(const REAL *x, int M, int R, int r) {
    double sum = 0;
    for (int i = threadIdx.x; i < M; i += blockDim.x) {
        double v = x[(long long)i * R + r];
        sum += v * v;
    }
    return sqrt(block_sum(sum));
}

// Take from column r what lies along those before.
__device__ inline void project(REAL *x, int M, int R, int r) {
    for (int s = 0; s < r; s += TOGETHER) {
        int some = min(TOGETHER, r - s);
        double along[TOGETHER] = {};
        for (int i = threadIdx.x; i < M; i += blockDim.x) {
            const REAL *row = x + (long long)i * R;
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                if (j < some) along[j] += (double)row[s + j] * row[r];
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) along[j] = block_sum(along[j]);
        for (int i = threadIdx.x; i < M; i += blockDim.x) {
            REAL *row = x + (long long)i * R;
            double v = row[r];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                if (j < some) v -= along[j] * row[s + j];
            row[r] = (REAL)v;
        }
    }
}

// Numbers from -1 to 1, from the column's place alone.
__device__ inline void draw(REAL *x, int M, int R, int r) {
    Key key = absorb(absorb(0, r), 0);
    for (int i = threadIdx.x; i < M; i += blockDim.x) {
        Key bits = absorb(key, i) >> (64 - DRAWN_BITS);
        x[(long long)i * R + r] = (REAL)((double)bits / (1 << DRAWN_BITS) * 2 - 1);
    }
}

extern "C" __global__ void __launch_bounds__(ORTHONORMAL_BLOCK) orthonormalise(REAL *x, int M, int R, double rounding) {
    for (int r = 0; r < R; r++) {
        double length = length_of(x, M, R, r);
        project(x, M, R, r);
        if (length_of(x, M, R, r) <= NOTHING_LEFT * rounding * length) {
            draw(x, M, R, r);
            project(x, M, R, r);
        }
        project(x, M, R, r);
        double left = length_of(x, M, R, r);
        for (int i = threadIdx.x; i < M; i += blockDim.x) {
            REAL *own = x + (long long)i * R + r;
            *own = (REAL)(*own / left);
        }
    }
}
