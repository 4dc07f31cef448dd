// Layers of sequences: embedding, what is added to each example, and attention.
#include "common.cuh"

#define NOT_A_NUMBER __longlong_as_double(0x7ff8000000000000ll)
#define LEAST (-__longlong_as_double(0x7ff0000000000000ll))

// ── embedding ────────────────────────────────────────────────────────────────────────────────────────────────
// The entry that a number names; -1 if it names none.
__device__ inline int entry_of(ACT x, int entries) {
    REAL number = to_real(x);
    int entry = number >= (REAL)0 && number < (REAL)entries ? (int)number : -1;
    return (REAL)entry == number ? entry : -1;
}

extern "C" __global__ void embedding(const ACT *x, const REAL *w, ACT *y, long long rows, int entries, int units) {
    for (long long i = first_index(); i < rows * units; i += index_stride()) {
        int entry = entry_of(x[i / units], entries);
        y[i] = to_act(entry < 0 ? (REAL)NOT_A_NUMBER : w[(long long)entry * units + i % units]);
    }
}

// A thread has one column of some entries, and adds the rows in their order. blockIdx.y: which `each` entries.
extern "C" __global__ void embedding_back(
    const ACT *x, const ACT *dy, REAL *dw, long long rows, int entries, int units, int each, int accumulate) {
    int column = (int)first_index(), first = blockIdx.y * each, last = min(first + each, entries);
    if (column >= units) return;
    if (!accumulate)
        for (int entry = first; entry < last; entry++) dw[(long long)entry * units + column] = (REAL)0;
    for (long long row = 0; row < rows; row++) {
        int entry = entry_of(x[row], entries);
        if (entry >= first && entry < last) dw[(long long)entry * units + column] += to_real(dy[row * units + column]);
    }
}

extern "C" __global__ void add_bias(const ACT *x, const REAL *b, ACT *y, long long n, int columns) {
    for (long long i = first_index(); i < n; i += index_stride()) y[i] = to_act(to_real(x[i]) + b[i % columns]);
}

// ── attention ────────────────────────────────────────────────────────────────────────────────────────────────
// The greatest number of a block, in every thread.
__device__ inline REAL block_greatest(REAL value) {
    __shared__ REAL found[WARP];
    for (int step = WARP / 2; step > 0; step /= 2) {
        REAL other = __shfl_xor_sync(ALL_LANES, value, step);
        value = other > value ? other : value;
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) found[threadIdx.x / WARP] = value;
    __syncthreads();
    for (int warp = 0; warp < (int)blockDim.x / WARP; warp++) value = found[warp] > value ? found[warp] : value;
    return value;
}

// The place of a block: a row of one head of one example. x is [n, length, 3 units]: queries, keys, values.
struct Place {
    int row, head, width;
    long long example, shares;
    __device__ Place(int length, int units, int heads) {
        row = blockIdx.x % length;
        head = blockIdx.x / length % heads;
        width = units / heads;
        example = blockIdx.x / length / heads;
        shares = (example * heads + head) * length * length;
    }
    // What is at a place of the sequence, from this head's first column on; kind: 0 queries, 1 keys, 2 values.
    template <typename T> __device__ T *in(T *x, int kind, int at, int length, int units) const {
        return x + ((example * length + at) * 3 + kind) * units + head * width;
    }
    template <typename T> __device__ T *out(T *y, int at, int length, int units) const {
        return y + (example * length + at) * units + head * width;
    }
};

template <typename A, typename B> __device__ REAL dot(const A *a, const B *b, int count) {
    REAL sum = (REAL)0;
    for (int i = 0; i < count; i++) sum += to_real(a[i]) * to_real(b[i]);
    return sum;
}

// scores: may be the memory of p, if the types are one.
extern "C" __global__ void attention(
    const ACT *x, ACT *y, ACT *p, REAL *scores, int length, int units, int heads, int causal) {
    Place own(length, units, heads);
    int count = causal ? own.row + 1 : length;
    long long row = own.shares + (long long)own.row * length;
    const ACT *query = own.in(x, 0, own.row, length, units);
    REAL scale = (REAL)(1 / sqrt((double)own.width)), greatest = (REAL)LEAST;
    for (int j = threadIdx.x; j < count; j += blockDim.x) {
        REAL score = dot(query, own.in(x, 1, j, length, units), own.width) * scale;
        scores[row + j] = score;
        greatest = score > greatest ? score : greatest;
    }
    greatest = block_greatest(greatest);
    double sum = 0;
    for (int j = threadIdx.x; j < count; j += blockDim.x) {
        REAL e = exp(scores[row + j] - greatest);
        scores[row + j] = e;
        sum += (double)e;
    }
    double inverse = 1 / block_sum(sum);
    for (int j = threadIdx.x; j < length; j += blockDim.x) {
        REAL share = j < count ? (REAL)((double)scores[row + j] * inverse) : (REAL)0;
        scores[row + j] = share;
        p[row + j] = to_act(share);
    }
    __syncthreads();
    ACT *out = own.out(y, own.row, length, units);
    for (int d = threadIdx.x; d < own.width; d += blockDim.x) {
        REAL total = (REAL)0;
        for (int j = 0; j < count; j++) total += scores[row + j] * to_real(own.in(x, 2, j, length, units)[d]);
        out[d] = to_act(total);
    }
}

// ds: the gradient of the scores; and that of the queries.
extern "C" __global__ void attention_back(
    const ACT *x, const ACT *p, const ACT *dy, REAL *ds, ACT *dx, int length, int units, int heads) {
    Place own(length, units, heads);
    long long row = own.shares + (long long)own.row * length;
    const ACT *slope = own.out(dy, own.row, length, units);
    double scale = 1 / sqrt((double)own.width), sum = 0;
    for (int j = threadIdx.x; j < length; j += blockDim.x) {
        REAL d = dot(slope, own.in(x, 2, j, length, units), own.width);
        ds[row + j] = d;
        sum += (double)d * (double)to_real(p[row + j]);
    }
    sum = block_sum(sum);
    for (int j = threadIdx.x; j < length; j += blockDim.x)
        ds[row + j] = (REAL)((double)to_real(p[row + j]) * ((double)ds[row + j] - sum) * scale);
    __syncthreads();
    ACT *out = own.in(dx, 0, own.row, length, units);
    for (int d = threadIdx.x; d < own.width; d += blockDim.x) {
        REAL total = (REAL)0;
        for (int j = 0; j < length; j++) total += ds[row + j] * to_real(own.in(x, 1, j, length, units)[d]);
        out[d] = to_act(total);
    }
}

// The gradients of keys and values, of the place `row` of the sequence.
extern "C" __global__ void attention_back_keys(
    const ACT *x, const ACT *p, const ACT *dy, const REAL *ds, ACT *dx, int length, int units, int heads) {
    Place own(length, units, heads);
    ACT *dk = own.in(dx, 1, own.row, length, units), *dv = own.in(dx, 2, own.row, length, units);
    for (int d = threadIdx.x; d < own.width; d += blockDim.x) {
        REAL key = (REAL)0, value = (REAL)0;
        for (int i = 0; i < length; i++) {
            long long at = own.shares + (long long)i * length + own.row;
            key += ds[at] * to_real(own.in(x, 0, i, length, units)[d]);
            value += to_real(p[at]) * to_real(own.out(dy, i, length, units)[d]);
        }
        dk[d] = to_act(key);
        dv[d] = to_act(value);
    }
}
