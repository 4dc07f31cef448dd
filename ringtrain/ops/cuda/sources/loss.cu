// Softmax and its cross-entropy: a block makes one row, of any length; and losses of values, element by element.
// Exponentials and sums are double.
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

// totals += the sums of results [3][count], in their order; by the last block.
__device__ inline void add_totals(const double *results, double *totals, int count, unsigned *ticket) {
    if (!is_last_block(ticket, gridDim.x)) return;
    for (int quantity = 0; quantity < 3; quantity++) {
        double sum = 0;
        for (int n = threadIdx.x; n < count; n += blockDim.x) sum += __ldcg(results + quantity * (long long)count + n);
        sum = block_sum(sum);
        if (threadIdx.x == 0) totals[quantity] += sum;
    }
}

// result, N apart: loss, whether it is right, whether it counts. out may be null.
__device__ inline void cross_entropy_of(const ACT *row, int label, ACT *out, double *result, int N, int K, double scale,
                                        double smoothing, Greatest *found) {
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

// results [3][rows]. dx may be null. totals += (loss, correct, valid) of all rows.
extern "C" __global__ void __launch_bounds__(ROW_BLOCK) cross_entropy(
    const ACT *x, const int *labels, ACT *dx, double *results, double *totals, unsigned *ticket, int N, int K,
    double scale, double smoothing, int ignore, const double *factor) {
    __shared__ Greatest found[ROW_BLOCK / WARP];
    const ACT *row = x + (long long)blockIdx.x * K;
    ACT *out = dx ? dx + (long long)blockIdx.x * K : dx;
    double *result = results + blockIdx.x;
    int label = labels[blockIdx.x];
    if (factor) scale *= *factor;
    if (label == ignore) {
        if (out)
            for (int k = threadIdx.x; k < K; k += blockDim.x) out[k] = to_act((REAL)0);
        if (threadIdx.x == 0) result[0] = result[N] = result[2 * (long long)N] = 0;
    } else {
        cross_entropy_of(row, label, out, result, N, K, scale, smoothing, found);
    }
    add_totals(results, totals, N, ticket);
}

#define MSE 0
#define MAE 1
#define HUBER 2  // else bce

struct Element {
    double loss, slope;
};

__device__ inline Element element(int kind, double x, double y, double delta) {
    double d = x - y, size = fabs(d), end = d > 0 ? delta : -delta;
    if (kind == MSE) return Element{d * d, 2 * d};
    if (kind == MAE) return Element{size, d > 0 ? 1 : d < 0 ? -1 : d};
    if (kind == HUBER) return size > delta ? Element{delta * (size - delta / 2), end} : Element{d * d / 2, d};
    if (!(y >= 0 && y <= 1)) y = NOT_A_NUMBER;
    double tail = exp(-fabs(x));
    return Element{(x < 0 ? 0 : x) - x * y + log1p(tail), (x > 0 ? 1 : tail) / (1 + tail) - y};
}

// results [3][blocks]: losses, right ones, those that count; all but those of ``missing``. dx may be null.
template <typename LABEL>
__device__ void value_part(int kind, const ACT *x, const LABEL *labels, ACT *dx, double *results, double *totals,
                           unsigned *ticket, long long count, double scale, double delta, const double *factor, bool missing) {
    if (factor) scale *= *factor;
    double loss = 0, correct = 0, valid = 0;
    for (long long i = first_index(); i < count; i += index_stride()) {
        double v = (double)to_real(x[i]), y = (double)labels[i];
        bool counts = !(missing && y == -1);
        Element found = element(kind, v, y, delta);
        if (dx) dx[i] = to_act((REAL)(counts ? scale * found.slope : 0));
        if (!counts) continue;
        loss += found.loss;
        correct += kind > HUBER && (v > 0) == (y > 0.5);
        valid += 1;
    }
    loss = block_sum(loss);
    correct = block_sum(correct);
    valid = block_sum(valid);
    if (threadIdx.x == 0) {
        results[blockIdx.x] = loss;
        results[gridDim.x + blockIdx.x] = correct;
        results[2 * gridDim.x + blockIdx.x] = valid;
    }
    add_totals(results, totals, gridDim.x, ticket);
}

extern "C" __global__ void __launch_bounds__(ROW_BLOCK) values(
    int kind, const ACT *x, const REAL *labels, ACT *dx, double *results, double *totals,
    unsigned *ticket, long long count, double scale, double delta, const double *factor) {
    value_part(kind, x, labels, dx, results, totals, ticket, count, scale, delta, factor, false);
}

extern "C" __global__ void __launch_bounds__(ROW_BLOCK) class_values(
    int kind, const ACT *x, const int *labels, ACT *dx, double *results, double *totals,
    unsigned *ticket, long long count, double scale, double delta, const double *factor) {
    value_part(kind, x, labels, dx, results, totals, ticket, count, scale, delta, factor, true);
}

// Add the totals (loss, correct, valid) of a mixed batch; one thread.
extern "C" __global__ void mix_totals(const double *a, const double *b, double *totals, double share) {
    totals[0] += share * a[0] + (1 - share) * b[0];
    totals[1] += share >= 0.5 ? a[1] : b[1];
    totals[2] += a[2];
}
