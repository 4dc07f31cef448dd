// Gradients of batch normalisation of ghost batches, each a group of rows.
#include "norm.cuh"
#include "sums.cuh"

// ── sums ─────────────────────────────────────────────────────────────────────────────────────────────────────
extern "C" __global__ void __launch_bounds__(BLOCK) gradient_sums(
    const ACT *x, const ACT *y, ACT *dy, const REAL *mean, REAL *partial, int mask,
    long long rows, long long group_rows, int slices, int slice_rows, int channels, int wide) {
    __shared__ REAL lanes[BLOCK * ACTS];
    if (wide)
        sums_by_mask<ACTS, 2>(mask, x, y, dy, mean, partial,
                              Slice<ACTS>(rows, group_rows, slices, slice_rows, channels), channels, lanes);
    else
        sums_by_mask<1, 2>(mask, x, y, dy, mean, partial,
                           Slice<1>(rows, group_rows, slices, slice_rows, channels), channels, lanes);
}

// totals [groups][2][channels]
extern "C" __global__ void __launch_bounds__(FINISH) finish_sums(
    const REAL *partial, double *totals,
    long long rows, long long group_rows, int slices, int slice_rows, int channels) {
    __shared__ double lanes[FINISH];
    int channel = blockIdx.y * blockDim.x + threadIdx.x, c = min(channel, channels - 1);
    double sum = total_of(partial, 0, 2, c, rows, group_rows, slices, slice_rows, channels, lanes);
    double product = total_of(partial, 1, 2, c, rows, group_rows, slices, slice_rows, channels, lanes);
    if (threadIdx.y || channel >= channels) return;
    double *out = totals + (long long)blockIdx.x * 2 * channels + channel;
    out[0] = sum;
    out[channels] = product;
}

// From the totals of all groups; a thread a channel.
extern "C" __global__ void norm_gradients(
    const double *totals, const REAL *var, REAL *dgamma, REAL *dbeta, int groups, int channels, double eps,
    int accumulate) {
    int c = (int)first_index();
    if (c >= channels) return;
    double gamma_sum = accumulate ? (double)dgamma[c] : 0, beta_sum = accumulate ? (double)dbeta[c] : 0;
    for (int g = 0; g < groups; g++) {
        const double *own = totals + (long long)g * 2 * channels + c;
        beta_sum += own[0];
        gamma_sum += own[channels] / sqrt((double)var[(long long)g * channels + c] + eps);
    }
    dgamma[c] = (REAL)gamma_sum;
    dbeta[c] = (REAL)beta_sum;
}

// ── gradient of the input ────────────────────────────────────────────────────────────────────────────────────
// dx = gamma · inv · (dy - totals[0]/count - (x - mean) · inv² · totals[1]/count), by each group's totals; count 0: the
// group's own rows.
template <int COUNT, int MASK>
__device__ void input_gradient_of(const ACT *__restrict__ x, const ACT *__restrict__ y,
                                  const ACT *__restrict__ dy, const REAL *gamma, const REAL *mean, const REAL *var,
                                  const double *totals, ACT *__restrict__ dx, REAL eps, double count,
                                  const Slice<COUNT> &at, int channels) {
    if (!at.count) return;
    REAL centre[COUNT], factor[COUNT], slope[COUNT], level[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        long long own = (long long)at.group * channels + at.channel + i;
        const double *total = totals + (long long)at.group * channels + own;  // two rows of totals a group
        REAL inverse = inverse_of(var[own], eps);
        centre[i] = mean[own];
        factor[i] = gamma[at.channel + i] * inverse;
        level[i] = (REAL)(total[0] / count);
        slope[i] = (REAL)(total[channels] / count) * inverse * inverse;
    }
#pragma unroll 4
    for (long long row = at.first; row < at.last; row += blockDim.y) {
        Vector<ACT, COUNT> d = load<COUNT>(dy, row, channels, at.channel), v, out;
        v = load<COUNT>(x, row, channels, at.channel);
        if (MASK) out = load<COUNT>(y, row, channels, at.channel);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            REAL r = to_real(d.at[i]);
            if (MASK) r = masked(r, out.at[i]);
            d.at[i] = to_act(factor[i] * (r - level[i] - slope[i] * (to_real(v.at[i]) - centre[i])));
        }
        store(dx, row, channels, at.channel, d);
    }
}

template <int COUNT>
__device__ void input_gradient_by_mask(const ACT *x, const ACT *y, const ACT *dy, const REAL *gamma, const REAL *mean,
                                       const REAL *var, const double *totals, ACT *dx, double eps, double count,
                                       int relu, const Slice<COUNT> &at, long long rows, long long group_rows,
                                       int channels) {
    if (count == 0) count = (double)rows_of_group(at.group, rows, group_rows);
    if (relu)
        input_gradient_of<COUNT, MASKED>(x, y, dy, gamma, mean, var, totals, dx, (REAL)eps, count, at, channels);
    else
        input_gradient_of<COUNT, PLAIN>(x, y, dy, gamma, mean, var, totals, dx, (REAL)eps, count, at, channels);
}

extern "C" __global__ void __launch_bounds__(BLOCK) input_gradient(
    const ACT *x, const ACT *y, const ACT *dy, const REAL *gamma, const REAL *mean, const REAL *var,
    const double *totals, ACT *dx, double eps, double count, int relu,
    long long rows, long long group_rows, int slices, int slice_rows, int channels, int wide) {
    if (wide)
        input_gradient_by_mask(x, y, dy, gamma, mean, var, totals, dx, eps, count, relu,
                               Slice<ACTS>(rows, group_rows, slices, slice_rows, channels), rows, group_rows,
                               channels);
    else
        input_gradient_by_mask(x, y, dy, gamma, mean, var, totals, dx, eps, count, relu,
                               Slice<1>(rows, group_rows, slices, slice_rows, channels), rows, group_rows, channels);
}
