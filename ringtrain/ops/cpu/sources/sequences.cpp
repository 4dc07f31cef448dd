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

// Rows of scores lie `wide` apart in a thread's workspace: whole vectors of any family, so that no row has a rest.
constexpr Int WHOLE_VECTOR = 16;

// to[count] = softmax(scale · row) over the first `count` elements, zeros after them, and so in `row`, which has `wide`.
INLINE void softmax_row(Real* row, Int count, Int wide, Real scale, Real* to, Int length) {
  for (Int i = count; i < wide; i++) row[i] = Real(-INFINITE);
  Vec most = load(row);
  for (Int i = LANES; i < wide; i += LANES) { Vec v = load(row + i); most = v > most ? v : most; }
  Real held[LANES];
  store(held, most);
  UNROLL for (Int half = LANES / 2; half; half /= 2) {
    UNROLL for (Int j = 0; j < half; j++) held[j] = held[j + half] > held[j] ? held[j + half] : held[j];
  }
  for (Int i = 0; i < wide; i += LANES) store(row + i, exp_of((load(row + i) - held[0]) * scale));
  Eight sum = {};
  for (Int i = 0; i < wide; i += 8) sum += load_eight(row + i, 8);
  Real inverse = Real(1 / sum_eight(sum));
  for (Int i = 0; i < wide; i += LANES) store(row + i, load(row + i) * inverse);
  memcpy(to, row, length * sizeof(Real));
}

// d = scale · p · (d - sum of p · d), row by row: from the gradient of p to that of the scores.
INLINE void softmax_back(const Real* p, Real* d, Int length, Int wide, double scale) {
  Int whole = length / 8 * 8, rest = length - whole;
  for (Int row = 0; row < length; row++, p += length, d += wide) {
    Eight sums = {}, last = {}, last_d = {};
    for (Int i = 0; i < whole; i += 8) sums += load_eight(p + i, 8) * load_eight(d + i, 8);
    if (rest) sums += (last = load_eight(p + whole, rest)) * (last_d = load_eight(d + whole, rest));
    double sum = sum_eight(sums);
    for (Int i = 0; i < whole; i += 8) store_eight(d + i, load_eight(p + i, 8) * (load_eight(d + i, 8) - sum) * scale, 8);
    if (rest) store_eight(d + whole, last * (last_d - sum) * scale, 8);  // `wide` has room for it
  }
}

INLINE void multiply_here(const Product& z, Workspace& space) { multiply_part(z, 0, z.m, 0, z.n, space); }
INLINE Int worth(Int length, Int width) { return parts_of(WORTH_A_THREAD, most(1, 2 * length * length * width)); }

KERNEL(attention)(Context* context, const Real* x, Real* y, Real* p, Int n, Int length, Int units, Int heads, bool causal) {
  Int width = units / heads, step = 3 * units, wide = up(length, WHOLE_VECTOR);
  Real scale = Real(1 / __builtin_sqrt(double(width)));
  context->parts(n * heads, worth(length, width), [=](Int first, Int end, Workspace& space) {
    for (Int i = first; i < end; i++) {
      space.rewind();
      const Real *q = x + i / heads * length * step + i % heads * width, *k = q + units, *v = k + units;
      Real *own = p + i * length * length, *out = y + i / heads * length * units + i % heads * width;
      Real* scores = space.take<Real>(length * wide);
      Matrix query = matrix(q, step, false), keys = matrix(k, step, true), values = matrix(v, step, false);
      multiply_here({query, keys, scores, wide, length, length, width, false, 0, false}, space);
      for (Int row = 0; row < length; row++)
        softmax_row(scores + row * wide, causal ? row + 1 : length, wide, scale, own + row * length, length);
      multiply_here({matrix(scores, wide, false), values, out, units, length, width, length, false, 0, false}, space);
    }
  });
}

KERNEL(attention_back)(Context* context, const Real* x, const Real* p, const Real* dy, Real* dx, Int n, Int length,
                       Int units, Int heads) {
  Int width = units / heads, step = 3 * units, wide = up(length, WHOLE_VECTOR);
  double scale = 1 / __builtin_sqrt(double(width));
  context->parts(n * heads, worth(length, width), [=](Int first, Int end, Workspace& space) {
    for (Int i = first; i < end; i++) {
      space.rewind();
      Int at = i / heads * length * step + i % heads * width;
      const Real *q = x + at, *k = q + units, *v = k + units, *own = p + i * length * length;
      const Real* d = dy + i / heads * length * units + i % heads * width;
      Real *dq = dx + at, *dk = dq + units, *dv = dk + units, *ds = space.take<Real>(length * wide);
      Matrix slopes = matrix(d, units, false), values = matrix(v, step, true);
      multiply_here({slopes, values, ds, wide, length, length, width, false, 0, false}, space);
      softmax_back(own, ds, length, wide, scale);
      multiply_here({matrix(ds, wide, false), matrix(k, step, false), dq, step, length, width, length, false, 0, false}, space);
      multiply_here({matrix(ds, wide, true), matrix(q, step, false), dk, step, length, width, length, false, 0, false}, space);
      multiply_here({matrix(own, length, true), slopes, dv, step, length, width, length, false, 0, false}, space);
    }
  });
}
