// Softmax and its cross-entropy. A block makes one row, of any length; exponentials and sums are double.
#include "common.cuh"

#define ROW_BLOCK 256  // the most threads of a block

#define NOT_A_NUMBER __longlong_as_double(0x7ff8000000000000ll)
#define LEAST (-__longlong_as_double(0x7ff0000000000000ll))

// The greatest number of a row and where it is, the first of equals; a NaN is not found.
struct Greatest {
    REAL value;
    int place;
};

__device__ inline Greatest greater(Greatest a, Greatest b) {
    return b.value > a.value || (b.value == a.value && b.place < a.place) ? b : a;
}

__device__ inline Greatest greatest_of_warp(Greatest own) {
    for (int step = WARP / 2; step > 0; step /= 2)
        own = greater(own, Greatest{__shfl_xor_sync(ALL_LANES, own.value, step),
                                    __shfl_xor_sync(ALL_LANES, own.place, step)});
    return own;
}

// In every thread. ``found``: room for one of each warp.
__device__ inline Greatest greatest_of_row(const ACT *row, int K, Greatest *found) {
    Greatest own = {(REAL)LEAST, K}, none = own;
    for (int k = threadIdx.x; k < K; k += blockDim.x) own = greater(own, Greatest{to_real(row[k]), k});
    own = greatest_of_warp(own);
    int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    if (lane == 0) found[threadIdx.x / WARP] = own;
    __syncthreads();
    return greatest_of_warp(lane < warps ? found[lane] : none);
}

// Sum of exp(x - greatest): NaN where the row has one.
__device__ inline double exponentials(const ACT *row, int K, double greatest) {
    double sum = 0;
    for (int k = threadIdx.x; k < K; k += blockDim.x) sum += exp((double)to_real(row[k]) - greatest);
    return block_sum(sum);
}

extern "C" __global__ void __launch_bounds__(ROW_BLOCK) softmax(const ACT *x, ACT *y, int K) {
    __shared__ Greatest found[ROW_BLOCK / WARP];
    const ACT *row = x + (long long)blockIdx.x * K;
    double greatest = greatest_of_row(row, K, found).value;
    double total = exponentials(row, K, greatest);
    ACT *out = y + (long long)blockIdx.x * K;
    for (int k = threadIdx.x; k < K; k += blockDim.x)
        out[k] = to_act((REAL)(exp((double)to_real(row[k]) - greatest) / total));
}

// results [3][rows]: loss, whether it is right, whether it counts. dx may be null.
extern "C" __global__ void __launch_bounds__(ROW_BLOCK) cross_entropy(
    const ACT *x, const int *labels, ACT *dx, double *results, int N, int K, double scale, double smoothing,
    int ignore) {
    __shared__ Greatest found[ROW_BLOCK / WARP];
    const ACT *row = x + (long long)blockIdx.x * K;
    ACT *out = dx ? dx + (long long)blockIdx.x * K : dx;
    double *result = results + blockIdx.x;
    int label = labels[blockIdx.x];
    if (label == ignore) {
        if (out)
            for (int k = threadIdx.x; k < K; k += blockDim.x) out[k] = to_act((REAL)0);
        if (threadIdx.x == 0) result[0] = result[N] = result[2 * (long long)N] = 0;
        return;
    }
    Greatest greatest = greatest_of_row(row, K, found);
    double shift = (double)greatest.value + log(exponentials(row, K, greatest.value));
    bool known = label >= 0 && label < K;
    double share = known ? smoothing / K : NOT_A_NUMBER, away = 0;
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
        double below = shift - (double)to_real(row[k]);
        away += below;
        double wanted = k == label ? share + (1 - smoothing) : share;
        if (out) out[k] = to_act((REAL)(scale * (exp(-below) - wanted)));
    }
    double loss = known ? (1 - smoothing) * (shift - (double)to_real(row[label])) : NOT_A_NUMBER;
    if (smoothing > 0) loss += share * block_sum(away);
    if (threadIdx.x) return;
    result[0] = loss;
    result[N] = greatest.place == label;
    result[2 * (long long)N] = 1;
}

// totals += sums of the results: one block, so that the order is the rows' own.
extern "C" __global__ void add_totals(const double *results, double *totals, int N) {
    for (int quantity = 0; quantity < 3; quantity++) {
        double sum = 0;
        for (int n = threadIdx.x; n < N; n += blockDim.x) sum += results[quantity * (long long)N + n];
        sum = block_sum(sum);
        if (threadIdx.x == 0) totals[quantity] += sum;
    }
}
