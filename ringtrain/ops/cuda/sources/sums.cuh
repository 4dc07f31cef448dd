// Sums of a gradient over the rows of each channel, where it is not masked by a ReLU that was fused into the operation
// before.
//
// They are made in two steps: each slice of rows gives one partial sum a channel, of REAL sums over the few rows of
// each thread; the last slice of a group to come then adds the slices in float64. See columns.cuh for the cut and its
// order.
#pragma once
#include "norm.cuh"

// Where dy counts: everywhere; where y > 0; where the normalised x is above 0; where bits say so. Where it does not
// count by y or bits, it is written back as 0.
enum Mask { PLAIN = 0, KEPT = 1, SIGN = 2, BITS = 3 };

// What a mask is made from: y (KEPT), or bits, a byte for each vector of channels (BITS), or gamma, beta and var (SIGN).
struct MaskSource {
    const ACT *y;
    const unsigned char *bits;
    const REAL *gamma, *beta, *var;
    REAL eps;
};

// Whether a value counts, of COUNT channels.
template <int COUNT, int MASK> struct Counts {
    REAL scale[COUNT], beta[COUNT];

    __device__ Counts(const MaskSource &from, const Slice<COUNT> &at, int channels) {
        if (MASK != SIGN || !at.count) return;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int c = at.channel + i;
            scale[i] = scale_of(from.gamma[c], from.var[(long long)at.group * channels + c], from.eps);
            beta[i] = from.beta[c];
        }
    }
    __device__ bool operator()(int i, REAL x, REAL mean, ACT y, unsigned bits) const {
        if (MASK == KEPT) return to_real(y) > (REAL)0;
        if (MASK == BITS) return bits >> i & 1;
        if (MASK == SIGN) return to_real(to_act(normal_of(x, mean, scale[i], beta[i]))) > (REAL)0;
        return true;
    }
};

template <int COUNT> __device__ unsigned bits_at(const unsigned char *bits, long long row, int channels, int channel) {
    return bits[(row * channels + channel) / COUNT];
}

// partial [slices of all groups][QUANTITIES][channels]: the sum of dy and, of two, that of dy · (x - mean).
template <int COUNT, int MASK, int QUANTITIES>
__device__ void sums_of(const ACT *__restrict__ x, ACT *__restrict__ dy, const REAL *mean, const MaskSource &from,
                        REAL *partial, const Slice<COUNT> &at, int channels, REAL *lanes) {
    REAL centre[COUNT] = {}, sum[COUNT] = {}, products[COUNT] = {};
    Counts<COUNT, MASK> counts(from, at, channels);
    if (QUANTITIES == 2 && at.count) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) centre[i] = mean[(long long)at.group * channels + at.channel + i];
    }
#pragma unroll 4
    for (long long row = at.first; row < at.last; row += blockDim.y) {
        Vector<ACT, COUNT> d = load<COUNT>(dy, row, channels, at.channel), v, out;
        unsigned bits = MASK == BITS ? bits_at<COUNT>(from.bits, row, channels, at.channel) : 0;
        if (QUANTITIES == 2) v = load<COUNT>(x, row, channels, at.channel);
        if (MASK == KEPT) out = load<COUNT>(from.y, row, channels, at.channel);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            REAL value = QUANTITIES == 2 ? to_real(v.at[i]) : (REAL)0;
            REAL r = counts(i, value, centre[i], out.at[i], bits) ? to_real(d.at[i]) : (REAL)0;
            if (MASK == KEPT || MASK == BITS) d.at[i] = to_act(r);
            sum[i] += r;
            if (QUANTITIES == 2) products[i] += r * (value - centre[i]);
        }
        if (MASK == KEPT || MASK == BITS) store(dy, row, channels, at.channel, d);
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

// The totals of one quantity over the slices of this block's group, of COUNT channels; in every thread.
template <int COUNT>
__device__ void totals_of(const REAL *partial, int quantity, int quantities, const Slice<COUNT> &at, CUT,
                          double (&total)[COUNT], double *lanes) {
    long long own = rows_of_group(at.group, rows, group_rows);
    int used = (int)((own + slice_rows - 1) / slice_rows), c = at.active(channels) ? at.channel : 0;
    const REAL *part = partial + ((long long)at.group * slices * quantities + quantity) * channels + c;
#pragma unroll
    for (int i = 0; i < COUNT; i++) total[i] = 0;
    for (int s = threadIdx.y; s < used; s += blockDim.y) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) total[i] += __ldcg(part + (long long)s * quantities * channels + i);
    }
    column_sum(total, lanes);
}
