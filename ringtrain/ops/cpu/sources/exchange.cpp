// The addition of layers and of all-reduces over messages.
#include "threads.hpp"

// Sets elements first .. end of y to a + b; y may be a or b.
INLINE void add_part(const Real* a, const Real* b, Real* y, Int first, Int end, bool relu) {
  constexpr Int AT_ONCE = 4;
  Int i = first;
  for (; i + AT_ONCE * LANES <= end; i += AT_ONCE * LANES) {
    Vec sum[AT_ONCE];
    UNROLL for (Int j = 0; j < AT_ONCE; j++) sum[j] = load(a + i + j * LANES) + load(b + i + j * LANES);
    UNROLL for (Int j = 0; j < AT_ONCE; j++) store(y + i + j * LANES, relu ? positive(sum[j]) : sum[j]);
  }
  for (; i < end; i++) {
    Real sum = a[i] + b[i];
    y[i] = relu ? positive(sum) : sum;
  }
}

// y = a + b, and max(., 0) with relu; y may be a or b.
KERNEL(add)(Context* context, const Real* a, const Real* b, Real* y, Int count, bool relu) {
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    if (relu) add_part(a, b, y, first, end, true);
    else add_part(a, b, y, first, end, false);
  });
}
