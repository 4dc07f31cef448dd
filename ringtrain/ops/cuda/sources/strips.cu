// Rows of one matrix to rows of another: what joins and cuts arrays along their last axis. UNIT: some bytes, as many as
// every row and every distance between rows is a multiple of.
#include "common.cuh"

// `rows` rows of `width`; from row to row `from_stride` in x, `to_stride` in y.
extern "C" __global__ void copy_strips(
    const void *x, void *y, long long rows, long long width, long long from_stride, long long to_stride) {
    bool small = rows * width < 1ll << 31;  // then a division is a quarter of the work
    for (long long i = first_index(); i < rows * width; i += index_stride()) {
        long long row = small ? (unsigned int)i / (unsigned int)width : i / width, column = i - row * width;
        ((UNIT *)y)[row * to_stride + column] = ((const UNIT *)x)[row * from_stride + column];
    }
}
