// y = a · b of matrices: rows x depth by depth x columns, each read as it lies or transposed (t), by tiles.
//
// Compiled with TILE_M, TILE_N and CORES. Block z sums elements z · each, ... of the depth; where there are several, the
// last one of a tile adds their parts. Where ``sums`` is given, the sums go there as they are, else they are rounded
// into y, after bias and max(·, 0).
#include "tile.cuh"

template <bool A_DEEP, bool B_DEEP>
__device__ void gemm(
    const ACT *a, const ACT *b, const REAL *bias, ACT *y, REAL *sums, REAL *parts, unsigned *tickets, int rows,
    int columns, int depth, int a_stride, int b_stride, int y_stride, int each, int flags
) {
    extern __shared__ uint4 memory[];
    ACT *shared = (ACT *)memory;
    Corner corner(rows, columns);
    typename SumsOf<CORES, ACT, A_DEEP, B_DEEP>::Type tile;
    Loader<ACT, TILE_M, A_DEEP, Lines<ACT>> left({a, a_stride}, corner.row, rows, flags & WIDE_A);
    Loader<ACT, TILE_N, B_DEEP, Lines<ACT>> right({b, b_stride}, corner.column, columns, flags & WIDE_B);
    int start = blockIdx.z * each;
    accumulate(tile, left, right, start, min(depth, start + each), shared);
    InOrder place{y_stride};
    if (parts) {
        put_parts(tile, parts, blockIdx.z, gridDim.z, tickets + blockIdx.x, corner, rows, columns,
                   [=](int row, int column, REAL sum) {
            if (sums) {
                REAL *to = sums + place(row) + column;
                *to = flags & ADD ? *to + sum : sum;
                return;
            }
            if (bias) sum += bias[column];
            ACT *to = y + place(row) + column, rounded = to_act(flags & RELU ? relu_of(sum) : sum);
            *to = flags & ADD ? to_act(to_real(*to) + to_real(rounded)) : rounded;
        });
    } else if (sums) {
        put_sums(tile, sums, place, corner.row, rows, corner.column, columns, flags & ADD);
    } else {
        put_rounded(tile, y, place, corner.row, rows, corner.column, columns, bias, flags, shared);
    }
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS) gemm_nn(
    const ACT *a, const ACT *b, const REAL *bias, ACT *y, REAL *sums, REAL *parts, unsigned *tickets, int rows,
    int columns, int depth, int a_stride, int b_stride, int y_stride, int each, int flags
) {
    gemm<true, false>(a, b, bias, y, sums, parts, tickets, rows, columns, depth, a_stride, b_stride, y_stride, each, flags);
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS) gemm_nt(
    const ACT *a, const ACT *b, const REAL *bias, ACT *y, REAL *sums, REAL *parts, unsigned *tickets, int rows,
    int columns, int depth, int a_stride, int b_stride, int y_stride, int each, int flags
) {
    gemm<true, true>(a, b, bias, y, sums, parts, tickets, rows, columns, depth, a_stride, b_stride, y_stride, each, flags);
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS) gemm_tn(
    const ACT *a, const ACT *b, const REAL *bias, ACT *y, REAL *sums, REAL *parts, unsigned *tickets, int rows,
    int columns, int depth, int a_stride, int b_stride, int y_stride, int each, int flags
) {
    gemm<false, false>(a, b, bias, y, sums, parts, tickets, rows, columns, depth, a_stride, b_stride, y_stride, each, flags);
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS) gemm_tt(
    const ACT *a, const ACT *b, const REAL *bias, ACT *y, REAL *sums, REAL *parts, unsigned *tickets, int rows,
    int columns, int depth, int a_stride, int b_stride, int y_stride, int each, int flags
) {
    gemm<false, true>(a, b, bias, y, sums, parts, tickets, rows, columns, depth, a_stride, b_stride, y_stride, each, flags);
}
