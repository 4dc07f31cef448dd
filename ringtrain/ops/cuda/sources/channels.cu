// The gradient of a bias, one value a channel: the sum over the rows.
#include "sums.cuh"

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
