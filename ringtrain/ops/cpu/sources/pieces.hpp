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

typedef decltype((Vec){} == (Vec){}) Mask;  // whole numbers of a Real's size; -1 is true
