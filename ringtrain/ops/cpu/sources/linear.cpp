// Fully connected layers, and products of matrices.
#include "gemm.hpp"

constexpr Int COLUMNS = 512, SUMMED = 32;

// dy = dy where y > 0, else 0, unless y is null; sums[columns] = sum of dy over rows, in order: both as a row is read.
static void mask_and_sum(const Real* y, Real* dy, Real* sums, Int rows, Int step, Int columns) {
  memset(sums, 0, columns * sizeof(Real));
  for (Int i = 0; i < rows; i++, y += y ? step : 0, dy += step) {
    Int j = 0;
    for (; j + LANES <= columns; j += LANES) {
      Vec v = load(dy + j);
      if (y) store(dy + j, v = load(y + j) > 0 ? v : (Vec){});
      store(sums + j, load(sums + j) + v);
    }
    for (; j < columns; j++) sums[j] += dy[j] = y && !(y[j] > 0) ? Real(0) : dy[j];
  }
}

// The same, and db = the sums, or += with `add`, unless it is null: those of SUMMED rows at a time are added in double
// precision.
static void mask_and_sum(const Real* y, Real* dy, Real* db, Int rows, Int step, Int columns, bool add) {
  Real sums[COLUMNS];
  double total[COLUMNS] = {};
  for (Int i = 0; i < rows; i += SUMMED) {
    mask_and_sum(y ? y + i * step : 0, dy + i * step, sums, least(SUMMED, rows - i), step, columns);
    for (Int j = 0; j < columns; j++) total[j] += sums[j];
  }
  if (db) for (Int j = 0; j < columns; j++) db[j] = Real(add ? total[j] + db[j] : total[j]);
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
      mask_and_sum(relu ? y + j : 0, dy + j, db ? db + j : 0, n, k, least(COLUMNS, end - j), accumulate);
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
