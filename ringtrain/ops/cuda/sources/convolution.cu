// Convolution as a product whose left factor is gathered from the image while it is loaded (implicit GEMM), NHWC.
//
//     forward   y[pixel, k]       = sum over (r, s, c)   x[window of pixel, (r, s, c)] · w[(r, s, c), k]
//     input     dx[pixel, c]      = sum over (r, s, k)   dy[pixel whose window has it at (r, s), k] · w[(r, s, c), k]
//     weights   dw[(r, s, c), k]  = sum over pixels      x[window of pixel, (r, s, c)] · dy[pixel, k]
//
// With a stride the pixels of x fall into stride² phases, by the remainder of their place. Those of a phase meet the same
// taps, r = phase, phase + stride, ..., each in a window that is one to the left of the last: a convolution of stride 1
// each, whose windows are read backwards.
//
// Compiled with TILE_M, TILE_N and CORES. channels and features: of all groups. Source: Chetlur et al. 2014, "cuDNN",
// section 3; Dumoulin & Visin 2016, section 4, for the phases.
#include "convolution.cuh"

extern "C" __global__ void __launch_bounds__(TILE_THREADS) forward(
    const ACT *x, const ACT *w, const REAL *bias, ACT *y, REAL *moments, int images, int height, int width, int channels,
    int p, int q, int features, int kernel, int stride, int pad, int groups, unsigned depth_multiplier, int depth_shift,
    int ghost, int flags
) {
    forward_pass(x, Plain{}, w, bias, y, moments, images, height, width, channels, p, q, features, kernel, stride,
                         pad, groups, depth_multiplier, depth_shift, ghost, flags);
}

// How the pixels h of one remainder lie: h = stride · u + phase - pad for u = first, ..., first + count - 1; they meet
// taps phase + stride · i for i < taps.
struct Phase {
    int phase, first, count, taps;
    __device__ Phase(int phase, int size, int kernel, int stride, int pad) : phase(phase) {
        first = (pad - phase + stride - 1) / stride;
        int behind = size - 1 + pad - phase;
        count = behind < 0 ? 0 : behind / stride - first + 1;
        taps = phase < kernel ? (kernel - phase + stride - 1) / stride : 0;
    }
};

struct PhasePlace {
    Phase h, w;
    int height, width, stride, pad, channels;
    __device__ long long operator()(int row) const {
        int each = h.count * w.count, n = row / each, within = row - n * each, u = within / w.count;
        int y = (h.first + u) * stride + h.phase - pad, x = (w.first + within - u * w.count) * stride + w.phase - pad;
        return (long long)((n * height + y) * width + x) * channels;
    }
};

extern "C" __global__ void __launch_bounds__(TILE_THREADS) input_back(
    const ACT *dy, const ACT *w, ACT *dx, int images, int height, int width, int channels, int p, int q, int features,
    int kernel, int stride, int pad, int groups, unsigned depth_multiplier, int depth_shift, int flags
) {
    extern __shared__ uint4 memory[];
    ACT *shared = (ACT *)memory;
    int group = blockIdx.z / (stride * stride), phase = blockIdx.z % (stride * stride);
    int depth = features / groups, columns = channels / groups;
    Phase down(phase / stride, height, kernel, stride, pad), across(phase % stride, width, kernel, stride, pad);
    int rows = images * down.count * across.count;
    if (!rows) return;
    Corner corner(rows, columns);
    if (corner.row >= rows) return;
    Divider by_depth{depth, depth_multiplier, depth_shift};
    SmallDivided by_tap(max(across.taps, 1));
    typedef Windows<Divided, Divided, Divider, SmallDivided> View;
    View view{dy + group * depth, p, q, features, down.count, across.count, 1, down.first, across.first, -1, depth,
              across.taps, {down.count * across.count}, {across.count}, by_depth, by_tap};
    typedef TurnedWeights<Divider, SmallDivided> Weights;
    Weights weights{w + group * depth, features, columns, kernel, stride, down.phase, across.phase, depth, across.taps,
                    by_depth, by_tap};
    typename SumsOf<CORES, ACT, true, true>::Type tile;
    Loader<ACT, TILE_M, true, View> left(view, corner.row, rows, flags & WIDE_A);
    Loader<ACT, TILE_N, true, Weights> right(weights, corner.column, columns, flags & WIDE_B);
    accumulate(tile, left, right, 0, down.taps * across.taps * depth, shared);
    PhasePlace place{down, across, height, width, stride, pad, channels};
    ACT *own = dx + group * columns;
    put_rounded(tile, own, place, corner.row, rows, corner.column, columns, (const REAL *)0, flags, shared);
}

// See weights_pass.
extern "C" __global__ void __launch_bounds__(TILE_THREADS) weights_back(
    const ACT *x, const ACT *dy, REAL *dw, REAL *parts, unsigned *tickets, int images, int height, int width,
    int channels, int p, int q, int features, int kernel, int stride, int pad, int groups, unsigned image_multiplier,
    int image_shift, unsigned row_multiplier, int row_shift, int each, int flags
) {
    weights_pass(x, Plain{}, dy, dw, parts, tickets, images, height, width, channels, p, q, features, kernel,
                         stride, pad, groups, image_multiplier, image_shift, row_multiplier, row_shift, each, flags);
}
