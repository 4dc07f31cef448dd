// Numbers in few bits, in blocks that have scales of their own, and whole numbers in as many bits as they need: see
// ops/levels.py. A thread is an element of a block, and then a byte of its codes.
#include "common.cuh"

#define BLOCK 256
#define MOVES 2
#define EIGHT 8

__device__ inline REAL size_of(REAL x) { return x > 0 ? x : (REAL)0 - x; }  // never -0

// Rounded, so that it is the same number where it is taken away and where it is added.
__device__ inline float times(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double times(double a, double b) { return __dmul_rn(a, b); }

// The largest of a block's, in every thread.
__device__ REAL block_largest(REAL size) {
    __shared__ REAL sizes[BLOCK];
    __syncthreads();  // of an earlier call
    sizes[threadIdx.x] = size;
    for (int reach = BLOCK / 2; reach > 0; reach /= 2) {
        __syncthreads();
        if (threadIdx.x < reach) sizes[threadIdx.x] = max(sizes[threadIdx.x], sizes[threadIdx.x + reach]);
    }
    __syncthreads();
    return sizes[0];
}

__device__ inline REAL number_of(int code, const REAL *scales, long long stride, int bits) {
    if (bits > 2) return times((REAL)(code - (1 << (bits - 1))), scales[0]);
    REAL size = scales[code & 2 ? stride : 0];
    return code & 1 ? -size : size;
}

// The mean of the elements that are in, in every thread; 0 of none. In the order of the other implementations: every
// eighth, then these eight.
__device__ REAL mean_of(REAL size, bool in) {
    __shared__ double sizes[BLOCK], sums[EIGHT];
    int count = block_sum((int)in);
    sizes[threadIdx.x] = in ? (double)size : 0.0;
    __syncthreads();
    double sum = 0, total = 0;
    if (threadIdx.x < EIGHT) {
        for (int i = threadIdx.x; i < BLOCK; i += EIGHT) sum += sizes[i];
        sums[threadIdx.x] = sum;
    }
    __syncthreads();
    for (int i = 0; i < EIGHT; i++) total += sums[i];
    __syncthreads();  // before the next sums are written
    return count ? (REAL)(total / count) : (REAL)0;
}

extern "C" __global__ void __launch_bounds__(BLOCK) take_levels(
    REAL *x, REAL *scales, unsigned char *packed, long long n, int bits) {
    __shared__ unsigned char codes[BLOCK];
    long long blocks = (n + BLOCK - 1) / BLOCK;
    for (long long b = blockIdx.x; b < blocks; b += gridDim.x) {
        long long i = b * BLOCK + threadIdx.x;
        bool inside = i < n;
        REAL value = inside ? x[i] : (REAL)0, size = size_of(value), of_block[2];
        int code;
        if (bits > 2) {
            REAL top = (REAL)((1 << (bits - 1)) - 1), largest = block_largest(size);
            int wrong = block_sum((int)!(size - size == 0));
            of_block[0] = wrong ? (REAL)nan("") : largest / top;
            REAL step = rint(of_block[0] > 0 ? value / of_block[0] : (REAL)0);
            step = step > -top ? step : -top;  // also of a NaN
            code = (int)(step < top ? step : top) + (1 << (bits - 1));
        } else {
            REAL edge = mean_of(size, inside);
            bool above = false;
            of_block[0] = edge;
            for (int move = 0; bits == 2 && move <= MOVES; move++) {
                above = size > edge;
                of_block[0] = mean_of(size, inside && !above);
                of_block[1] = mean_of(size, inside && above);
                edge = (of_block[0] + of_block[1]) / 2;
            }
            code = (value < 0) | (int)above << 1;
        }
        if (threadIdx.x < (bits == 2 ? 2 : 1)) scales[threadIdx.x * blocks + b] = of_block[threadIdx.x];
        codes[threadIdx.x] = inside ? code : 0;
        if (inside) x[i] = value - number_of(code, of_block, 1, bits);
        __syncthreads();
        long long first = b * (BLOCK / 8) * bits, place = first + threadIdx.x;
        if (threadIdx.x < BLOCK / 8 * bits && place < (n * bits + 7) / 8) {
            int start = threadIdx.x * 8, byte = 0;
            for (int j = start / bits; j * bits < start + 8; j++)
                byte |= j * bits < start ? codes[j] >> (start - j * bits) : codes[j] << (j * bits - start);
            packed[place] = (unsigned char)byte;
        }
        __syncthreads();  // before the next codes are written
    }
}

// Whole number i of so many bits, which lie over at most five bytes.
__device__ inline unsigned field(const unsigned char *packed, long long i, int width) {
    unsigned long long bits = 0;
    long long start = i * width, first = start / 8, end = (start + width + 7) / 8;
    for (long long byte = first; byte < end; byte++) bits |= (unsigned long long)packed[byte] << (byte - first) * 8;
    return (unsigned)(bits >> (start - first * 8) & ((1ull << width) - 1));
}

extern "C" __global__ void add_levels(
    const REAL *scales, const unsigned char *packed, REAL *y, long long n, int bits) {
    long long blocks = (n + BLOCK - 1) / BLOCK;
    for (long long i = first_index(); i < n; i += index_stride())
        y[i] += number_of((int)field(packed, i, bits), scales + i / BLOCK, blocks, bits);
}

// A thread writes eight numbers, in bytes of their own.
extern "C" __global__ void pack_bits(const int *x, unsigned char *packed, long long n, int width) {
    for (long long g = first_index(); g * EIGHT < n; g += index_stride()) {
        unsigned long long bits = 0;
        int held = 0;
        unsigned char *out = packed + g * width;
        for (long long i = g * EIGHT; i < min((g + 1) * EIGHT, n); i++) {
            bits |= ((unsigned)x[i] & ((1ull << width) - 1)) << held;
            for (held += width; held >= 8; held -= 8, bits >>= 8) *out++ = (unsigned char)bits;
        }
        if (held) *out = (unsigned char)bits;
    }
}

extern "C" __global__ void unpack_bits(const unsigned char *packed, int *x, long long n, int width, long long k) {
    for (long long i = first_index(); i < n; i += index_stride())
        x[i] = (int)(field(packed, i, width) + (unsigned)(i / k << width));
}
