// Layers of sequences: embedding, what is added to each example, and attention.
#include "curves.hpp"
#include "gemm.hpp"

// ── embedding ────────────────────────────────────────────────────────────────────────────────────────────────────────
// The entry that a number names; -1 if it names none.
INLINE Int entry_of(Real x, Int entries) {
  Int entry = x >= 0 && x < Real(entries) ? Int(x) : -1;
  return Real(entry) == x ? entry : -1;
}

// y[row] = w[x[row]]: NaN where there is no such entry.
KERNEL(embedding)(Context* context, const Real* x, const Real* w, Real* y, Int rows, Int entries, Int units) {
  context->parts(rows, parts_of(GRAIN, units), [=](Int first, Int end, Workspace&) {
    for (Int row = first; row < end; row++) {
      Int entry = entry_of(x[row], entries);
      if (entry >= 0) memcpy(y + row * units, w + entry * units, units * sizeof(Real));
      else for (Int i = 0; i < units; i++) y[row * units + i] = Real(NOT_A_NUMBER);
    }
  });
}

// dw[x[row]] += dy[row], row by row: a thread has some of the columns. Without accumulate dw starts at zero.
KERNEL(embedding_back)(Context* context, const Real* x, const Real* dy, Real* dw, Int rows, Int entries, Int units,
                       bool accumulate) {
  constexpr Int WIDE = 64;
  context->parts(parts_of(units, WIDE), parts_of(GRAIN, most(1, rows * WIDE)), [=](Int first, Int end, Workspace&) {
    Int from = first * WIDE, to = least(units, end * WIDE);
    if (!accumulate) for (Int v = 0; v < entries; v++) memset(dw + v * units + from, 0, (to - from) * sizeof(Real));
    for (Int row = 0; row < rows; row++) {
      Int entry = entry_of(x[row], entries);
      if (entry < 0) continue;
      Real* sum = dw + entry * units;
      each_vector(from, to, [=](Int i, Int n) {
        store_up_to(sum + i, load_up_to(sum + i, n) + load_up_to(dy + row * units + i, n), n);
      });
    }
  });
}

// y = x + b, the same for each row.
KERNEL(add_bias)(Context* context, const Real* x, const Real* b, Real* y, Int rows, Int columns) {
  context->parts(rows, parts_of(GRAIN, columns), [=](Int first, Int end, Workspace&) {
    for (Int row = first * columns; row < end * columns; row += columns) {
      each_vector(0, columns, [=](Int i, Int n) { store_up_to(y + row + i, load_up_to(x + row + i, n) + load_up_to(b + i, n), n); });
    }
  });
}

// ── attention ────────────────────────────────────────────────────────────────────────────────────────────────────────
// x is [n, length, 3 units]: queries, keys and values, of each head some columns. p is [n, heads, length, length].
// One head of one example at a time: its products are of this thread alone.

// row = softmax(scale · row) over its first `count` elements, zeros after them.
INLINE void softmax_row(Real* row, Int count, Int length, Real scale) {
  Real greatest = Real(greatest_of(row, count));
  each_vector(0, count, [=](Int i, Int n) {
    store_up_to(row + i, exp_of((load_up_to(row + i, n) - greatest) * scale), n);
  });
  Eight sum = {};
  for (Int i = 0; i < count; i += 8) sum += load_eight(row + i, count - i);
  Real inverse = Real(1 / sum_eight(sum));
  each_vector(0, count, [=](Int i, Int n) { store_up_to(row + i, load_up_to(row + i, n) * inverse, n); });
  memset(row + count, 0, (length - count) * sizeof(Real));
}

// d = scale · p · (d - sum of p · d), row by row: from the gradient of p to that of the scores.
INLINE void softmax_back(const Real* p, Real* d, Int length, double scale) {
  for (Int row = 0; row < length; row++, p += length, d += length) {
    Eight sums = {};
    for (Int i = 0; i < length; i += 8) sums += load_eight(p + i, length - i) * load_eight(d + i, length - i);
    double sum = sum_eight(sums);
    for (Int i = 0; i < length; i += 8) {
      store_eight(d + i, load_eight(p + i, length - i) * (load_eight(d + i, length - i) - sum) * scale, length - i);
    }
  }
}

INLINE void multiply_here(const Product& z, Workspace& space) { multiply_part(z, 0, z.m, 0, z.n, space); }
INLINE Int worth(Int length, Int width) { return parts_of(WORTH_A_THREAD, most(1, 2 * length * length * width)); }

KERNEL(attention)(Context* context, const Real* x, Real* y, Real* p, Int n, Int length, Int units, Int heads, bool causal) {
  Int width = units / heads, step = 3 * units;
  Real scale = Real(1 / __builtin_sqrt(double(width)));
  context->parts(n * heads, worth(length, width), [=](Int first, Int end, Workspace& space) {
    for (Int i = first; i < end; i++) {
      space.rewind();
      const Real *q = x + i / heads * length * step + i % heads * width, *k = q + units, *v = k + units;
      Real *own = p + i * length * length, *out = y + i / heads * length * units + i % heads * width;
      Matrix query = matrix(q, step, false), keys = matrix(k, step, true), values = matrix(v, step, false);
      multiply_here({query, keys, own, length, length, length, width, false, 0, false}, space);
      for (Int row = 0; row < length; row++) softmax_row(own + row * length, causal ? row + 1 : length, length, scale);
      multiply_here({matrix(own, length, false), values, out, units, length, width, length, false, 0, false}, space);
    }
  });
}

KERNEL(attention_back)(Context* context, const Real* x, const Real* p, const Real* dy, Real* dx, Int n, Int length,
                       Int units, Int heads) {
  Int width = units / heads, step = 3 * units;
  double scale = 1 / __builtin_sqrt(double(width));
  context->parts(n * heads, worth(length, width), [=](Int first, Int end, Workspace& space) {
    for (Int i = first; i < end; i++) {
      space.rewind();
      Int at = i / heads * length * step + i % heads * width;
      const Real *q = x + at, *k = q + units, *v = k + units, *own = p + i * length * length;
      const Real* d = dy + i / heads * length * units + i % heads * width;
      Real *dq = dx + at, *dk = dq + units, *dv = dk + units, *ds = space.take<Real>(length * length);
      Matrix slopes = matrix(d, units, false), values = matrix(v, step, true);
      multiply_here({slopes, values, ds, length, length, length, width, false, 0, false}, space);
      softmax_back(own, ds, length, scale);
      multiply_here({matrix(ds, length, false), matrix(k, step, false), dq, step, length, width, length, false, 0, false}, space);
      multiply_here({matrix(ds, length, true), matrix(q, step, false), dk, step, length, width, length, false, 0, false}, space);
      multiply_here({matrix(own, length, true), slopes, dv, step, length, width, length, false, 0, false}, space);
    }
  });
}
