// The passes of a convolution that read its input (convolution.cu), which is in memory as it is, or before it was
// normalised (normalised.cuh): then it is normalised on the way to the product.
#pragma once
#include "tile.cuh"
#include "windows.cuh"

// An input that is in memory as it is.
struct Plain {
    __device__ Plain of_group(int) const { return *this; }
    template <typename T, int EXTENT, bool DEEP, typename View> struct LoaderOf : Loader<T, EXTENT, DEEP, View> {
        __device__ LoaderOf(const View &view, int first, int end, bool wide, const Plain &)
            : Loader<T, EXTENT, DEEP, View>(view, first, end, wide) {}
    };
};

// y of some rows: those of a ghost batch of ``ghost`` images have tiles of their own, and the moments of each tile go to
// moments [tiles of rows][2][features], where that is not null. ghost 0: all rows are one.
template <typename Input>
__device__ void forward_pass(
    const ACT *x, const Input &input, const ACT *w, const REAL *bias, ACT *y, REAL *moments, int images, int height,
    int width, int channels, int p, int q, int features, int kernel, int stride, int pad, int groups,
    unsigned depth_multiplier, int depth_shift, int ghost, int flags
) {
    extern __shared__ uint4 memory[];
    ACT *shared = (ACT *)memory;
    int group = blockIdx.z, depth = channels / groups, columns = features / groups, rows = images * p * q;
    RowTiles tiles(rows, ghost ? ghost * p * q : rows, TILE_M);
    Corner corner(tiles, columns);
    if (corner.row >= corner.end) return;
    typedef Windows<Divided, Divided, Divider, SmallDivided> View;
    View view{x + group * depth, height, width, channels, p, q, stride, -pad, -pad, 1, depth, kernel, {p * q}, {q},
              {depth, depth_multiplier, depth_shift}, SmallDivided(kernel)};
    typename SumsOf<CORES, ACT, true, false>::Type tile;
    typedef typename Input::template LoaderOf<ACT, TILE_M, true, View> Left;
    Left left(view, corner.row, corner.end, flags & WIDE_A, input.of_group(tiles.group(corner.tile)));
    Loader<ACT, TILE_N, false, Lines<ACT>> right({w + group * columns, features}, corner.column, columns, flags & WIDE_B);
    accumulate(tile, left, right, 0, kernel * kernel * depth, shared);
    const REAL *own = bias ? bias + group * columns : bias;
    REAL *own_moments = moments ? moments + (long long)corner.tile * 2 * features : moments;
    put_rounded(tile, y + group * columns, InOrder{features}, corner.row, corner.end, corner.column, columns, own, flags,
                shared, own_moments);
}

// Block z: group z / splits, and of the pixels the share z % splits, ``each`` of them. Where there are several, the last
// block of a tile adds their ``parts``.
template <typename Input>
__device__ void weights_pass(
    const ACT *x, const Input &input, const ACT *dy, REAL *dw, REAL *parts, unsigned *tickets, int images, int height,
    int width, int channels, int p, int q, int features, int kernel, int stride, int pad, int groups,
    unsigned image_multiplier, int image_shift, unsigned row_multiplier, int row_shift, int each, int flags
) {
    extern __shared__ uint4 memory[];
    ACT *shared = (ACT *)memory;
    int splits = gridDim.z / groups, group = blockIdx.z / splits, split = blockIdx.z % splits;
    int depth = channels / groups, columns = features / groups, rows = kernel * kernel * depth, pixels = images * p * q;
    typedef Windows<Divider, Divider, Divided, Divided> View;
    View view{x + group * depth, height, width, channels, p, q, stride, -pad, -pad, 1, depth, kernel,
              {p * q, image_multiplier, image_shift}, {q, row_multiplier, row_shift}, {depth}, {kernel}};
    Corner corner(rows, columns);
    typename SumsOf<CORES, ACT, false, false>::Type tile;
    typedef typename Input::template LoaderOf<ACT, TILE_M, false, View> Left;
    Left left(view, corner.row, rows, flags & WIDE_A, input);
    Loader<ACT, TILE_N, false, Lines<ACT>> right({dy + group * columns, features}, corner.column, columns, flags & WIDE_B);
    accumulate(tile, left, right, split * each, min(pixels, (split + 1) * each), shared);
    REAL *own = dw + group * columns;
    InOrder place{features};
    if (!parts) {
        put_sums(tile, own, place, corner.row, rows, corner.column, columns, flags & ADD);
        return;
    }
    REAL *own_parts = parts + (long long)group * splits * rows * columns;
    put_parts(tile, own_parts, split, splits, tickets + group * gridDim.x + blockIdx.x, corner, rows, columns,
               [=](int row, int column, REAL sum) {
        REAL *to = own + place(row) + column;
        *to = flags & ADD ? *to + sum : sum;
    });
}
