// The numbers that an all-reduce adds, and what it computes with them, to the bits of NumPy
// (ringtrain/allreduce/dtypes.py).
#pragma once
#include "halves.hpp"

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace {

enum Type : Int { FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT32, INT64 };

// NumPy's maximum and minimum: the second of two equal numbers, and a NaN if either is one.
struct Sum { template <class T> static T of(T a, T b) { return a + b; } };
struct Max { template <class T> static T of(T a, T b) { return a > b || a != a ? a : b; } };
struct Min { template <class T> static T of(T a, T b) { return a < b || a != a ? a : b; } };

// A type of numbers as it is stored: of(a, b) by the operation Op.
template <class Stored> struct Plain {
  typedef Stored Element;
  template <class Op> static Element of(Element a, Element b) { return Op::of(a, b); }
};

// Signed integers wrap around, as NumPy's do.
template <class Signed, class Unsigned> struct Whole : Plain<Signed> {
  template <class Op> static Signed of(Signed a, Signed b) { return Op::of(a, b); }
};
template <> template <> int32_t Whole<int32_t, uint32_t>::of<Sum>(int32_t a, int32_t b) { return uint32_t(a) + uint32_t(b); }
template <> template <> int64_t Whole<int64_t, uint64_t>::of<Sum>(int64_t a, int64_t b) { return uint64_t(a) + uint64_t(b); }

struct Bfloat16 {
  typedef uint16_t Element;
  static float wide(Element a) { return from_bfloat16(a); }
  static Element rounded(float x) { return to_bfloat16(bits_of(x)); }
  template <class Op> static Element of(Element a, Element b) { return rounded(Op::of(wide(a), wide(b))); }
};

// As NumPy: a NaN keeps its sign and the first bits of its mantissa, and of two it is the second; of two equal numbers
// the first is the greater, and the lesser.
struct Half {
  typedef uint16_t Element;
  static float wide(Element a) { return from_half(a); }
  static Element rounded(float x) {
    uint32_t bits = bits_of(x);
    uint16_t nan = (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff);
    return (bits & MAGNITUDE) > INFINITE ? nan : to_half(bits);
  }
  template <class Op> static Element of(Element a, Element b);
};
template <> uint16_t Half::of<Sum>(uint16_t a, uint16_t b) {
  float x = from_half(a), y = from_half(b);
  return rounded(y != y ? y : x + y);
}
template <> uint16_t Half::of<Max>(uint16_t a, uint16_t b) {
  float x = from_half(a), y = from_half(b);
  return x >= y || x != x ? a : b;
}
template <> uint16_t Half::of<Min>(uint16_t a, uint16_t b) {
  float x = from_half(a), y = from_half(b);
  return x <= y || x != x ? a : b;
}

// target = a op b; the target may be a or b. Without the pragma a compiler compares addresses first, and takes the loop
// without vectors where target is a.
template <class Numbers, class Op, class T> void combine(T* target, const T* a, const T* b, Int count) {
  INDEPENDENT for (Int i = 0; i < count; i++) target[i] = Numbers::template of<Op>(a[i], b[i]);
}

template <class T> void divide(T* x, T by, Int count) {
  INDEPENDENT for (Int i = 0; i < count; i++) x[i] /= by;
}

// call(Numbers()) for the numbers of a type.
template <class Call> void by_type(Type type, Call call) {
  switch (type) {
    case FLOAT16: return call(Half());
    case BFLOAT16: return call(Bfloat16());
    case FLOAT32: return call(Plain<float>());
    case FLOAT64: return call(Plain<double>());
    case INT32: return call(Whole<int32_t, uint32_t>());
    case INT64: return call(Whole<int64_t, uint64_t>());
  }
}

}  // namespace
