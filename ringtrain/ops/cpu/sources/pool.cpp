// Pooling. Vectors of channels stay in registers while a window passes; gradients go back row by row of the image, to
// each pixel in the order of its windows.
#include "pieces.hpp"
#include "threads.hpp"

constexpr Real LEAST = -Real(__builtin_inf());

typedef uint8_t Bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
INLINE Mask whole(Int a) {
  Mask v;
  UNROLL for (Int i = 0; i < LANES; i++) v[i] = a;
  return v;
}

template <int V> INLINE Bytes load_some(const uint8_t* p, Int count) {
  if (V > 1 || count == LANES) return *(const Bytes*)p;
  uint8_t held[LANES] = {};
  for (Int i = 0; i < count; i++) held[i] = p[i];
  return *(const Bytes*)held;
}
template <int V> INLINE void store_some(uint8_t* p, Bytes bytes, Int count) {
  if (V > 1 || count == LANES) *(Bytes*)p = bytes;
  else for (Int i = 0; i < count; i++) p[i] = bytes[i];
}

// run(V, row, first channel, channels of a vector) for all rows, four vectors of channels at a time, then two, then one.
// The last takes some channels again, so that none is cut, unless there are too few for one.
template <class Run> INLINE void each_row(Context* context, Int rows, Int elements, Int c, Run run) {
  context->parts(rows, parts_of(GRAIN, elements), [=](Int first, Int end, Workspace&) {
    Run run_here = run;  // in registers: a stored vector could change what the pointer to `run` points to
    for (; first < end; first++) {
      Int i = 0;
      for (; i + 4 * LANES <= c; i += 4 * LANES) run_here(Vectors<4>(), first, i, LANES);
      for (; i + 2 * LANES <= c; i += 2 * LANES) run_here(Vectors<2>(), first, i, LANES);
      for (; i < c; i += LANES) run_here(Vectors<1>(), first, most(0, least(i, c - LANES)), least(c, LANES));
    }
  });
}

namespace {
struct Range { Int first, end; };
}

// One axis: `count` windows over `length` pixels.
namespace {
struct Axis {
  Int length, count, size, stride, pad;

  Int start(Int window) const { return window * stride - pad; }
  // The pixels of a window.
  Range pixels(Int window) const { return {most(start(window), 0), least(start(window) + size, length)}; }
  // The windows around a pixel.
  Range windows(Int pixel) const {
    Int last = pixel + pad, passed = last - size;  // a window that starts there, or before, has passed
    return {passed < 0 ? 0 : passed / stride + 1, least(count, last / stride + 1)};
  }
  // Elements of a window with padding, but without what lies beyond it.
  Int extent(Int window) const { return least(start(window) + size, length + pad) - start(window); }
};
}

// where: row-major within the kernel, the first among equals; the first NaN counts as greatest. Where a window is
// outside the image, both are 0.
KERNEL(max_pool)(Context* context, const Real* x, Real* y, uint8_t* where, Int n, Int h, Int w, Int c, Int p, Int q,
                 Int size, Int stride, Int pad) {
  Axis down = {h, p, size, stride, pad}, along = {w, q, size, stride, pad};
  each_row(context, n * p, q * c * size, c, [=](auto vectors, Int row, Int at, Int count) {
    constexpr int V = vectors.count;
    Int vertical = row % p;
    const Real* image = x + row / p * h * w * c + at;
    Range rows = down.pixels(vertical);
    for (Int window = 0; window < q; window++) {
      Range columns = along.pixels(window);
      bool empty = rows.first >= rows.end || columns.first >= columns.end;
      Int corner = -down.start(vertical) * size - along.start(window);  // + i · size + j is the element of pixel (i, j)
      Vec best[V];
      Mask found[V];
      UNROLL for (int v = 0; v < V; v++) {
        best[v] = splat(empty ? 0 : LEAST);
        found[v] = whole(empty ? 0 : corner + rows.first * size + columns.first);
      }
      for (Int i = rows.first; i < rows.end; i++) for (Int j = columns.first; j < columns.end; j++) {
        const Real* from = image + (i * w + j) * c;
        Mask element = whole(corner + i * size + j);
        UNROLL for (int v = 0; v < V; v++) {
          Vec a = load_some<V>(from + v * LANES, count);
          Mask better = ~(a <= best[v]) & (best[v] == best[v]);
          best[v] = better ? a : best[v];
          found[v] = better ? element : found[v];
        }
      }
      Int to = (row * q + window) * c + at;
      UNROLL for (int v = 0; v < V; v++) {
        store_some<V>(y + to + v * LANES, best[v], count);
        store_some<V>(where + to + v * LANES, __builtin_convertvector(found[v], Bytes), count);
      }
    }
  });
}

KERNEL(max_pool_back)(Context* context, const Real* dy, const uint8_t* where, Real* dx, Int n, Int h, Int w, Int c,
                      Int p, Int q, Int size, Int stride, Int pad) {
  Axis down = {h, p, size, stride, pad}, along = {w, q, size, stride, pad};
  each_row(context, n * h, w * c, c, [=](auto vectors, Int row, Int at, Int count) {
    constexpr int V = vectors.count;
    Real* to = dx + row * w * c + at;
    if (at == 0) memset(to, 0, w * c * sizeof(Real));
    else if (at % LANES) for (Int j = 0; j < w; j++) store(to + j * c, (Vec){});  // channels that are taken again
    Int image = row / h * p, pixel = row % h;
    Range rows = down.windows(pixel);
    for (Int i = rows.first; i < rows.end; i++) for (Int window = 0; window < q; window++) {
      Range columns = along.pixels(window);
      Int from = ((image + i) * q + window) * c + at, element = (pixel - down.start(i)) * size - along.start(window);
      Mask found[V], g[V];
      UNROLL for (int v = 0; v < V; v++) {
        found[v] = __builtin_convertvector(load_some<V>(where + from + v * LANES, count), Mask);
        g[v] = (Mask)load_some<V>(dy + from + v * LANES, count);
      }
      for (Int j = columns.first; j < columns.end; j++) {
        Mask here = whole(element + j);
        UNROLL for (int v = 0; v < V; v++) {
          Real* sum = to + j * c + v * LANES;
          store_some<V>(sum, load_some<V>(sum, count) + (Vec)(g[v] & (found[v] == here)), count);
        }
      }
    }
  });
}

KERNEL(avg_pool)(Context* context, const Real* x, Real* y, Int n, Int h, Int w, Int c, Int p, Int q, Int size,
                 Int stride, Int pad) {
  Axis down = {h, p, size, stride, pad}, along = {w, q, size, stride, pad};
  each_row(context, n * p, q * c * size, c, [=](auto vectors, Int row, Int at, Int count) {
    constexpr int V = vectors.count;
    Int vertical = row % p;
    const Real* image = x + row / p * h * w * c + at;
    Range rows = down.pixels(vertical);
    for (Int window = 0; window < q; window++) {
      Range columns = along.pixels(window);
      Real share = Real(1.0 / (down.extent(vertical) * along.extent(window)));
      Vec sum[V] = {};
      for (Int i = rows.first; i < rows.end; i++) for (Int j = columns.first; j < columns.end; j++) {
        UNROLL for (int v = 0; v < V; v++) sum[v] += load_some<V>(image + (i * w + j) * c + v * LANES, count);
      }
      Real* to = y + (row * q + window) * c + at;
      UNROLL for (int v = 0; v < V; v++) store_some<V>(to + v * LANES, sum[v] * share, count);
    }
  });
}

KERNEL(avg_pool_back)(Context* context, const Real* dy, Real* dx, Int n, Int h, Int w, Int c, Int p, Int q, Int size,
                      Int stride, Int pad) {
  Axis down = {h, p, size, stride, pad}, along = {w, q, size, stride, pad};
  each_row(context, n * h, w * c, c, [=](auto vectors, Int row, Int at, Int count) {
    constexpr int V = vectors.count;
    Real* to = dx + row * w * c + at;
    if (at == 0) memset(to, 0, w * c * sizeof(Real));
    else if (at % LANES) for (Int j = 0; j < w; j++) store(to + j * c, (Vec){});  // channels that are taken again
    Int image = row / h * p, pixel = row % h;
    Range rows = down.windows(pixel);
    for (Int i = rows.first; i < rows.end; i++) for (Int window = 0; window < q; window++) {
      Range columns = along.pixels(window);
      const Real* from = dy + ((image + i) * q + window) * c + at;
      Real share = Real(1.0 / (down.extent(i) * along.extent(window)));
      Vec g[V];
      UNROLL for (int v = 0; v < V; v++) g[v] = load_some<V>(from + v * LANES, count) * share;
      for (Int j = columns.first; j < columns.end; j++) UNROLL for (int v = 0; v < V; v++) {
        Real* sum = to + j * c + v * LANES;
        store_some<V>(sum, load_some<V>(sum, count) + g[v], count);
      }
    }
  });
}
