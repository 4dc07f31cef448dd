// Sums over a flat span, whose order does not depend on threads.
#include "threads.hpp"

constexpr Int SUMS = 64;          // element i is added in sum i mod SUMS
constexpr Int SHARE = 16;         // sums that are worth a thread: a cache line of float
constexpr Int WIDE = VECTOR_BYTES / 8;
typedef Real Narrow __attribute__((vector_size(WIDE * sizeof(Real)), aligned(sizeof(Real)), may_alias));
typedef double Wide __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));

// Adds the squares of `Count` neighbouring elements to as many sums, and of those SUMS elements further on, `rows` times.
template <Int Count> APART void add_squares(const Real* x, Int rows, double* sums) {
  Wide sum[Count / WIDE];
  UNROLL for (Int j = 0; j < Count / WIDE; j++) sum[j] = *(Wide*)(sums + j * WIDE);
  for (Int r = 0; r < rows; r++, x += SUMS) {
    UNROLL for (Int j = 0; j < Count / WIDE; j++) {
      Wide v = __builtin_convertvector(*(const Narrow*)(x + j * WIDE), Wide);
      sum[j] += v * v;
    }
  }
  UNROLL for (Int j = 0; j < Count / WIDE; j++) *(Wide*)(sums + j * WIDE) = sum[j];
}

// The sums are added one after another. Threads have some of the sums each, over all elements.
KERNEL(square_sum)(Context* context, const Real* x, Int count, double* total) {
  double sums[SUMS] = {};
  Int rows = count / SUMS;
  context->parts(SUMS, count < GRAIN ? SUMS : SHARE, [=, &sums](Int first, Int end, Workspace&) {
    if (end - first == SUMS) add_squares<SUMS>(x, rows, sums);
    else for (Int s = first; s < end; s += SHARE) add_squares<SHARE>(x + s, rows, sums + s);
  });
  for (Int i = rows * SUMS; i < count; i++) sums[i % SUMS] += double(x[i]) * double(x[i]);
  double sum = 0;
  for (Int j = 0; j < SUMS; j++) sum += sums[j];
  *total = sum;
}

// How many are NaN or infinite: what minus itself is not 0.
KERNEL(nonfinite)(Context* context, const Real* x, Int count, Int* total) {
  *total = 0;
  context->parts(count, GRAIN, [=](Int first, Int end, Workspace&) {
    Int found = 0;
    for (Int i = first; i < end; i += GRAIN) {
      int here = 0;
      for (Int j = i; j < least(i + GRAIN, end); j++) here += x[j] - x[j] != 0;
      found += here;
    }
    __atomic_add_fetch(total, found, __ATOMIC_RELAXED);
  });
}
