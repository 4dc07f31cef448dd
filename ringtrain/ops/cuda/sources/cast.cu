// From one floating-point type to another: FROM and TO.
#include "map.cuh"

#define COUNT (16 / (int)(sizeof(FROM) > sizeof(TO) ? sizeof(FROM) : sizeof(TO)))

extern "C" __global__ void cast(const FROM *x, TO *y, long long n) {
    update_each<COUNT>(n, [=](FROM x, TO &y) { y = As<TO>::from(to_real(x)); }, x, y);
}
