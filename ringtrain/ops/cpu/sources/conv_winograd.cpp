// Convolutions of stride 1 by Winograd's minimal filters: F(4 x 4, 3 x 3) and F(2 x 2, 5 x 5).
//
//     y  = Aᵀ [ sum over c of (Bᵀ x B) · (G w Gᵀ) ] A
//     dx: the same of dy, by turned weights, where channels and features change places
//     dw = Gᵀ [ sum over tiles of (Bᵀ x B) · (A dy Aᵀ) ] G
//
// A tile has 6 x 6 inputs and M x M outputs, of a window of R = 7 - M taps a side. Both sizes have the same six points,
// 0, 1, -1, 2, -2 and infinity, so the transforms are one text. Between them are 36 products of matrices, one for each
// pair of points: 36 multiplications for M² outputs, where a direct convolution has R² · M².
// Source: Lavin & Gray 2016, "Fast algorithms for convolutional neural networks".
#include "convolution.hpp"
#include "products.hpp"
#include "threads.hpp"

constexpr int POINTS = 6, SQUARE = POINTS * POINTS;
constexpr Int BLOCK = 64;   // channels of a product: their weights for a panel of features stay in the L2 cache
constexpr Int LINE = 64 / Int(sizeof(Real));  // elements of a cache line
constexpr Int AHEAD = 8;    // rows of weights that are fetched ahead
constexpr Int UNIT = 8;    // channels, with a panel of features, that are worth a thread
constexpr Int SUMMED = 48;  // tiles of a product: theirs of one point stay in the L1 cache
// Transformed tiles that are held at once, in elements, but at least so many tiles: each block reads all weights.
constexpr Int TILES_SIZE = 200 * 1024, LEAST_TILES = 128;
// Transformed weights up to so many elements are made once; greater ones for each block of tiles, into the L2 cache.
constexpr Int HELD_SIZE = 640 * 1024;

namespace {  // the types of float and double have one name each
template <int N> struct Number { static constexpr int value = N; };
// One group's channels of images, `pixel` elements from one pixel to the next.
template <class T> struct Images { T* at; Int h, w, c, pixel; };
// The tiles of n images of h · w outputs. A row is `wide` neighbours; rows are counted through all images.
struct Tiles {
  Int high, wide, rows;
  Tiles(Int n, Int h, Int w, int m) : high(parts_of(h, m)), wide(parts_of(w, m)), rows(n * high) {}
  // Rows that are worked on at once, where each tile has so many channels.
  Int at_once(Int channels) const {
    Int most_rows = most(1, most(LEAST_TILES, TILES_SIZE / (SQUARE * channels)) / wide);
    return most(1, parts_of(rows, most(1, parts_of(rows, most_rows))));
  }
};

// What is left of `count` elements, up to a vector, and zeros; none if it is 0 or less.
INLINE Vec load_left(const Real* p, Int count) { return count >= LANES ? load(p) : load_part(p, count); }
INLINE void store_left(Real* p, Vec v, Int count) { if (count >= LANES) store(p, v); else store_part(p, v, count); }

// Elements from point to point, `count` of them in use: an odd number of cache lines, or the points of a tile would
// evict each other.
INLINE Int points_apart(Int count) { return (parts_of(count, LINE) | 1) * LINE; }
// Elements of the transformed weights of a panel of features: [point][channel][PANEL].
INLINE Int weights_size(Int channels) { return SQUARE * points_apart(channels * PANEL); }
// Transformed tiles: [block of `width` channels][point][tile][width].
struct Transformed {
  Real* at;
  Int width, point, block;
  Transformed(Workspace& space, Int channels, Int width, Int tiles)
    : width(width), point(points_apart(tiles * width)), block(SQUARE * point) {
    at = space.take<Real>(parts_of(channels, width) * block);
  }
};
}  // namespace
// Channels of a block. Sums are cut into blocks, so their width must not depend on LANES.
INLINE Int even_block(Int channels) { return up(parts_of(channels, parts_of(channels, BLOCK)), 16); }

// ── transforms of one line, elements s apart into elements t apart ────────────────────────────────────────
INLINE Vec fma(Real a, Vec b, Vec c) { return fma(splat(a), b, c); }

// Bᵀ · d
INLINE void to_points(Number<6>, const Vec* d, int s, Vec* o, int t) {
  Vec a = d[0], b = d[s], c = d[2 * s], e = d[3 * s], f = d[4 * s], g = d[5 * s];
  Vec u = fma(-4, c, f), v = fma(-4, b, e), p = f - c, q = e - b;
  o[0] = fma(4, a, fma(-5, c, f)); o[t] = u + v; o[2 * t] = u - v;
  o[3 * t] = fma(2, q, p); o[4 * t] = fma(-2, q, p); o[5 * t] = fma(4, b, fma(-5, e, g));
}
// A · d
INLINE void to_points(Number<4>, const Vec* d, int s, Vec* o, int t) {
  Vec a = d[0], b = d[s], c = d[2 * s], e = d[3 * s], u = a + c, v = b + e, p = fma(4, c, a), q = fma(4, e, b);
  o[0] = a; o[t] = u + v; o[2 * t] = u - v; o[3 * t] = fma(2, q, p); o[4 * t] = fma(-2, q, p); o[5 * t] = e;
}
INLINE void to_points(Number<2>, const Vec* d, int s, Vec* o, int t) {
  Vec a = d[0], b = d[s];
  o[0] = a; o[t] = a + b; o[2 * t] = a - b; o[3 * t] = fma(2, b, a); o[4 * t] = fma(-2, b, a); o[5 * t] = b;
}
// Aᵀ · d
template <int M> INLINE void from_points(const Vec* d, int s, Vec* o, int t) {
  Vec u = d[s] + d[2 * s], v = d[s] - d[2 * s], p = d[3 * s] + d[4 * s], q = d[3 * s] - d[4 * s];
  o[0] = d[0] + u + p;
  if (M == 4) { o[t] = fma(2, q, v); o[2 * t] = fma(4, p, u); }
  o[(M - 1) * t] = fma(M == 4 ? 8 : 2, q, v) + d[5 * s];
}
// G · w
template <int M> INLINE void taps_to_points(const Vec* w, int s, Vec* o, int t) {
  Vec even = w[0] + w[2 * s], odd = w[s], even2 = fma(4, w[2 * s], w[0]), odd2 = 2 * w[s];
  if (M == 2) { even += w[4 * s]; odd += w[3 * s]; even2 = fma(16, w[4 * s], even2); odd2 = fma(8, w[3 * s], odd2); }
  o[0] = w[0] * Real(1 / 4.); o[5 * t] = w[(6 - M) * s];
  o[t] = (even + odd) * Real(-1 / 6.); o[2 * t] = (even - odd) * Real(-1 / 6.);
  o[3 * t] = (even2 + odd2) * Real(1 / 24.); o[4 * t] = (even2 - odd2) * Real(1 / 24.);
}
// Gᵀ · d
template <int M> INLINE void taps_from_points(const Vec* d, int s, Vec* o, int t) {
  Vec u = (d[s] + d[2 * s]) * Real(-1 / 6.), v = (d[s] - d[2 * s]) * Real(-1 / 6.);
  Vec p = (d[3 * s] + d[4 * s]) * Real(1 / 24.), q = (d[3 * s] - d[4 * s]) * Real(1 / 24.);
  o[0] = fma(Real(1 / 4.), d[0], u + p); o[t] = fma(2, q, v); o[2 * t] = fma(4, p, u);
  if (M == 2) { o[3 * t] = fma(8, q, v); o[4 * t] = fma(16, p, u); }
  o[(6 - M) * t] += d[5 * s];
}

// ── transforms of tiles and weights ───────────────────────────────────────────────────────────────────────
// A row of tiles: their T lines of pixels from `left` pixels before the image on. A line outside the image is zeros.
namespace {
template <int T> struct Lines {
  const Real* at[T];
  Int step[T];
  Int columns, first, end;  // first .. end of them lie in the image
  Lines(const Images<const Real>& x, Int n, Int top, Int left, Int columns, const Real* zeros)
    : columns(columns), first(least(columns, left)), end(most(first, least(columns, x.w + left))) {
    for (int i = 0; i < T; i++) {
      bool inside = top + i >= 0 && top + i < x.h;
      at[i] = inside ? x.at + (n * x.h + top + i) * x.w * x.pixel : zeros;
      step[i] = inside ? x.pixel : 0;
    }
  }
};
}  // namespace

// LANES channels from c of a row of tiles, or `count` if less: lines downwards are transformed once, those across in
// each tile. A tile has T x T elements, 6 of x or M of dy.
template <int M, int T, bool WHOLE>
INLINE void spread_row(const Lines<T>& lines, Int c, Int count, Int wide, Real* out, Int width, Int point, Vec* strip) {
  const Vec zero = {};
  const Real* at[T];
  UNROLL for (int i = 0; i < T; i++) at[i] = lines.at[i] + c;
  for (Int i = 0; i < lines.first * POINTS; i++) strip[i] = zero;
  for (Int i = lines.end * POINTS; i < lines.columns * POINTS; i++) strip[i] = zero;
  for (Int j = lines.first; j < lines.end; j++) {
    Vec d[T];
    UNROLL for (int i = 0; i < T; i++) { d[i] = WHOLE ? load(at[i]) : load_part(at[i], count); at[i] += lines.step[i]; }
    to_points(Number<T>(), d, 1, strip + j * POINTS, 1);
  }
  for (Int j = 0; j < wide; j++, strip += M * POINTS, out += width) {
    Real* to = out;
    UNROLL for (int i = 0; i < POINTS; i++) {
      Vec e[POINTS];
      to_points(Number<T>(), strip + i, POINTS, e, 1);
      UNROLL for (int k = 0; k < POINTS; k++, to += point) store(to, e[k]);
    }
  }
}

// Scratch of spread: zeros for c channels, and the transformed lines of a row of tiles.
template <int M> INLINE Real* take_strip(Workspace& space, const Tiles& t, Int c) {
  Real* zeros = space.take<Real>(up(c, LANES) + (t.wide * M + POINTS) * POINTS * LANES);
  memset(zeros, 0, c * sizeof(Real));
  return zeros;
}

// Rows first .. end of tiles into `to`, whose first row is `base`.
template <int M, int T>
APART void spread(const Images<const Real>& x, Int pad, const Tiles& t, Int first, Int end, Int base,
                  const Transformed& to, Real* zeros) {
  Vec* strip = (Vec*)(zeros + up(x.c, LANES));
  for (Int row = first; row < end; row++) {
    Lines<T> lines(x, row / t.high, row % t.high * M - pad, pad, (t.wide - 1) * M + T, zeros);
    for (Int block = 0; block * to.width < x.c; block++) {
      Real* out = to.at + block * to.block + (row - base) * t.wide * to.width;
      for (Int c = block * to.width; c < least(x.c, (block + 1) * to.width); c += LANES, out += LANES) {
        if (c + LANES <= x.c) spread_row<M, T, true>(lines, c, LANES, t.wide, out, to.width, to.point, strip);
        else spread_row<M, T, false>(lines, c, x.c - c, t.wide, out, to.width, to.point, strip);
      }
    }
  }
}

// Outputs of rows first .. end of tiles, for a panel of features from k0: points [36][tile][PANEL] of them, + bias.
template <int M>
APART void gather(const Real* points, Int apart, const Tiles& t, Int first, Int end, const Images<Real>& y, Int k0,
                  const Real* bias, bool relu) {
  for (Int row = first; row < end; row++) for (Int j = 0; j < t.wide; j++, points += PANEL) {
    Int p0 = row % t.high * M, q0 = j * M, high = least(M, y.h - p0), wide = least(M, y.w - q0);
    Real* to = y.at + ((row / t.high * y.h + p0) * y.w + q0) * y.pixel + k0;
    for (Int v = 0; v < NV && k0 + v * LANES < y.c; v++, to += LANES) {
      Int count = least(LANES, y.c - k0 - v * LANES);
      Vec d[POINTS * M], b = bias ? load_left(bias + k0 + v * LANES, count) : (Vec){};
      UNROLL for (int k = 0; k < POINTS; k++) {
        Vec column[POINTS];
        UNROLL for (int i = 0; i < POINTS; i++) column[i] = load(points + (i * POINTS + k) * apart + v * LANES);
        from_points<M>(column, 1, d + k, POINTS);
      }
      UNROLL for (int i = 0; i < M; i++) {
        if (i >= high) break;
        Vec o[M];
        from_points<M>(d + i * POINTS, 1, o, 1);
        UNROLL for (int k = 0; k < M; k++) {
          if (k >= wide) break;
          Vec sum = o[k] + b;
          if (relu) sum = positive(sum);
          store_left(to + (i * y.w + k) * y.pixel, sum, count);
        }
      }
    }
  }
}

namespace {
// The weights of one group, [tap][channel][feature]; for the way back [tap][feature][channel], the taps turned.
struct Weights {
  const Real* at;
  Int tap, row;  // elements from one to the next
  Int c, k;
  bool back;
};
// The gradients of one group's weights, [tap][channel][feature].
struct Gradients {
  Real* at;
  Int tap, row, k;
};
}  // namespace

// The panel of features from k0 of `channels` channels from c0, between zeros, as [tap][channel][PANEL]; taps are
// `apart` elements from one to the next.
template <int R> APART void pack(const Weights& w, Int c0, Int channels, Int k0, Real* to, Int apart) {
  Int valid = least(PANEL, w.k - k0);
  for (int i = 0; i < R * R; i++, to += apart) {
    const Real* from = w.at + (w.back ? (R * R - 1 - i) * w.tap + k0 * w.row + c0 : i * w.tap + c0 * w.row + k0);
    for (Int c = 0; c < channels; c++) {
      Real* row = to + c * PANEL;
      if (w.back) for (Int k = 0; k < PANEL; k++) row[k] = k < valid ? from[k * w.row + c] : 0;
      else for (Int v = 0; v < PANEL; v += LANES) {
        const Real* at = from + c * w.row + v;
        __builtin_prefetch(at + AHEAD * w.row);
        store(row + v, load_left(at, least(LANES, valid - v)));
      }
    }
  }
}

// Those weights transformed, [36][channel][PANEL].
template <int M> APART void spread_weights(const Weights& w, Int c0, Int channels, Int k0, Real* u, Real* packed) {
  constexpr int R = 7 - M;
  Int apart = points_apart(channels * PANEL);
  pack<R>(w, c0, channels, k0, packed, apart);
  for (Int i = 0; i < channels * PANEL; i += LANES) {
    Vec d[POINTS * R];
    UNROLL for (int j = 0; j < R; j++) {
      Vec column[R];
      UNROLL for (int k = 0; k < R; k++) column[k] = load(packed + (k * R + j) * apart + i);
      taps_to_points<M>(column, 1, d + j, R);
    }
    UNROLL for (int k = 0; k < POINTS; k++) {
      Vec e[POINTS];
      taps_to_points<M>(d + k * R, 1, e, 1);
      UNROLL for (int j = 0; j < POINTS; j++) store(u + (k * POINTS + j) * apart + i, e[j]);
    }
  }
}

// dw = or += Gᵀ · u · G of `channels` channels from c0, and the panel of features from k0.
template <int M> APART void gather_weights(const Real* u, Real* packed, const Gradients& dw, Int c0, Int channels,
                                           Int k0, bool add) {
  constexpr int R = 7 - M;
  Int apart = points_apart(channels * PANEL);
  for (Int i = 0; i < channels * PANEL; i += LANES) {
    Vec d[POINTS * R];
    UNROLL for (int j = 0; j < POINTS; j++) {
      Vec column[POINTS];
      UNROLL for (int k = 0; k < POINTS; k++) column[k] = load(u + (k * POINTS + j) * apart + i);
      taps_from_points<M>(column, 1, d + j, POINTS);
    }
    UNROLL for (int k = 0; k < R; k++) {
      Vec e[R];
      taps_from_points<M>(d + k * POINTS, 1, e, 1);
      UNROLL for (int j = 0; j < R; j++) store(packed + (k * R + j) * apart + i, e[j]);
    }
  }
  Int valid = least(PANEL, dw.k - k0);
  for (int i = 0; i < R * R; i++) for (Int c = 0; c < channels; c++) for (Int v = 0; v < valid; v += LANES) {
    Real* to = dw.at + i * dw.tap + (c0 + c) * dw.row + k0 + v;
    Int count = least(LANES, valid - v);
    __builtin_prefetch(to + AHEAD * dw.row, 1);
    Vec sum = load(packed + i * apart + c * PANEL + v);
    store_left(to, add ? load_left(to, count) + sum : sum, count);
  }
}

// ── products ──────────────────────────────────────────────────────────────────────────────────────────────
// m[T][PANEL] = or += sum over i < depth of x[T, i] · u[i][PANEL], in the order of i; V vectors of the panel.
template <int T, int V>
INLINE void multiply(const Real* x, Int part, Int step, Int depth, const Real* u, Real* m, bool add) {
  constexpr int GROUPS = (T + 2) / 3;
  const Real* at[GROUPS];
  Vec sum[T][V];
  UNROLL for (int g = 0; g < GROUPS; g++) { at[g] = x + g * 3 * part; asm("" : "+r"(at[g])); }
  UNROLL for (int i = 0; i < T; i++) UNROLL for (int v = 0; v < V; v++) sum[i][v] = (Vec){};
  for (Int i = 0; i < depth; i++, u += PANEL) {
    Vec f[V];
    UNROLL for (int v = 0; v < V; v++) f[v] = load(u + v * LANES);
    UNROLL for (int j = 0; j < T; j++) {
      Vec a = splat(at[j / 3][j % 3 * part]);
      UNROLL for (int v = 0; v < V; v++) sum[j][v] = fma(a, f[v], sum[j][v]);
    }
    UNROLL for (int g = 0; g < GROUPS; g++) at[g] += step;
  }
  UNROLL for (int i = 0; i < T; i++) UNROLL for (int v = 0; v < V; v++) {
    Real* to = m + i * PANEL + v * LANES;
    store(to, add ? load(to) + sum[i][v] : sum[i][v]);
  }
}
template <int T, int V>
APART void multiply_tiles(const Real* x, Int width, Int depth, const Real* u, Real* m, bool add) {
  multiply<T, V>(x, width, 1, depth, u, m, add);
}
template <int T, int V>
APART void multiply_channels(const Real* x, Int width, Int depth, const Real* u, Real* m, bool add) {
  multiply<T, V>(x, 1, width, depth, u, m, add);
}

template <int T, class Run> INLINE void with_number(Int count, Run run) {
  if constexpr (T > 1) { if (count < T) return with_number<T - 1>(count, run); }
  run(Number<T>());
}
// run(first, Number of them) for parts of 0 .. count, of nearly equal size and MR at most.
template <class Run> INLINE void even_parts(Int count, Run run) {
  Int parts = parts_of(count, MR), each = count / parts, more = count % parts, i = 0;
  for (Int end = more * (each + 1); i < end; i += each + 1)
    with_number<MR>(each + 1, [&](auto number) { run(i, number); });
  for (; i < count; i += each) with_number<MR>(each, [&](auto number) { run(i, number); });
}

// points[36][tile][PANEL] of `count` tiles = or += v · u, for one block of channels.
APART void multiply_block(const Real* v, Int width, Int v_point, Int channels, const Real* u, Real* points,
                          Int apart, Int count, bool narrow, bool add) {
  for (int e = 0; e < SQUARE; e++, v += v_point, u += points_apart(channels * PANEL), points += apart)
    even_parts(count, [=](Int i, auto number) {
      constexpr int T = decltype(number)::value;
      if (narrow) multiply_tiles<T, 1>(v + i * width, width, channels, u, points + i * PANEL, add);
      else multiply_tiles<T, NV>(v + i * width, width, channels, u, points + i * PANEL, add);
    });
}

// ── forward, and back to the inputs ───────────────────────────────────────────────────────────────────────
namespace {
template <int M> struct Convolve {
  static constexpr int R = 7 - M;
  const Images<const Real>& x;
  const Weights& w;
  const Real* bias;
  const Images<Real>& y;
  Int pad;
  bool relu;
  Tiles t;

  // The features of a panel in rows first .. first + rows of tiles. weights(first channel, channels) are transformed.
  template <class Take>
  void panel(Int k0, Int first, Int rows, const Transformed& v, Real* points, Take weights) const {
    Int apart = points_apart(rows * t.wide * PANEL);
    for (Int c = 0; c < x.c; c += v.width) {
      Int channels = least(v.width, x.c - c);
      multiply_block(v.at + c / v.width * v.block, v.width, v.point, channels, weights(c, channels), points,
                     apart, rows * t.wide, y.c - k0 <= LANES, c > 0);
    }
    gather<M>(points, apart, t, first, first + rows, y, k0, bias, relu);
  }
  Real* take_points(Workspace& space, Int rows) const {
    return space.take<Real>(SQUARE * points_apart(rows * t.wide * PANEL));
  }

  // All weights are transformed first; a thread has rows of tiles.
  void by_tiles(Context& context) const {
    Int width = even_block(x.c), panels = parts_of(y.c, PANEL);
    Int block_size = weights_size(width), panel_size = parts_of(x.c, width) * block_size;
    Int most_rows = least(t.at_once(x.c), parts_of(t.rows, context.threads));
    Real* u = context.shared.take<Real>(panels * panel_size);
    auto held = [=](Int panel, Int c) { return u + panel * panel_size + c / width * block_size; };
    context.parts(panels, 1, [&](Int first, Int end, Workspace& space) {
      Real* packed = space.take<Real>(weights_size(width));
      for (; first < end; first++) for (Int c = 0; c < x.c; c += width)
        spread_weights<M>(w, c, least(width, x.c - c), first * PANEL, held(first, c), packed);
    });
    context.parts(t.rows, most_rows, [&](Int first, Int end, Workspace& space) {
      Transformed v(space, x.c, width, most_rows * t.wide);
      Real *points = take_points(space, most_rows), *strip = take_strip<M>(space, t, x.c);
      for (; first < end; first += most_rows) {
        Int rows = least(most_rows, end - first);
        spread<M, POINTS>(x, pad, t, first, first + rows, first, v, strip);
        for (Int k = 0; k < panels; k++)
          panel(k * PANEL, first, rows, v, points, [&](Int c, Int) { return held(k, c); });
      }
    });
  }

  // Weights are transformed for each block of tiles, when they are used: a thread has panels of features.
  void by_panels(Context& context) const {
    Int most_rows = t.at_once(x.c), width = even_block(x.c);
    Transformed v(context.shared, x.c, width, most_rows * t.wide);
    for (Int first = 0; first < t.rows; first += most_rows) {
      Int rows = least(most_rows, t.rows - first);
      context.parts(rows, 1, [&](Int a, Int b, Workspace& space) {
        spread<M, POINTS>(x, pad, t, first + a, first + b, first, v, take_strip<M>(space, t, x.c));
      });
      context.parts(parts_of(y.c, PANEL), 1, [&](Int a, Int b, Workspace& space) {
        Int size = weights_size(width);
        Real *points = take_points(space, rows), *u = space.take<Real>(size), *packed = space.take<Real>(size);
        for (; a < b; a++) panel(a * PANEL, first, rows, v, points, [&](Int c, Int channels) {
          spread_weights<M>(w, c, channels, a * PANEL, u, packed);
          return u;
        });
      });
    }
  }
};
}  // namespace

template <int M>
static void convolve(Context& context, const Images<const Real>& x, const Weights& w, const Real* bias,
                     const Images<Real>& y, Int n, Int pad, bool relu) {
  Convolve<M> work = {x, w, bias, y, pad, relu, Tiles(n, y.h, y.w, M)};
  context.shared.rewind();
  if (SQUARE * x.c * y.c <= HELD_SIZE) work.by_tiles(context);
  else work.by_panels(context);
}

KERNEL(winograd_forward)(Context* context, const Real* x, const Real* w, const Real* bias, Real* y, const Int* shape,
                         bool relu) {
  const Convolution& z = *(const Convolution*)shape;
  Int c = z.c / z.groups, k = z.k / z.groups;
  for (Int g = 0; g < z.groups; g++) {
    Images<const Real> in = {x + g * c, z.h, z.w, c, z.c};
    Images<Real> out = {y + g * k, z.p, z.q, k, z.k};
    Weights weights = {w + g * k, c * z.k, z.k, c, k, false};
    (z.r == 3 ? convolve<4> : convolve<2>)(*context, in, weights, bias ? bias + g * k : 0, out, z.n, z.pad, relu);
  }
}

KERNEL(winograd_back)(Context* context, const Real* dy, const Real* w, Real* dx, const Int* shape) {
  const Convolution& z = *(const Convolution*)shape;
  Int c = z.c / z.groups, k = z.k / z.groups;
  for (Int g = 0; g < z.groups; g++) {
    Images<const Real> in = {dy + g * k, z.p, z.q, k, z.k};
    Images<Real> out = {dx + g * c, z.h, z.w, c, z.c};
    Weights weights = {w + g * k, c * z.k, z.k, k, c, true};
    (z.r == 3 ? convolve<4> : convolve<2>)(*context, in, weights, 0, out, z.n, z.r - 1 - z.pad, false);
  }
}

// ── back to the weights ───────────────────────────────────────────────────────────────────────────────────
// u[36][channels][PANEL] = sum over `count` tiles of v · d.
APART void multiply_gradients(const Real* v, Int width, Int v_point, Int channels, const Real* d, Int d_point,
                              Int count, Real* u, bool narrow) {
  for (int e = 0; e < SQUARE; e++, v += v_point, d += d_point, u += points_apart(channels * PANEL))
    for (Int first = 0; first < count; first += SUMMED) {
      Int tiles = least(SUMMED, count - first);
      even_parts(channels, [=](Int i, auto number) {
        constexpr int T = decltype(number)::value;
        const Real *x = v + first * width + i, *dy = d + first * PANEL;
        if (narrow) multiply_channels<T, 1>(x, width, tiles, dy, u + i * PANEL, first > 0);
        else multiply_channels<T, NV>(x, width, tiles, dy, u + i * PANEL, first > 0);
      });
    }
}

// dw of a range of channels and a panel of features. Tiles are summed in their order, a block of them at a time.
template <int M>
static void gradients(Context& context, const Images<const Real>& x, const Images<const Real>& dy, const Gradients& dw,
                      Int n, Int pad, bool add) {
  Tiles t(n, dy.h, dy.w, M);
  Int most_rows = t.at_once(x.c), units = parts_of(x.c, UNIT), width = even_block(x.c);
  context.shared.rewind();
  Transformed v(context.shared, x.c, width, most_rows * t.wide), d(context.shared, dy.c, PANEL, most_rows * t.wide);
  for (Int first = 0; first < t.rows; first += most_rows, add = true) {
    Int rows = least(most_rows, t.rows - first);
    context.parts(rows, 1, [&](Int a, Int b, Workspace& space) {
      spread<M, POINTS>(x, pad, t, first + a, first + b, first, v, take_strip<M>(space, t, x.c));
      spread<M, M>(dy, 0, t, first + a, first + b, first, d, take_strip<M>(space, t, dy.c));
    });
    context.parts(units * parts_of(dy.c, PANEL), 1, [&](Int a, Int b, Workspace& space) {
      Real *u = space.take<Real>(weights_size(width)), *packed = space.take<Real>(weights_size(width));
      while (a < b) {
        Int panel = a / units, c = a % units * UNIT, in_block = c % width;
        Int end = least(x.c, least(c - in_block + width, c + (b - a) * UNIT)), channels = end - c;
        multiply_gradients(v.at + c / width * v.block + in_block, width, v.point, channels, d.at + panel * d.block,
                           d.point, rows * t.wide, u, dy.c - panel * PANEL <= LANES);
        gather_weights<M>(u, packed, dw, c, channels, panel * PANEL, add);
        a += parts_of(channels, UNIT);
      }
    });
  }
}

KERNEL(winograd_weights)(Context* context, const Real* x, const Real* dy, Real* dw, const Int* shape, bool accumulate) {
  const Convolution& z = *(const Convolution*)shape;
  Int c = z.c / z.groups, k = z.k / z.groups;
  if (!accumulate && !z.n) memset(dw, 0, z.r * z.s * c * z.k * sizeof(Real));
  for (Int g = 0; g < z.groups; g++) {
    Images<const Real> in = {x + g * c, z.h, z.w, c, z.c}, out = {dy + g * k, z.p, z.q, k, z.k};
    (z.r == 3 ? gradients<4> : gradients<2>)(*context, in, out, {dw + g * k, c * z.k, z.k, k}, z.n, z.pad, accumulate);
  }
}
