// y = a · b of matrices of 2-byte elements by wgmma: rows x depth by depth x columns, each read as it lies or
// transposed (t). Where ``sums`` is given, the sums go there as they are, or are added (ADD), and those of parts of
// tiles to ``parts``; else they are rounded into y, after bias and max(·, 0).
#include "wgmma_tile.cuh"

template <bool A, bool B> struct Matrices {
    static const bool A_DEEP = A, B_DEEP = B;
    const TensorMap &a, &b;
    int across;

    struct Walk {
        const TensorMap &a, &b;
        int row, column, depth;
        __device__ Walk(const Matrices &of, int tile, int step)
            : a(of.a), b(of.b), row(tile / of.across * TILE_M), column(tile % of.across * TILE_N), depth(step * STEP) {}
        __device__ void next() { depth += STEP; }
        __device__ void bring(char *a_panel, char *b_panel, Barrier *full) const {
            WgmmaPanel<TILE_M, A>::bring(a_panel, a, full, row, depth, 0);
            WgmmaPanel<TILE_N, B>::bring(b_panel, b, full, column, depth, 0);
        }
    };
};

template <bool A_DEEP, bool B_DEEP>
__device__ __forceinline__ void gemm(
    const TensorMap &a, const TensorMap &b, const REAL *bias, ACT *y, REAL *sums, REAL *parts, int rows, int columns,
    int depth, int stride, int flags
) {
    int across = (columns + TILE_N - 1) / TILE_N, steps = (depth + STEP - 1) / STEP;
    RowTiles tiles(rows, rows, TILE_M);
    Share share(tiles.count() * across, steps, sums ? 1 : steps);
    PutSums exact{sums, parts, across, 1, rows, columns, stride, (flags & ADD) != 0};
    PutRounded<InOrder> rounded{y, {stride}, tiles, across, columns, bias, flags};
    Matrices<A_DEEP, B_DEEP> source{a, b, across};
    multiply_tiles(source, share, [&](const Share &at, const GroupSums &tile, ACT *shared) {
        if (sums) exact(at, tile, shared);
        else rounded(at, tile, shared);
    });
}

extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) gemm_nn(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const REAL *bias, ACT *y, REAL *sums,
    REAL *parts, int rows, int columns, int depth, int stride, int flags
) {
    gemm<true, false>(a, b, bias, y, sums, parts, rows, columns, depth, stride, flags);
}

extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) gemm_nt(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const REAL *bias, ACT *y, REAL *sums,
    REAL *parts, int rows, int columns, int depth, int stride, int flags
) {
    gemm<true, true>(a, b, bias, y, sums, parts, rows, columns, depth, stride, flags);
}

extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) gemm_tn(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const REAL *bias, ACT *y, REAL *sums,
    REAL *parts, int rows, int columns, int depth, int stride, int flags
) {
    gemm<false, false>(a, b, bias, y, sums, parts, rows, columns, depth, stride, flags);
}

extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) gemm_tt(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const REAL *bias, ACT *y, REAL *sums,
    REAL *parts, int rows, int columns, int depth, int stride, int flags
) {
    gemm<false, true>(a, b, bias, y, sums, parts, rows, columns, depth, stride, flags);
}
