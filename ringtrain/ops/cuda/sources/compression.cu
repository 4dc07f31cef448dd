// The largest elements of an array, exactly, and what is made of them.
//
// Without its sign, a floating-point number's bits are a whole number that grows with it. From the top, some bits at a
// time, it is counted how many elements that share the bits found so far have which next ones; the counts say which
// the k-th largest has. Then what is larger than it is taken, and of its equals the first ones, in the order of the
// indices: each block counts those of its part, and puts them behind those of the blocks before.
#include "common.cuh"

#define BITS 11  // counted at once: the exponent of double, exponent and 3 bits more of float
#define BINS (1 << BITS)
#define COUNT_BLOCK 512
#define CHOOSE_BLOCK 256
#define EACH 4  // elements of a thread of a block that goes over its part

// What is known of the k-th largest magnitude so far, in the device's memory, where no host has to look at it.
struct Found {
    Key leading;  // its leading bits; all of them in the end
    Key left;     // it is the left-th largest of those that share them; in the end: so many equals are taken
};

__device__ inline unsigned long long magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ inline unsigned long long magnitude(double x) { return __double_as_longlong(x) & 0x7fffffffffffffffll; }

extern "C" __global__ void begin(unsigned *counts, unsigned long long *found, unsigned long long k) {
    for (int i = threadIdx.x; i < BINS; i += blockDim.x) counts[i] = 0;
    if (threadIdx.x == 0) *(Found *)found = Found{0, k};
}

// Of those whose bits from shift + step on are the leading ones: how many have which next ``step`` bits. Bin 0 stays
// empty, since what is not in another is in it: zeros, of which there may be many, do not wait for each other.
extern "C" __global__ void __launch_bounds__(COUNT_BLOCK) count_bits(
    const REAL *__restrict__ x, long long n, const unsigned long long *found, unsigned *counts, int shift, int step) {
    __shared__ unsigned own[BINS];
    for (int i = threadIdx.x; i < BINS; i += blockDim.x) own[i] = 0;
    __syncthreads();
    Key leading = ((const Found *)found)->leading, bins = (Key)1 << step;
#pragma unroll 8
    for (long long i = first_index(); i < n; i += index_stride()) {
        Key bits = magnitude(x[i]) >> shift;
        int bin = (int)(bits & (bins - 1));
        if (bits >> step == leading && bin) atomicAdd(&own[bin], 1u);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += blockDim.x)
        if (own[i]) atomicAdd(&counts[i], own[i]);
}

// One block: the bin of the k-th largest, whose bits join the leading ones. The counts are 0 afterwards.
extern "C" __global__ void __launch_bounds__(CHOOSE_BLOCK) choose(
    unsigned *counts, unsigned long long *found, int step) {
    const int MINE = BINS / CHOOSE_BLOCK;
    __shared__ unsigned above[CHOOSE_BLOCK + 1];
    Found *state = (Found *)found;
    Key left = state->left, leading = state->leading << step;
    int first = threadIdx.x * MINE;
    unsigned mine = 0;
    for (int i = 0; i < MINE; i++) mine += counts[first + i];
    above[threadIdx.x] = mine;
    if (threadIdx.x == 0) above[CHOOSE_BLOCK] = 0;
    for (int reach = 1; reach < CHOOSE_BLOCK; reach *= 2) {  // sums of this thread's and all later ones
        __syncthreads();
        unsigned later = threadIdx.x + reach < CHOOSE_BLOCK ? above[threadIdx.x + reach] : 0;
        __syncthreads();
        above[threadIdx.x] += later;
    }
    __syncthreads();
    unsigned passed = above[threadIdx.x + 1];
    if (passed < left && (left <= above[threadIdx.x] || threadIdx.x == 0)) {
        int bin = first + MINE - 1;
        for (; bin > 0 && passed + counts[bin] < left; bin--) passed += counts[bin];
        state->leading = leading | (Key)bin;
        state->left = left - passed;
    }
    __syncthreads();
    for (int i = 0; i < MINE; i++) counts[first + i] = 0;
}

// sizes [2][blocks]: how many elements of a block's part are larger than the k-th largest, and how many are its equals.
extern "C" __global__ void __launch_bounds__(COUNT_BLOCK) tally(
    const REAL *x, long long n, long long part, const unsigned long long *found, int *sizes) {
    Key least = ((const Found *)found)->leading;
    long long start = blockIdx.x * part, end = min(start + part, n);
    int larger = 0, equal = 0;
#pragma unroll 8
    for (long long i = start + threadIdx.x; i < end; i += blockDim.x) {
        Key m = magnitude(x[i]);
        larger += m > least;
        equal += m == least;
    }
    larger = block_sum(larger);
    equal = block_sum(equal);
    if (threadIdx.x) return;
    sizes[blockIdx.x] = larger;
    sizes[gridDim.x + blockIdx.x] = equal;
}

// Puts the taken elements of a block's part where they belong, and 0 in their place.
extern "C" __global__ void __launch_bounds__(COUNT_BLOCK) move(
    REAL *x, long long n, long long part, const unsigned long long *found, const int *sizes, REAL *values,
    int *indices) {
    __shared__ int warp_larger[COUNT_BLOCK / WARP], warp_equal[COUNT_BLOCK / WARP];
    Found wanted = *(const Found *)found;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, larger = 0, equal = 0;
    for (int b = threadIdx.x; b < (int)blockIdx.x; b += blockDim.x) {
        larger += sizes[b];
        equal += sizes[gridDim.x + b];
    }
    larger = block_sum(larger);  // of all before this warp's elements, from here on
    equal = block_sum(equal);
    unsigned before = (1u << lane) - 1;
    long long start = blockIdx.x * part, end = min(start + part, n);
    for (; start < end; start += (long long)blockDim.x * EACH) {
        long long first = start + (long long)warp * WARP * EACH + lane;
        REAL value[EACH];
        unsigned is_larger[EACH], is_equal[EACH];
        int own_larger = 0, own_equal = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++) value[e] = first + e * WARP < end ? x[first + e * WARP] : (REAL)0;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            bool inside = first + e * WARP < end;
            Key m = magnitude(value[e]);
            is_larger[e] = __ballot_sync(ALL_LANES, inside && m > wanted.leading);
            is_equal[e] = __ballot_sync(ALL_LANES, inside && m == wanted.leading);
            own_larger += __popc(is_larger[e]);
            own_equal += __popc(is_equal[e]);
        }
        if (lane == 0) {
            warp_larger[warp] = own_larger;
            warp_equal[warp] = own_equal;
        }
        __syncthreads();
        int ahead_larger = larger, ahead_equal = equal;
        for (int w = 0; w < (int)blockDim.x / WARP; w++) {
            if (w < warp) ahead_larger += warp_larger[w], ahead_equal += warp_equal[w];
            larger += warp_larger[w], equal += warp_equal[w];
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int larger_before = ahead_larger + __popc(is_larger[e] & before);
            int equal_before = ahead_equal + __popc(is_equal[e] & before);
            bool taken = is_larger[e] >> lane & 1 || (is_equal[e] >> lane & 1 && equal_before < (long long)wanted.left);
            if (taken) {
                long long place = larger_before + min((long long)equal_before, (long long)wanted.left);
                values[place] = value[e];
                indices[place] = (int)(first + e * WARP);
                x[first + e * WARP] = (REAL)0;
            }
            ahead_larger += __popc(is_larger[e]);
            ahead_equal += __popc(is_equal[e]);
        }
        __syncthreads();  // before the next counts are written
    }
}

// The same of each chunk, and as many in proportion of the last one: a block for a chunk, whose threads go over parts of
// it that lie one after another.
extern "C" __global__ void __launch_bounds__(COUNT_BLOCK) take_from_chunks(
    REAL *x, long long n, long long k, long long chunk, REAL *values, int *indices) {
    __shared__ unsigned counts[BINS];
    __shared__ int larger[COUNT_BLOCK], equal[COUNT_BLOCK];
    __shared__ Found shared;
    for (long long c = blockIdx.x; c * chunk < n; c += gridDim.x) {
        long long start = c * chunk, end = min(start + chunk, n), part = (end - start + blockDim.x - 1) / blockDim.x;
        if (threadIdx.x == 0) shared = Found{0, (Key)(((end - start) * k + chunk - 1) / chunk)};
        for (int shift = 8 * (int)sizeof(REAL) - 1; shift > 0;) {
            int step = min(shift, BITS);
            shift -= step;
            for (int i = threadIdx.x; i < BINS; i += blockDim.x) counts[i] = 0;
            __syncthreads();
            Key leading = shared.leading, bins = (Key)1 << step;
            for (long long i = start + threadIdx.x; i < end; i += blockDim.x) {
                Key bits = magnitude(x[i]) >> shift;
                if (bits >> step == leading) atomicAdd(&counts[bits & (bins - 1)], 1u);
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                int bin = BINS - 1;
                for (; bin > 0 && counts[bin] < shared.left; bin--) shared.left -= counts[bin];
                shared.leading = leading << step | (Key)bin;
            }
            __syncthreads();
        }
        Found wanted = shared;
        long long first = min(start + threadIdx.x * part, end), stop = min(first + part, end);
        int own_larger = 0, own_equal = 0;
        for (long long i = first; i < stop; i++) {
            own_larger += magnitude(x[i]) > wanted.leading;
            own_equal += magnitude(x[i]) == wanted.leading;
        }
        larger[threadIdx.x] = own_larger;
        equal[threadIdx.x] = own_equal;
        __syncthreads();
        long long equals = 0, place = c * k;
        for (int t = 0; t < (int)threadIdx.x; t++) {
            place += larger[t];
            equals += equal[t];
        }
        place += min(equals, (long long)wanted.left);
        for (long long i = first; i < stop; i++) {
            Key m = magnitude(x[i]);
            if (m < wanted.leading || (m == wanted.leading && equals++ >= (long long)wanted.left)) continue;
            values[place] = x[i];
            indices[place++] = (int)i;
            x[i] = (REAL)0;
        }
        __syncthreads();  // before the next chunk's counts are written
    }
}

// Every index is there once.
extern "C" __global__ void add_pairs(const REAL *values, const int *indices, REAL *y, long long k) {
    for (long long i = first_index(); i < k; i += index_stride()) y[indices[i]] += values[i];
}
