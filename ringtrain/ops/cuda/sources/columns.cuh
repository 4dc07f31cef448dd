// Rows × channels, cut for sums over the rows of each channel.
//
//     blockIdx.x: a slice of the rows of a group      threadIdx.y: every blockDim.y-th row of the slice
//     blockIdx.y: some vectors of channels            threadIdx.x: one vector, of COUNT channels
//
// A warp reads memory that lies together, also where a row is shorter than a warp. A group (a ghost batch) has
// group_rows rows, the last one what is left; each has the same number of slices, the last ones maybe empty. The cut is
// a function of sizes alone, and so is the order of each sum: a group's are the same wherever the group is.
#pragma once
#include "common.cuh"

#define ACTS Wide<ACT>::COUNT
#define BLOCK 256     // the most threads of a block that goes over rows
#define FINISH 1024   // the most of one that adds up what the slices gave

// Of kernels that add up what the slices gave: where a thread block is one group and some channels.
#define CUT long long rows, long long group_rows, int slices, int slice_rows, int channels

// The rows of group ``group``, from its first row on.
__device__ inline long long rows_of_group(int group, long long rows, long long group_rows) {
    long long left = rows - group * group_rows;
    return left < group_rows ? left : group_rows;
}

// What a thread has to do.
template <int COUNT> struct Slice {
    int group, channel;                     // the first of COUNT channels
    long long start, rows, first, last;     // the group's first row; rows of the slice; the thread's own, up to last
    int count;                              // how many rows are the thread's

    __device__ Slice(long long all_rows, long long group_rows, int slices, int slice_rows, int channels) {
        group = blockIdx.x / slices;
        channel = (blockIdx.y * blockDim.x + threadIdx.x) * COUNT;
        start = group * group_rows;
        long long skipped = (long long)(blockIdx.x % slices) * slice_rows;
        rows = rows_of_group(group, all_rows, group_rows) - skipped;
        rows = rows < 0 ? 0 : rows < slice_rows ? rows : slice_rows;
        first = start + skipped + threadIdx.y;
        last = start + skipped + rows;
        if (channel >= channels) last = first;
        count = first < last ? (int)((last - first - 1) / blockDim.y) + 1 : 0;
    }
    __device__ bool active(int channels) const { return channel < channels; }
};

// The sum over threadIdx.y of each of COUNT values, in every thread. ``lanes``: COUNT values for each thread of the
// block. All threads of the block must call it.
template <int COUNT, typename T> __device__ void column_sum(T (&value)[COUNT], T *lanes) {
    int width = blockDim.x, lane = threadIdx.y * COUNT * width + threadIdx.x;
    int half = 1;
    while (half * 2 < blockDim.y) half *= 2;
#pragma unroll
    for (int i = 0; i < COUNT; i++) lanes[lane + i * width] = value[i];
    if (blockDim.y > 1) {
        for (; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.y < half && threadIdx.y + half < blockDim.y) {
#pragma unroll
                for (int i = 0; i < COUNT; i++)
                    lanes[lane + i * width] += lanes[lane + (half * COUNT + i) * width];
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; i++) value[i] = lanes[threadIdx.x + i * width];
    __syncthreads();
}

// The sum of f(s) over the slices s < count, shared out over threadIdx.y; in every thread.
template <typename F> __device__ double sum_of_slices(int count, double *lanes, F f) {
    double sum[1] = {0};
#pragma unroll 4
    for (int s = threadIdx.y; s < count; s += blockDim.y) sum[0] += f(s);
    column_sum(sum, lanes);
    return sum[0];
}

template <int COUNT> __device__ Vector<ACT, COUNT> load(const ACT *x, long long row, int channels, int channel) {
    return *(const Vector<ACT, COUNT> *)(x + row * channels + channel);
}

template <int COUNT>
__device__ void store(ACT *x, long long row, int channels, int channel, const Vector<ACT, COUNT> &value) {
    *(Vector<ACT, COUNT> *)(x + row * channels + channel) = value;
}
