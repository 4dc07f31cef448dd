// Batch normalisation of ghost batches, each a group of rows: statistics, and what is made of them.
#include "norm.cuh"

// ── moments ──────────────────────────────────────────────────────────────────────────────────────────────────
// partial [slices of all groups][2][channels]: the mean, less the group's first row, and the sum of squares about it.
// A thread sums about its own first row, so that little cancels; means and squares about them are then put together by
// what is true of any parts: squares = sum of (squares of the part + rows of the part · (its mean - mean)²).
template <int COUNT>
__device__ void moments_of(const ACT *x, REAL *partial, const Slice<COUNT> &at, int channels, REAL *lanes) {
    REAL shift[COUNT], sum[COUNT] = {}, squares[COUNT] = {}, weighted[COUNT] = {};
    if (at.count) {
        Vector<ACT, COUNT> own = load<COUNT>(x, at.first, channels, at.channel);
#pragma unroll
        for (int i = 0; i < COUNT; i++) shift[i] = to_real(own.at[i]);
#pragma unroll 4
        for (long long row = at.first + blockDim.y; row < at.last; row += blockDim.y) {
            Vector<ACT, COUNT> v = load<COUNT>(x, row, channels, at.channel);
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                REAL d = to_real(v.at[i]) - shift[i];
                sum[i] += d;
                squares[i] += d * d;
            }
        }
        Vector<ACT, COUNT> base = load<COUNT>(x, at.start, channels, at.channel);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            REAL weight = (REAL)at.count, off = sum[i] / weight;
            squares[i] -= sum[i] * off;  // the first row's own part is 0, so that some is always left
            sum[i] = shift[i] - to_real(base.at[i]) + off;  // from here on: the mean
            weighted[i] = weight * sum[i];
        }
    }
    column_sum(weighted, lanes);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        weighted[i] /= (REAL)at.rows;
        REAL away = sum[i] - weighted[i];
        if (at.count) squares[i] += (REAL)at.count * away * away;
    }
    column_sum(squares, lanes);
    if (threadIdx.y || !at.active(channels) || !at.rows) return;
    REAL *out = partial + (long long)blockIdx.x * 2 * channels + at.channel;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        out[i] = weighted[i];
        out[channels + i] = squares[i];
    }
}

// Four blocks at a time are enough, and leave registers for four rows under way in each thread.
extern "C" __global__ void __launch_bounds__(BLOCK, 4) moments(
    const ACT *x, REAL *partial,
    long long rows, long long group_rows, int slices, int slice_rows, int channels, int wide) {
    __shared__ REAL lanes[BLOCK * ACTS];
    if (wide)
        moments_of(x, partial, Slice<ACTS>(rows, group_rows, slices, slice_rows, channels), channels, lanes);
    else
        moments_of(x, partial, Slice<1>(rows, group_rows, slices, slice_rows, channels), channels, lanes);
}

// blockIdx.x: the group; blockIdx.y and threadIdx.x: the channel.
// x: whose first row of the group the means are from, or null. gamma may be null: then no scale is made.
template <typename OUT>
__device__ void finish_moments_of(const ACT *x, const REAL *partial, const REAL *gamma, OUT *mean, OUT *var, REAL *scale,
                                  REAL eps, CUT, double *lanes) {
    int group = blockIdx.x, channel = blockIdx.y * blockDim.x + threadIdx.x, c = min(channel, channels - 1);
    long long own = rows_of_group(group, rows, group_rows);
    int used = (int)((own + slice_rows - 1) / slice_rows);
    const REAL *part = partial + (long long)group * slices * 2 * channels + c;
    auto weight = [&](int s) { return (double)min((long long)slice_rows, own - (long long)s * slice_rows); };
    auto mean_of = [&](int s) { return (double)part[(long long)s * 2 * channels]; };
    double off = sum_of_slices(used, lanes, [&](int s) { return weight(s) * mean_of(s); }) / own;
    double squares = sum_of_slices(used, lanes, [&](int s) {
        double away = mean_of(s) - off;
        return (double)part[((long long)s * 2 + 1) * channels] + weight(s) * away * away;
    });
    if (threadIdx.y || channel >= channels) return;
    long long at = (long long)group * channels + channel;
    double base = x ? (double)to_real(x[group * group_rows * channels + channel]) : 0;
    OUT found = (OUT)(squares / own);
    mean[at] = (OUT)(base + off);
    var[at] = found;
    if (gamma) scale[at] = scale_of(gamma[channel], (REAL)found, eps);
}

extern "C" __global__ void __launch_bounds__(FINISH) finish_moments(
    const ACT *x, const REAL *partial, const REAL *gamma, REAL *mean, REAL *var, REAL *scale, double eps,
    long long rows, long long group_rows, int slices, int slice_rows, int channels) {
    __shared__ double lanes[FINISH];
    finish_moments_of(x, partial, gamma, mean, var, scale, (REAL)eps, rows, group_rows, slices, slice_rows, channels,
                      lanes);
}

extern "C" __global__ void __launch_bounds__(FINISH) finish_moments_float64(
    const ACT *x, const REAL *partial, double *moments,
    long long rows, long long group_rows, int slices, int slice_rows, int channels) {
    __shared__ double lanes[FINISH];
    finish_moments_of(x, partial, (const REAL *)0, moments, moments + channels, (REAL *)0, (REAL)0, rows, group_rows,
                      slices, slice_rows, channels, lanes);
}

// ── normalisation ────────────────────────────────────────────────────────────────────────────────────────────
// y = norm(x) + a, max(·, 0); a may be null. bits: a byte for each vector of channels, which of them are above 0; or null.
template <int COUNT, bool ADDS>
__device__ void normalise_of(const ACT *__restrict__ x, const ACT *__restrict__ a, const REAL *gamma, const REAL *beta,
                             const REAL *mean, const REAL *var, ACT *__restrict__ y, unsigned char *bits, REAL eps,
                             int relu, const Slice<COUNT> &at, int channels) {
    if (!at.count) return;
    REAL centre[COUNT], scale[COUNT], offset[COUNT];
    const REAL *own_mean = mean + (long long)at.group * channels, *own_var = var + (long long)at.group * channels;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        centre[i] = own_mean[at.channel + i];
        scale[i] = scale_of(gamma[at.channel + i], own_var[at.channel + i], eps);
        offset[i] = beta[at.channel + i];
    }
#pragma unroll 4
    for (long long row = at.first; row < at.last; row += blockDim.y) {
        Vector<ACT, COUNT> v = load<COUNT>(x, row, channels, at.channel), more;
        if (ADDS) more = load<COUNT>(a, row, channels, at.channel);
        unsigned above = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            REAL r = normal_of(to_real(v.at[i]), centre[i], scale[i], offset[i]);
            if (ADDS) r += to_real(more.at[i]);
            v.at[i] = to_act(relu ? relu_of(r) : r);
            above |= (unsigned)(to_real(v.at[i]) > (REAL)0) << i;
        }
        store(y, row, channels, at.channel, v);
        if (bits) bits[(row * channels + at.channel) / COUNT] = (unsigned char)above;
    }
}

template <int COUNT>
__device__ void normalise_any(const ACT *x, const ACT *a, const REAL *gamma, const REAL *beta, const REAL *mean,
                              const REAL *var, ACT *y, unsigned char *bits, REAL eps, int relu, const Slice<COUNT> &at,
                              int channels) {
    if (a) normalise_of<COUNT, true>(x, a, gamma, beta, mean, var, y, bits, eps, relu, at, channels);
    else normalise_of<COUNT, false>(x, a, gamma, beta, mean, var, y, bits, eps, relu, at, channels);
}

extern "C" __global__ void __launch_bounds__(BLOCK) normalise(
    const ACT *x, const ACT *a, const REAL *gamma, const REAL *beta, const REAL *mean, const REAL *var, ACT *y,
    unsigned char *bits, double eps, int relu,
    long long rows, long long group_rows, int slices, int slice_rows, int channels, int wide) {
    if (wide)
        normalise_any(x, a, gamma, beta, mean, var, y, bits, (REAL)eps, relu,
                      Slice<ACTS>(rows, group_rows, slices, slice_rows, channels), channels);
    else
        normalise_any(x, a, gamma, beta, mean, var, y, bits, (REAL)eps, relu,
                      Slice<1>(rows, group_rows, slices, slice_rows, channels), channels);
}
