// 16 bits for 32 on a network: the bits are those of ops/reference/exchange.py, NaN's and those of tiny numbers included.
#include "map.cuh"

#define FLOATS 4

__device__ inline unsigned short half_bits(float x) {
    return x != x ? 0x7e00 : __half_as_ushort(__float2half_rn(x));
}

__device__ inline unsigned short bfloat16_bits(float x) {
    unsigned int wide = __float_as_uint(x);
    return x != x ? 0x7fc0 : (unsigned short)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

__device__ inline float of_bfloat16(unsigned short bits) { return __uint_as_float((unsigned int)bits << 16); }

extern "C" __global__ void pack_half(const float *x, __half *packed, long long n) {
    update_each<FLOATS>(n, [=](float x, __half &y) { y = __ushort_as_half(half_bits(x)); }, x, packed);
}

extern "C" __global__ void pack_bfloat16(const float *x, unsigned short *packed, long long n) {
    update_each<FLOATS>(n, [=](float x, unsigned short &y) { y = bfloat16_bits(x); }, x, packed);
}

extern "C" __global__ void unpack_half(const __half *packed, float *x, long long n, int accumulate) {
    update_each<FLOATS>(n, [=](__half from, float &x) {
        float value = __half2float(from);
        x = accumulate ? x + value : value;
    }, packed, x);
}

extern "C" __global__ void unpack_bfloat16(const unsigned short *packed, float *x, long long n, int accumulate) {
    update_each<FLOATS>(n, [=](unsigned short from, float &x) {
        float value = of_bfloat16(from);
        x = accumulate ? x + value : value;
    }, packed, x);
}
