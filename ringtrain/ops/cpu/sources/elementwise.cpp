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
