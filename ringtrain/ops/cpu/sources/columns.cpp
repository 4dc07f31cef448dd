// Windows as the rows of a matrix, and back, over 1 to 3 spatial axes. Taps along the last axis that are inside lie one
// after another, in the array as in a window: a window is `t · r` runs of memory.
#include "pieces.hpp"
#include "threads.hpp"

// Sizes as window_sizes of geometry.py makes them.
namespace {
struct Windows {
  Int n, d, h, w, c, groups, o, p, q, t, r, s, stride, pad_d, pad_h, pad_w;

  Int depth() const { return c / groups; }
  Int window() const { return t * r * s * depth(); }
};

// The taps first .. end of a window that starts at pixel `start` are inside an axis of `length`.
struct Inside {
  Int first, end;
  Inside(Int start, Int length, Int taps)
      : first(least(most(0, -start), taps)), end(most(first, least(taps, length - start))) {}
};
}

INLINE void copy_run(const Real* from, Real* to, Int elements) {
  if (elements < LANES) for (Int i = 0; i < elements; i++) to[i] = from[i];
  else memcpy(to, from, elements * sizeof(Real));
}

KERNEL(columns)(Context* context, const Real* x, Real* columns, const Int* shape, Int group) {
  const Windows& z = *(const Windows*)shape;
  Int depth = z.depth(), window = z.window(), row = z.s * depth;
  context->parts(z.n * z.o * z.p, parts_of(GRAIN, most(1, z.q * window)), [=, &z](Int first, Int end, Workspace&) {
    for (Int i = first; i < end; i++) {
      Int n = i / (z.o * z.p), top = i % z.p * z.stride - z.pad_h, front = i / z.p % z.o * z.stride - z.pad_d;
      Real* to = columns + i * z.q * window;
      for (Int q = 0; q < z.q; q++) {
        Int left = q * z.stride - z.pad_w;
        Inside inside(left, z.w, z.s);
        for (Int t = 0; t < z.t; t++) for (Int r = 0; r < z.r; r++, to += row) {
          Int d = front + t, h = top + r;
          if (d < 0 || d >= z.d || h < 0 || h >= z.h || inside.first == inside.end) {
            memset(to, 0, row * sizeof(Real));
            continue;
          }
          const Real* line = x + ((n * z.d + d) * z.h + h) * z.w * z.c + group * depth;
          if (inside.end - inside.first < z.s) memset(to, 0, row * sizeof(Real));
          if (z.groups == 1)
            copy_run(line + (left + inside.first) * z.c, to + inside.first * depth, (inside.end - inside.first) * depth);
          else
            for (Int s = inside.first; s < inside.end; s++) copy_run(line + (left + s) * z.c, to + s * depth, depth);
        }
      }
    }
  });
}

INLINE void add_run(const Real* from, Real* to, Int elements) {
  each_vector(0, elements, [=](Int i, Int count) {
    if (count == LANES) store(to + i, load(to + i) + load(from + i));
    else for (Int j = i; j < i + count; j++) to[j] += from[j];
  });
}

// Row by row of x, to each element in the order of t, r, and of windows along the row.
KERNEL(columns_back)(Context* context, const Real* columns, const Real* bias, Real* x, const Int* shape, Int group,
                     bool relu) {
  const Windows& z = *(const Windows*)shape;
  Int depth = z.depth(), window = z.window(), row = z.s * depth;
  context->parts(z.n * z.d * z.h, parts_of(GRAIN, most(1, z.w * z.c)), [=, &z](Int first, Int end, Workspace&) {
    for (Int i = first; i < end; i++) {
      Int n = i / (z.d * z.h), d = i / z.h % z.d + z.pad_d, h = i % z.h + z.pad_h;
      Real* line = x + i * z.w * z.c + group * depth;
      for (Int w = 0; w < z.w; w++) {
        if (bias) memcpy(line + w * z.c, bias, depth * sizeof(Real));
        else memset(line + w * z.c, 0, depth * sizeof(Real));
      }
      for (Int t = 0; t < z.t; t++) for (Int r = 0; r < z.r; r++) {
        Int o = (d - t) / z.stride, p = (h - r) / z.stride;
        if (d < t || h < r || o >= z.o || p >= z.p || o * z.stride + t != d || p * z.stride + r != h) continue;
        const Real* from = columns + ((n * z.o + o) * z.p + p) * z.q * window + (t * z.r + r) * row;
        for (Int q = 0; q < z.q; q++, from += window) {
          Int left = q * z.stride - z.pad_w;
          Inside inside(left, z.w, z.s);
          if (z.groups == 1)
            add_run(from + inside.first * depth, line + (left + inside.first) * z.c, (inside.end - inside.first) * depth);
          else
            for (Int s = inside.first; s < inside.end; s++) add_run(from + s * depth, line + (left + s) * z.c, depth);
        }
      }
      if (relu) for (Int e = 0; e < z.w * z.c; e++) line[e] = positive(line[e]);
    }
  });
}
