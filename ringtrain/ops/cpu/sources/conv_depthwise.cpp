// Depthwise convolution: each channel has a kernel of its own. Vectors of channels stay in registers while windows pass;
// nothing is copied.
#include "convolution.hpp"
#include "pieces.hpp"
#include "threads.hpp"

constexpr int PIXELS = 4, VECTORS = 2;  // PIXELS · VECTORS sums are in flight

// ── forward and back ──────────────────────────────────────────────────────────────────────────────────────
// One axis of outputs i, which are pixels begin + i · step. Tap first + j · skip, of `taps`, meets the input at
// i · move + offset + j · way.
namespace {
struct Axis {
  Int count, begin, step, first, skip, taps, move, offset, way, length;
};

// The taps of an output that meet an input: start .. end.
struct Met {
  Int start, end;
  Met(const Axis& axis, Int i) {
    Int at = i * axis.move + axis.offset, before = axis.way > 0 ? -at : at - axis.length + 1;
    Int until = axis.way > 0 ? axis.length - at : at + 1;
    start = least(most(0, before), axis.taps); end = most(start, least(axis.taps, until));
  }
};

struct Steps { Int x_row, x_tap, x_pixel, w_row, w_tap, y_pixel; };
}

// T outputs, whose windows have `rows` · `taps` taps: of V vectors of channels.
template <int T, int V>
INLINE void window_sums(const Real* x, const Real* w, const Real* bias, Real* y, Int rows, Int taps, const Steps& by,
                        bool relu, Int lanes) {
  Vec sum[T][V];
  UNROLL for (int v = 0; v < V; v++) {
    Vec b = bias ? load_some<V>(bias + v * LANES, lanes) : (Vec){};
    UNROLL for (int t = 0; t < T; t++) sum[t][v] = b;
  }
  for (Int r = 0; r < rows; r++) {
    const Real *from = x + r * by.x_row, *weights = w + r * by.w_row;
    for (Int s = 0; s < taps; s++, from += by.x_tap, weights += by.w_tap) {
      UNROLL for (int v = 0; v < V; v++) {
        Vec f = load_some<V>(weights + v * LANES, lanes);
        UNROLL for (int t = 0; t < T; t++)
          sum[t][v] = fma(load_some<V>(from + t * by.x_pixel + v * LANES, lanes), f, sum[t][v]);
      }
    }
  }
  UNROLL for (int t = 0; t < T; t++) UNROLL for (int v = 0; v < V; v++)
    store_some<V>(y + t * by.y_pixel + v * LANES, relu ? positive(sum[t][v]) : sum[t][v], lanes);
}

// The outputs of one row, of V vectors of channels.
template <int V>
APART void output_row(const Real* x, const Real* w, const Real* bias, Real* y, Int rows, const Axis& axis, const Steps& by,
                      bool relu, Int lanes) {
  for (Int i = 0; i < axis.count;) {
    Met met(axis, i);
    const Real* from = x + (i * axis.move + axis.offset) * (by.x_pixel / axis.move) + met.start * by.x_tap;
    const Real* weights = w + met.start * by.w_tap;
    bool whole = i + PIXELS <= axis.count && met.end - met.start == axis.taps;
    if (whole) {
      Met last(axis, i + PIXELS - 1);
      whole = last.end - last.start == axis.taps;
    }
    Int taps = met.end - met.start, kept = taps ? rows : 0;
    if (whole) window_sums<PIXELS, V>(from, weights, bias, y + i * by.y_pixel, kept, taps, by, relu, lanes);
    else window_sums<1, V>(from, weights, bias, y + i * by.y_pixel, kept, taps, by, relu, lanes);
    i += whole ? PIXELS : 1;
  }
}

// Outputs [n, ?, y_width, c] from inputs [n, down.length, along.length, c].
static void run(Context& context, Int n, Int c, const Real* x, const Real* w, Int w_width, const Real* bias, Real* y,
                Int y_height, Int y_width, const Axis& down, const Axis& along, bool relu) {
  Steps by = {down.way * along.length * c, along.way * c, along.move * c, down.skip * w_width * c, along.skip * c,
              along.step * c};
  context.parts(n * down.count, parts_of(GRAIN, most(1, along.count * c)), [=, &down, &along](Int a, Int end, Workspace&) {
    for (; a < end; a++) {
      Int image = a / down.count, i = a % down.count;
      Met met(down, i);
      Int line = i * down.move + down.offset + met.start * down.way;
      const Real* from = x + (image * down.length + line) * along.length * c;
      const Real* weights = w + ((down.first + met.start * down.skip) * w_width + along.first) * c;
      Real* to = y + ((image * y_height + down.begin + i * down.step) * y_width + along.begin) * c;
      for (Int k = 0; k < c;) {
        Int rows = met.end - met.start;
        if (k + VECTORS * LANES <= c) {
          output_row<VECTORS>(from + k, weights + k, bias ? bias + k : 0, to + k, rows, along, by, relu, LANES);
          k += VECTORS * LANES;
        } else {  // the last vector takes some channels again, so that none is cut, unless there are too few for one
          Int at = most(0, least(k, c - LANES));
          output_row<1>(from + at, weights + at, bias ? bias + at : 0, to + at, rows, along, by, relu, least(c, LANES));
          k += LANES;
        }
      }
    }
  });
}

KERNEL(depthwise_forward)(Context* context, const Real* x, const Real* w, const Real* bias, Real* y, const Int* shape,
                          bool relu) {
  const Convolution& z = *(const Convolution*)shape;
  Axis down = {z.p, 0, 1, 0, 1, z.r, z.stride, -z.pad_rows, 1, z.h}, along = {z.q, 0, 1, 0, 1, z.s, z.stride, -z.pad, 1, z.w};
  run(*context, z.n, z.c, x, w, z.s, bias, y, z.p, z.q, down, along, relu);
}

// Pixels begin, begin + stride ... of an axis of dx meet the same taps: of dy, backwards.
static Axis phase(Int begin, Int length, Int taps, Int stride, Int pad, Int count) {
  Int first = (begin + pad) % stride;
  return {parts_of(length - begin, stride), begin, stride, first, stride, parts_of(most(0, taps - first), stride), 1,
          (begin + pad - first) / stride, -1, count};
}

KERNEL(depthwise_back)(Context* context, const Real* dy, const Real* w, Real* dx, const Int* shape) {
  const Convolution& z = *(const Convolution*)shape;
  for (Int a = 0; a < least(z.stride, z.h); a++) for (Int b = 0; b < least(z.stride, z.w); b++) {
    Axis down = phase(a, z.h, z.r, z.stride, z.pad_rows, z.p), along = phase(b, z.w, z.s, z.stride, z.pad, z.q);
    run(*context, z.n, z.c, dy, w, z.s, 0, dx, z.h, z.w, down, along, false);
  }
}

// ── weights ───────────────────────────────────────────────────────────────────────────────────────────────
constexpr Int SUMMED = 128;  // pixels, about: their sums are added to totals in double precision
constexpr int TAPS = 4;      // TAPS · VECTORS sums are in flight

// sums[T][V] over the outputs first .. end of a row that meet all of T taps.
template <int T, int V>
INLINE void tap_sums(Vec (&sum)[T][V], const Real* x, const Real* dy, Int first, Int end, Int step, Int c, Int lanes) {
  for (Int q = first; q < end; q++) {
    Vec g[V];
    UNROLL for (int v = 0; v < V; v++) g[v] = load_some<V>(dy + q * c + v * LANES, lanes);
    UNROLL for (int t = 0; t < T; t++) UNROLL for (int v = 0; v < V; v++)
      sum[t][v] = fma(load_some<V>(x + (q * step + t) * c + v * LANES, lanes), g[v], sum[t][v]);
  }
}

// totals[T][V · LANES] += sums over the rows first .. end of outputs, of the taps (r, s) .. (r, s + T - 1).
template <int T, int V>
APART void add_taps(const Convolution& z, const Real* x, const Real* dy, Int first, Int end, Int r, Int s, Int lanes,
                    double* totals) {
  Vec sum[T][V] = {};
  for (Int i = first; i < end; i++) {
    Int h = i % z.p * z.stride + r - z.pad_rows;
    if (h < 0 || h >= z.h) continue;
    const Real *line = x + (i / z.p * z.h + h) * z.w * z.c + (s - z.pad) * z.c, *given = dy + i * z.q * z.c;
    // Outputs left .. right meet all T taps; before and behind them, each tap by itself.
    auto from = [&](Int tap) { return least(z.q, parts_of(most(0, z.pad - tap), z.stride)); };
    auto until = [&](Int tap) { return least(z.q, parts_of(most(0, z.w + z.pad - tap), z.stride)); };
    Int left = from(s), right = most(left, until(s + T - 1));
    UNROLL for (int t = 0; t < T; t++) {
      Vec (&one)[1][V] = *(Vec (*)[1][V])&sum[t];
      tap_sums<1, V>(one, line + t * z.c, given, from(s + t), least(left, until(s + t)), z.stride, z.c, lanes);
    }
    tap_sums<T, V>(sum, line, given, left, right, z.stride, z.c, lanes);
    UNROLL for (int t = 0; t < T; t++) {
      Vec (&one)[1][V] = *(Vec (*)[1][V])&sum[t];
      tap_sums<1, V>(one, line + t * z.c, given, most(right, from(s + t)), until(s + t), z.stride, z.c, lanes);
    }
  }
  UNROLL for (int t = 0; t < T; t++) UNROLL for (int v = 0; v < V; v++)
    for (Int lane = 0; lane < lanes; lane++) totals[(t * V + v) * LANES + lane] += sum[t][v][lane];
}

// dw of the channels at .. at + lanes of V vectors, the first `skip` of which are others'.
template <int V>
APART void channel_weights(const Convolution& z, const Real* x, const Real* dy, Real* dw, Int at, Int lanes, Int skip,
                           bool add, Workspace& space) {
  Int block = most(1, SUMMED / most(1, z.q)), width = V * LANES;
  double* totals = space.take<double>(z.r * z.s * width);
  memset(totals, 0, z.r * z.s * width * sizeof(double));
  for (Int i = 0; i < z.n * z.p; i += block) {
    Int end = least(i + block, z.n * z.p);
    for (Int r = 0; r < z.r; r++) {
      Int s = 0;
      for (; s + TAPS <= z.s; s += TAPS)
        add_taps<TAPS, V>(z, x + at, dy + at, i, end, r, s, lanes, totals + (r * z.s + s) * width);
      double* rest = totals + (r * z.s + s) * width;
      if (z.s - s == 3) add_taps<3, V>(z, x + at, dy + at, i, end, r, s, lanes, rest);
      else if (z.s - s == 2) add_taps<2, V>(z, x + at, dy + at, i, end, r, s, lanes, rest);
      else if (z.s - s == 1) add_taps<1, V>(z, x + at, dy + at, i, end, r, s, lanes, rest);
    }
  }
  Int count = V > 1 ? width : lanes;
  for (Int tap = 0; tap < z.r * z.s; tap++) for (Int k = skip; k < count; k++) {
    Real* to = dw + tap * z.c + at + k;
    *to = Real(add ? totals[tap * width + k] + *to : totals[tap * width + k]);
  }
}

KERNEL(depthwise_weights)(Context* context, const Real* x, const Real* dy, Real* dw, const Int* shape, bool accumulate) {
  const Convolution& z = *(const Convolution*)shape;
  Int width = VECTORS * LANES;
  context->parts(parts_of(z.c, width), 1, [=, &z](Int first, Int end, Workspace& space) {
    for (Int k = first * width; k < least(z.c, end * width);) {
      if (k + width <= z.c) {
        channel_weights<VECTORS>(z, x, dy, dw, k, LANES, 0, accumulate, space);
        k += width;
      } else {
        Int at = most(0, least(k, z.c - LANES));
        channel_weights<1>(z, x, dy, dw, at, least(z.c, LANES), k - at, accumulate, space);
        k += LANES;
      }
    }
  });
}
