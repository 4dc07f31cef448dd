// The passes of convolution.cu that read the input, of one that is normalised on the way (normalised.cuh), in one group.
#include "normalised.cuh"

extern "C" __global__ void __launch_bounds__(TILE_THREADS) forward(
    const ACT *x, const REAL *mean, const REAL *scale, const REAL *beta, const ACT *w, const REAL *bias, ACT *y,
    REAL *moments, int images, int height, int width, int channels, int p, int q, int features, int kernel, int stride,
    int pad, unsigned depth_multiplier, int depth_shift, int ghost, int input_relu, int flags
) {
    Normalised input{mean, scale, beta, channels, input_relu != 0, {1, 0, 0}};
    forward_pass(x, input, w, bias, y, moments, images, height, width, channels, p, q, features, kernel, stride, pad, 1,
                 depth_multiplier, depth_shift, ghost, flags);
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS) weights_back(
    const ACT *x, const REAL *mean, const REAL *scale, const REAL *beta, const ACT *dy, REAL *dw, REAL *parts,
    unsigned *tickets, int images, int height, int width, int channels, int p, int q, int features, int kernel,
    int stride, int pad, unsigned image_multiplier, int image_shift, unsigned row_multiplier, int row_shift,
    unsigned group_multiplier, int group_shift, int each, int input_relu, int flags
) {
    Normalised input{mean, scale, beta, channels, input_relu != 0, {1, group_multiplier, group_shift}};
    weights_pass(x, input, dy, dw, parts, tickets, images, height, width, channels, p, q, features, kernel, stride, pad,
                 1, image_multiplier, image_shift, row_multiplier, row_shift, each, flags);
}
