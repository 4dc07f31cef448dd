// The numbers of an update: what one thread sets, and the sum of squares that it goes by. See ringtrain/ops/update.py.
#include "common.cuh"

enum { RATE, UPDATES, MULTIPLIER, APPLIED, DIVERGED };
enum { FACTOR, GOOD, SKIPPED };

#define LARGEST_FACTOR 16777216.0
#define GROW_AFTER 2000.0

// Set up to four numbers of 8 bytes.
extern "C" __global__ void put(
    void *a, unsigned long long a_bits, void *b, unsigned long long b_bits, void *c, unsigned long long c_bits, void *d,
    unsigned long long d_bits) {
    typedef unsigned long long Bits;
    if (a) *(Bits *)a = a_bits;
    if (b) *(Bits *)b = b_bits;
    if (c) *(Bits *)c = c_bits;
    if (d) *(Bits *)d = d_bits;
}

// Count an update, which is left out unless the gradient is finite, and adapt a dynamic factor.
__device__ inline void judge(double *scale, bool finite, bool dynamic) {
    if (!finite) {
        scale[SKIPPED] += 1;
        scale[GOOD] = 0;
        if (dynamic) scale[FACTOR] = max(scale[FACTOR] / 2, 1.0);
        return;
    }
    scale[GOOD] += 1;
    if (scale[GOOD] != GROW_AFTER) return;
    scale[GOOD] = 0;
    if (dynamic) scale[FACTOR] = min(scale[FACTOR] * 2, LARGEST_FACTOR);
}

// limit: below 0 for none. squares, scale and totals may be null.
extern "C" __global__ void begin_update(
    double *numbers, const double *squares, double limit, double *scale, int dynamic, const double *totals) {
    double sum = squares ? *squares : 0, factor = scale ? scale[FACTOR] : 1;
    bool finite = sum - sum == 0;
    if (scale) judge(scale, finite, dynamic);
    double multiplier = 1 / factor, norm = sqrt(sum) / factor;
    if (limit >= 0 && norm > limit) multiplier *= limit / norm;
    if (totals && totals[0] - totals[0] != 0) numbers[DIVERGED] = 1;
    bool applied = (finite || !scale) && numbers[DIVERGED] == 0;
    numbers[MULTIPLIER] = multiplier;
    numbers[APPLIED] = applied;
    numbers[UPDATES] += applied;
}

// squares = sum of x² over pieces, chunks [count][2]: first element, elements. Each block's part, then the last block
// adds them, always in the same order.
extern "C" __global__ void square_sum(
    const REAL *x, const long long *chunks, int count, double *parts, unsigned *ticket, double *squares) {
    double sum = 0;
    for (int i = blockIdx.x; i < count; i += gridDim.x) {
        const REAL *from = x + chunks[2 * i];
        for (int j = threadIdx.x; j < (int)chunks[2 * i + 1]; j += blockDim.x) sum += (double)from[j] * from[j];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
    if (!is_last_block(ticket, gridDim.x)) return;
    sum = 0;
    for (int i = threadIdx.x; i < (int)gridDim.x; i += blockDim.x) sum += __ldcg(parts + i);
    sum = block_sum(sum);
    if (threadIdx.x == 0) *squares = sum;
}
