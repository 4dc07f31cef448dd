// Sums of all elements, in float64: each block's part first, then the parts', always in the same order.
#include "common.cuh"

template <typename F> __device__ void sum_part(const ACT *x, long long n, double *parts, F f) {
    double sum = 0;
    for (long long i = first_index(); i < n; i += index_stride()) sum += f(x[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

extern "C" __global__ void square_parts(const ACT *x, long long n, double *parts) {
    sum_part(x, n, parts, [](ACT x) { double wide = (double)to_real(x); return wide * wide; });
}

extern "C" __global__ void nonfinite_parts(const ACT *x, long long n, double *parts) {
    sum_part(x, n, parts, [](ACT x) { REAL r = to_real(x); return r - r == (REAL)0 ? 0.0 : 1.0; });
}

// One block.
extern "C" __global__ void sum_parts(const double *parts, int count, double *total) {
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) sum += parts[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *total = sum;
}
