// Normalisation of each example by itself, in groups of channels; of one pixel and one group it is that of layers.
// Sums are double, each in an order of its own example: what shares the batch with it changes nothing.
#include "numbers.hpp"
#include "threads.hpp"

constexpr Int BLOCK = 8 * 1024;  // elements of the examples whose gradients of gamma and beta are added up first

namespace {
struct Extents {
  Int pixels, channels, groups;
  Int each() const { return channels / groups; }
  Int size() const { return pixels * channels; }
  bool is_row() const { return pixels == 1 && groups == 1; }
};
}

INLINE double sum_of(const double* values, Int count) {
  Eight sum = {};
  for (Int i = 0; i < count; i += 8) sum += load_eight(values + i, count - i);
  return sum_eight(sum);
}

// The value of its group for each channel.
INLINE void spread(Extents of, const double* values, double* channels) {
  for (Int g = 0; g < of.groups; g++) for (Int c = 0; c < of.each(); c++) channels[g * of.each() + c] = values[g];
}

// sums[c] = sum over pixels of term(element, channel, count)
template <class Term> INLINE void sum_pixels(Extents of, double* sums, Term term) {
  for (Int c = 0; c < of.channels; c += 8) {
    Int count = of.channels - c;
    Eight sum = {};
    for (Int i = c; i < of.size(); i += of.channels) sum += term(i, c, count);
    store_eight(sums + c, sum, count);
  }
}

// One row by itself: run(place, count) for its eights.
template <class Run> INLINE void each_of_row(Int channels, Run run) {
  Int c = 0;
  for (; c + 8 <= channels; c += 8) run(c, 8);
  if (c < channels) run(c, channels - c);
}

INLINE void normalise_row(const Real* x, const Real* gamma, const Real* beta, Real* y, Real* mean, Real* inverse,
                          Int channels, double eps) {
  double share = 1 / double(channels);
  Eight sum = {}, squares = {};
  each_of_row(channels, [&](Int c, Int n) { sum += load_eight(x + c, n); });
  double middle = sum_eight(sum) * share;
  each_of_row(channels, [&](Int c, Int n) {
    Eight d = load_eight(x + c, n, middle) - middle;
    squares += d * d;
  });
  double factor = 1 / __builtin_sqrt(sum_eight(squares) * share + eps);
  *mean = Real(middle);
  *inverse = Real(factor);
  each_of_row(channels, [&](Int c, Int n) {
    Eight scaled = (load_eight(x + c, n) - middle) * (load_eight(gamma + c, n) * factor);
    store_eight(y + c, scaled + load_eight(beta + c, n), n);
  });
}

// Adds to `along` the dy · xhat of a row, and to `level` its dy.
INLINE void row_back(const Real* x, const Real* gamma, double mean, double inverse, const Real* dy, Real* dx,
                     double* along, double* level, Int channels) {
  double share = 1 / double(channels);
  Eight a = {}, b = {};
  each_of_row(channels, [&](Int c, Int n) {
    Eight d = load_eight(dy + c, n), xhat = (load_eight(x + c, n) - mean) * inverse, slope = d * load_eight(gamma + c, n);
    a += slope;
    b += slope * xhat;
    store_eight(along + c, load_eight(along + c, n) + d * xhat, n);
    store_eight(level + c, load_eight(level + c, n) + d, n);
  });
  if (!dx) return;
  double a_mean = sum_eight(a) * share, b_mean = sum_eight(b) * share;
  each_of_row(channels, [&](Int c, Int n) {
    Eight xhat = (load_eight(x + c, n) - mean) * inverse, slope = load_eight(dy + c, n) * load_eight(gamma + c, n);
    store_eight(dx + c, (slope - a_mean - xhat * b_mean) * inverse, n);
  });
}

KERNEL(group_norm)(Context* context, const Real* x, const Real* gamma, const Real* beta, Real* y, Real* mean, Real* inverse,
                   Int n, Int pixels, Int channels, Int groups, double eps) {
  Extents of = {pixels, channels, groups};
  if (of.is_row()) return context->parts(n, parts_of(GRAIN, channels), [=](Int first, Int end, Workspace&) {
    for (Int e = first; e < end; e++)
      normalise_row(x + e * channels, gamma, beta, y + e * channels, mean + e, inverse + e, channels, eps);
  });
  context->parts(n, parts_of(GRAIN, most(1, of.size())), [=](Int first, Int end, Workspace& space) {
    double *sums = space.take<double>(channels), *centre = space.take<double>(channels);
    double *factor = space.take<double>(channels), *values = space.take<double>(groups);
    double share = 1 / double(pixels * of.each());
    for (Int e = first; e < end; e++) {
      const Real* from = x + e * of.size();
      Real* to = y + e * of.size();
      sum_pixels(of, sums, [=](Int i, Int, Int count) { return load_eight(from + i, count); });
      for (Int g = 0; g < groups; g++) values[g] = sum_of(sums + g * of.each(), of.each()) * share;
      for (Int g = 0; g < groups; g++) mean[e * groups + g] = Real(values[g]);
      spread(of, values, centre);
      sum_pixels(of, sums, [=](Int i, Int c, Int count) {
        Eight d = load_eight(from + i, count) - load_eight(centre + c, count);
        return d * d;
      });
      for (Int g = 0; g < groups; g++) {
        values[g] = 1 / __builtin_sqrt(sum_of(sums + g * of.each(), of.each()) * share + eps);
        inverse[e * groups + g] = Real(values[g]);
      }
      spread(of, values, factor);
      for (Int c = 0; c < channels; c += 8) {
        Int count = channels - c;
        Eight middle = load_eight(centre + c, count), scale = load_eight(factor + c, count) * load_eight(gamma + c, count);
        Eight offset = load_eight(beta + c, count);
        for (Int i = c; i < of.size(); i += channels) {
          store_eight(to + i, (load_eight(from + i, count) - middle) * scale + offset, count);
        }
      }
    }
  });
}

// The sums of one example, for each channel: of dy · xhat, and of dy.
namespace {
struct Sums {
  double *along, *level, *centre, *factor, *a, *b;
  Sums(Workspace& space, Extents of)
      : along(space.take<double>(of.channels)), level(space.take<double>(of.channels)),
        centre(space.take<double>(of.channels)), factor(space.take<double>(of.channels)),
        a(space.take<double>(of.channels)), b(space.take<double>(of.channels)) {}
};
}

// dx may be null. With accumulate dgamma and dbeta are added to.
KERNEL(group_norm_back)(Context* context, const Real* x, const Real* gamma, const Real* mean, const Real* inverse,
                        const Real* dy, Real* dgamma, Real* dbeta, Real* dx, Int n, Int pixels, Int channels, Int groups,
                        bool accumulate) {
  Extents of = {pixels, channels, groups};
  Int together = most(1, BLOCK / most(1, of.size())), blocks = parts_of(n, together);
  context->shared.rewind();
  double* partial = context->shared.take<double>(blocks * 2 * channels);
  context->parts(blocks, 1, [=](Int first, Int end, Workspace& space) {
    Sums s(space, of);
    double share = 1 / double(pixels * of.each());
    for (Int block = first; block < end; block++) {
      double* out = partial + block * 2 * channels;
      memset(out, 0, 2 * channels * sizeof(double));
      for (Int e = block * together; e < least(n, (block + 1) * together); e++) {
        const Real *from = x + e * of.size(), *slope = dy + e * of.size();
        if (of.is_row()) {
          row_back(from, gamma, mean[e], inverse[e], slope, dx ? dx + e * channels : 0, out, out + channels, channels);
          continue;
        }
        for (Int c = 0; c < channels; c++) {
          s.centre[c] = mean[e * groups + c / of.each()];
          s.factor[c] = inverse[e * groups + c / of.each()];
        }
        for (Int c = 0; c < channels; c += 8) {
          Int count = channels - c;
          Eight middle = load_eight(s.centre + c, count), factor = load_eight(s.factor + c, count), along = {}, level = {};
          for (Int i = c; i < of.size(); i += channels) {
            Eight d = load_eight(slope + i, count);
            level += d;
            along += d * ((load_eight(from + i, count) - middle) * factor);
          }
          store_eight(s.along + c, along, count);
          store_eight(s.level + c, level, count);
          store_eight(out + c, load_eight(out + c, count) + along, count);
          store_eight(out + channels + c, load_eight(out + channels + c, count) + level, count);
        }
        if (!dx) continue;
        for (Int c = 0; c < channels; c += 8) {
          Int count = channels - c;
          Eight g = load_eight(gamma + c, count);
          store_eight(s.along + c, load_eight(s.along + c, count) * g, count);
          store_eight(s.level + c, load_eight(s.level + c, count) * g, count);
        }
        for (Int g = 0; g < groups; g++) {
          double a = sum_of(s.level + g * of.each(), of.each()) * share;
          double b = sum_of(s.along + g * of.each(), of.each()) * share;
          for (Int c = g * of.each(); c < (g + 1) * of.each(); c++) { s.a[c] = a; s.b[c] = b; }
        }
        Real* to = dx + e * of.size();
        for (Int c = 0; c < channels; c += 8) {
          Int count = channels - c;
          Eight middle = load_eight(s.centre + c, count), factor = load_eight(s.factor + c, count);
          Eight g = load_eight(gamma + c, count), a = load_eight(s.a + c, count), b = load_eight(s.b + c, count);
          for (Int i = c; i < of.size(); i += channels) {
            Eight xhat = (load_eight(from + i, count) - middle) * factor;
            store_eight(to + i, factor * (load_eight(slope + i, count) * g - a - xhat * b), count);
          }
        }
      }
    }
  });
  for (Int c = 0; c < channels; c++) {
    double along = accumulate ? double(dgamma[c]) : 0, level = accumulate ? double(dbeta[c]) : 0;
    for (Int block = 0; block < blocks; block++) {
      along += partial[block * 2 * channels + c];
      level += partial[(block * 2 + 1) * channels + c];
    }
    dgamma[c] = Real(along);
    dbeta[c] = Real(level);
  }
}
