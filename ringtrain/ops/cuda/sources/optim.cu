// The updates of optimizers on flat spans of REAL, in place.
#include "map.cuh"

#define REALS Wide<REAL>::COUNT

extern "C" __global__ void sgd(
    REAL *w, const REAL *g, REAL *v, long long n, double lr, double momentum, double decay, int nesterov) {
    REAL rate = (REAL)lr, m = (REAL)momentum, d = (REAL)decay;
    update_each<REALS>(n, [=](REAL &w, REAL g, REAL &v) {
        REAL gradient = g + d * w;
        v = m * v + gradient;
        w -= rate * (nesterov ? gradient + m * v : v);
    }, w, g, v);
}

// The moving moments of the gradient g.
__device__ inline void moments(REAL &m, REAL &v, REAL g, REAL b1, REAL b2) {
    m = b1 * m + ((REAL)1 - b1) * g;
    v = b2 * v + ((REAL)1 - b2) * g * g;
}

// `correction1`, `correction2`: 1/(1 - beta^step).
extern "C" __global__ void adamw(
    REAL *w, const REAL *g, REAL *m, REAL *v, long long n, double lr, double beta1, double beta2, double eps,
    double decay, double correction1, double correction2) {
    REAL shrink = (REAL)1 - (REAL)(lr * decay), rate = (REAL)(lr * correction1);
    REAL b1 = (REAL)beta1, b2 = (REAL)beta2, c2 = (REAL)correction2, e = (REAL)eps;
    update_each<REALS>(n, [=](REAL &w, REAL g, REAL &m, REAL &v) {
        moments(m, v, g, b1, b2);
        w = shrink * w - rate * m / (sqrt(v * c2) + e);
    }, w, g, m, v);
}

// The decay is part of the gradient.
extern "C" __global__ void adam(
    REAL *w, const REAL *g, REAL *m, REAL *v, long long n, double lr, double beta1, double beta2, double eps,
    double decay, double correction1, double correction2) {
    REAL rate = (REAL)(lr * correction1), d = (REAL)decay;
    REAL b1 = (REAL)beta1, b2 = (REAL)beta2, c2 = (REAL)correction2, e = (REAL)eps;
    update_each<REALS>(n, [=](REAL &w, REAL g, REAL &m, REAL &v) {
        moments(m, v, g + d * w, b1, b2);
        w -= rate * m / (sqrt(v * c2) + e);
    }, w, g, m, v);
}

// s: the mean square; v: the momentum of the divided gradient.
extern "C" __global__ void rmsprop(
    REAL *w, const REAL *g, REAL *s, REAL *v, long long n, double lr, double momentum, double alpha, double eps,
    double decay) {
    REAL rate = (REAL)lr, mu = (REAL)momentum, a = (REAL)alpha, e = (REAL)eps, d = (REAL)decay;
    update_each<REALS>(n, [=](REAL &w, REAL g, REAL &s, REAL &v) {
        REAL gradient = g + d * w;
        s = a * s + ((REAL)1 - a) * gradient * gradient;
        v = mu * v + gradient / (sqrt(s) + e);
        w -= rate * v;
    }, w, g, s, v);
}

// The step is left in g, before it is scaled.
extern "C" __global__ void adam_direction(
    const REAL *w, REAL *g, REAL *m, REAL *v, long long n, double beta1, double beta2, double eps, double decay,
    double correction1, double correction2) {
    REAL b1 = (REAL)beta1, b2 = (REAL)beta2, c1 = (REAL)correction1, c2 = (REAL)correction2;
    REAL e = (REAL)eps, d = (REAL)decay;
    update_each<REALS>(n, [=](REAL w, REAL &g, REAL &m, REAL &v) {
        moments(m, v, g, b1, b2);
        g = c1 * m / (sqrt(v * c2) + e) + d * w;
    }, w, g, m, v);
}

extern "C" __global__ void approach(REAL *w, const REAL *g, long long n, double rate) {
    REAL r = (REAL)rate;
    update_each<REALS>(n, [=](REAL &w, REAL g) { w += r * (g - w); }, w, g);
}
