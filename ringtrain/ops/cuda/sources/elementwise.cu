// Operations on each element by itself, on arrays of ACT. An array may be given twice.
#include "map.cuh"

#define ACTS Wide<ACT>::COUNT

extern "C" __global__ void add(const ACT *a, const ACT *b, ACT *y, long long n, int relu) {
    update_each<ACTS>(n, [=](ACT a, ACT b, ACT &y) {
        REAL sum = to_real(a) + to_real(b);
        y = to_act(relu ? relu_of(sum) : sum);
    }, a, b, y);
}

// The factor is that of the device where there is one.
extern "C" __global__ void scale(ACT *x, long long n, double factor, const double *of_device) {
    REAL f = (REAL)(of_device ? *of_device : factor);
    update_each<ACTS>(n, [=](ACT &x) { x = to_act(f * to_real(x)); }, x);
}

extern "C" __global__ void relu(const ACT *x, ACT *y, long long n) {
    update_each<ACTS>(n, [=](ACT x, ACT &y) { y = to_act(relu_of(to_real(x))); }, x, y);
}

extern "C" __global__ void relu_back(const ACT *y, const ACT *dy, ACT *dx, long long n) {
    update_each<ACTS>(n, [=](ACT y, ACT dy, ACT &dx) { dx = to_real(y) > (REAL)0 ? dy : to_act((REAL)0); }, y, dy, dx);
}
