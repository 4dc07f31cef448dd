// Operations on each element alone.
#include "threads.hpp"

constexpr Int GRAIN = 16 * 1024;  // elements that are worth a thread

// run(vector of each, or the rest's) for elements first .. end, `count` of them at a time.
template <class Run> INLINE void each_vector(Int first, Int end, Run run) {
  Int i = first;
  for (; i + LANES <= end; i += LANES) run(i, LANES);
  if (i < end) run(i, end - i);
}
INLINE Vec load_up_to(const Real* p, Int count) { return count == LANES ? load(p) : load_part(p, count); }
INLINE void store_up_to(Real* p, Vec v, Int count) { if (count == LANES) store(p, v); else store_part(p, v, count); }

// y = a + b, and max(., 0) with relu; y may be a or b.
KERNEL(add)(Context* context, const Real* a, const Real* b, Real* y, Int count, bool relu) {
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    each_vector(first, end, [=](Int i, Int n) {
      Vec v = load_up_to(a + i, n) + load_up_to(b + i, n);
      store_up_to(y + i, relu ? positive(v) : v, n);
    });
  });
}
