#include "common.cuh"

#define DROPOUT_BITS 24

// A block's row of the grid goes over examples, its threads over the elements of one: see ops/keys.py.
extern "C" __global__ void dropout(
    const ACT *x, ACT *y, const long long *examples, const unsigned long long *key, unsigned long long layer,
    long long n, long long width, unsigned int threshold, double factor) {
    Key base = absorb(absorb(0, key[0]), layer);
    REAL f = (REAL)factor;
    for (long long row = blockIdx.y; row < n; row += gridDim.y) {
        Key state = absorb(base, (Key)examples[row]);
        for (long long d = first_index(); d < width; d += index_stride()) {
            unsigned int bits = (unsigned int)(absorb(state, (Key)d) >> (64 - DROPOUT_BITS));
            y[row * width + d] = to_act(to_real(x[row * width + d]) * (bits < threshold ? (REAL)0 : f));
        }
    }
}
