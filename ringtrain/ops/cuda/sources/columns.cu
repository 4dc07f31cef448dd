// Windows of an image as lines of a matrix in memory (im2col).
#include "common.cuh"

// columns[pixel, (r, s, c)], ``stride_columns`` elements a line, whole chunks of 16 bytes, 0 behind those of the window; of
// the channels first, ... first + depth - 1. A thread writes a chunk.
extern "C" __global__ void gather(
    const ACT *x, ACT *columns, long long pixels, int height, int width, int channels, int p, int q, int kernel, int stride,
    int pad, int first, int depth, int stride_columns
) {
    const int WIDE = Wide<ACT>::COUNT;
    int chunks = stride_columns / WIDE;
    for (long long i = first_index(); i < pixels * chunks; i += index_stride()) {
        long long pixel = i / chunks;
        int within = (int)(i - pixel * chunks) * WIDE, tap = within / depth, c = within - tap * depth;
        int r = tap / kernel, s = tap - r * kernel;
        int n = (int)(pixel / (p * q)), rest = (int)(pixel - (long long)n * (p * q));
        int top = rest / q * stride - pad, left = rest % q * stride - pad;
        Vector<ACT, WIDE> chunk;
#pragma unroll
        for (int e = 0; e < WIDE; e++) {
            int h = top + r, w = left + s;
            bool inside = r < kernel && h >= 0 && h < height && w >= 0 && w < width;
            chunk.at[e] = inside ? x[(((long long)n * height + h) * width + w) * channels + first + c] : to_act((REAL)0);
            if (++c < depth) continue;
            c = 0;
            if (++s == kernel) s = 0, r++;
        }
        ((Vector<ACT, WIDE> *)columns)[i] = chunk;
    }
}
