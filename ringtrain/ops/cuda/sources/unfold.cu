// Windows as the rows of a matrix, and back, over 1 to 3 spatial axes: of the channels first, ... first + depth - 1.
// A thread makes one element.
#include "common.cuh"

extern "C" __global__ void unfold(
    const ACT *x, ACT *columns, long long count, int D, int H, int W, int C, int O, int P, int Q, int T, int R, int S,
    int stride, int pad_d, int pad_h, int pad_w, int first, int depth
) {
    int window = T * R * S * depth;
    for (long long i = first_index(); i < count; i += index_stride()) {
        long long row = i / window;
        int within = (int)(i - row * window), tap = within / depth, c = within - tap * depth;
        int w = (int)(row % Q) * stride - pad_w + tap % S;
        row /= Q;
        int h = (int)(row % P) * stride - pad_h + tap / S % R;
        row /= P;
        int d = (int)(row % O) * stride - pad_d + tap / (S * R);
        long long n = row / O;
        bool inside = d >= 0 && d < D && h >= 0 && h < H && w >= 0 && w < W;
        columns[i] = inside ? x[(((n * D + d) * H + h) * W + w) * C + first + c] : to_act((REAL)0);
    }
}

// Each element of x: bias and what was copied from it, in the order of its windows' taps.
extern "C" __global__ void fold(
    const ACT *columns, const REAL *bias, ACT *x, long long count, int D, int H, int W, int C, int O, int P, int Q, int T, int R, int S,
    int stride, int pad_d, int pad_h, int pad_w, int first, int depth, int relu
) {
    int window = T * R * S * depth;
    for (long long i = first_index(); i < count; i += index_stride()) {
        long long pixel = i / depth, place = pixel;
        int c = (int)(i - pixel * depth);
        int w = (int)(place % W) + pad_w;
        place /= W;
        int h = (int)(place % H) + pad_h;
        place /= H;
        int d = (int)(place % D) + pad_d;
        long long n = place / D;
        REAL sum = bias ? bias[c] : (REAL)0;
        for (int t = d % stride; t < T && t <= d; t += stride)
            for (int r = h % stride; r < R && r <= h; r += stride)
                for (int s = w % stride; s < S && s <= w; s += stride) {
                    int o = (d - t) / stride, p = (h - r) / stride, q = (w - s) / stride;
                    if (o >= O || p >= P || q >= Q) continue;
                    long long row = ((n * O + o) * P + p) * Q + q;
                    sum += to_real(columns[row * window + ((t * R + r) * S + s) * depth + c]);
                }
        x[pixel * C + first + c] = to_act(relu ? relu_of(sum) : sum);
    }
}
