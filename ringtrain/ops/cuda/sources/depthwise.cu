// Depthwise convolution along a line: of x [N, L, C] by w [S, C] to y [N, P, C].
#include "columns.cuh"

extern "C" __global__ void forward(
    const ACT *x, const REAL *w, const REAL *bias, ACT *y, int N, int L, int C, int P, int S, int stride, int pad, int relu
) {
    long long count = (long long)N * P * C;
    for (long long i = first_index(); i < count; i += index_stride()) {
        int c = (int)(i % C), p = (int)(i / C % P);
        const ACT *line = x + i / C / P * L * C + c;
        REAL sum = bias ? bias[c] : (REAL)0;
        for (int s = 0; s < S; s++) {
            int at = p * stride - pad + s;
            if (at >= 0 && at < L) sum += to_real(line[(long long)at * C]) * w[s * C + c];
        }
        y[i] = to_act(relu ? relu_of(sum) : sum);
    }
}

extern "C" __global__ void back(
    const ACT *dy, const REAL *w, ACT *dx, int N, int L, int C, int P, int S, int stride, int pad
) {
    long long count = (long long)N * L * C;
    for (long long i = first_index(); i < count; i += index_stride()) {
        int c = (int)(i % C), at = (int)(i / C % L) + pad;
        const ACT *line = dy + i / C / L * P * C + c;
        REAL sum = 0;
        for (int s = at % stride; s < S && s <= at; s += stride) {
            int p = (at - s) / stride;
            if (p < P) sum += to_real(line[(long long)p * C]) * w[s * C + c];
        }
        dx[i] = to_act(sum);
    }
}

// blockIdx.x: a tap; blockIdx.y: blockDim.x channels; threadIdx.y: every blockDim.y-th window.
extern "C" __global__ void __launch_bounds__(BLOCK) weights(
    const ACT *x, const ACT *dy, REAL *dw, int N, int L, int C, int P, int S, int stride, int pad, int accumulate
) {
    __shared__ double lanes[BLOCK];
    int s = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
    double sum[1] = {0};
    long long rows = c < C ? (long long)N * P : 0;
    for (long long i = threadIdx.y; i < rows; i += blockDim.y) {
        int at = (int)(i % P) * stride - pad + s;
        if (at < 0 || at >= L) continue;
        sum[0] += (double)(to_real(x[(i / P * L + at) * C + c]) * to_real(dy[i * C + c]));
    }
    column_sum(sum, lanes);
    if (threadIdx.y || c >= C) return;
    REAL *to = dw + s * C + c;
    *to = (REAL)(accumulate ? sum[0] + (double)*to : sum[0]);
}
