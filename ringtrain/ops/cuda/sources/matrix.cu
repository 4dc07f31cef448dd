// What products need around them: weights in the type of activations, bias and max(·, 0) after those of cuBLAS.
#include "map.cuh"

// y = x, rounded: weights as the tensor cores take them. Once for each product, so that its loads need no arithmetic.
extern "C" __global__ void round_weights(const REAL *x, ACT *y, long long n) {
    update_each<Wide<REAL>::COUNT>(n, [](REAL x, ACT &y) { y = to_act(x); }, x, y);
}

// y[column, row] = x[row, column], rounded, by squares of 32 x 32. Threads (32, 8).
extern "C" __global__ void turn_weights(const REAL *x, ACT *y, int rows, int columns) {
    __shared__ REAL square[32][33];
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (row + i < rows && column < columns) square[threadIdx.y + i][threadIdx.x] = x[(long long)(row + i) * columns + column];
    __syncthreads();
    int to_row = blockIdx.x * 32 + threadIdx.y, to_column = blockIdx.y * 32 + threadIdx.x;
    for (int i = 0; i < 32; i += 8)
        if (to_row + i < columns && to_column < rows)
            y[(long long)(to_row + i) * rows + to_column] = to_act(square[threadIdx.x][threadIdx.y + i]);
}

// The other way: y[row, column] = x[column, row], or added to it. Threads (32, 8).
extern "C" __global__ void turn_back(const ACT *x, REAL *y, int rows, int columns, int add) {
    __shared__ REAL square[32][33];
    int from_row = blockIdx.x * 32 + threadIdx.y, from_column = blockIdx.y * 32 + threadIdx.x;
    for (int i = 0; i < 32; i += 8)
        if (from_row + i < columns && from_column < rows)
            square[threadIdx.y + i][threadIdx.x] = to_real(x[(long long)(from_row + i) * rows + from_column]);
    __syncthreads();
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8) {
        if (row + i >= rows || column >= columns) continue;
        long long to = (long long)(row + i) * columns + column;
        REAL value = square[threadIdx.x][threadIdx.y + i];
        y[to] = add ? y[to] + value : value;
    }
}

// y = max(y + bias, 0) of rows of ``columns`` elements, ``stride`` apart; n: how many elements.
extern "C" __global__ void finish_rows(ACT *y, const REAL *bias, long long n, int columns, int stride, int relu) {
    for (long long i = first_index(); i < n; i += index_stride()) {
        long long row = i / columns;
        int column = (int)(i - row * columns);
        ACT *at = y + row * stride + column;
        REAL sum = to_real(*at) + (bias ? bias[column] : (REAL)0);
        *at = to_act(relu ? relu_of(sum) : sum);
    }
}
