// float32 to 16 bits and back, by whole-number arithmetic on the bits, without a branch: the same bits on every CPU.
//
// Half precision, by the size of x: from 2^16 on it is infinite; below 2^-14, where half precision is evenly spaced by
// 2^-24, adding 0.5 to x makes float32 round it there; between, the exponent is shifted by 112 and the mantissa loses
// 13 bits, rounded by adding just less than half of what the last bit is worth, and one more where that bit is odd.
// What is carried on goes into the exponent, and is right there. Source: Giesen, float->half variants, 2012.
#pragma once
#include "vector.hpp"

constexpr uint32_t MAGNITUDE = 0x7fffffff, INFINITE = 0x7f800000;  // all bits but the sign; float32's infinity
constexpr uint32_t HALF_OVERFLOWS = 143 << 23, HALF_IS_NORMAL = 113 << 23;  // 2^16 and 2^-14
constexpr uint32_t REBIAS = 112 << 23, HALF_EXPONENT = 0x7c00 << 13;  // where float32 has its own

INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

INLINE uint16_t to_bfloat16(uint32_t x) {
  uint32_t rounded = (x + 0x7fff + (x >> 16 & 1)) >> 16;
  return (x & MAGNITUDE) > INFINITE ? 0x7fc0 : rounded;
}

INLINE float from_bfloat16(uint16_t packed) { return float_of(uint32_t(packed) << 16); }

INLINE uint16_t to_half(uint32_t bits) {
  uint32_t x = bits & MAGNITUDE;
  uint32_t small = bits_of(float_of(x) + 0.5f) - bits_of(0.5f);
  uint32_t normal = (x - REBIAS + 0xfff + (x >> 13 & 1)) >> 13;
  uint32_t finite = x < HALF_IS_NORMAL ? small : normal;
  uint32_t rounded = (x >= HALF_OVERFLOWS ? 0x7c00 : finite) | (bits >> 16 & 0x8000);
  return x > INFINITE ? 0x7e00 : rounded;
}

// Bits of a subnormal number count 2^-24ths; put behind the exponent of 2^-14 they are that number and 2^-14.
INLINE float from_half(uint16_t packed) {
  uint32_t shifted = uint32_t(packed & 0x7fff) << 13, exponent = shifted & HALF_EXPONENT;
  uint32_t normal = shifted + REBIAS, beyond = normal + REBIAS;  // infinite, or NaN
  uint32_t small = bits_of(float_of(normal + (1 << 23)) - float_of(HALF_IS_NORMAL));
  uint32_t magnitude = exponent == HALF_EXPONENT ? beyond : exponent ? normal : small;
  return float_of(magnitude | uint32_t(packed & 0x8000) << 16);
}
