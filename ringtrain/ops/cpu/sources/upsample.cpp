// Larger images. The shares of pixels are made of whole numbers: a pixel of y is the same wherever it is computed.
#include "pieces.hpp"
#include "threads.hpp"

// A pixel of a larger axis: between pixels `before` and `after`, with the share `second` of the latter.
namespace {
struct Between {
  Int before, after;
  Real first, second;

  Between(Int place, Int count, Int scale, bool bilinear) {
    Int twice = most(0, 2 * place + 1 - scale);  // of the distance from the first centre, in pixels of the larger axis
    before = bilinear ? twice / (2 * scale) : place / scale;
    after = least(before + 1, count - 1);
    second = bilinear ? Real(double(twice % (2 * scale)) / double(2 * scale)) : Real(0);
    first = 1 - second;
  }
  Real share(Int pixel) const { return (pixel == before ? first : 0) + (pixel == after ? second : 0); }
};
}

// y[n, h · scale, w · scale, c]
KERNEL(upsample)(Context* context, const Real* x, Real* y, Int n, Int h, Int w, Int c, Int scale, bool bilinear) {
  Int p = h * scale, q = w * scale;
  context->parts(n * p, parts_of(GRAIN, most(1, q * c)), [=](Int from, Int end, Workspace& space) {
    Real* line = space.take<Real>(w * c);  // between two rows of x
    for (Int i = from; i < end; i++) {
      Between row(i % p, h, scale, bilinear);
      const Real *image = x + i / p * h * w * c, *upper = image + row.before * w * c, *lower = image + row.after * w * c;
      if (row.second != 0) {
        each_vector(0, w * c, [=](Int e, Int count) {
          if (count == LANES) store(line + e, load(upper + e) * row.first + load(lower + e) * row.second);
          else for (Int j = e; j < e + count; j++) line[j] = upper[j] * row.first + lower[j] * row.second;
        });
        upper = line;
      }
      Real* to = y + i * q * c;
      for (Int j = 0; j < q; j++, to += c) {
        Between column(j, w, scale, bilinear);
        const Real *left = upper + column.before * c, *right = upper + column.after * c;
        if (column.second == 0) { memcpy(to, left, c * sizeof(Real)); continue; }
        each_vector(0, c, [=](Int e, Int count) {
          if (count == LANES) store(to + e, load(left + e) * column.first + load(right + e) * column.second);
          else for (Int k = e; k < e + count; k++) to[k] = left[k] * column.first + right[k] * column.second;
        });
      }
    }
  });
}

static void add_share(const Real* from, Real* to, Real share, Int elements) {
  each_vector(0, elements, [=](Int e, Int count) {
    if (count == LANES) store(to + e, load(to + e) + load(from + e) * share);
    else for (Int j = e; j < e + count; j++) to[j] += from[j] * share;
  });
}

// Row by row of dx: first the rows of dy that it has a share in, then along the row.
KERNEL(upsample_back)(Context* context, const Real* dy, Real* dx, Int n, Int h, Int w, Int c, Int scale, bool bilinear) {
  Int p = h * scale, q = w * scale;
  context->parts(n * h, parts_of(GRAIN, most(1, scale * q * c)), [=](Int from, Int end, Workspace& space) {
    Real* line = space.take<Real>(q * c);
    for (Int i = from; i < end; i++) {
      Int pixel = i % h;
      memset(line, 0, q * c * sizeof(Real));
      for (Int j = most(0, (pixel - 1) * scale); j < least(p, (pixel + 2) * scale); j++) {
        Real share = Between(j, h, scale, bilinear).share(pixel);
        if (share != 0) add_share(dy + (i / h * p + j) * q * c, line, share, q * c);
      }
      Real* to = dx + i * w * c;
      memset(to, 0, w * c * sizeof(Real));
      for (Int j = 0; j < q; j++) {
        Between column(j, w, scale, bilinear);
        add_share(line + j * c, to + column.before * c, column.first, c);
        if (column.second != 0) add_share(line + j * c, to + column.after * c, column.second, c);
      }
    }
  });
}
