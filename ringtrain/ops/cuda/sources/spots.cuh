// Which pixel and channels of NHWC images a thread is at, several channels at a time.
#pragma once
#include "common.cuh"

// Where element i of examples × pixels × vectors of ``count`` channels is.
struct Spot {
    long long n;
    int h, w, c;

    __device__ Spot(long long i, int height, int width, int vectors, int count) {
        c = (int)(i % vectors) * count;
        i /= vectors;
        w = (int)(i % width);
        i /= width;
        h = (int)(i % height);
        n = i / height;
    }
};

template <int COUNT, typename T> __device__ Vector<T, COUNT> &vector_at(T *x, long long pixel, int C, int c) {
    return *(Vector<T, COUNT> *)(x + pixel * C + c);
}

template <int COUNT, typename T>
__device__ const Vector<T, COUNT> &vector_at(const T *x, long long pixel, int C, int c) {
    return *(const Vector<T, COUNT> *)(x + pixel * C + c);
}
