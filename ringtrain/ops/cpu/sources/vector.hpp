// Vectors of as many elements as a register of the CPU family holds, and one multiply-add that is rounded once.
//
// Real is float or double: every source is compiled for both. What is added to what, and in which order, never depends
// on LANES: all families with fused multiply-adds give the same bits.
//
// The two objects of a source are linked into one library. So structs are in unnamed namespaces, and functions static:
// the linker takes two functions of one name for one.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

#if !defined(VECTOR_BYTES)
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#endif

typedef int64_t Int;
constexpr Int LANES = VECTOR_BYTES / Int(sizeof(Real));
typedef Real Vec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(Real)), may_alias));

// An operation: its name in the library ends with the type, as in conv_forward_float.
#define JOIN_AGAIN(name, type) name##_##type
#define JOIN(name, type) JOIN_AGAIN(name, type)
#define KERNEL(name) extern "C" void JOIN(name, Real)

INLINE Vec load(const Real* p) { return *(const Vec*)p; }
INLINE void store(Real* p, Vec v) { *(Vec*)p = v; }
INLINE Vec splat(Real a) { return a - (Vec){}; }
// The first `count` elements, and zeros; the first `count` elements of v.
INLINE Vec load_part(const Real* p, Int count) {
  Real held[LANES] = {};  // an element of a vector by a variable is slow to write
  for (Int i = 0; i < count; i++) held[i] = p[i];
  return load(held);
}
INLINE void store_part(Real* p, Vec v, Int count) {
  for (Int i = 0; i < count; i++) p[i] = v[i];
}

// All of a vector, or its first `count` elements, which are rarely less: by a call, since code that is short counts.
INLINE Vec load_up_to(const Real* p, Int count) {
  Vec v = {};
  if (count == LANES) v = load(p);
  else memcpy(&v, p, count * sizeof(Real));
  return v;
}
INLINE void store_up_to(Real* p, Vec v, Int count) {
  asm("" : "+r"(p));  // clang makes a masked store of `*p = *p > 0 ? *p : 0`, which is slow on some CPUs
  if (count == LANES) store(p, v);
  else memcpy(p, &v, count * sizeof(Real));
}

INLINE float fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
INLINE double fma(double a, double b, double c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}
INLINE Vec fma(Vec a, Vec b, Vec c) {
#if !defined(__FMA__) && !defined(__aarch64__)
  return a * b + c;
#elif defined(__clang__)
  return __builtin_elementwise_fma(a, b, c);
#else
  Vec y;
  UNROLL for (Int i = 0; i < LANES; i++) y[i] = fma(Real(a[i]), Real(b[i]), Real(c[i]));
  return y;
#endif
}

// max(v, 0): a NaN stays, and there is no negative zero.
INLINE Vec positive(Vec v) { return v <= 0 ? (Vec){} : v; }
INLINE Real positive(Real v) { return v <= 0 ? Real(0) : v; }
// The gradient of max(., 0), whose result is y.
INLINE Vec masked(Vec dy, Vec y) { return y > 0 ? dy : (Vec){}; }

INLINE Int least(Int a, Int b) { return a < b ? a : b; }
INLINE Int most(Int a, Int b) { return a > b ? a : b; }
INLINE Int parts_of(Int a, Int by) { return (a + by - 1) / by; }
INLINE Int up(Int a, Int by) { return parts_of(a, by) * by; }

constexpr Int GRAIN = 16 * 1024;  // elements that are worth a thread

// run(place, count) for the elements first .. end: a vector's, then the rest's.
template <class Run> INLINE void each_vector(Int first, Int end, Run run) {
  Int i = first;
  for (; i + LANES <= end; i += LANES) run(i, LANES);
  if (i < end) run(i, end - i);
}
