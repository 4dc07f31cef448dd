// Each element by itself: of several arrays, 16 bytes of the widest type at a time where all are aligned so.
#pragma once
#include "common.cuh"

template <typename T> struct IsConst { static const bool value = false; };
template <typename T> struct IsConst<const T> { static const bool value = true; };
template <typename T> struct Plain { typedef T type; };
template <typename T> struct Plain<const T> { typedef T type; };

// COUNT elements of an array at x[at], to be worked on; put back unless the array is const.
template <typename T, int COUNT> struct Held {
    typedef Vector<typename Plain<T>::type, COUNT> Some;
    Some some;
    __device__ Held(T *x, long long at) : some(*(const Some *)(x + at)) {}
    __device__ void put(T *x, long long at) const {
        if constexpr (!IsConst<T>::value) *(Some *)(x + at) = some;
    }
};

template <int COUNT, typename F, typename... Some> __device__ void apply_to(F f, Some &...some) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) f(some.at[i]...);
}

template <int COUNT, typename F, typename... T> __device__ void update_some(long long at, F f, T *...x) {
    auto hold = [&](auto... held) {
        apply_to<COUNT>(f, held.some...);
        (held.put(x, at), ...);
    };
    hold(Held<T, COUNT>(x, at)...);
}

// f(x[i], ...) for n elements, by threads of which this is the one of that index, and ``stride`` there are: what f assigns
// to its arguments is put back into the arrays that are not const.
template <int COUNT, typename F, typename... T>
__device__ void update_from(long long index, long long stride, long long n, F f, T *...x) {
    bool wide = (aligned(x, COUNT * (int)sizeof(T)) && ... && true);
    long long vectors = wide ? n / COUNT : 0;
    for (long long v = index; v < vectors; v += stride) update_some<COUNT>(v * COUNT, f, x...);
    for (long long i = vectors * COUNT + index; i < n; i += stride) update_some<1>(i, f, x...);
}

// By all threads of the grid.
template <int COUNT, typename F, typename... T> __device__ void update_each(long long n, F f, T *...x) {
    update_from<COUNT>(first_index(), index_stride(), n, f, x...);
}

// By the threads of this block.
template <int COUNT, typename F, typename... T> __device__ void update_block(int n, F f, T *...x) {
    update_from<COUNT>(threadIdx.x, blockDim.x, n, f, x...);
}
