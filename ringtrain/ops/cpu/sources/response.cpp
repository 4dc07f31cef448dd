// Local response normalisation: sums over neighbours, each in the order of the neighbours.
#include "numbers.hpp"
#include "threads.hpp"

constexpr Int BLOCK = 16;        // pixels whose squares are held: what is read back was written long before

// Each element's power, computed as doubles. A call: it is long.
APART Vec pow_each(Vec x, double y) {
  constexpr Int HELD = LANES < 8 ? 8 : LANES;
  Real held[HELD] = {};
  store(held, x);
  for (Int i = 0; i < HELD; i += 8) store_eight(held + i, pow(load_eight(held + i, 8), y), 8);
  return load(held);
}

// power = scale^-beta, inverse = 1/scale. The usual beta, 3/4, takes roots where the scale is ordinary.
template <int V> INLINE void powers(const Vec (&scale)[V], double beta, Vec (&power)[V], Vec (&inverse)[V]) {
  if (beta != 0.75) {
    UNROLL for (int v = 0; v < V; v++) { power[v] = pow_each(scale[v], -beta); inverse[v] = 1 / scale[v]; }
    return;
  }
  Vec root[V];
  Mask ordinary[V], all = ~(Mask){};
  inverse_fourth_roots(scale, root);
  UNROLL for (int v = 0; v < V; v++) {
    Vec square = root[v] * root[v];
    power[v] = square * root[v];
    inverse[v] = square * square;
    ordinary[v] = (scale[v] >= ROOT_LEAST) & (scale[v] <= ROOT_MOST);
    all &= ordinary[v];
  }
  if (all_true(all)) return;
  UNROLL for (int v = 0; v < V; v++) {
    power[v] = ordinary[v] ? power[v] : pow_each(scale[v], -beta);
    inverse[v] = ordinary[v] ? inverse[v] : 1 / scale[v];
  }
}

// Sum of SIZE vectors, or of `size` where SIZE is 0, `step` elements apart.
template <int SIZE> INLINE Vec sum_of(const Real* line, Int size, Int step) {
  Vec sum = load(line);
  for (Int t = 1; t < (SIZE ? SIZE : size); t++) sum += load(line + t * step);
  return sum;
}
// run(SIZE): the usual sizes are known to the compiler.
namespace {
template <int SIZE> struct Size { static constexpr int value = SIZE; };
}
template <class Run> INLINE void with_size(Int size, Run run) {
  if (size == 3) run(Size<3>()); else if (size == 5) run(Size<5>()); else run(Size<0>());
}

// scale = k + a · sum of neighbours in the line, y = x · scale^-beta
INLINE void respond(const Real* x, const Real* line, Real* y, Real* scale, Int count, Int size, Int step, Real k,
                    Real a, double beta) {
  with_size(size, [=](auto known) {
    each_piece(count, [=](auto vectors, Int i, Int n) {
      constexpr int V = vectors.count;
      Vec s[V], power[V], inverse[V];
      UNROLL for (int v = 0; v < V; v++) {
        Vec sum = sum_of<known.value>(line + i + v * LANES, size, step);
        s[v] = fma(splat(a), sum, splat(k));
      }
      UNROLL for (int v = 0; v < V; v++) store_some<V>(scale + i + v * LANES, s[v], n);
      powers(s, beta, power, inverse);
      UNROLL for (int v = 0; v < V; v++) {
        store_some<V>(y + i + v * LANES, load_some<V>(x + i + v * LANES, n) * power[v], n);
      }
    });
  });
}

// dx = dy · scale^-beta, and line = factor · dy · y / scale
INLINE void respond_back(const Real* y, const Real* scale, const Real* dy, Real* dx, Real* line, Int count,
                         Real factor, double beta) {
  each_piece(count, [=](auto vectors, Int i, Int n) {
    constexpr int V = vectors.count;
    Vec s[V], power[V], inverse[V];
    UNROLL for (int v = 0; v < V; v++) s[v] = load_some<V>(scale + i + v * LANES, n);
    for (Int rest = n; rest < LANES; rest++) s[0][rest] = 1;  // what is not there is ordinary
    powers(s, beta, power, inverse);
    UNROLL for (int v = 0; v < V; v++) {
      Vec g = load_some<V>(dy + i + v * LANES, n);
      store_some<V>(line + i + v * LANES, factor * g * load_some<V>(y + i + v * LANES, n) * inverse[v], n);
      store_some<V>(dx + i + v * LANES, g * power[v], n);
    }
  });
}

// dx -= x · sum of neighbours in the line
INLINE void subtract_shared(const Real* x, const Real* line, Real* dx, Int count, Int size, Int step) {
  with_size(size, [=](auto known) {
    each_piece(count, [=](auto vectors, Int first, Int n) {
      constexpr int V = vectors.count;
      UNROLL for (Int i = first; i < first + V * LANES; i += LANES) {
        Vec shared = sum_of<known.value>(line + i, size, step);
        store_some<V>(dx + i, fma(-load_some<V>(x + i, n), shared, load_some<V>(dx + i, n)), n);
      }
    });
  });
}

// line = the squares, or what they add to it
INLINE void add_squares(const Real* x, Real* line, Int count, bool accumulate) {
  each_piece(count, [=](auto vectors, Int first, Int n) {
    constexpr int V = vectors.count;
    UNROLL for (Int i = first; i < first + V * LANES; i += LANES) {
      Vec a = load_some<V>(x + i, n);
      store_some<V>(line + i, accumulate ? fma(a, a, load_some<V>(line + i, n)) : a * a, n);
    }
  });
}

// line = the values, or with them added
INLINE void add_values(const Real* x, Real* line, Int count, bool accumulate) {
  each_piece(count, [=](auto vectors, Int first, Int n) {
    constexpr int V = vectors.count;
    UNROLL for (Int i = first; i < first + V * LANES; i += LANES) {
      Vec a = load_some<V>(x + i, n);
      store_some<V>(line + i, accumulate ? a + load_some<V>(line + i, n) : a, n);
    }
  });
}

// Zeroed, with room for the last whole vector.
INLINE Real* take_line(Workspace& space, Int count) {
  Real* line = space.take<Real>(count + LANES);
  memset(line, 0, (count + LANES) * sizeof(Real));
  return line;
}

KERNEL(lrn_across)(Context* context, const Real* x, Real* y, Real* scale, Int pixels, Int c, Int size, double alpha,
                   double beta, double k) {
  Int before = (size - 1) / 2, width = c + size - 1;
  context->parts(pixels, parts_of(GRAIN, c), [=](Int first, Int end, Workspace& space) {
    Real* line = take_line(space, BLOCK * width);  // squares of each pixel between zeros
    for (; first < end; first += BLOCK) {
      Int held = least(BLOCK, end - first);
      for (Int i = 0; i < held; i++) add_squares(x + (first + i) * c, line + i * width + before, c, false);
      for (Int i = 0; i < held; i++) {
        Int at = (first + i) * c;
        respond(x + at, line + i * width, y + at, scale + at, c, size, 1, k, alpha / size, beta);
      }
    }
  });
}

KERNEL(lrn_across_back)(Context* context, const Real* x, const Real* y, const Real* scale, const Real* dy, Real* dx,
                        Int pixels, Int c, Int size, double alpha, double beta) {
  Int after = size - 1 - (size - 1) / 2, width = c + size - 1;
  context->parts(pixels, parts_of(GRAIN, c), [=](Int first, Int end, Workspace& space) {
    Real* line = take_line(space, BLOCK * width);
    for (; first < end; first += BLOCK) {
      Int held = least(BLOCK, end - first);
      for (Int i = 0; i < held; i++) {
        Int at = (first + i) * c;
        respond_back(y + at, scale + at, dy + at, dx + at, line + i * width + after, c, 2 * alpha * beta / size, beta);
      }
      for (Int i = 0; i < held; i++) {
        subtract_shared(x + (first + i) * c, line + i * width, dx + (first + i) * c, c, size, 1);
      }
    }
  });
}

KERNEL(lrn_within)(Context* context, const Real* x, Real* y, Real* scale, Int n, Int h, Int w, Int c, Int size,
                   double alpha, double beta) {
  Int before = (size - 1) / 2, row = w * c;
  context->parts(n * h, parts_of(GRAIN, row), [=](Int first, Int end, Workspace& space) {
    Real* line = take_line(space, (w + size - 1) * c);  // sums of the squares of some rows, between zeros
    for (; first < end; first++) {
      Int top = most(0, first % h - before), bottom = least(h, first % h - before + size);
      const Real* image = x + (first - first % h) * row;
      for (Int r = top; r < bottom; r++) add_squares(image + r * row, line + before * c, row, r > top);
      Int at = first * row;
      respond(x + at, line, y + at, scale + at, row, size, c, 1, alpha / (size * size), beta);
    }
  });
}

KERNEL(lrn_within_back)(Context* context, const Real* x, const Real* y, const Real* scale, const Real* dy, Real* dx,
                        Int n, Int h, Int w, Int c, Int size, double alpha, double beta) {
  Int after = size - 1 - (size - 1) / 2, row = w * c, image = h * row;
  context->parts(n, parts_of(GRAIN, image), [=](Int first, Int end, Workspace& space) {
    Real *line = take_line(space, (w + size - 1) * c), *shares = space.take<Real>(image);
    for (; first < end; first++) {
      Int at = first * image;
      respond_back(y + at, scale + at, dy + at, dx + at, shares, image, 2 * alpha * beta / (size * size), beta);
      for (Int i = 0; i < h; i++, at += row) {
        Int top = most(0, i - after), bottom = least(h, i - after + size);
        for (Int r = top; r < bottom; r++) add_values(shares + r * row, line + after * c, row, r > top);
        subtract_shared(x + at, line, dx + at, row, size, c);
      }
    }
  });
}
