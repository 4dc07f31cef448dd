// One result for each element, from the same element of other arrays.
#pragma once
#include "common.cuh"

// y[i] = f(x[i], ...) for n elements, 16 bytes of the widest type at a time where every array is aligned so. y may be
// one of the others.
template <int COUNT, typename F, typename Y, typename... X>
__device__ void map_of(long long n, F f, Y *y, const X *...x) {
    bool wide = aligned(y, COUNT * (int)sizeof(Y)) && (aligned(x, COUNT * (int)sizeof(X)) && ... && true);
    long long vectors = wide ? n / COUNT : 0;
    for (long long v = first_index(); v < vectors; v += index_stride()) {
        auto apply = [&](auto... given) {
            Vector<Y, COUNT> out;
#pragma unroll
            for (int i = 0; i < COUNT; i++) out.at[i] = f(given.at[i]...);
            ((Vector<Y, COUNT> *)y)[v] = out;
        };
        apply(((const Vector<X, COUNT> *)x)[v]...);
    }
    for (long long i = vectors * COUNT + first_index(); i < n; i += index_stride()) y[i] = f(x[i]...);
}
