// Activations: a function of each element alone. KIND: a name of ringtrain.ops.base.ACTIVATIONS. One that this source does
// not list does not compile.
#include "map.cuh"

#define ACTS Wide<ACT>::COUNT
#define ROOT (REAL)1.59576912160573071176  // 2 sqrt(2/pi)
#define CUBE (REAL)0.044715

enum class Activation { sigmoid, tanh, silu, gelu, gelu_tanh };
const Activation CHOSEN = Activation::KIND;

__device__ inline REAL sigmoid_of(REAL x) { return (REAL)1 / ((REAL)1 + exp(-x)); }

// The share of x that is y: of SiLU a sigmoid, of GELU the standard normal distribution, or its approximation by tanh.
__device__ inline REAL share_of(REAL x) {
    if (CHOSEN == Activation::silu) return sigmoid_of(x);
    if (CHOSEN == Activation::gelu) return (REAL)0.5 * erfc(x * (REAL)-0.70710678118654752440);
    if (CHOSEN != Activation::gelu_tanh) __trap();  // it is listed, and has no arithmetic
    return sigmoid_of(ROOT * x * ((REAL)1 + CUBE * x * x));
}

__device__ inline REAL value_of(REAL x) {
    if (CHOSEN == Activation::sigmoid) return sigmoid_of(x);
    if (CHOSEN == Activation::tanh) return tanh(x);
    return x * share_of(x);
}

__device__ inline REAL slope_of(REAL x, REAL y) {
    if (CHOSEN == Activation::sigmoid) return y * ((REAL)1 - y);
    if (CHOSEN == Activation::tanh) return ((REAL)1 - y) * ((REAL)1 + y);
    REAL share = share_of(x);
    if (CHOSEN == Activation::gelu) return share + x * exp((REAL)-0.5 * x * x) * (REAL)0.39894228040143267794;
    REAL inner = CHOSEN == Activation::silu ? (REAL)1 : ROOT * ((REAL)1 + (REAL)3 * CUBE * x * x);
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
