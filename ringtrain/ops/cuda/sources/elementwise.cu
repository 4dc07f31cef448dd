// Operations on each element by itself, on arrays of ACT.
#include "map.cuh"

#define ACTS Wide<ACT>::COUNT

extern "C" __global__ void add(const ACT *a, const ACT *b, ACT *y, long long n, int relu) {
    map_of<ACTS>(n, [=](ACT a, ACT b) {
        REAL sum = to_real(a) + to_real(b);
        return to_act(relu ? relu_of(sum) : sum);
    }, y, a, b);
}

extern "C" __global__ void scale(ACT *x, long long n, double factor) {
    REAL f = (REAL)factor;
    map_of<ACTS>(n, [=](ACT x) { return to_act(f * to_real(x)); }, x, x);
}

extern "C" __global__ void relu(const ACT *x, ACT *y, long long n) {
    map_of<ACTS>(n, [=](ACT x) { return to_act(relu_of(to_real(x))); }, y, x);
}

extern "C" __global__ void relu_back(const ACT *y, const ACT *dy, ACT *dx, long long n) {
    map_of<ACTS>(n, [=](ACT y, ACT dy) { return to_real(y) > (REAL)0 ? dy : to_act((REAL)0); }, dx, y, dy);
}
