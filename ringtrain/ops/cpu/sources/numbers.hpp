// Exponentials and logarithms: multiply-adds and the bits of numbers alone, no library, so that all families give the
// same bits. Special values are as in C. Errors, by tests/ops/test_ops_cpu_layers.py, with fused multiply-adds: exp 1,
// log 0.55 units in the last place.
#pragma once
#include "pieces.hpp"

// Always eight, whatever the registers hold: sums in eight lanes are the same for all families.
typedef double Eight __attribute__((vector_size(64), aligned(8), may_alias));
typedef int64_t Bits __attribute__((vector_size(64)));
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // all that takes or returns an Eight is inline
#endif

constexpr double INFINITE = __builtin_inf(), NOT_A_NUMBER = __builtin_nan("");
constexpr double LN2_HIGH = 0x1.62e42fefa38p-1;  // 42 bits: a whole number of eleven bits times it is exact
constexpr double LN2_LOW = 0x1.ef35793c7673p-45;
constexpr double LOG2_E = 0x1.71547652b82fep0;
constexpr double WHOLE = 0x1.8p52;  // added to a number, it leaves the nearest whole one in the lowest bits

INLINE Eight all(double a) { return a - (Eight){}; }
INLINE Eight fused(Eight a, Eight b, Eight c) {
#if !defined(__FMA__) && !defined(__aarch64__)
  return a * b + c;
#elif defined(__clang__)
  return __builtin_elementwise_fma(a, b, c);
#else
  Eight y;
  UNROLL for (int i = 0; i < 8; i++) y[i] = __builtin_fma(double(a[i]), double(b[i]), double(c[i]));
  return y;
#endif
}

// Eight numbers, or the first `count` and `rest` instead of the others.
template <class T> INLINE Eight load_eight(const T* p, Int count, double rest = 0) {
  typedef T Numbers __attribute__((vector_size(8 * sizeof(T)), aligned(sizeof(T)), may_alias));
  if (count >= 8) return __builtin_convertvector(*(const Numbers*)p, Eight);
  double held[8] = {rest, rest, rest, rest, rest, rest, rest, rest};
  for (Int i = 0; i < count; i++) held[i] = p[i];
  return *(const Eight*)held;
}
template <class T> INLINE void store_eight(T* p, Eight v, Int count) {
  typedef T Numbers __attribute__((vector_size(8 * sizeof(T)), aligned(sizeof(T)), may_alias));
  if (count >= 8) *(Numbers*)p = __builtin_convertvector(v, Numbers);
  else for (Int i = 0; i < count; i++) p[i] = T(v[i]);
}
INLINE double sum_eight(Eight v) {
  double total = v[0];
  UNROLL for (int i = 1; i < 8; i++) total += v[i];
  return total;
}

constexpr int TERMS = 14;
namespace {
constexpr struct Series {
  double of[TERMS];  // 1/n!
  constexpr Series() : of() { of[0] = 1; for (int n = 1; n < TERMS; n++) of[n] = of[n - 1] / n; }
} SERIES;
}
INLINE Eight power_of_two(Bits n) { return (Eight)((n + 1023) << 52); }

INLINE Eight exp(Eight x) {
  x = x > all(710) ? all(710) : x;  // a NaN stays
  x = x < all(-746) ? all(-746) : x;
  Eight shifted = fused(x, all(LOG2_E), all(WHOLE)), n = shifted - all(WHOLE);
  Eight r = fused(n, all(-LN2_LOW), fused(n, all(-LN2_HIGH), x));  // at most ln(2)/2
  Eight p = all(SERIES.of[TERMS - 1]);
  UNROLL for (int n = TERMS - 2; n >= 2; n--) p = fused(p, r, all(SERIES.of[n]));
  p = fused(r * r, p, r) + all(1);
  Bits whole = (Bits)shifted - (Bits)all(WHOLE), half = whole >> 1;  // in two steps: 2^n may be no double
  return p * power_of_two(half) * power_of_two(whole - half);
}

// log(x) for x > 0, finite: x = 2^n · m, sqrt(1/2) <= m < sqrt(2), log(m) = 2 atanh(s), s = (m-1)/(m+1).
INLINE Eight ordinary_log(Eight x) {
  constexpr Int ROOT_HALF = 0x3fe6a09e667f3bcd;
  Bits tiny = x < all(0x1p-1022);
  Bits bits = (Bits)(tiny ? x * all(0x1p54) : x), n = (bits - ROOT_HALF) >> 52;
  Eight m = (Eight)(bits - (n << 52));
  Eight whole = (Eight)(n - (tiny & 54) + (Bits)all(WHOLE)) - all(WHOLE);
  Eight f = m - all(1), d = m + all(1), d_low = m - (d - all(1));
  Eight s = f / d, s_low = (fused(-s, d, f) - s * d_low) / d, z = s * s;
  Eight p = all(2.0 / 23);
  UNROLL for (int i = 21; i >= 3; i -= 2) p = fused(p, z, all(2.0 / i));
  Eight start = whole * all(LN2_HIGH), high = start + 2 * s, lost = (start - high) + 2 * s;
  Eight low = lost + fused(whole, all(LN2_LOW), fused(s * z, p, 2 * s_low));
  return high + low;
}

INLINE Eight log(Eight x) {
  Eight y = x < all(INFINITE) ? ordinary_log(x) : x;
  y = x == all(0) ? all(-INFINITE) : y;
  return x < all(0) ? all(NOT_A_NUMBER) : y;
}
INLINE double log(double x) { return log(all(x))[0]; }

// The greatest of a row. A NaN may be passed over: it makes the sum of exponentials NaN.
INLINE double greatest_of(const Real* x, Int count) {
  Vec most = splat(x[0]);
  Int i = 0;
  for (; i + LANES <= count; i += LANES) { Vec v = load(x + i); most = v > most ? v : most; }
  Real greatest = most[0];
  for (Int lane = 1; lane < LANES; lane++) if (most[lane] > greatest) greatest = most[lane];
  for (; i < count; i++) if (x[i] > greatest) greatest = x[i];
  return greatest;
}
