// A bias: one value a channel, added to rows × channels; its gradient is the sum over the rows.
#include "sums.cuh"

template <int COUNT>
__device__ void add_bias_of(ACT *y, const REAL *bias, int relu, const Slice<COUNT> &at, int channels) {
    if (!at.count) return;
    REAL b[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) b[i] = bias[at.channel + i];
#pragma unroll 4
    for (long long row = at.first; row < at.last; row += blockDim.y) {
        Vector<ACT, COUNT> v = load<COUNT>(y, row, channels, at.channel);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            REAL r = to_real(v.at[i]) + b[i];
            v.at[i] = to_act(relu ? relu_of(r) : r);
        }
        store(y, row, channels, at.channel, v);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) add_bias(
    ACT *y, const REAL *bias, int relu,
    long long rows, long long group_rows, int slices, int slice_rows, int channels, int wide) {
    if (wide)
        add_bias_of(y, bias, relu, Slice<ACTS>(rows, group_rows, slices, slice_rows, channels), channels);
    else
        add_bias_of(y, bias, relu, Slice<1>(rows, group_rows, slices, slice_rows, channels), channels);
}

extern "C" __global__ void __launch_bounds__(BLOCK) bias_sums(
    const ACT *y, ACT *dy, REAL *partial, int mask,
    long long rows, long long group_rows, int slices, int slice_rows, int channels, int wide) {
    __shared__ REAL lanes[BLOCK * ACTS];
    if (wide)
        sums_by_mask<ACTS, 1>(mask, y, y, dy, 0, partial,
                              Slice<ACTS>(rows, group_rows, slices, slice_rows, channels), channels, lanes);
    else
        sums_by_mask<1, 1>(mask, y, y, dy, 0, partial,
                           Slice<1>(rows, group_rows, slices, slice_rows, channels), channels, lanes);
}

extern "C" __global__ void __launch_bounds__(FINISH) finish_bias(
    const REAL *partial, REAL *db, int accumulate,
    long long rows, long long group_rows, int slices, int slice_rows, int channels) {
    __shared__ double lanes[FINISH];
    int channel = blockIdx.y * blockDim.x + threadIdx.x, c = min(channel, channels - 1);
    double sum = total_of(partial, 0, 1, c, rows, group_rows, slices, slice_rows, channels, lanes);
    if (threadIdx.y || channel >= channels) return;
    db[channel] = (REAL)(accumulate ? (double)db[channel] + sum : sum);
}
