// Operations with one value a channel: bias, and batch normalisation.
//
// A loop over 3 or 10 channels is too short to be fast, so rows are *widened*: several rows are taken as one, beside
// values that are repeated as often. Each place of a wide row has sums of its own, in the arrays' type, from zero over
// CHUNK wide rows; they go into double totals of BLOCK wide rows, which are added in order.
#include "threads.hpp"

constexpr Int LEAST_WIDTH = 128, MOST_WIDTH = 2048, WHOLE = 16;  // elements; WHOLE: a multiple of any LANES
constexpr Int CHUNK = 32, BLOCK = 128;                           // wide rows

namespace {
template <bool B> struct Flag { static constexpr bool set = B; };
}
template <class Run> INLINE void by_flag(bool a, Run run) { if (a) run(Flag<true>()); else run(Flag<false>()); }
template <class Run> INLINE void by_flags(bool a, bool b, Run run) {
  by_flag(a, [=](auto first) { by_flag(b, [=](auto second) { run(first, second); }); });
}

// An array of `size` elements, whose last axis are the channels.
namespace {
struct Rows {
  Int size, channels, width;
  Rows(Int size, Int channels) : size(size), channels(channels), width(channels) {
    while (width % WHOLE) width += channels;
    width = width > MOST_WIDTH ? channels : up(LEAST_WIDTH, width);
  }
  Int stride() const { return up(width, WHOLE); }
  Int blocks() const { return parts_of(size, BLOCK * width); }
};
}

namespace {
struct Scratch {
  Real* wide[4];    // values as a wide row
  double* totals;   // [2, channels]
  double* partial;  // [blocks, 2, channels]
  Scratch(Context* context, Rows most) {
    context->shared.rewind();
    for (Real*& each : wide) each = context->shared.take<Real>(most.stride());
    totals = context->shared.take<double>(2 * most.channels);
    partial = context->shared.take<double>(most.blocks() * 2 * most.channels);
  }
};
}

INLINE void widen(Rows rows, const Real* values, Real* wide) {
  for (Int at = 0; at < rows.width; at += rows.channels) memmove(wide + at, values, rows.channels * sizeof(Real));
}

// run(element, place in its wide row, count) for every vector of the array.
template <class Run> INLINE void each_wide(Context* context, Rows rows, Run run) {
  Int width = rows.width;
  context->parts(parts_of(rows.size, width), parts_of(GRAIN, width), [=](Int first, Int end, Workspace&) {
    Int stop = least(rows.size, end * width);
    for (Int at = first * width; at < stop; at += width) {
      each_vector(0, least(width, stop - at), [=](Int j, Int n) { run(at + j, j, n); });
    }
  });
}

// totals [S, channels] = sums over rows, where add(element, place in its wide row, count, sums) adds a vector's. Rows are
// read one after another, and their sums are kept in the L1 cache: in registers, over several rows at once, took longer.
template <int S, class Add> INLINE void sum_wide(Context* context, Rows rows, Scratch& scratch, Add add) {
  Int width = rows.width, stride = rows.stride(), channels = rows.channels;
  double* partial = scratch.partial;
  context->parts(rows.blocks(), 1, [=](Int first, Int end, Workspace& space) {
    Real* sums = space.take<Real>(S * stride);
    double* wide = space.take<double>(S * stride);
    for (Int block = first; block < end; block++) {
      memset(wide, 0, S * stride * sizeof(double));
      Int at = block * BLOCK * width, block_end = least(rows.size, at + BLOCK * width);
      while (at < block_end) {
        Int stop = least(block_end, at + CHUNK * width);
        memset(sums, 0, S * stride * sizeof(Real));
        for (; at < stop; at += width) {
          each_vector(0, least(width, stop - at), [=](Int j, Int n) {
            Vec sum[S];
            for (int s = 0; s < S; s++) sum[s] = load_up_to(sums + s * stride + j, n);
            add(at + j, j, n, sum);
            for (int s = 0; s < S; s++) store_up_to(sums + s * stride + j, sum[s], n);
          });
        }
        for (Int j = 0; j < S * stride; j++) wide[j] += double(sums[j]);
      }
      double* out = partial + block * S * channels;
      memset(out, 0, S * channels * sizeof(double));
      for (int s = 0; s < S; s++) for (Int j = 0; j < width; j += channels) {
        for (Int c = 0; c < channels; c++) out[s * channels + c] += wide[s * stride + j + c];
      }
    }
  });
  memset(scratch.totals, 0, S * channels * sizeof(double));
  for (Int i = 0; i < rows.blocks() * S * channels; i += S * channels) {
    for (Int c = 0; c < S * channels; c++) scratch.totals[c] += partial[i + c];
  }
}

INLINE double inverse(Real var, double eps) { return 1 / __builtin_sqrt(double(var) + eps); }
INLINE void put(const double* from, Real* to, Int count, bool accumulate) {
  for (Int c = 0; c < count; c++) to[c] = Real(accumulate ? from[c] + double(to[c]) : from[c]);
}

// With relu dy becomes 0 where y is not positive. db = sum of dy over rows; it may be null.
KERNEL(unfinish)(Context* context, Real* dy, const Real* y, Real* db, Int size, Int channels, bool relu, bool accumulate) {
  Rows rows(size, db ? channels : 1);
  Scratch scratch(context, rows);
  if (!db) {
    if (relu) each_wide(context, rows, [=](Int i, Int, Int n) {
      store_up_to(dy + i, masked(load_up_to(dy + i, n), load_up_to(y + i, n)), n);
    });
    return;
  }
  by_flag(relu, [=, &scratch](auto masks) {
    sum_wide<1>(context, rows, scratch, [=](Int i, Int, Int n, Vec* sums) {
      Vec d = load_up_to(dy + i, n);
      if (masks.set) store_up_to(dy + i, d = masked(d, load_up_to(y + i, n)), n);
      sums[0] += d;
    });
  });
  put(scratch.totals, db, channels, accumulate);
}

// Mean and biased variance of each channel, from sums about the first row's values: no cancellation where the mean is
// large beside the deviation.
template <class To> INLINE void moments(Context* context, Rows rows, Scratch& scratch, const Real* x, To* mean, To* var) {
  Real* wide = scratch.wide[0];
  widen(rows, x, wide);
  sum_wide<2>(context, rows, scratch, [=](Int i, Int j, Int n, Vec* sums) {
    Vec d = load_up_to(x + i, n) - load(wide + j);
    sums[0] += d;
    sums[1] = fma(d, d, sums[1]);
  });
  double share = double(rows.channels) / double(rows.size), *totals = scratch.totals;
  for (Int c = 0; c < rows.channels; c++) {
    double off = totals[c] * share, v = totals[rows.channels + c] * share - off * off;
    mean[c] = To(double(x[c]) + off);
    var[c] = To(v < 0 ? 0 : v);
  }
}

// y = gamma (x - mean)/sqrt(var + eps) + beta, + add unless it is null, and max(., 0) with relu
INLINE void normalise(Context* context, Rows rows, Scratch& scratch, const Real* x, const Real* gamma, const Real* beta,
                      const Real* add, Real* y, const Real* mean, const Real* var, double eps, bool relu) {
  Real *centre = scratch.wide[0], *factor = scratch.wide[1], *offset = scratch.wide[2];
  for (Int c = 0; c < rows.channels; c++) factor[c] = Real(double(gamma[c]) * inverse(var[c], eps));
  widen(rows, factor, factor);
  widen(rows, mean, centre);
  widen(rows, beta, offset);
  by_flags(add, relu, [=](auto adds, auto positives) {
    each_wide(context, rows, [=](Int i, Int j, Int n) {
      Vec v = fma(load_up_to(x + i, n) - load(centre + j), load(factor + j), load(offset + j));
      if (adds.set) v += load_up_to(add + i, n);
      store_up_to(y + i, positives.set ? positive(v) : v, n);
    });
  });
}

// totals = (sum of dy, sum of dy (x - mean)) of each channel; with relu dy becomes 0 where y is not positive.
INLINE void gradient_sums(Context* context, Rows rows, Scratch& scratch, const Real* x, const Real* y, const Real* mean,
                          Real* dy, bool relu) {
  Real* centre = scratch.wide[0];
  widen(rows, mean, centre);
  by_flag(relu, [=, &scratch](auto masks) {
    sum_wide<2>(context, rows, scratch, [=](Int i, Int j, Int n, Vec* sums) {
      Vec d = load_up_to(dy + i, n);
      if (masks.set) store_up_to(dy + i, d = masked(d, load_up_to(y + i, n)), n);
      sums[0] += d;
      sums[1] = fma(d, load_up_to(x + i, n) - load(centre + j), sums[1]);
    });
  });
}

// dx = gamma inv (dy - totals[0] share - (x - mean) inv^2 totals[1] share), from the totals of gradient_sums.
INLINE void input_gradient(Context* context, Rows rows, Scratch& scratch, const Real* x, const Real* gamma,
                           const Real* mean, const Real* var, const Real* dy, const double* totals, double share, Real* dx,
                           double eps) {
  Real *centre = scratch.wide[0], *factor = scratch.wide[1], *slope = scratch.wide[2], *level = scratch.wide[3];
  for (Int c = 0; c < rows.channels; c++) {
    double inv = inverse(var[c], eps), scale = double(gamma[c]) * inv;
    factor[c] = Real(scale);
    slope[c] = Real(-scale * inv * inv * totals[rows.channels + c] * share);
    level[c] = Real(-scale * totals[c] * share);
  }
  widen(rows, mean, centre);
  widen(rows, factor, factor);
  widen(rows, slope, slope);
  widen(rows, level, level);
  each_wide(context, rows, [=](Int i, Int j, Int n) {
    Vec rest = fma(load(slope + j), load_up_to(x + i, n) - load(centre + j), load(level + j));
    store_up_to(dx + i, fma(load(factor + j), load_up_to(dy + i, n), rest), n);
  });
}

// run(group, its first element, its rows) for each ghost batch of n examples.
template <class Run> INLINE void each_ghost(Int n, Int pixels, Int channels, Int ghost, Run run) {
  for (Int g = 0; g * ghost < n; g++) {
    run(g, g * ghost * pixels * channels, Rows(least(ghost, n - g * ghost) * pixels * channels, channels));
  }
}

KERNEL(batch_norm)(Context* context, const Real* x, const Real* gamma, const Real* beta, const Real* add, Real* y,
                   Real* mean, Real* var, Int n, Int pixels, Int channels, Int ghost, double eps, bool relu) {
  Scratch scratch(context, Rows(least(ghost, n) * pixels * channels, channels));
  each_ghost(n, pixels, channels, ghost, [=, &scratch](Int g, Int at, Rows rows) {
    Real *mean_g = mean + g * channels, *var_g = var + g * channels;
    moments(context, rows, scratch, x + at, mean_g, var_g);
    normalise(context, rows, scratch, x + at, gamma, beta, add ? add + at : 0, y + at, mean_g, var_g, eps, relu);
  });
}

KERNEL(batch_norm_fixed)(Context* context, const Real* x, const Real* gamma, const Real* beta, const Real* add,
                         const Real* mean, const Real* var, Real* y, Int size, Int channels, double eps, bool relu) {
  Rows rows(size, channels);
  Scratch scratch(context, Rows(0, channels));
  normalise(context, rows, scratch, x, gamma, beta, add, y, mean, var, eps, relu);
}

// With relu dy becomes 0 where y is not positive; dx may be null.
KERNEL(batch_norm_back)(Context* context, const Real* x, const Real* gamma, const Real* y, const Real* mean,
                        const Real* var, Real* dy, Real* dgamma, Real* dbeta, Real* dx, Int n, Int pixels, Int channels,
                        Int ghost, double eps, bool relu, bool accumulate) {
  Scratch scratch(context, Rows(least(ghost, n) * pixels * channels, channels));
  double *sums = context->shared.take<double>(2 * channels), *totals = scratch.totals;
  memset(sums, 0, 2 * channels * sizeof(double));
  each_ghost(n, pixels, channels, ghost, [=, &scratch](Int g, Int at, Rows rows) {
    const Real *mean_g = mean + g * channels, *var_g = var + g * channels;
    gradient_sums(context, rows, scratch, x + at, y + at, mean_g, dy + at, relu);
    for (Int c = 0; c < channels; c++) {
      sums[c] += totals[channels + c] * inverse(var_g[c], eps);
      sums[channels + c] += totals[c];
    }
    double share = double(channels) / double(rows.size);
    if (dx) input_gradient(context, rows, scratch, x + at, gamma, mean_g, var_g, dy + at, totals, share, dx + at, eps);
  });
  put(sums, dgamma, channels, accumulate);
  put(sums + channels, dbeta, channels, accumulate);
}

KERNEL(batch_moments)(Context* context, const Real* x, double* out, Int size, Int channels) {
  Rows rows(size, channels);
  Scratch scratch(context, rows);
  if (size) moments(context, rows, scratch, x, out, out + channels);
  else memset(out, 0, 2 * channels * sizeof(double));
}

KERNEL(batch_norm_sums)(Context* context, const Real* x, const Real* y, const Real* mean, Real* dy, double* sums, Int size,
                        Int channels, bool relu) {
  Rows rows(size, channels);
  Scratch scratch(context, rows);
  gradient_sums(context, rows, scratch, x, y, mean, dy, relu);
  memcpy(sums, scratch.totals, 2 * channels * sizeof(double));
}

KERNEL(batch_norm_dx)(Context* context, const Real* x, const Real* gamma, const Real* mean, const Real* var, const Real* dy,
                      const double* sums, Int count, Real* dx, Int size, Int channels, double eps) {
  Rows rows(size, channels);
  Scratch scratch(context, Rows(0, channels));
  input_gradient(context, rows, scratch, x, gamma, mean, var, dy, sums, 1 / double(count), dx, eps);
}

// See Ops.batch_norm_shares; the statistics are [groups, channels].
KERNEL(batch_norm_shares)(const Real* mean, const Real* var, Int n, Int pixels, Int channels, Int ghost, Int total,
                          Real* mean_out, Real* var_out, bool accumulate) {
  for (Int c = 0; c < channels; c++) {
    double mean_sum = accumulate ? double(mean_out[c]) : 0, var_sum = accumulate ? double(var_out[c]) : 0;
    for (Int g = 0; g * ghost < n; g++) {
      Int examples = least(ghost, n - g * ghost), count = examples * pixels;
      double share = double(examples) / double(total);
      mean_sum += share * double(mean[g * channels + c]);
      var_sum += share * double(var[g * channels + c]) * double(count) / double(most(count - 1, 1));
    }
    mean_out[c] = Real(mean_sum);
    var_out[c] = Real(var_sum);
  }
}
