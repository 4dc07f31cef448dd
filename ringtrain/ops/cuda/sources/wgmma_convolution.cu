// Convolution by wgmma on images NHWC of 2-byte elements, in one group: the three passes of convolution.cu. The TMA
// unit gathers windows from the image on their way to shared memory (im2col): one tap of 128 windows at a time, 64
// channels of it. What lies beside the image is 0, and so are channels and weights beyond the last one.
//
// The gradient of the image is a convolution of dy, whose windows are read backwards; with a stride the pixels of each
// phase (convolution.cu) are one such convolution, and one launch.
#include "wgmma_tile.cuh"

// Windows in ``rows`` x ``columns`` of each image, ``stride`` apart, from (left, top) on.
struct WindowGrid {
    int rows, columns, stride, left, top;
};

// A window: its place in the grid, and its image n.
struct Window {
    int row, column, n;
    __device__ Window(const WindowGrid &grid, int index) {
        int each = grid.rows * grid.columns, within = index % each;
        n = index / each, row = within / grid.columns, column = within % grid.columns;
    }
    // So many windows on, less than an image's rows and columns each, and any number of images.
    __device__ void move(const WindowGrid &grid, const Window &by) {
        column += by.column, row += by.row, n += by.n;
        if (column >= grid.columns) column -= grid.columns, row++;
        if (row >= grid.rows) row -= grid.rows, n++;
    }
    __device__ void bring(
        char *panel, const TensorMap &map, const WindowGrid &grid, Barrier *full, int channel, int r, int s
    ) const {
        copy_pixels(panel, map, full, channel, column * grid.stride + grid.left, row * grid.stride + grid.top, n, s, r);
    }
};

// Windows times the weights [taps, C, K] of each of their taps: tap (r, s) is tap first + r · down + s · across of
// them. B: whether a step's elements are neighbours in a line of the weights, K of one c. The sum goes over the taps,
// ``taps`` in a row of a window, and for each over ``depth`` channels, 64 at a time.
template <bool B> struct WindowsByWeights {
    static const bool A_DEEP = true, B_DEEP = B;
    const TensorMap &windows, &weights;
    WindowGrid grid;
    RowTiles rows;
    int tiles_across, depth, taps, first, down, across;

    struct Walk {
        const WindowsByWeights &of;
        Window window;
        int column, r, s, channel;
        __device__ Walk(const WindowsByWeights &of, int tile, int step)
            : of(of), window(of.grid, of.rows.first(tile / of.tiles_across)), column(tile % of.tiles_across * TILE_N) {
            int blocks = (of.depth + STEP - 1) / STEP, tap = step / blocks;
            channel = step % blocks * STEP, r = tap / of.taps, s = tap % of.taps;
        }
        __device__ void next() {
            if ((channel += STEP) < of.depth) return;
            channel = 0;
            if (++s == of.taps) s = 0, r++;
        }
        __device__ void bring(char *a, char *b, Barrier *full) const {
            window.bring(a, of.windows, of.grid, full, channel, r, s);
            WgmmaPanel<TILE_N, B>::bring(b, of.weights, full, column, channel, of.first + r * of.down + s * of.across);
        }
    };
};

extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) forward(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const REAL *bias, ACT *y, REAL *moments,
    int images, int channels, int p, int q, int features, int kernel, int stride, int pad, int group_rows, int flags
) {
    int across = (features + TILE_N - 1) / TILE_N;
    RowTiles rows(images * p * q, group_rows, TILE_M);
    int steps = kernel * kernel * ((channels + STEP - 1) / STEP);
    Share share(rows.count() * across, steps, steps);
    WindowsByWeights<false> source{x, w, {p, q, stride, -pad, -pad}, rows, across, channels, kernel, 0, kernel, 1};
    multiply_tiles(source, share, PutRounded<InOrder>{y, {features}, rows, across, features, bias, flags, moments});
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

// The rows x columns pixels of a phase in each image, from (left, top) on. Their windows in dy, of down x across taps,
// are each one from the last, the first one at (dy_left, dy_top); tap (r, s) of them is tap first - r · stride · kernel
// - s · stride of the weights.
extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) input_back(
    const __grid_constant__ TensorMap dy, const __grid_constant__ TensorMap w, ACT *dx, int images, int height,
    int width, int channels, int features, int kernel, int stride, int rows, int columns, int top, int left, int down,
    int across, int dy_top, int dy_left, int first, int flags
) {
    int tiles_across = (channels + TILE_N - 1) / TILE_N, pixels = images * rows * columns;
    int steps = down * across * ((features + STEP - 1) / STEP);
    RowTiles tiles(pixels, pixels, TILE_M);
    Share share(tiles.count() * tiles_across, steps, steps);
    WindowsByWeights<true> source{dy, w, {rows, columns, 1, dy_left, dy_top}, tiles, tiles_across, features,
                                  across, first, -stride * kernel, -stride};
    PhasePixels place{rows, columns, top, left, stride, height, width, channels};
    multiply_tiles(source, share,
                   PutRounded<PhasePixels>{dx, place, tiles, tiles_across, channels, (const REAL *)0, flags});
}

// 64 windows at a time, of 64 channels of one tap for each consumer, times their dy.
struct WindowsByGradients {
    static const bool A_DEEP = false, B_DEEP = false;
    const TensorMap &windows, &gradients;
    WindowGrid grid;
    int tiles_across, blocks, kernel;  // blocks: of 64 channels

    struct Walk {
        const WindowsByGradients &of;
        Window window, step;
        int column, pixel;
        int channel[CONSUMERS], r[CONSUMERS], s[CONSUMERS];
        __device__ Walk(const WindowsByGradients &of, int tile, int step)
            : of(of), window(of.grid, step * STEP), step(of.grid, STEP), column(tile % of.tiles_across * TILE_N),
              pixel(step * STEP) {
#pragma unroll
            for (int i = 0; i < CONSUMERS; i++) {
                int block = min(tile / of.tiles_across * CONSUMERS + i, of.kernel * of.kernel * of.blocks - 1);
                int tap = block / of.blocks;
                channel[i] = block % of.blocks * 64, r[i] = tap / of.kernel, s[i] = tap % of.kernel;
            }
        }
        __device__ void next() {
            window.move(of.grid, step);
            pixel += STEP;
        }
        __device__ void bring(char *a, char *b, Barrier *full) const {
#pragma unroll
            for (int i = 0; i < CONSUMERS; i++)
                window.bring(a + i * BLOCK_BYTES, of.windows, of.grid, full, channel[i], r[i], s[i]);
            WgmmaPanel<TILE_N, false>::bring(b, of.gradients, full, column, pixel, 0);
        }
    };
};

// dw [taps · C, K], in tiles of two blocks of 64 channels of a tap; sums of parts of tiles go to ``parts``.
extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) weights_back(
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
