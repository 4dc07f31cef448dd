// Exponentials and the normal distribution of vectors in the arrays' own type, for layers that take one of each element.
// As numbers.hpp, by multiply-adds and the bits of numbers alone: all families give the same bits.
#pragma once
#include "numbers.hpp"

namespace {
template <class T> struct Curve;
template <> struct Curve<float> {
  static constexpr int TERMS = 8, MANTISSA = 23, BIAS = 127;
  static constexpr float MOST = 89, LEAST = -104, WHOLE = 0x1.8p23f, LOG2_E = 0x1.715476p0f;
  static constexpr float LN2_HIGH = 0x1.62e4p-1f, LN2_LOW = 0x1.7f7d1cp-20f;
  // (1 + 2z) exp(z²) erfc(z) by t = (z - MIDDLE)/(z + MIDDLE), the highest power first; its error is 7e-9.
  static constexpr float MIDDLE = 3;
  static constexpr float TAIL[] = {
      8.007454974776248e-05f, -9.25376912641456e-05f, -0.0007340820503933423f, 0.001875060245867973f,
      0.0025067786718598333f, -0.023763559702172088f, 0.06831319671956372f, -0.11927528136881009f,
      0.1296447209153884f, -0.047562156146354076f, -0.13562110005839803f, 1.2530080563514496f};
};
template <> struct Curve<double> {
  static constexpr int TERMS = 14, MANTISSA = 52, BIAS = 1023;
  static constexpr double MOST = 710, LEAST = -746, WHOLE = 0x1.8p52, LOG2_E = 0x1.71547652b82fep0;
  static constexpr double LN2_HIGH = 0x1.62e42fefa38p-1, LN2_LOW = 0x1.ef35793c7673p-45;
  static constexpr double MIDDLE = 3.75;  // of the same; its error is 6e-18
  static constexpr double TAIL[] = {
      0x1.e7a100062f385p-32, 0x1.55fb76b7dbdd0p-32, -0x1.6b2228df54be4p-28, -0x1.01418b99efa2ep-28,
      0x1.4eb5efb28ed5dp-25, 0x1.8fa2f9fdc0311p-26, -0x1.1636c8002e495p-22, -0x1.eb7b41166a177p-25,
      0x1.d65081c59291dp-20, -0x1.0556aa18e657bp-20, -0x1.8002c11990e5bp-17, 0x1.778b948121ce1p-16,
      0x1.b143d63ea931ep-15, -0x1.303fa49e236d5p-12, 0x1.33fb27421f98cp-12, 0x1.cc3a0e7d99253p-10,
      -0x1.3f603c3682d81p-7, 0x1.d0b0037d155f4p-6, -0x1.e0d0fa6df428dp-5, 0x1.7a14188a9ce86p-4,
      -0x1.bda9309a28be0p-4, 0x1.510169d096658p-4, 0x1.d5f2948159e20p-9, -0x1.1f367683f89a5p-3,
      0x1.3ccda0b5d5dc2p+0};
};
typedef Curve<Real> Of;
// e^x = 2^whole · (1 + part)
struct Power { Vec part; Mask whole; };
}

INLINE Vec two_to(Mask n) { return (Vec)((n + Of::BIAS) << Of::MANTISSA); }

INLINE Power power_of(Vec x) {
  x = x > Of::MOST ? splat(Of::MOST) : x;  // a NaN stays
  x = x < Of::LEAST ? splat(Of::LEAST) : x;
  Vec shifted = fma(x, splat(Of::LOG2_E), splat(Of::WHOLE)), n = shifted - splat(Of::WHOLE);
  Vec r = fma(n, splat(-Of::LN2_LOW), fma(n, splat(-Of::LN2_HIGH), x));  // at most ln(2)/2
  Vec p = splat(Real(SERIES.of[Of::TERMS - 1]));
  UNROLL for (int i = Of::TERMS - 2; i >= 2; i--) p = fma(p, r, splat(Real(SERIES.of[i])));
  return {fma(r * r, p, r), (Mask)shifted - (Mask)splat(Of::WHOLE)};
}

INLINE Vec exp_of(Vec x) {
  Power p = power_of(x);
  Mask half = p.whole >> 1;  // in two steps: 2^whole may be no number of this type
  return (p.part + 1) * two_to(half) * two_to(p.whole - half);
}

// tanh(x), exact for small x too: -m/(2 + m) with m = e^(-2|x|) - 1.
INLINE Vec tanh_of(Vec x) {
  Vec size = x < 0 ? -x : x;
  size = size > 20 ? splat(20) : size;
  Power p = power_of(-2 * size);
  Vec s = two_to(p.whole), m = fma(s, p.part, s - 1), y = -m / (m + 2);
  return x < 0 ? -y : y;
}

INLINE Vec sigmoid_of(Vec x) { return 1 / (exp_of(-x) + 1); }

namespace {
// Of the standard normal distribution: the probability of less than x, and the density at x.
struct Normal { Vec below, density; };
}
INLINE Normal normal_of(Vec x) {
  constexpr int COUNT = sizeof(Of::TAIL) / sizeof(Real);
  Vec size = x < 0 ? -x : x;
  size = size > 40 ? splat(40) : size;
  Vec e = exp_of(size * size * Real(-0.5)), z = size * Real(0.70710678118654752440), above = z + Of::MIDDLE, wide = 2 * z + 1;
  Vec inverse = 1 / (above * wide), t = (z - Of::MIDDLE) * wide * inverse, p = splat(Of::TAIL[0]);
  UNROLL for (int i = 1; i < COUNT; i++) p = fma(p, t, splat(Of::TAIL[i]));
  Vec tail = e * p * (above * inverse) * Real(0.5);
  return {x < 0 ? tail : 1 - tail, e * Real(0.39894228040143267794)};
}
