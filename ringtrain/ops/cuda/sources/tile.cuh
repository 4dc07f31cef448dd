// One TILE_M x TILE_N tile of a product, by one block: the only loop that products and convolutions have.
//
//     global ──copies, STAGES - 1 ahead──► panels in shared memory ──► registers ──► sums in registers ──► y
//
// CORES 1: tensor cores, 4 warps of (TILE_M / 2) x (TILE_N / 2). CORES 0: one multiply-add at a time, each thread
// TILE_M / 8 x TILE_N / 16 sums (TILE_M / 16 x TILE_N / 8 of large tiles). Sums are float, of double double; each is
// over the elements in their order, however many blocks there are.
#pragma once
#include "panel.cuh"

#define STAGES 4
#define TILE_SHARED (STAGES * (TILE_M + TILE_N) * 80)

enum { RELU = 1, WIDE_A = 2, WIDE_B = 4, WIDE_Y = 8, ADD = 16 };

// ── sums of a tile ───────────────────────────────────────────────────────────────────────────────────────────────
// Sums of a whole tile are those of the block's TILE_THREADS threads; other ones are of part of a block (wgmma_tile.cuh).
struct OfBlock {
    static const int ROWS = TILE_M;
    static __device__ void meet() { __syncthreads(); }
};

template <typename T, bool A_DEEP, bool B_DEEP> struct PlainSums : OfBlock {
    typedef Panel<T, TILE_M, A_DEEP> A;
    typedef Panel<T, TILE_N, B_DEEP> B;
    static const int DOWN = TILE_M == 128 ? 16 : 8, ACROSS = TILE_THREADS / DOWN;
    static const int GAP = ACROSS;
    T sums[TILE_M / DOWN][TILE_N / ACROSS];
    int row, column;

    __device__ PlainSums() : sums{}, row(threadIdx.x / ACROSS), column(threadIdx.x % ACROSS) {}

    __device__ void add(const T *a_panel, const T *b_panel) {
#pragma unroll 4
        for (int k = 0; k < A::DEPTH; k++) {
            T a[TILE_M / DOWN], b[TILE_N / ACROSS];
#pragma unroll
            for (int i = 0; i < TILE_M / DOWN; i++) a[i] = *A::at(a_panel, row + i * DOWN, k);
#pragma unroll
            for (int j = 0; j < TILE_N / ACROSS; j++) b[j] = *B::at(b_panel, column + j * ACROSS, k);
#pragma unroll
            for (int i = 0; i < TILE_M / DOWN; i++)
#pragma unroll
                for (int j = 0; j < TILE_N / ACROSS; j++) sums[i][j] += a[i] * b[j];
        }
    }

    // f(row, column, sum there, sum GAP columns on)
    template <typename F> __device__ void each(F f) const {
#pragma unroll
        for (int i = 0; i < TILE_M / DOWN; i++)
#pragma unroll
            for (int j = 0; j < TILE_N / ACROSS; j += 2)
                f(row + i * DOWN, column + j * ACROSS, sums[i][j], sums[i][j + 1]);
    }
};

template <typename T, bool A_DEEP, bool B_DEEP> struct CoreSums : OfBlock {
    typedef Panel<T, TILE_M, A_DEEP> A;
    typedef Panel<T, TILE_N, B_DEEP> B;
    static const int M = TILE_M / 2, N = TILE_N / 2;  // of a warp
    static const int DEPTH = 32 / (int)sizeof(T);     // of one instruction
    static const int GAP = 1;
    float sums[M / 16][N / 8][4];
    int lane, row, column;

    __device__ CoreSums() : sums{}, lane(threadIdx.x % WARP) {
        row = threadIdx.x / WARP / 2 * M;
        column = threadIdx.x / WARP % 2 * N;
    }

    __device__ void add(const T *a_panel, const T *b_panel) {
#pragma unroll
        for (int k = 0; k < A::DEPTH; k += DEPTH) {
            unsigned a[M / 16][4], b[N / 8][2];
#pragma unroll
            for (int i = 0; i < M / 16; i++) left(a[i], a_panel, row + i * 16, k);
#pragma unroll
            for (int j = 0; j < N / 8; j += 2) right(b[j], b[j + 1], b_panel, column + j * 8, k);
#pragma unroll
            for (int i = 0; i < M / 16; i++)
#pragma unroll
                for (int j = 0; j < N / 8; j++) multiply((const T *)0, sums[i][j], a[i], b[j]);
        }
    }

    // 16 rows of the left factor.
    __device__ void left(unsigned (&a)[4], const T *panel, int row, int k) const {
        if constexpr (sizeof(T) == 4) {
            int group = lane / 4, place = lane % 4;
#pragma unroll
            for (int r = 0; r < 4; r++) a[r] = tf32_bits(*A::at(panel, row + group + r % 2 * 8, k + place + r / 2 * 4));
        } else if constexpr (A_DEEP) {
            load_matrices(a, A::at(panel, row + lane % 16, k + lane / 16 * 8));
        } else {
            load_matrices_turned(a, A::at(panel, row + lane / 8 % 2 * 8, k + lane % 8 + lane / 16 * 8));
        }
    }

    // 16 columns of the right factor, as two of 8.
    __device__ void right(unsigned (&b)[2], unsigned (&next)[2], const T *panel, int column, int k) const {
        if constexpr (sizeof(T) == 4) {
            int group = lane / 4, place = lane % 4;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                b[r] = tf32_bits(*B::at(panel, column + group, k + place + r * 4));
                next[r] = tf32_bits(*B::at(panel, column + 8 + group, k + place + r * 4));
            }
            return;
        } else {
            unsigned r[4];
            if constexpr (B_DEEP) load_matrices(r, B::at(panel, column + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
            else load_matrices_turned(r, B::at(panel, column + lane / 16 * 8, k + lane % 16));
            b[0] = r[0], b[1] = r[1], next[0] = r[2], next[1] = r[3];
        }
    }

    template <typename F> __device__ void each(F f) const {
        int group = lane / 4, place = lane % 4;
#pragma unroll
        for (int i = 0; i < M / 16; i++)
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                int r = row + i * 16 + group, c = column + j * 8 + 2 * place;
                f(r, c, sums[i][j][0], sums[i][j][1]);
                f(r + 8, c, sums[i][j][2], sums[i][j][3]);
            }
    }
};

template <bool CORES_, typename T, bool A_DEEP, bool B_DEEP> struct SumsOf { typedef PlainSums<T, A_DEEP, B_DEEP> Type; };
template <typename T, bool A_DEEP, bool B_DEEP> struct SumsOf<true, T, A_DEEP, B_DEEP> {
    typedef CoreSums<T, A_DEEP, B_DEEP> Type;
};

// ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────
// Elements ``start`` to ``stop`` of the sums. Stage s holds the panels of every STAGES-th step; those of step i + STAGES
// - 1 are asked for once all threads have done with step i - 1, whose place they take.
template <typename Sums, typename LoaderA, typename LoaderB>
__device__ void accumulate(Sums &sums, const LoaderA &a, const LoaderB &b, int start, int stop, ACT *shared) {
    typedef typename LoaderA::P A;
    typedef typename LoaderB::P B;
    static_assert(STAGES * (A::SIZE + B::SIZE) * (int)sizeof(ACT) <= TILE_SHARED, "panels do not fit");
    int steps = (stop - start + A::DEPTH - 1) / A::DEPTH;
    ACT *b_shared = shared + STAGES * A::SIZE;
    auto bring = [&](int step) {
        if (step < steps) {
            a.bring(shared + step % STAGES * A::SIZE, start + step * A::DEPTH, stop);
            b.bring(b_shared + step % STAGES * B::SIZE, start + step * A::DEPTH, stop);
        }
        copies_close();
    };
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) bring(step);
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        a.settle(shared + step % STAGES * A::SIZE, start + step * A::DEPTH, stop);
        __syncthreads();
        bring(step + STAGES - 1);
        sums.add(shared + step % STAGES * A::SIZE, b_shared + step % STAGES * B::SIZE);
    }
    copies_wait<0>();
    __syncthreads();
}

// ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────
// Where the rows of a product go: one after the other.
struct InOrder {
    int stride;
    __device__ long long operator()(int row) const { return (long long)row * stride; }
};

// Rows in groups, and the tiles of ``height`` rows that each group is cut into by itself: no tile has rows of two.
struct RowTiles {
    int rows, group_rows, height, each;  // each: tiles of a group
    __device__ RowTiles(int rows, int group_rows, int height)
        : rows(rows), group_rows(group_rows), height(height), each((group_rows + height - 1) / height) {}
    __device__ int count() const { return (rows + group_rows - 1) / group_rows * each; }
    __device__ int group(int tile) const { return tile / each; }
    __device__ int first(int tile) const { return group(tile) * group_rows + tile % each * height; }
    // Behind the last row of the tile's group.
    __device__ int end(int tile) const { return min(rows, (group(tile) + 1) * group_rows); }
};

// The tile of block x, those of one row of tiles after each other: they read the same rows of the left factor.
struct Corner {
    int tile, row, column, end;  // tile: of rows; end: behind the last row of its group
    __device__ Corner(const RowTiles &rows, int columns) {
        int across = (columns + TILE_N - 1) / TILE_N;
        tile = blockIdx.x / across;
        row = rows.first(tile);
        end = rows.end(tile);
        column = blockIdx.x % across * TILE_N;
    }
    __device__ Corner(int rows, int columns) : Corner(RowTiles(rows, rows, TILE_M), columns) {}
};

// Sums as they are, or added to what is there: y[place(row) + column].
template <typename Sums, typename Place>
__device__ void put_sums(
    const Sums &sums, REAL *y, Place place, int first_row, int rows, int first_column, int columns, bool add
) {
    sums.each([&](int row, int column, REAL one, REAL two) {
        if (first_row + row >= rows) return;
        REAL *line = y + place(first_row + row) + first_column;
        if (first_column + column < columns) line[column] = add ? line[column] + one : one;
        column += Sums::GAP;
        if (first_column + column < columns) line[column] = add ? line[column] + two : two;
    });
}

// Of a tile whose sums are divided among blocks: part z of ``count`` goes to parts[z][rows][columns], and the last block
// to come gives f(row, column, sum of all parts in their order).
template <typename Sums, typename F>
__device__ void put_parts(
    const Sums &sums, REAL *parts, int z, int count, unsigned *ticket, const Corner &corner, int rows, int columns, F f
) {
    long long size = (long long)rows * columns;
    put_sums(sums, parts + z * size, InOrder{columns}, corner.row, rows, corner.column, columns, false);
    if (!is_last_block(ticket, count)) return;
    for (int i = threadIdx.x; i < TILE_M * TILE_N; i += TILE_THREADS) {
        int row = corner.row + i / TILE_N, column = corner.column + i % TILE_N;
        if (row >= rows || column >= columns) continue;
        const REAL *from = parts + (long long)row * columns + column;
        REAL sum = __ldcg(from);
        for (int part = 1; part < count; part++) sum += __ldcg(from + part * size);
        f(row, column, sum);
    }
}

// The moments of a tile's rows, of each column: parts [2][channels] = mean, and squares about it. tile: the rounded
// results in shared memory, which has at least one row.
template <typename Sums>
__device__ void put_moments(const ACT *tile, int rows, int first_column, int columns, REAL *parts, int channels) {
    const int LANES = 2 * TILE_THREADS / TILE_N;  // threads for each two columns; all are of one warp
    static_assert(LANES >= 1 && LANES <= WARP, "a tile is too wide or too narrow");
    const int STRIDE = TILE_N + Wide<ACT>::COUNT;
    typedef Vector<ACT, 2> Pair;
    int thread = threadIdx.x % TILE_THREADS, column = thread / LANES * 2, lane = thread % LANES;
    REAL shift[2], sum[2] = {}, squares[2] = {};
    Pair base = *(const Pair *)(tile + column);
    for (int e = 0; e < 2; e++) shift[e] = to_real(base.at[e]);
#pragma unroll 4
    for (int row = lane; row < rows; row += LANES) {
        Pair pair = *(const Pair *)(tile + row * STRIDE + column);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            REAL d = to_real(pair.at[e]) - shift[e];
            sum[e] += d;
            squares[e] += d * d;
        }
    }
    for (int e = 0; e < 2; e++) {
        for (int step = LANES / 2; step > 0; step /= 2) {
            sum[e] += __shfl_xor_sync(ALL_LANES, sum[e], step);
            squares[e] += __shfl_xor_sync(ALL_LANES, squares[e], step);
        }
        int c = first_column + column + e;
        if (lane || c >= columns) continue;
        parts[c] = shift[e] + sum[e] / (REAL)rows;
        parts[channels + c] = squares[e] - sum[e] * (sum[e] / (REAL)rows);
    }
}

// max(sum + bias, 0), rounded, by way of shared memory, so that lines are written 16 bytes at a time where ``flags``
// have WIDE_Y; added to what is there where they have ADD. moments: where those of these rows go, or null.
template <typename Sums, typename Place>
__device__ void put_rounded(
    const Sums &sums, ACT *y, Place place, int first_row, int rows, int first_column, int columns, const REAL *bias,
    int flags, ACT *shared, REAL *moments = 0
) {
    const int WIDE = Wide<ACT>::COUNT, STRIDE = TILE_N + WIDE, CHUNKS = TILE_N / WIDE;
    typedef Vector<ACT, WIDE> Chunk;
    static_assert(Sums::ROWS * STRIDE * (int)sizeof(ACT) <= TILE_SHARED, "the tile does not fit");
    auto rounded = [&](int column, REAL sum) {
        if (bias && first_column + column < columns) sum += bias[first_column + column];
        return to_act(flags & RELU ? relu_of(sum) : sum);
    };
    sums.each([&](int row, int column, REAL one, REAL two) {
        ACT *to = shared + row * STRIDE + column;
        if constexpr (Sums::GAP == 1) {
            *(Vector<ACT, 2> *)to = {rounded(column, one), rounded(column + 1, two)};
        } else {
            to[0] = rounded(column, one), to[Sums::GAP] = rounded(column + Sums::GAP, two);
        }
    });
    Sums::meet();
    int used = min(Sums::ROWS, rows - first_row);
    if (moments && used > 0) put_moments<Sums>(shared, used, first_column, columns, moments, columns);
    for (int i = threadIdx.x % TILE_THREADS; i < Sums::ROWS * CHUNKS; i += TILE_THREADS) {
        int row = i / CHUNKS, column = i % CHUNKS * WIDE, left = columns - first_column - column;
        if (row >= used || left <= 0) continue;
        const ACT *from = shared + row * STRIDE + column;
        ACT *to = y + place(first_row + row) + first_column + column;
        if ((flags & WIDE_Y) && left >= WIDE) {
            Chunk chunk = *(const Chunk *)from;
            if (flags & ADD) {
                Chunk held = *(const Chunk *)to;
#pragma unroll
                for (int e = 0; e < WIDE; e++) chunk.at[e] = to_act(to_real(held.at[e]) + to_real(chunk.at[e]));
            }
            *(Chunk *)to = chunk;
        } else {
            for (int e = 0; e < WIDE && e < left; e++)
                to[e] = flags & ADD ? to_act(to_real(to[e]) + to_real(from[e])) : from[e];
        }
    }
}
