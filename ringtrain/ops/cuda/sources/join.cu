// The parts of tiles that several blocks have multiplied (wgmma_tile.cuh), added in the order of the sum.
#include "wgmma_tile.cuh"

// Block (x, y): rows 16 y, ... of tile x. blocks: of the launch before; the rest: as PutSums has it.
extern "C" __global__ void join_parts(
    const REAL *parts, REAL *y, int blocks, int tiles, int steps, int across, int lines, int each, int columns,
    int stride, int add
) {
    const int ROWS = 16;
    long long total = (long long)tiles * steps;
    auto owner = [&](long long step) { return (int)(((step + 1) * blocks - 1) / total); };
    int tile = blockIdx.x, first = owner((long long)tile * steps), last = owner((long long)(tile + 1) * steps - 1);
    if (first == last) return;
    int row = blockIdx.y * ROWS, group = row / 64, corner = tile % across * TILE_N;
    GroupRows rows(tile / across, group, lines, each);
    for (int i = threadIdx.x; i < ROWS * TILE_N; i += blockDim.x) {
        int to = rows.first + row % 64 + i / TILE_N, column = corner + i % TILE_N;
        if (to >= rows.end || column >= columns) continue;
        const REAL *part = parts + (long long)row * TILE_N + i;
        REAL sum = part[(2ll * first + 1) * (TILE_M * TILE_N)];
        for (int block = first + 1; block <= last; block++) sum += part[2ll * block * (TILE_M * TILE_N)];
        REAL *at = y + (long long)to * stride + column;
        *at = add ? *at + sum : sum;
    }
}
