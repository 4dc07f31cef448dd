// Columns at right angles, by modified Gram-Schmidt in double precision.
#include "threads.hpp"

constexpr Int DOTS = 16;  // sums of a scalar product, which are added in order
// A column of which no more than 16 roundings is left has no direction of its own.
constexpr double NOTHING_LEFT = 16 * (sizeof(Real) == 4 ? 0x1p-23 : 0x1p-52);
constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

INLINE uint64_t scramble(uint64_t state) {
  state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
  state = (state ^ state >> 27) * 0x94D049BB133111EBu;
  return state ^ state >> 31;
}

// Numbers from -1 to 1 of column r, by the arithmetic of ringtrain.ops.keys.
static void draw(double* x, Int count, Int r) {
  uint64_t row = scramble(scramble(GOLDEN + uint64_t(r)) + GOLDEN);
  for (Int i = 0; i < count; i++) x[i] = double(scramble(row + GOLDEN + uint64_t(i)) >> 40) * 0x1p-23 - 1;
}

static double dot(const double* a, const double* b, Int count) {
  double sums[DOTS] = {}, total = 0;
  Int i = 0;
  for (; i + DOTS <= count; i += DOTS) UNROLL for (Int j = 0; j < DOTS; j++) sums[j] = fma(a[i + j], b[i + j], sums[j]);
  for (Int j = 0; i + j < count; j++) sums[j] = fma(a[i + j], b[i + j], sums[j]);
  for (double sum : sums) total += sum;
  return total;
}
static double length(const double* x, Int count) { return __builtin_sqrt(dot(x, x, count)); }

// Take from column r what lies along those before; columns lie one behind the other.
static void project(double* columns, Int count, Int r) {
  double* x = columns + r * count;
  for (const double* before = columns; before < x; before += count) {
    double along = dot(before, x, count);
    for (Int i = 0; i < count; i++) x[i] = fma(-along, before[i], x[i]);
  }
}

// x[m, r]: its columns become orthonormal ones with the same span; one within the span of those before is drawn.
KERNEL(orthonormalise)(Context* context, Real* x, Int m, Int r) {
  context->shared.rewind();
  double* columns = context->shared.take<double>(m * r);
  for (Int i = 0; i < m; i++) for (Int j = 0; j < r; j++) columns[j * m + i] = x[i * r + j];
  for (Int j = 0; j < r; j++) {
    double *column = columns + j * m, whole = length(column, m);
    project(columns, m, j);
    if (length(column, m) <= NOTHING_LEFT * whole) {
      draw(column, m, j);
      project(columns, m, j);
    }
    project(columns, m, j);
    double left = length(column, m);
    for (Int i = 0; i < m; i++) column[i] /= left;
  }
  for (Int i = 0; i < m; i++) for (Int j = 0; j < r; j++) x[i * r + j] = Real(columns[j * m + i]);
}
