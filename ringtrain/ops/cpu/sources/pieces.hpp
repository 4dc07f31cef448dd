// Lines of elements in pieces of vectors.
#pragma once
#include "vector.hpp"

// V vectors, each of `count` elements: fewer than LANES only where V is 1.
namespace {
template <int V> struct Vectors { static constexpr int count = V; };
}
template <int V> INLINE Vec load_some(const Real* p, Int count) {
  return V > 1 || count == LANES ? load(p) : load_part(p, count);
}
template <int V> INLINE void store_some(Real* p, Vec v, Int count) {
  if (V > 1 || count == LANES) store(p, v); else store_part(p, v, count);
}

// run(V, first element, elements of a vector): four vectors at a time, whose arithmetic overlaps, then one.
template <class Run> INLINE void each_piece(Int count, Run run) {
  Int i = 0;
  for (; i + 4 * LANES <= count; i += 4 * LANES) run(Vectors<4>(), i, LANES);
  for (; i < count; i += LANES) run(Vectors<1>(), i, least(LANES, count - i));
}

typedef decltype((Vec){} == (Vec){}) Mask;  // whole numbers of a Real's size; -1 is true
