// Parts of the factors of a product, brought to shared memory.
//
// A factor is seen through a *view*: lines (outer) of elements that are neighbours in memory (inner), which may lie
// anywhere, or nowhere (then they are 0). A panel holds EXTENT rows of the product's left factor (or columns of the
// right one) times DEPTH elements of the sum:
//
//     DEEP    a line is one row, its neighbours are elements of the sum      [EXTENT][DEPTH]
//     else    a line is one element of the sum, its neighbours are rows      [DEPTH][EXTENT]
//
// Each line is padded such that neither the 16-byte lines of 8 x 8 matrices nor the fragments of float meet in a bank.
#pragma once
#include "mma.cuh"

#define TILE_THREADS 128
// Of DEPTH elements: 32 of 2 bytes, 16 of 4, 8 of 8.
#define PANEL_BYTES 64

template <typename T, int EXTENT, bool DEEP> struct Panel {
    static const int DEPTH = PANEL_BYTES / (int)sizeof(T);
    static const int LINES = DEEP ? EXTENT : DEPTH;
    static const int LENGTH = DEEP ? DEPTH : EXTENT;
    static const int STRIDE = LENGTH + (!DEEP && sizeof(T) == 4 ? 32 : 16) / (int)sizeof(T);
    static const int SIZE = LINES * STRIDE;
    static const int WIDE = 16 / (int)sizeof(T);
    static const int CHUNKS = LENGTH / WIDE;        // of 16 bytes, in a line
    static const int STEP = TILE_THREADS / CHUNKS;  // lines that all threads bring at a time
    static const int EACH = LINES / STEP;

    static __device__ const T *at(const T *panel, int along, int depth) {
        return panel + (DEEP ? along * STRIDE + depth : depth * STRIDE + along);
    }
};

// Brings panels of rows first, first + 1, ... (before ``end``), a chunk of the same lines by the same thread. ``wide``:
// chunks begin at 16-byte addresses and lie together in memory, so that they are copied while others are computed with.
template <typename T, int EXTENT, bool DEEP, typename View> struct Loader {
    typedef Panel<T, EXTENT, DEEP> P;
    const View view;
    const int first, end;
    const bool wide;
    const int line, chunk;
    typename View::Outer outer[DEEP ? P::EACH : 1];
    typename View::Inner inner;

    __device__ Loader(const View &view, int first, int end, bool wide)
        : view(view), first(first), end(end), wide(wide),
          line(threadIdx.x / P::CHUNKS), chunk(threadIdx.x % P::CHUNKS * P::WIDE) {
        if constexpr (DEEP) {
#pragma unroll
            for (int i = 0; i < P::EACH; i++) outer[i] = view.outer(min(row(i), end - 1));
        } else {
            inner = view.inner(min(first + chunk, end - 1));
        }
    }

    __device__ int row(int i) const { return first + line + i * P::STEP; }

    // The panel of elements depth, depth + 1, ... of the sum, before depth_end.
    __device__ void bring(T *panel, int depth, int depth_end) const {
        if (DEEP) bring_deep(panel + line * P::STRIDE + chunk, depth + chunk, depth_end);
        else bring_flat(panel + line * P::STRIDE + chunk, depth + line, depth_end);
    }

    __device__ void bring_deep(T *to, int depth, int depth_end) const {
        if (wide) {
            auto where = view.inner(min(depth, depth_end - 1));
#pragma unroll
            for (int i = 0; i < P::EACH; i++)
                chunk_of(to + i * P::STEP * P::STRIDE, view.at(outer[DEEP ? i : 0], where), row(i) < end, depth_end - depth);
            return;
        }
        for (int e = 0; e < P::WIDE; e++) {
            bool inside = depth + e < depth_end;
            auto where = view.inner(min(depth + e, depth_end - 1));
#pragma unroll
            for (int i = 0; i < P::EACH; i++)
                element_of(to + i * P::STEP * P::STRIDE + e, view.at(outer[DEEP ? i : 0], where), inside && row(i) < end);
        }
    }

    __device__ void bring_flat(T *to, int depth, int depth_end) const {
#pragma unroll
        for (int i = 0; i < P::EACH; i++) {
            int at = depth + i * P::STEP, left = end - first - chunk;
            T *line_to = to + i * P::STEP * P::STRIDE;
            auto where = view.outer(min(at, depth_end - 1));
            if (wide) {
                chunk_of(line_to, view.at(where, inner), at < depth_end, left);
                continue;
            }
            for (int e = 0; e < P::WIDE; e++) {
                auto which = view.inner(min(first + chunk + e, end - 1));
                element_of(line_to + e, view.at(where, which), at < depth_end && e < left);
            }
        }
    }

    // What is done to panels that have arrived, by the threads that asked for them: nothing.
    __device__ void settle(T *panel, int depth, int depth_end) const {}

    __device__ void chunk_of(T *to, const T *from, bool inside, int left) const {
        int count = inside && from ? max(0, min(left, P::WIDE)) : 0;
        copy_16(to, count ? from : view.somewhere(), count * (int)sizeof(T));
    }

    __device__ void element_of(T *to, const T *from, bool inside) const { *to = inside && from ? *from : As<T>::from((REAL)0); }
};

// A matrix of ``stride`` elements a line.
template <typename T> struct Lines {
    typedef const T *Outer;
    typedef int Inner;
    const T *base;
    int stride;
    __device__ Outer outer(int i) const { return base + (long long)i * stride; }
    __device__ Inner inner(int j) const { return j; }
    __device__ const T *at(Outer line, Inner j) const { return line + j; }
    __device__ const T *somewhere() const { return base; }
};
