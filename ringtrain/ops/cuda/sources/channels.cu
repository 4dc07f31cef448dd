// The gradient of a bias, one value a channel: the sum over the rows.
#include "sums.cuh"

template <int COUNT>
__device__ void bias_sums_of(int kept, const ACT *y, ACT *dy, REAL *partial, unsigned *tickets, REAL *db, int accumulate,
                             CUT, char *memory) {
    Slice<COUNT> at(rows, group_rows, slices, slice_rows, channels);
    MaskSource from{y};
    if (kept) sums_of<COUNT, KEPT, 1>(y, dy, 0, from, partial, at, channels, (REAL *)memory);
    else sums_of<COUNT, PLAIN, 1>(y, dy, 0, from, partial, at, channels, (REAL *)memory);
    if (!is_last_block(tickets + blockIdx.y, slices)) return;
    double sum[COUNT];
    totals_of<COUNT>(partial, 0, 1, at, rows, group_rows, slices, slice_rows, channels, sum, (double *)memory);
    if (threadIdx.y || !at.active(channels)) return;
    for (int i = 0; i < COUNT; i++)
        db[at.channel + i] = (REAL)(accumulate ? (double)db[at.channel + i] + sum[i] : sum[i]);
}

// kept: dy counts where y > 0, and is written back so.
extern "C" __global__ void __launch_bounds__(BLOCK) bias_sums(
    const ACT *y, ACT *dy, REAL *partial, unsigned *tickets, REAL *db, int kept, int accumulate,
    long long rows, long long group_rows, int slices, int slice_rows, int channels, int wide) {
    alignas(16) __shared__ char memory[BLOCK * ACTS * 8];
    if (wide)
        bias_sums_of<ACTS>(kept, y, dy, partial, tickets, db, accumulate, rows, group_rows, slices, slice_rows, channels,
                           memory);
    else
        bias_sums_of<1>(kept, y, dy, partial, tickets, db, accumulate, rows, group_rows, slices, slice_rows, channels,
                        memory);
}
