// The updates of the optimizers, in one pass over flat spans.
//
// No product is fused with a sum: compilers may make vectors of these loops, and an element has the same bits in one,
// in what is left after them, and on every CPU.
#include "threads.hpp"


INLINE Real root(Real a) { return sizeof(Real) == sizeof(float) ? __builtin_sqrtf(a) : __builtin_sqrt(a); }

KERNEL(sgd)(Context* context, Real* w, const Real* g, Real* v, Int count, double lr, double momentum, double decay,
            bool nesterov) {
  Real rate = lr, m = momentum, d = decay;
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    if (nesterov) for (Int i = first; i < end; i++) {
      Real gradient = g[i] + d * w[i], velocity = m * v[i] + gradient;
      v[i] = velocity;
      w[i] -= rate * (gradient + m * velocity);
    }
    else for (Int i = first; i < end; i++) {
      Real velocity = m * v[i] + (g[i] + d * w[i]);
      v[i] = velocity;
      w[i] -= rate * velocity;
    }
  });
}

// Moments of the gradient and of its square, which move by 1 - beta. The corrections are 1/(1 - beta^step).
namespace {
struct Moments {
  Real beta1, beta2, correction2, eps;
  // factor · mean / (root of the mean square + eps)
  inline __attribute__((always_inline)) Real step(Real factor, Real g, Real& m, Real& v) const {
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    return factor * m / (root(v * correction2) + eps);
  }
};
}

KERNEL(adamw)(Context* context, Real* w, const Real* g, Real* m, Real* v, Int count, double lr, double beta1,
              double beta2, double eps, double decay, double correction1, double correction2) {
  Real shrink = 1 - Real(lr * decay), rate = lr * correction1;
  Moments moments = {Real(beta1), Real(beta2), Real(correction2), Real(eps)};
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    for (Int i = first; i < end; i++) w[i] = shrink * w[i] - moments.step(rate, g[i], m[i], v[i]);
  });
}

// The decay is part of the gradient.
KERNEL(adam)(Context* context, Real* w, const Real* g, Real* m, Real* v, Int count, double lr, double beta1,
             double beta2, double eps, double decay, double correction1, double correction2) {
  Real rate = lr * correction1, d = decay;
  Moments moments = {Real(beta1), Real(beta2), Real(correction2), Real(eps)};
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    for (Int i = first; i < end; i++) w[i] -= moments.step(rate, g[i] + d * w[i], m[i], v[i]);
  });
}

// s: the mean square; v: the momentum of what is left of the gradient after its division.
KERNEL(rmsprop)(Context* context, Real* w, const Real* g, Real* s, Real* v, Int count, double lr, double momentum,
                double alpha, double eps, double decay) {
  Real rate = lr, mu = momentum, a = alpha, e = eps, d = decay;
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    for (Int i = first; i < end; i++) {
      Real gradient = g[i] + d * w[i], square = a * s[i] + (1 - a) * gradient * gradient;
      Real velocity = mu * v[i] + gradient / (root(square) + e);
      s[i] = square;
      v[i] = velocity;
      w[i] -= rate * velocity;
    }
  });
}

// As adamw, but the step is left in g, before it is scaled.
KERNEL(adam_direction)(Context* context, const Real* w, Real* g, Real* m, Real* v, Int count, double beta1,
                       double beta2, double eps, double decay, double correction1, double correction2) {
  Real rate = correction1, d = decay;
  Moments moments = {Real(beta1), Real(beta2), Real(correction2), Real(eps)};
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    for (Int i = first; i < end; i++) g[i] = moments.step(rate, g[i], m[i], v[i]) + d * w[i];
  });
}
