// Tiles of a product by wgmma: one warpgroup brings panels of the factors, two multiply them, in stages that take turns.
//
//     producer    waits until a stage is empty ──► TMA: the next 64 elements of the sum ──► the stage is full
//     consumers   wait until it is full ──► 64 of the tile's 128 rows each, by wgmma ──► the stage is empty
//
// A block works on a share of the steps of all tiles, one tile after the other; the producer runs ahead into the next
// tile while the consumers write the last one. Whole tiles go to the result. Where tiles are divided among blocks
// (stream-K: all shares are alike, however few tiles there are), parts of tiles go to memory, and another kernel
// (join.cu) adds them in their order: sums depend on the sizes alone.
//
// Compiled with TILE_M 128, TILE_N 64, 128 or 256, and WGMMA_STAGES, as many as fit into shared memory.
// Source: Osama et al. 2023, "Stream-K"; NVIDIA, "CUTLASS: Efficient GEMM", warp specialisation.
#pragma once
#include "wgmma.cuh"

#define CONSUMERS 2
#define WGMMA_THREADS ((CONSUMERS + 1) * TILE_THREADS)
// Registers of a thread: 65536 are there for 384 threads. Those of the producer go to the consumers.
#define PRODUCER_REGISTERS 40
#define CONSUMER_REGISTERS 232
#define STEP 64         // elements of the sum
#define LINE_BYTES 128  // STEP elements, or 64 rows: what one pattern of swizzled lines is wide
#define BLOCK_BYTES (STEP * LINE_BYTES)

static_assert(TILE_M == CONSUMERS * 64, "a warpgroup multiplies 64 rows");

// ── the parts of shared memory ───────────────────────────────────────────────────────────────────────────────────
// EXTENT rows of a factor times STEP elements of the sum:
//     DEEP (K-major)     a line is a row                   [EXTENT][STEP]
//     else (MN-major)    a line is an element of the sum   [EXTENT / 64][STEP][64]
template <int EXTENT, bool DEEP> struct WgmmaPanel {
    static const int BYTES = EXTENT * LINE_BYTES;

    // Rows from 64 · block on, 16 elements of the sum from 16 · k on.
    static __device__ unsigned long long at(unsigned address, int block, int k) {
        return operand(address + block * BLOCK_BYTES + k * (DEEP ? 32 : 16 * LINE_BYTES), DEEP ? 0 : BLOCK_BYTES,
                       8 * LINE_BYTES);
    }

    // The panel of rows ``row``, ... and elements ``depth``, ... of a matrix, number z of several.
    static __device__ void bring(char *panel, const TensorMap &map, Barrier *full, int row, int depth, int z) {
        if constexpr (DEEP) {
            copy_box(panel, map, full, depth, row, z);
        } else {
#pragma unroll
            for (int i = 0; i < EXTENT / 64; i++) copy_box(panel + i * BLOCK_BYTES, map, full, row + i * 64, depth, z);
        }
    }
};

// Stages, rounded results on their way to memory, barriers; from a multiple of 1024 bytes on, where swizzling begins.
struct StageMemory {
    static const int A = TILE_M * LINE_BYTES, B = TILE_N * LINE_BYTES, ROUNDED = 64 * (TILE_N + 8) * 2;
    char *start;

    __device__ explicit StageMemory(void *memory)
        : start((char *)memory + (1024 - shared_address(memory) % 1024) % 1024) {}
    __device__ char *a(int stage) const { return start + stage * (A + B); }
    __device__ char *b(int stage) const { return a(stage) + A; }
    __device__ ACT *rounded(int group) const { return (ACT *)(a(WGMMA_STAGES) + group * ROUNDED); }
    __device__ Barrier *full(int stage) const { return (Barrier *)(a(WGMMA_STAGES) + CONSUMERS * ROUNDED) + stage; }
    __device__ Barrier *empty(int stage) const { return full(WGMMA_STAGES) + stage; }

    // By all threads of the block. Every warp of the consumers says that a stage is empty.
    __device__ void make_barriers() const {
        if (threadIdx.x == 0) {
            for (int stage = 0; stage < WGMMA_STAGES; stage++) {
                barrier_make(full(stage), 1);
                barrier_make(empty(stage), CONSUMERS * TILE_THREADS / WARP);
            }
            barriers_made();
        }
        __syncthreads();
    }
};

// The stage whose turn it is, and the parity of the phase in which it becomes full.
struct Turn {
    int stage = 0, parity = 0;
    __device__ void next() {
        if (++stage == WGMMA_STAGES) stage = 0, parity ^= 1;
    }
};

// ── work ─────────────────────────────────────────────────────────────────────────────────────────────────────────
// Where the share of a block begins, in steps of all tiles: they are divided evenly, by ``grain`` steps.
__device__ inline int share_start(int block, int blocks, int tiles, int steps, int grain) {
    return (int)((long long)block * (tiles * (steps / grain)) / blocks) * grain;
}

// The tiles of a block, one after the other, each from step ``first`` to ``last``. grain: steps where tiles are whole,
// or 1.
struct Share {
    int steps, at, end;
    __device__ Share(int tiles, int steps, int grain)
        : steps(steps), at(share_start(blockIdx.x, gridDim.x, tiles, steps, grain)),
          end(share_start(blockIdx.x + 1, gridDim.x, tiles, steps, grain)) {}
    __device__ bool more() const { return at < end; }
    __device__ int tile() const { return at / steps; }
    __device__ int first() const { return at % steps; }
    __device__ int last() const { return min(steps, first() + end - at); }
    __device__ bool whole() const { return first() == 0 && last() == steps; }
    __device__ void next() { at += last() - first(); }
    // A block has at most two parts of tiles: one without the tile's first step, and one with it.
    __device__ int part() const { return 2 * blockIdx.x + (first() == 0); }
};

// ── sums ─────────────────────────────────────────────────────────────────────────────────────────────────────────
// The sums of 64 rows, of one warpgroup.
struct GroupSums {
    static const int ROWS = 64, GAP = 1;
    float sums[TILE_N / 2];

    __device__ GroupSums() : sums{} {}

    static __device__ int group() { return threadIdx.x / TILE_THREADS; }
    static __device__ void meet() { warpgroup_meet(group()); }

    template <bool A_DEEP, bool B_DEEP> __device__ void add(const char *a, const char *b) {
        unsigned left = shared_address(a), right = shared_address(b);
        products_begin();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            multiply<!A_DEEP, !B_DEEP>((const ACT *)0, sums, WgmmaPanel<TILE_M, A_DEEP>::at(left, group(), k),
                                       WgmmaPanel<TILE_N, B_DEEP>::at(right, 0, k));
        products_close();
    }

    __device__ void settle() { products_settle(sums); }

    template <typename F> __device__ void each(F f) const {
        int thread = threadIdx.x % TILE_THREADS, row = thread / WARP * 16 + thread % WARP / 4, column = thread % 4 * 2;
#pragma unroll
        for (int j = 0; j < TILE_N / 8; j++) {
            f(row, column + 8 * j, sums[4 * j], sums[4 * j + 1]);
            f(row + 8, column + 8 * j, sums[4 * j + 2], sums[4 * j + 3]);
        }
    }
};

// ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────
template <typename Source> __device__ void produce(const Source &source, const StageMemory &memory, Share share) {
    Turn turn;
    for (; share.more(); share.next()) {
        typename Source::Walk walk(source, share.tile(), share.first());
        for (int steps = share.last() - share.first(); steps > 0; steps--, walk.next(), turn.next()) {
            Barrier *full = memory.full(turn.stage);
            barrier_wait(memory.empty(turn.stage), turn.parity ^ 1);
            barrier_expect(full, StageMemory::A + StageMemory::B);
            walk.bring(memory.a(turn.stage), memory.b(turn.stage), full);
        }
    }
}

// finish(share, sums, rounded): of a tile, or a part of it, by each consumer; rounded: shared memory of its own.
template <typename Source, typename Finish>
__device__ void consume(const StageMemory &memory, Share share, Finish finish) {
    Turn turn, before;
    auto release = [&] {
        if (threadIdx.x % WARP == 0) barrier_arrive(memory.empty(before.stage));
        before.next();
    };
    for (; share.more(); share.next()) {
        GroupSums sums;
        for (int steps = share.last() - share.first(), step = 0; step < steps; step++, turn.next()) {
            barrier_wait(memory.full(turn.stage), turn.parity);
            sums.add<Source::A_DEEP, Source::B_DEEP>(memory.a(turn.stage), memory.b(turn.stage));
            products_wait<1>();
            if (step > 0) release();
        }
        products_wait<0>();
        sums.settle();
        release();
        finish(share, sums, memory.rounded(GroupSums::group()));
    }
}

// Source: what the factors are. Its Walk(source, tile, step) goes over the steps of a tile, without divisions, which
// would take longer than the products: bring(a, b, full) has a step's panels copied. By all threads of the block.
template <typename Source, typename Finish>
__device__ __forceinline__ void multiply_tiles(const Source &source, Share share, Finish finish) {
    extern __shared__ uint4 shared[];
    StageMemory memory(shared);
    memory.make_barriers();
    if (GroupSums::group() == CONSUMERS) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % TILE_THREADS == 0) produce(source, memory, share);
    } else {
        registers_take<CONSUMER_REGISTERS>();
        consume<Source>(memory, share, finish);
    }
}

// ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────
// The rows of a consumer: of the tile's two blocks of 64 rows, its own. Rows are ``lines`` times ``each``, in blocks
// that do not reach from one line into the next.
struct GroupRows {
    int first, end;
    __device__ GroupRows(int tile, int group, int lines, int each) {
        int blocks = (each + 63) / 64, block = tile * CONSUMERS + group, line = block / blocks;
        first = line * each + block % blocks * 64;
        end = line < lines ? (line + 1) * each : first;
    }
};

// Sums of whole tiles into y, or added to it; of parts into parts[part][TILE_M][TILE_N].
struct PutSums {
    REAL *y, *parts;
    int across, lines, each, columns, stride;
    bool add;
    __device__ void operator()(const Share &share, const GroupSums &sums, ACT *) const {
        int group = GroupSums::group(), tile = share.tile();
        if (share.whole()) {
            GroupRows rows(tile / across, group, lines, each);
            put_sums(sums, y, InOrder{stride}, rows.first, rows.end, tile % across * TILE_N, columns, add);
        } else {
            REAL *part = parts + ((long long)share.part() * TILE_M + group * 64) * TILE_N;
            put_sums(sums, part, InOrder{TILE_N}, 0, 64, 0, TILE_N, false);
        }
    }
};

// Sums rounded into y; the shared memory is free once all have written the last tile's. moments: of the 64 rows of each
// consumer, or null.
template <typename Place> struct PutRounded {
    ACT *y;
    Place place;
    RowTiles rows;
    int across, columns;
    const REAL *bias;
    int flags;
    REAL *moments = 0;
    __device__ void operator()(const Share &share, const GroupSums &sums, ACT *rounded) const {
        int tile = share.tile() / across, column = share.tile() % across * TILE_N, group = GroupSums::group();
        REAL *own = moments ? moments + (long long)(tile * CONSUMERS + group) * 2 * columns : moments;
        GroupSums::meet();
        put_rounded(sums, y, place, rows.first(tile) + group * 64, rows.end(tile), column, columns, bias, flags, rounded,
                    own);
    }
};
