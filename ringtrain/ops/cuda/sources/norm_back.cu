// Gradients of batch normalisation of ghost batches, each a group of rows. Compiled with MASKED_BY, a Mask.
#include "sums.cuh"

#define LANE_BYTES (BLOCK * ACTS * 8)

// What the last block of a group, and the last one of all groups, have to make of the sums. Null: not wanted.
struct SumsWanted {
    double *totals;             // [groups][2][channels]: sums of dy, and of dy · (x - mean)
    REAL *levels;               // [groups][2][channels]: of input_gradient
    REAL *dgamma, *dbeta;       // [channels]
    REAL *mean_out, *var_out;   // [channels]: shares of the statistics, see Ops.normalise_back
    double weight;              // of a row, in the shares
    int accumulate;
};

// Of a group whose slices are all there.
template <int COUNT>
__device__ void finish_group(const SumsWanted &wanted, const REAL *partial, const REAL *var, REAL eps,
                             const Slice<COUNT> &at, CUT, double *lanes) {
    double sum[COUNT], product[COUNT];
    totals_of<COUNT>(partial, 0, 2, at, rows, group_rows, slices, slice_rows, channels, sum, lanes);
    totals_of<COUNT>(partial, 1, 2, at, rows, group_rows, slices, slice_rows, channels, product, lanes);
    if (threadIdx.y || !at.active(channels)) return;
    REAL count = (REAL)rows_of_group(at.group, rows, group_rows);
    long long own = (long long)at.group * 2 * channels + at.channel;
    for (int i = 0; i < COUNT; i++) {
        wanted.totals[own + i] = sum[i];
        wanted.totals[own + channels + i] = product[i];
        if (!wanted.levels) continue;
        REAL inverse = inverse_of(var[(long long)at.group * channels + at.channel + i], eps);
        wanted.levels[own + i] = (REAL)sum[i] / count;
        wanted.levels[own + channels + i] = (REAL)product[i] / count * inverse * inverse;
    }
}

// Of all groups, whose totals are all there: a thread a channel.
template <int COUNT>
__device__ void finish_parameters(const SumsWanted &wanted, const REAL *mean, const REAL *var, REAL eps,
                                  const Slice<COUNT> &at, CUT) {
    int groups = gridDim.x / slices, width = blockDim.x * COUNT;
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < width; i += blockDim.x * blockDim.y) {
        int c = blockIdx.y * width + i;
        if (c >= channels) break;
        bool add = wanted.accumulate != 0;
        double gamma = add ? (double)wanted.dgamma[c] : 0, beta = add ? (double)wanted.dbeta[c] : 0;
        double mean_sum = add ? (double)wanted.mean_out[c] : 0, var_sum = add ? (double)wanted.var_out[c] : 0;
        for (int g = 0; g < groups; g++) {
            const double *total = wanted.totals + (long long)g * 2 * channels + c;
            long long own = (long long)g * channels + c;
            long long count = rows_of_group(g, rows, group_rows);
            double share = count * wanted.weight;
            beta += __ldcg(total);
            gamma += __ldcg(total + channels) * inverse_of(var[own], eps);
            mean_sum += share * mean[own];
            var_sum += share * (var[own] * ((REAL)count / (REAL)(count > 1 ? count - 1 : 1)));
        }
        wanted.dgamma[c] = (REAL)gamma;
        wanted.dbeta[c] = (REAL)beta;
        wanted.mean_out[c] = (REAL)mean_sum;
        wanted.var_out[c] = (REAL)var_sum;
    }
}

// tickets: one for each group and column of blocks, and then one for each column.
template <int COUNT>
__device__ void all_sums(const ACT *x, ACT *dy, const REAL *mean, const MaskSource &from, REAL *partial, unsigned *tickets, const SumsWanted &wanted, CUT, char *memory) {
    Slice<COUNT> at(rows, group_rows, slices, slice_rows, channels);
    sums_of<COUNT, MASKED_BY, 2>(x, dy, mean, from, partial, at, channels, (REAL *)memory);
    int groups = gridDim.x / slices;
    if (!is_last_block(tickets + at.group * gridDim.y + blockIdx.y, slices)) return;
    finish_group(wanted, partial, from.var, from.eps, at, rows, group_rows, slices, slice_rows, channels,
                 (double *)memory);
    if (!wanted.dgamma || !is_last_block(tickets + groups * gridDim.y + blockIdx.y, groups)) return;
    finish_parameters(wanted, mean, from.var, from.eps, at, rows, group_rows, slices, slice_rows, channels);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 3) gradient_sums(
    const ACT *x, const ACT *y, const unsigned char *bits, ACT *dy, const REAL *gamma, const REAL *beta,
    const REAL *mean, const REAL *var, REAL *partial, unsigned *tickets, double *totals, REAL *levels, REAL *dgamma,
    REAL *dbeta, REAL *mean_out, REAL *var_out, double weight, int accumulate, double eps,
    long long rows, long long group_rows, int slices, int slice_rows, int channels, int wide) {
    alignas(16) __shared__ char memory[LANE_BYTES];
    SumsWanted wanted{totals, levels, dgamma, dbeta, mean_out, var_out, weight, accumulate};
    MaskSource from{y, bits, gamma, beta, var, (REAL)eps};
    if (wide)
        all_sums<ACTS>(x, dy, mean, from, partial, tickets, wanted, rows, group_rows, slices, slice_rows,
                       channels, memory);
    else
        all_sums<1>(x, dy, mean, from, partial, tickets, wanted, rows, group_rows, slices, slice_rows,
                    channels, memory);
}

// The levels of one group, from totals of ``count`` rows; a thread a channel.
extern "C" __global__ void levels_of_totals(
    const double *totals, const REAL *var, REAL *levels, int channels, double count, double eps) {
    int c = (int)first_index();
    if (c >= channels) return;
    REAL inverse = inverse_of(var[c], (REAL)eps);
    levels[c] = (REAL)(totals[c] / count);
    levels[channels + c] = (REAL)(totals[channels + c] / count) * inverse * inverse;
}

// ── gradient of the input ────────────────────────────────────────────────────────────────────────────────────
// dx = gamma · inv · (dy - level - (x - mean) · slope), by each group's levels; dy that was kept is masked already.
template <int COUNT>
__device__ void input_gradient_of(const ACT *__restrict__ x, const ACT *__restrict__ dy, const REAL *mean,
                                  const MaskSource &from, const REAL *levels, ACT *__restrict__ dx,
                                  const Slice<COUNT> &at, int channels) {
    if (!at.count) return;
    REAL centre[COUNT], factor[COUNT], slope[COUNT], level[COUNT];
    Counts<COUNT, MASKED_BY == SIGN ? SIGN : PLAIN> counts(from, at, channels);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        long long own = (long long)at.group * channels + at.channel + i;
        const REAL *own_level = levels + (long long)at.group * channels + own;  // two rows of them a group
        centre[i] = mean[own];
        factor[i] = scale_of(from.gamma[at.channel + i], from.var[own], from.eps);
        level[i] = own_level[0];
        slope[i] = own_level[channels];
    }
#pragma unroll 4
    for (long long row = at.first; row < at.last; row += blockDim.y) {
        Vector<ACT, COUNT> d = load<COUNT>(dy, row, channels, at.channel), v;
        v = load<COUNT>(x, row, channels, at.channel);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            REAL value = to_real(v.at[i]);
            REAL r = counts(i, value, centre[i], v.at[i], 0) ? to_real(d.at[i]) : (REAL)0;
            d.at[i] = to_act(factor[i] * (r - level[i] - slope[i] * (value - centre[i])));
        }
        store(dx, row, channels, at.channel, d);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) input_gradient(
    const ACT *x, const ACT *dy, const REAL *gamma, const REAL *beta, const REAL *mean, const REAL *var,
    const REAL *levels, ACT *dx, double eps,
    long long rows, long long group_rows, int slices, int slice_rows, int channels, int wide) {
    MaskSource from{0, 0, gamma, beta, var, (REAL)eps};
    if (wide)
        input_gradient_of(x, dy, mean, from, levels, dx,
                               Slice<ACTS>(rows, group_rows, slices, slice_rows, channels), channels);
    else
        input_gradient_of(x, dy, mean, from, levels, dx,
                               Slice<1>(rows, group_rows, slices, slice_rows, channels), channels);
}
