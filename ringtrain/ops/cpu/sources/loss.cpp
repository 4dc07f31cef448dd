// Softmax and its cross-entropy, row by row, and losses of values; exponentials and sums are in double.
#include "numbers.hpp"
#include "threads.hpp"

constexpr Int EXPONENTIALS = 2 * 1024;  // exponentials that are worth a thread

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

enum Kind { MSE, MAE, HUBER, BCE };
constexpr Int BLOCK = 1024;  // elements of one sum, and of a thread at the least

namespace {
struct Sums { double loss, correct, valid; };
struct Element { Eight loss, slope; };
}

INLINE Eight magnitude(Eight x) { return x < all(0) ? -x : x; }
INLINE Element element(Int kind, Eight x, Eight y, double delta) {
  Eight d = x - y, size = magnitude(d);
  if (kind == MSE) return {d * d, 2 * d};
  if (kind == MAE) return {size, d > all(0) ? all(1) : d < all(0) ? all(-1) : d};
  if (kind == HUBER) {
    Eight end = d > all(0) ? all(delta) : all(-delta);
    return {size > all(delta) ? delta * (size - delta / 2) : d * d / 2, size > all(delta) ? end : d};
  }
  y = ((y >= all(0)) & (y <= all(1))) ? y : all(NOT_A_NUMBER);
  Eight tail = exp(-magnitude(x)), more = 1 + tail;
  // log(1 + tail), also where 1 + tail loses most of a small tail. Source: Kahan, by Goldberg 1991, theorem 4
  Eight rest = more == all(1) ? tail : log(more) * (tail / (more == all(1) ? all(1) : more - 1));
  return {(x > all(0) ? x : x < all(0) ? all(0) : x) - x * y + rest, (x > all(0) ? all(1) : tail) / more - y};
}

template <class Label>
INLINE Sums value_block(Int kind, const Real* x, const Label* labels, Real* dx, Int count, double scale, double delta) {
  Eight loss = {}, correct = {}, valid = {};
  for (Int i = 0; i < count; i += 8) {
    Eight v = load_eight(x + i, count - i), y = load_eight(labels + i, count - i);
    Bits counts = {};
    for (Int j = 0; j < 8; j++) counts[j] = i + j < count && !(Label(0.5) == 0 && labels[i + j] == -1) ? -1 : 0;
    Element found = element(kind, v, y, delta);
    loss += counts ? found.loss : all(0);
    valid += counts ? all(1) : all(0);
    Bits same = ~((v > all(0)) ^ (y > all(0.5)));
    if (kind == BCE) correct += counts & same ? all(1) : all(0);
    if (dx) store_eight(dx + i, counts ? scale * found.slope : all(0), count - i);
  }
  return {sum_eight(loss), sum_eight(correct), sum_eight(valid)};
}

template <class Label>
INLINE void value_losses(Context* context, Int kind, const Real* x, const Label* labels, Real* dx, double* totals,
                         Int count, double scale, double delta) {
  Int blocks = (count + BLOCK - 1) / BLOCK;
  context->shared.rewind();
  Sums* found = context->shared.take<Sums>(blocks);
  context->parts(blocks, 1, [=](Int first, Int end, Workspace&) {
    for (Int b = first; b < end; b++) {
      Int from = b * BLOCK, here = count - from < BLOCK ? count - from : BLOCK;
      found[b] = value_block(kind, x + from, labels + from, dx ? dx + from : 0, here, scale, delta);
    }
  });
  for (Int b = 0; b < blocks; b++) {
    totals[0] += found[b].loss;
    totals[1] += found[b].correct;
    totals[2] += found[b].valid;
  }
}

// dx may be null.
KERNEL(value_loss)(Context* context, Int kind, const Real* x, const Real* labels, Real* dx, double* totals, Int count,
                   double scale, double delta) {
  value_losses(context, kind, x, labels, dx, totals, count, scale, delta);
}

// A label of -1 does not count.
KERNEL(value_loss_of_classes)(Context* context, Int kind, const Real* x, const int32_t* labels, Real* dx,
                              double* totals, Int count, double scale, double delta) {
  value_losses(context, kind, x, labels, dx, totals, count, scale, delta);
}
