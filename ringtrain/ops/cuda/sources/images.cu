#include "common.cuh"

// Pixel (p, q) of y is pixel (top + p, left + q) of the image, mirrored in q where `flip`, and 0 outside of the image.
template <class Source>
__device__ inline void prepare(
    const Source *images, ACT *y, const REAL *mean, const REAL *scale, const int *top, const int *left,
    const unsigned char *flip, int n, int H, int W, int P, int Q, int C) {
    for (int image = blockIdx.y; image < n; image += gridDim.y) {
        const Source *from = images + (long long)image * H * W * C;
        ACT *to = y + (long long)image * P * Q * C;
        for (int i = (int)first_index(); i < P * Q * C; i += (int)index_stride()) {
            int c = i % C, q = i / C % Q, p = i / C / Q;
            int h = top[image] + p, w = left[image] + (flip[image] ? Q - 1 - q : q);
            bool inside = h >= 0 && h < H && w >= 0 && w < W;
            long long at = ((long long)h * W + w) * C + c;
            to[i] = to_act(inside ? ((REAL)from[at] - mean[at]) * scale[c] : (REAL)0);
        }
    }
}

// In the box (top, left, height, width) of each example x = source, or 0 without a source.
extern "C" __global__ void paste_boxes(ACT *x, const ACT *source, const int *boxes, int n, int H, int W, int C) {
    for (int image = blockIdx.y; image < n; image += gridDim.y) {
        const int *box = boxes + 4 * image;
        long long first = (long long)image * H * W * C;
        for (int i = (int)first_index(); i < box[2] * box[3] * C; i += (int)index_stride()) {
            int c = i % C, w = box[1] + i / C % box[3], h = box[0] + i / C / box[3];
            long long at = first + ((long long)h * W + w) * C + c;
            x[at] = source ? source[at] : to_act((REAL)0);
        }
    }
}

extern "C" __global__ void prepare_images(
    const unsigned char *images, ACT *y, const REAL *mean, const REAL *scale, const int *top, const int *left,
    const unsigned char *flip, int n, int H, int W, int P, int Q, int C) {
    prepare(images, y, mean, scale, top, left, flip, n, H, W, P, Q, C);
}

extern "C" __global__ void prepare_floats(
    const float *images, ACT *y, const REAL *mean, const REAL *scale, const int *top, const int *left,
    const unsigned char *flip, int n, int H, int W, int P, int Q, int C) {
    prepare(images, y, mean, scale, top, left, flip, n, H, W, P, Q, C);
}

extern "C" __global__ void prepare_doubles(
    const double *images, ACT *y, const REAL *mean, const REAL *scale, const int *top, const int *left,
    const unsigned char *flip, int n, int H, int W, int P, int Q, int C) {
    prepare(images, y, mean, scale, top, left, flip, n, H, W, P, Q, C);
}
