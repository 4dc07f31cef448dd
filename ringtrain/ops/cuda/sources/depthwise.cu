// Convolution where each output feature sees one channel: nothing to share among features, so no tiles. Feature k sees
// channel k / each, ``each`` features a channel. Weights are [R, S, 1, K], in REAL.
#include "common.cuh"

extern "C" __global__ void depthwise_forward(
    const ACT *x, const REAL *w, const REAL *bias, ACT *y, int images, int height, int width, int channels, int p, int q,
    int features, int kernel, int stride, int pad, int relu
) {
    int each = features / channels;
    long long count = (long long)images * p * q * features;
    for (long long i = first_index(); i < count; i += index_stride()) {
        long long pixel = i / features;
        int k = (int)(i - pixel * features), n = (int)(pixel / (p * q)), rest = (int)(pixel - (long long)n * (p * q));
        int top = rest / q * stride - pad, left = rest % q * stride - pad;
        REAL sum = 0;
        for (int r = max(0, -top); r < kernel && top + r < height; r++)
            for (int s = max(0, -left); s < kernel && left + s < width; s++) {
                long long from = (((long long)n * height + top + r) * width + left + s) * channels + k / each;
                sum += to_real(x[from]) * w[(r * kernel + s) * features + k];
            }
        if (bias) sum += bias[k];
        y[i] = to_act(relu ? relu_of(sum) : sum);
    }
}

extern "C" __global__ void depthwise_input_back(
    const ACT *dy, const REAL *w, ACT *dx, int images, int height, int width, int channels, int p, int q, int features,
    int kernel, int stride, int pad
) {
    int each = features / channels;
    long long count = (long long)images * height * width * channels;
    for (long long i = first_index(); i < count; i += index_stride()) {
        long long pixel = i / channels;
        int c = (int)(i - pixel * channels), n = (int)(pixel / (height * width));
        int rest = (int)(pixel - (long long)n * (height * width)), h = rest / width + pad, across = rest % width + pad;
        REAL sum = 0;
        for (int r = h % stride; r < kernel && r <= h; r += stride)
            for (int s = across % stride; s < kernel && s <= across; s += stride) {
                int row = (h - r) / stride, column = (across - s) / stride;
                if (row >= p || column >= q) continue;
                long long from = (((long long)n * p + row) * q + column) * features + c * each;
                for (int e = 0; e < each; e++)
                    sum += to_real(dy[from + e]) * w[(r * kernel + s) * features + c * each + e];
            }
        dx[i] = to_act(sum);
    }
}

// parts[block y][(r, s), k]: sums over ``each_pixels`` output pixels. Block z: (r, s). Threads (32, 8).
extern "C" __global__ void depthwise_weights_back(
    const ACT *x, const ACT *dy, REAL *parts, int images, int height, int width, int channels, int p, int q, int features,
    int kernel, int stride, int pad, int each_pixels
) {
    __shared__ REAL sums[8][32];
    int k = blockIdx.x * 32 + threadIdx.x, c = k / (features / channels);
    int r = blockIdx.z / kernel - pad, s = blockIdx.z % kernel - pad;
    int start = blockIdx.y * each_pixels, stop = min(images * p * q, start + each_pixels);
    REAL sum = 0;
    for (int pixel = start + threadIdx.y; pixel < stop && k < features; pixel += 8) {
        int n = pixel / (p * q), rest = pixel - n * (p * q), h = rest / q * stride + r, w = rest % q * stride + s;
        if (h < 0 || h >= height || w < 0 || w >= width) continue;
        REAL value = to_real(x[(((long long)n * height + h) * width + w) * channels + c]);
        sum += value * to_real(dy[(long long)pixel * features + k]);
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || k >= features) return;
    for (int i = 1; i < 8; i++) sum += sums[i][threadIdx.x];
    parts[((long long)blockIdx.y * gridDim.z + blockIdx.z) * features + k] = sum;
}
