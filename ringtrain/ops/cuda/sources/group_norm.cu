// Normalisation of each example by itself, in groups of channels; sums are double.
#include "common.cuh"

#define ROW_BLOCK 256  // the most threads of a block
#define COLUMNS 32     // of a block that sums rows
#define LANES 8        // rows that it goes over at a time

// The elements of one group of one example.
struct Group {
    long long start, pixel;
    int first, each, count;
    __device__ Group(int pixels, int channels, int groups) {
        each = channels / groups;
        first = blockIdx.x % groups * each;
        start = (long long)(blockIdx.x / groups) * pixels * channels + first;
        pixel = channels;
        count = pixels * each;
    }
    __device__ int channel(int i) const { return first + i % each; }
    __device__ long long at(int i) const { return start + i / each * pixel + i % each; }
};

// A block makes one group of one example.
extern "C" __global__ void __launch_bounds__(ROW_BLOCK) group_norm(
    const ACT *x, const REAL *gamma, const REAL *beta, ACT *y, REAL *mean, REAL *inverse,
    int pixels, int channels, int groups, double eps) {
    Group own(pixels, channels, groups);
    double sum = 0, squares = 0;
    for (int i = threadIdx.x; i < own.count; i += blockDim.x) sum += (double)to_real(x[own.at(i)]);
    double middle = block_sum(sum) / own.count;
    for (int i = threadIdx.x; i < own.count; i += blockDim.x) {
        double away = (double)to_real(x[own.at(i)]) - middle;
        squares += away * away;
    }
    double factor = 1 / sqrt(block_sum(squares) / own.count + eps);
    for (int i = threadIdx.x; i < own.count; i += blockDim.x) {
        int c = own.channel(i);
        double value = ((double)to_real(x[own.at(i)]) - middle) * factor * (double)gamma[c] + (double)beta[c];
        y[own.at(i)] = to_act((REAL)value);
    }
    if (threadIdx.x) return;
    mean[blockIdx.x] = (REAL)middle;
    inverse[blockIdx.x] = (REAL)factor;
}

extern "C" __global__ void __launch_bounds__(ROW_BLOCK) group_norm_back(
    const ACT *x, const REAL *gamma, const REAL *mean, const REAL *inverse, const ACT *dy, ACT *dx,
    int pixels, int channels, int groups) {
    Group own(pixels, channels, groups);
    double middle = mean[blockIdx.x], factor = inverse[blockIdx.x], level = 0, along = 0;
    for (int i = threadIdx.x; i < own.count; i += blockDim.x) {
        double slope = (double)to_real(dy[own.at(i)]) * (double)gamma[own.channel(i)];
        level += slope;
        along += slope * ((double)to_real(x[own.at(i)]) - middle) * factor;
    }
    level = block_sum(level) / own.count;
    along = block_sum(along) / own.count;
    for (int i = threadIdx.x; i < own.count; i += blockDim.x) {
        double slope = (double)to_real(dy[own.at(i)]) * (double)gamma[own.channel(i)];
        double xhat = ((double)to_real(x[own.at(i)]) - middle) * factor;
        dx[own.at(i)] = to_act((REAL)(factor * (slope - level - xhat * along)));
    }
}

// partial [slices][2][channels]: of a slice of the rows the sums of dy · xhat, and of dy. blockIdx.x: the slice;
// threads: COLUMNS x LANES.
extern "C" __global__ void __launch_bounds__(COLUMNS * LANES) group_norm_sums(
    const ACT *x, const REAL *mean, const REAL *inverse, const ACT *dy, double *partial,
    long long rows, int slice_rows, int pixels, int channels, int groups) {
    __shared__ double lanes[2][LANES][COLUMNS];
    int c = blockIdx.y * COLUMNS + threadIdx.x;
    long long first = (long long)blockIdx.x * slice_rows, last = min(first + slice_rows, rows);
    double along = 0, level = 0;
    for (long long row = first + threadIdx.y; c < channels && row < last; row += LANES) {
        long long group = row / pixels * groups + c / (channels / groups);
        double slope = (double)to_real(dy[row * channels + c]);
        level += slope;
        along += slope * ((double)to_real(x[row * channels + c]) - (double)mean[group]) * (double)inverse[group];
    }
    lanes[0][threadIdx.y][threadIdx.x] = along;
    lanes[1][threadIdx.y][threadIdx.x] = level;
    __syncthreads();
    if (threadIdx.y || c >= channels) return;
    for (int lane = 1; lane < LANES; lane++) {
        along += lanes[0][lane][threadIdx.x];
        level += lanes[1][lane][threadIdx.x];
    }
    partial[(long long)blockIdx.x * 2 * channels + c] = along;
    partial[((long long)blockIdx.x * 2 + 1) * channels + c] = level;
}

extern "C" __global__ void group_norm_gradients(
    const double *partial, REAL *dgamma, REAL *dbeta, int slices, int channels, int accumulate) {
    int c = (int)first_index();
    if (c >= channels) return;
    double along = accumulate ? (double)dgamma[c] : 0, level = accumulate ? (double)dbeta[c] : 0;
    for (int slice = 0; slice < slices; slice++) {
        along += partial[(long long)slice * 2 * channels + c];
        level += partial[((long long)slice * 2 + 1) * channels + c];
    }
    dgamma[c] = (REAL)along;
    dbeta[c] = (REAL)level;
}
