// The functions of numbers.hpp on arrays: tests measure their errors by these.
#include "numbers.hpp"

template <class Run> INLINE void each_eight(const double* x, double* y, Int count, Run run) {
  for (Int i = 0; i < count; i += 8) store_eight(y + i, run(load_eight(x + i, count - i)), count - i);
}

KERNEL(exp)(const double* x, double* y, Int count) {
  each_eight(x, y, count, [](Eight v) { return exp(v); });
}
KERNEL(log)(const double* x, double* y, Int count) {
  each_eight(x, y, count, [](Eight v) { return log(v); });
}
