// The additions of layers and of the exchange.
#include "threads.hpp"

constexpr Int MOST = 8;           // sources, and targets

// Sets elements first .. end of every target to the sum of the sources, in their order; a target may be a source.
INLINE void sum_into(const Real* const* s, Int sources, Real* const* t, Int targets, Int first, Int end, bool relu) {
  constexpr Int AT_ONCE = 4;
  Int i = first;
  for (; i + AT_ONCE * LANES <= end; i += AT_ONCE * LANES) {
    Vec sum[AT_ONCE];
    UNROLL for (Int j = 0; j < AT_ONCE; j++) sum[j] = load(s[0] + i + j * LANES);
    for (Int k = 1; k < sources; k++)
      UNROLL for (Int j = 0; j < AT_ONCE; j++) sum[j] += load(s[k] + i + j * LANES);
    for (Int k = 0; k < targets; k++)
      UNROLL for (Int j = 0; j < AT_ONCE; j++) store(t[k] + i + j * LANES, relu ? positive(sum[j]) : sum[j]);
  }
  for (; i < end; i++) {
    Real sum = s[0][i];
    for (Int k = 1; k < sources; k++) sum += s[k][i];
    for (Int k = 0; k < targets; k++) t[k][i] = relu ? positive(sum) : sum;
  }
}

// y = a + b, and max(., 0) with relu; y may be a or b.
KERNEL(add)(Context* context, const Real* a, const Real* b, Real* y, Int count, bool relu) {
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    const Real* sources[] = {a, b};
    Real* targets[] = {y};
    if (relu) sum_into(sources, 2, targets, 1, first, end, true);
    else sum_into(sources, 2, targets, 1, first, end, false);
  });
}

// A null pointer is none.
KERNEL(add_all)(Context* context, const Real* s0, const Real* s1, const Real* s2, const Real* s3, const Real* s4,
                const Real* s5, const Real* s6, const Real* s7, Real* t0, Real* t1, Real* t2, Real* t3, Real* t4,
                Real* t5, Real* t6, Real* t7, Int count) {
  const Real* s[MOST + 1] = {s0, s1, s2, s3, s4, s5, s6, s7};
  Real* t[MOST + 1] = {t0, t1, t2, t3, t4, t5, t6, t7};
  Int sources = 0, targets = 0;
  while (s[sources]) sources++;
  while (t[targets]) targets++;
  context->parts(count, GRAIN, [&](Int first, Int end, Workspace&) {
    if (sources == 2 && targets == 2) sum_into(s, 2, t, 2, first, end, false);
    else sum_into(s, sources, t, targets, first, end, false);
  });
}
