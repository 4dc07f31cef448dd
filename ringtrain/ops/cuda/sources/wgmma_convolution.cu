// Convolution by wgmma on images NHWC of 2-byte elements, all channels in one group: the three passes of convolution.cu.
// The TMA unit gathers windows from the image on their way to shared memory (im2col): one tap of 128 windows at a time,
// 64 channels of it; what lies beside the image is 0, and so are channels and weights beyond the last one.
//
// The gradient of the image is a convolution of dy, whose windows are read backwards; with a stride the pixels of each
// phase (convolution.cu) are one such convolution, and one launch.
#include "ring.cuh"

// The corner (w, h) of a window in the image, and the window's image n.
struct WindowCorner {
    int w, h, n;
};

// Windows in ``rows`` x ``columns`` of each image, ``stride`` apart, from (left, top) on.
struct WindowGrid {
    int rows, columns, stride, left, top;
    __device__ WindowCorner operator()(int index) const {
        int n = index / (rows * columns), within = index - n * (rows * columns), row = within / columns;
        return {(within - row * columns) * stride + left, row * stride + top, n};
    }
};

// Windows times the weights [taps, C, K] of each of their taps: tap (r, s) is tap first + r · down + s · across of them.
// B: whether a step's elements are neighbours in a line of the weights, K of one c.
template <bool B> struct WindowsByWeights {
    static const bool A_DEEP = true, B_DEEP = B;
    const TensorMap &windows, &weights;
    WindowGrid grid;
    int tiles_across;
    int blocks, taps;  // of 64 channels; in a row of a window
    int first, down, across;
    __device__ void bring(char *a, char *b, Barrier *full, int tile, int step) const {
        int tap = step / blocks, channel = (step - tap * blocks) * STEP, r = tap / taps, s = tap - r * taps;
        WindowCorner at = grid(tile / tiles_across * TILE_M);
        copy_pixels(a, windows, full, channel, at.w, at.h, at.n, s, r);
        RingPanel<TILE_N, B>::bring(b, weights, full, tile % tiles_across * TILE_N, channel, first + r * down + s * across);
    }
};

extern "C" __global__ void __launch_bounds__(RING_THREADS, 1) forward(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const REAL *bias, ACT *y, int images,
    int channels, int p, int q, int features, int kernel, int stride, int pad, int flags
) {
    int across = (features + TILE_N - 1) / TILE_N, blocks = (channels + STEP - 1) / STEP, rows = images * p * q;
    int steps = kernel * kernel * blocks;
    Share share((rows + TILE_M - 1) / TILE_M * across, steps, steps);
    WindowsByWeights<false> source{x, w, {p, q, stride, -pad, -pad}, across, blocks, kernel, 0, kernel, 1};
    multiply_tiles(source, share, PutRounded<InOrder>{y, {features}, across, rows, features, bias, flags});
}

// Where the pixels of a phase lie: every stride-th of a row, and of the rows, of images of height x width.
struct PhasePixels {
    int rows, columns, top, left, stride, height, width, channels;
    __device__ long long operator()(int row) const {
        int n = row / (rows * columns), within = row - n * (rows * columns), u = within / columns;
        int h = u * stride + top, w = (within - u * columns) * stride + left;
        return (long long)((n * height + h) * width + w) * channels;
    }
};

// The rows x columns pixels of a phase in each image, from (left, top) on. Their windows in dy, of down x across taps, are
// each one from the last, the first one at (dy_left, dy_top); tap (r, s) of them is tap first - r · stride · kernel - s ·
// stride of the weights.
extern "C" __global__ void __launch_bounds__(RING_THREADS, 1) input_back(
    const __grid_constant__ TensorMap dy, const __grid_constant__ TensorMap w, ACT *dx, int images, int height, int width,
    int channels, int features, int kernel, int stride, int rows, int columns, int top, int left, int down, int across,
    int dy_top, int dy_left, int first, int flags
) {
    int tiles_across = (channels + TILE_N - 1) / TILE_N, blocks = (features + STEP - 1) / STEP;
    int pixels = images * rows * columns, steps = down * across * blocks;
    Share share((pixels + TILE_M - 1) / TILE_M * tiles_across, steps, steps);
    WindowsByWeights<true> source{dy, w, {rows, columns, 1, dy_left, dy_top}, tiles_across, blocks, across,
                                  first, -stride * kernel, -stride};
    PhasePixels place{rows, columns, top, left, stride, height, width, channels};
    multiply_tiles(source, share,
                   PutRounded<PhasePixels>{dx, place, tiles_across, pixels, channels, (const REAL *)0, flags});
}

// 64 pixels at a time, of 64 channels of one tap for each consumer, times their dy.
struct WindowsByGradients {
    static const bool A_DEEP = false, B_DEEP = false;
    const TensorMap &windows, &gradients;
    WindowGrid grid;
    int tiles_across, blocks, kernel;
    __device__ void bring(char *a, char *b, Barrier *full, int tile, int step) const {
        WindowCorner at = grid(step * STEP);
#pragma unroll
        for (int i = 0; i < CONSUMERS; i++) {
            int block = min(tile / tiles_across * CONSUMERS + i, kernel * kernel * blocks - 1);
            int tap = block / blocks, channel = (block - tap * blocks) * 64, r = tap / kernel;
            copy_pixels(a + i * BLOCK_BYTES, windows, full, channel, at.w, at.h, at.n, tap - r * kernel, r);
        }
        RingPanel<TILE_N, false>::bring(b, gradients, full, tile % tiles_across * TILE_N, step * STEP, 0);
    }
};

// dw [taps · C, K], in tiles of two blocks of 64 channels of a tap; sums of parts of tiles go to ``parts``.
extern "C" __global__ void __launch_bounds__(RING_THREADS, 1) weights_back(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap dy, REAL *dw, REAL *parts, int images,
    int channels, int p, int q, int features, int kernel, int stride, int pad, int flags
) {
    int across = (features + TILE_N - 1) / TILE_N, blocks = (channels + 63) / 64, taps = kernel * kernel;
    int pixels = images * p * q, steps = (pixels + STEP - 1) / STEP;
    Share share((taps * blocks + CONSUMERS - 1) / CONSUMERS * across, steps, 1);
    WindowsByGradients source{x, dy, {p, q, stride, -pad, -pad}, across, blocks, kernel};
    multiply_tiles(source, share,
                   PutSums{dw, parts, across, taps, channels, features, features, (flags & ADD) != 0});
}
