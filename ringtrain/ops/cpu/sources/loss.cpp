// Softmax and its cross-entropy, row by row, with exponentials and sums in double.
#include "numbers.hpp"
#include "threads.hpp"

constexpr Int EXPONENTIALS = 2 * 1024;  // exponentials that are worth a thread

// The greatest of a row. A NaN may be passed over: it makes the sum of exponentials NaN.
INLINE double greatest_of(const Real* x, Int count) {
  Vec most = splat(x[0]);
  Int i = 0;
  for (; i + LANES <= count; i += LANES) { Vec v = load(x + i); most = v > most ? v : most; }
  Real greatest = most[0];
  for (Int lane = 1; lane < LANES; lane++) if (most[lane] > greatest) greatest = most[lane];
  for (; i < count; i++) if (x[i] > greatest) greatest = x[i];
  return greatest;
}

// e = exp(x - greatest), and their sum; e has room for whole eights.
INLINE double exponentials(const Real* x, double* e, Int count, double greatest) {
  Eight sum = {};
  for (Int i = 0; i < count; i += 8) {
    Eight v = exp(load_eight(x + i, count - i, -INFINITE) - all(greatest));
    store_eight(e + i, v, 8);
    sum += v;
  }
  return sum_eight(sum);
}

// Whether the label has the greatest of the row, and the first such; a NaN counts as greater than all numbers.
INLINE bool is_first_greatest(const Real* x, Int count, Int label) {
  Real v = x[label];
  bool first = true;
  for (Int i = 0; i < label; i++) first &= v == v ? x[i] < v : x[i] == x[i];
  for (Int i = label + 1; i < count; i++) first &= v == v ? x[i] <= v : true;
  return first;
}

KERNEL(softmax)(Context* context, const Real* x, Real* y, Int rows, Int classes) {
  context->parts(rows, parts_of(EXPONENTIALS, classes), [=](Int first, Int end, Workspace& space) {
    double* e = space.take<double>(up(classes, 8));
    for (Int row = first; row < end; row++) {
      const Real* from = x + row * classes;
      double inverse = 1 / exponentials(from, e, classes, greatest_of(from, classes));
      Real* to = y + row * classes;
      for (Int i = 0; i < classes; i += 8) store_eight(to + i, load_eight(e + i, 8) * inverse, classes - i);
    }
  });
}

namespace {
struct Row { double loss; bool counts, correct; };
}

// A label that is no class makes the loss NaN. dx may be null.
KERNEL(softmax_cross_entropy)(Context* context, const Real* x, const int32_t* labels, Real* dx, double* totals,
                              Int rows,
                              Int classes, double scale, double smoothing, Int ignore) {
  context->shared.rewind();
  Row* found = context->shared.take<Row>(rows);
  context->parts(rows, parts_of(EXPONENTIALS, classes), [=](Int first, Int end, Workspace& space) {
    double* e = space.take<double>(up(classes, 8));
    for (Int row = first; row < end; row++) {
      const Real* from = x + row * classes;
      Real* to = dx ? dx + row * classes : 0;
      Int label = labels[row];
      found[row] = {0, label != ignore, false};
      if (label == ignore) {
        if (to) memset(to, 0, classes * sizeof(Real));
        continue;
      }
      bool known = label >= 0 && label < classes;
      double share = known ? smoothing / classes : NOT_A_NUMBER, greatest = greatest_of(from, classes);
      double total = exponentials(from, e, classes, greatest), shift = log(total);
      double loss = known ? (1 - smoothing) * (shift - (from[label] - greatest)) : NOT_A_NUMBER;
      if (smoothing > 0) for (Int i = 0; i < classes; i++) loss += share * (shift - (from[i] - greatest));
      found[row].loss = loss;
      found[row].correct = known && !(from[label] < greatest) && is_first_greatest(from, classes, label);
      if (!to) continue;
      double inverse = 1 / total;
      for (Int i = 0; i < classes; i += 8) {
        store_eight(to + i, (load_eight(e + i, 8) * inverse - share) * scale, classes - i);
      }
      if (known) to[label] = Real((e[label] * inverse - share - (1 - smoothing)) * scale);
    }
  });
  for (Int row = 0; row < rows; row++) {
    if (!found[row].counts) continue;
    totals[0] += found[row].loss;
    totals[1] += found[row].correct;
    totals[2] += 1;
  }
}
