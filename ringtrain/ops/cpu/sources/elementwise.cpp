// Operations on each element alone.
#include "threads.hpp"

template <class Run> INLINE void each_element(Context* context, Int count, Run run) {
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) { each_vector(first, end, run); });
}

// y = max(x, 0); y may be x.
KERNEL(relu)(Context* context, const Real* x, Real* y, Int count) {
  each_element(context, count, [=](Int i, Int n) { store_up_to(y + i, positive(load_up_to(x + i, n)), n); });
}

// dx = dy where y > 0, else 0; dx may be dy.
KERNEL(relu_back)(Context* context, const Real* y, const Real* dy, Real* dx, Int count) {
  each_element(context, count, [=](Int i, Int n) {
    store_up_to(dx + i, masked(load_up_to(dy + i, n), load_up_to(y + i, n)), n);
  });
}

KERNEL(scale)(Context* context, Real* x, double factor, Int count) {
  each_element(context, count, [=](Int i, Int n) { store_up_to(x + i, load_up_to(x + i, n) * Real(factor), n); });
}

// w += rate (g - w)
KERNEL(approach)(Context* context, Real* w, const Real* g, double rate, Int count) {
  each_element(context, count, [=](Int i, Int n) {
    Vec held = load_up_to(w + i, n);
    store_up_to(w + i, fma(splat(Real(rate)), load_up_to(g + i, n) - held, held), n);
  });
}

typedef uint64_t Keys __attribute__((vector_size(LANES * 8)));
typedef int64_t KeyMask __attribute__((vector_size(LANES * 8)));
typedef decltype((Vec){} > (Vec){}) Mask;

// Splitmix but for its last step, which changes the lower 33 bits alone.
template <class T> INLINE T scramble(T state) {
  state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
  return (state ^ state >> 27) * 0x94D049BB133111EBu;
}

// y = x · factor, or 0 if the highest 24 bits of an element's random number are less than the threshold. The numbers of
// an example absorb its index and the element's place: ringtrain.ops.keys.
KERNEL(dropout)(Context* context, const Real* x, Real* y, const Int* examples, Int n, Int width, uint64_t key,
                uint64_t threshold, double factor) {
  constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;
  Keys lanes;
  for (Int i = 0; i < LANES; i++) lanes[i] = uint64_t(i);
  context->parts(n, parts_of(GRAIN, most(width, 1)), [=](Int first, Int end, Workspace&) {
    for (Int example = first; example < end; example++) {
      uint64_t row = scramble(key + GOLDEN + uint64_t(examples[example]));
      row = (row ^ row >> 31) + GOLDEN;
      each_vector(0, width, [=](Int d, Int count) {
        KeyMask bits = (KeyMask)(scramble(lanes + (row + uint64_t(d))) >> 40);
        Mask dropped = __builtin_convertvector((KeyMask)(bits < Int(threshold)), Mask);
        Vec v = load_up_to(x + example * width + d, count) * (dropped ? (Vec){} : splat(Real(factor)));
        store_up_to(y + example * width + d, v, count);
      });
    }
  });
}
