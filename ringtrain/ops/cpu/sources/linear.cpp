// Fully connected layers, and products of matrices.
#include "gemm.hpp"

constexpr Int COLUMNS = 512, SUMMED = 32;

// dy = dy where y > 0, else 0.
static void mask(const Real* y, Real* dy, Int rows, Int step, Int columns) {
  for (Int i = 0; i < rows; i++, y += step, dy += step) {
    Int j = 0;
    for (; j + LANES <= columns; j += LANES) store(dy + j, load(y + j) > 0 ? load(dy + j) : (Vec){});
    for (; j < columns; j++) dy[j] = y[j] > 0 ? dy[j] : Real(0);
  }
}

// sums[columns] = sum of dy over rows, in order.
static void sum_few(const Real* dy, Real* sums, Int rows, Int step, Int columns) {
  constexpr Int WIDE = 4 * LANES;
  Int j = 0;
  for (; j + WIDE <= columns; j += WIDE) {
    Vec sum[4] = {};
    for (Int i = 0; i < rows; i++) UNROLL for (Int v = 0; v < 4; v++) sum[v] += load(dy + i * step + j + v * LANES);
    UNROLL for (Int v = 0; v < 4; v++) store(sums + j + v * LANES, sum[v]);
  }
  for (Int q = j; q < columns; q++) sums[q] = 0;
  for (Int i = 0; i < rows; i++) for (Int q = j; q < columns; q++) sums[q] += dy[i * step + q];
}

// db = sum of dy over rows, or += with `add`: SUMMED rows at a time, whose sums are added in double precision.
static void sum_rows(const Real* dy, Real* db, Int rows, Int step, Int columns, bool add) {
  Real sums[COLUMNS];
  double total[COLUMNS] = {};
  for (Int i = 0; i < rows; i += SUMMED) {
    sum_few(dy + i * step, sums, least(SUMMED, rows - i), step, columns);
    for (Int j = 0; j < columns; j++) total[j] += sums[j];
  }
  for (Int j = 0; j < columns; j++) db[j] = Real(add ? total[j] + db[j] : total[j]);
}

// y[n, k] = x[n, d] · w[d, k] + b, and max(·, 0) with relu; b may be null.
KERNEL(linear)(Context* context, const Real* x, const Real* w, const Real* b, Real* y, Int n, Int d, Int k, bool relu) {
  multiply(context, {matrix(x, d, false), matrix(w, k, false), y, k, n, k, d, false, b, relu});
}

// With relu dy is first made 0 where y is not positive, in place. Then dw = xᵀ · dy, db = sum of dy over rows and
// dx = dy · wᵀ; db and dx may be null. With accumulate dw and db are added to.
KERNEL(linear_back)(Context* context, const Real* x, const Real* w, const Real* y, Real* dy, Real* dw, Real* db, Real* dx,
                    Int n, Int d, Int k, bool relu, bool accumulate) {
  if (relu || db) context->parts(k, COLUMNS, [=](Int first, Int end, Workspace&) {
    for (Int j = first; j < end; j += COLUMNS) {
      Int columns = least(COLUMNS, end - j);
      if (relu) mask(y + j, dy + j, n, k, columns);
      if (db) sum_rows(dy + j, db + j, n, k, columns, accumulate);
    }
  });
  multiply(context, {matrix(x, d, true), matrix(dy, k, false), dw, k, d, k, n, accumulate, 0, false});
  if (dx) multiply(context, {matrix(dy, k, false), matrix(w, k, true), dx, d, n, d, k, false, 0, false});
}

// c[m, n] = a[m, k] · b[k, n], plus c with accumulate; transposed, a is [k, m] and b is [n, k].
KERNEL(product)(Context* context, const Real* a, const Real* b, Real* c, Int m, Int n, Int k, bool a_transposed,
                bool b_transposed, bool accumulate) {
  Matrix left = matrix(a, a_transposed ? m : k, a_transposed), right = matrix(b, b_transposed ? k : n, b_transposed);
  multiply(context, {left, right, c, n, m, n, k, accumulate, 0, false});
}
