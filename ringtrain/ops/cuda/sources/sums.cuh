// Sums of a gradient over the rows of each channel, with the mask of a ReLU that was fused into the operation before.
//
// They are made in two steps: each slice of rows gives one partial sum a channel, of REAL sums over the few rows of
// each thread; then float64 sums over the slices. See columns.cuh for the cut and its order.
#pragma once
#include "columns.cuh"

// What is done to dy before it is summed: nothing; it counts where y > 0; and it is written back so.
enum Mask { PLAIN = 0, MASKED = 1, KEPT = 2 };

__device__ inline REAL masked(REAL dy, ACT y) { return to_real(y) > (REAL)0 ? dy : (REAL)0; }

// partial [slices of all groups][QUANTITIES][channels]: the sum of dy and, of two, that of dy · (x - mean).
template <int COUNT, int MASK, int QUANTITIES>
__device__ void sums_of(const ACT *__restrict__ x, const ACT *__restrict__ y, ACT *__restrict__ dy, const REAL *mean,
                        REAL *partial, const Slice<COUNT> &at, int channels, REAL *lanes) {
    REAL centre[COUNT] = {}, sum[COUNT] = {}, products[COUNT] = {};
    if (QUANTITIES == 2 && at.count) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) centre[i] = mean[(long long)at.group * channels + at.channel + i];
    }
#pragma unroll 4
    for (long long row = at.first; row < at.last; row += blockDim.y) {
        Vector<ACT, COUNT> d = load<COUNT>(dy, row, channels, at.channel), v, out;
        if (QUANTITIES == 2) v = load<COUNT>(x, row, channels, at.channel);
        if (MASK != PLAIN) out = load<COUNT>(y, row, channels, at.channel);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            REAL r = to_real(d.at[i]);
            if (MASK != PLAIN) r = masked(r, out.at[i]);
            if (MASK == KEPT) d.at[i] = to_act(r);
            sum[i] += r;
            if (QUANTITIES == 2) products[i] += r * (to_real(v.at[i]) - centre[i]);
        }
        if (MASK == KEPT) store(dy, row, channels, at.channel, d);
    }
    column_sum(sum, lanes);
    if (QUANTITIES == 2) column_sum(products, lanes);
    if (threadIdx.y || !at.active(channels)) return;
    REAL *out = partial + (long long)blockIdx.x * QUANTITIES * channels + at.channel;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        out[i] = sum[i];
        if (QUANTITIES == 2) out[channels + i] = products[i];
    }
}

template <int COUNT, int QUANTITIES>
__device__ void sums_by_mask(int mask, const ACT *x, const ACT *y, ACT *dy, const REAL *mean, REAL *partial,
                             const Slice<COUNT> &at, int channels, REAL *lanes) {
    if (mask == PLAIN)
        sums_of<COUNT, PLAIN, QUANTITIES>(x, y, dy, mean, partial, at, channels, lanes);
    else if (mask == MASKED)
        sums_of<COUNT, MASKED, QUANTITIES>(x, y, dy, mean, partial, at, channels, lanes);
    else
        sums_of<COUNT, KEPT, QUANTITIES>(x, y, dy, mean, partial, at, channels, lanes);
}

// The total of one quantity of a group's slices, in every thread.
__device__ inline double total_of(const REAL *partial, int quantity, int quantities, int c, CUT, double *lanes) {
    long long own = rows_of_group(blockIdx.x, rows, group_rows);
    const REAL *part = partial + ((long long)blockIdx.x * slices * quantities + quantity) * channels + c;
    return sum_of_slices((int)((own + slice_rows - 1) / slice_rows), lanes,
                         [&](int s) { return (double)part[(long long)s * quantities * channels]; });
}
