// Activations: a function of each element alone.
#include "curves.hpp"
#include "threads.hpp"

constexpr Int WORTH_CURVES = 2 * 1024;  // elements that are worth a thread

// y = value(x) and dx = dy · slope(x, y)
namespace {
struct Sigmoid {
  static __attribute__((always_inline)) Vec value(Vec x) { return sigmoid_of(x); }
  static __attribute__((always_inline)) Vec slope(Vec, Vec y) { return y * (1 - y); }
};
struct Tanh {
  static __attribute__((always_inline)) Vec value(Vec x) { return tanh_of(x); }
  static __attribute__((always_inline)) Vec slope(Vec, Vec y) { return (1 - y) * (1 + y); }
};
struct Silu {
  static __attribute__((always_inline)) Vec value(Vec x) { return x * sigmoid_of(x); }
  static __attribute__((always_inline)) Vec slope(Vec x, Vec) {
    Vec s = sigmoid_of(x);
    return s * fma(x, 1 - s, splat(1));
  }
};
struct Gelu {
  static __attribute__((always_inline)) Vec value(Vec x) { return x * normal_of(x).below; }
  static __attribute__((always_inline)) Vec slope(Vec x, Vec) {
    Normal n = normal_of(x);
    return fma(x, n.density, n.below);
  }
};
// x/2 · (1 + tanh(u)) = x · sigmoid(2u), u = sqrt(2/pi) · (x + 0.044715 x³)
struct GeluTanh {
  static constexpr Real ROOT = Real(1.59576912160573071176), CUBE = Real(0.044715);  // 2 sqrt(2/pi)
  static __attribute__((always_inline)) Vec value(Vec x) { return x * sigmoid_of(x * ROOT * fma(x * x, splat(CUBE), splat(1))); }
  static __attribute__((always_inline)) Vec slope(Vec x, Vec) {
    Vec square = x * x, s = sigmoid_of(x * ROOT * fma(square, splat(CUBE), splat(1)));
    return s * fma(x * ROOT * fma(square, splat(3 * CUBE), splat(1)), 1 - s, splat(1));
  }
};

// In the order of ringtrain.ops.base.ACTIVATIONS, with which the names are compared when the library is loaded.
#define EACH_KIND(DO) DO(sigmoid, Sigmoid) DO(tanh, Tanh) DO(silu, Silu) DO(gelu, Gelu) DO(gelu_tanh, GeluTanh)
#define NUMBER(name, Curve) name,
#define CASE(name, Curve) case Kind::name: return run(Curve());
#define NAME(name, Curve) #name " "
enum class Kind : Int { EACH_KIND(NUMBER) };
}

template <class Run> INLINE void by_kind(Int kind, Run run) {
  switch (Kind(kind)) { EACH_KIND(CASE) }
  __builtin_trap();  // rather than leave the output unwritten
}

extern "C" const char* JOIN(activation_kinds, Real)() { return EACH_KIND(NAME); }

// y may be x.
KERNEL(activation)(Context* context, const Real* x, Real* y, Int count, Int kind) {
  by_kind(kind, [=](auto curve) {
    context->parts(count, WORTH_CURVES, [=](Int first, Int end, Workspace&) {
      each_vector(first, end, [=](Int i, Int n) { store_up_to(y + i, curve.value(load_up_to(x + i, n)), n); });
    });
  });
}

// dx may be dy.
KERNEL(activation_back)(Context* context, const Real* x, const Real* y, const Real* dy, Real* dx, Int count, Int kind) {
  by_kind(kind, [=](auto curve) {
    context->parts(count, WORTH_CURVES, [=](Int first, Int end, Workspace&) {
      each_vector(first, end, [=](Int i, Int n) {
        store_up_to(dx + i, load_up_to(dy + i, n) * curve.slope(load_up_to(x + i, n), load_up_to(y + i, n)), n);
      });
    });
  });
}
