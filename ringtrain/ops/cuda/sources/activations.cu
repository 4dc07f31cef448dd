// Activations: a function of each element alone. KIND: its place in ringtrain.ops.base.ACTIVATIONS.
#include "map.cuh"

#define ACTS Wide<ACT>::COUNT
#define SIGMOID 0
#define TANH 1
#define SILU 2
#define GELU 3

#define ROOT (REAL)1.59576912160573071176  // 2 sqrt(2/pi)
#define CUBE (REAL)0.044715

__device__ inline REAL sigmoid_of(REAL x) { return (REAL)1 / ((REAL)1 + exp(-x)); }

// The share of x that is y: of SiLU a sigmoid, of GELU the standard normal distribution, or its approximation by tanh.
__device__ inline REAL share_of(REAL x) {
    if (KIND == SILU) return sigmoid_of(x);
    if (KIND == GELU) return (REAL)0.5 * erfc(x * (REAL)-0.70710678118654752440);
    return sigmoid_of(ROOT * x * ((REAL)1 + CUBE * x * x));
}

__device__ inline REAL value_of(REAL x) {
    if (KIND == SIGMOID) return sigmoid_of(x);
    if (KIND == TANH) return tanh(x);
    return x * share_of(x);
}

__device__ inline REAL slope_of(REAL x, REAL y) {
    if (KIND == SIGMOID) return y * ((REAL)1 - y);
    if (KIND == TANH) return ((REAL)1 - y) * ((REAL)1 + y);
    REAL share = share_of(x);
    if (KIND == GELU) return share + x * exp((REAL)-0.5 * x * x) * (REAL)0.39894228040143267794;
    REAL inner = KIND == SILU ? (REAL)1 : ROOT * ((REAL)1 + (REAL)3 * CUBE * x * x);
    return share + x * share * ((REAL)1 - share) * inner;
}

extern "C" __global__ void activation(const ACT *x, ACT *y, long long n) {
    update_each<ACTS>(n, [=](ACT x, ACT &y) { y = to_act(value_of(to_real(x))); }, x, y);
}

extern "C" __global__ void activation_back(const ACT *x, const ACT *y, const ACT *dy, ACT *dx, long long n) {
    update_each<ACTS>(n, [=](ACT x, ACT y, ACT dy, ACT &dx) {
        dx = to_act(to_real(dy) * slope_of(to_real(x), to_real(y)));
    }, x, y, dy, dx);
}
