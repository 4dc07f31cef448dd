// The k largest magnitudes of an array, exactly, in one pass over it and some over few elements.
//
// Without its sign, a floating-point number's bits are a whole number that grows with it. A sample guesses an edge that
// a few more than k elements reach; the pass writes down where they are. If they are fewer, all elements are written
// down. Among them the counts of leading bits say, from the top, which the k-th largest has; then the next bits are
// counted, and so on to the last: what is larger than the k-th is taken, and of its equals the first ones. So a guess
// costs time at worst.
#include "threads.hpp"

constexpr Int BITS = 11;  // counted at once: the exponent of double, exponent and 3 bits more of float
constexpr Int BINS = 1 << BITS;
constexpr Int SAMPLE = 8 * 1024;  // elements, about
constexpr Int CHUNK = 16 * 1024;  // elements that are worth a thread

namespace {
template <class T> struct WholeOf { typedef int32_t Type; };
template <> struct WholeOf<double> { typedef int64_t Type; };
}
typedef WholeOf<Real>::Type __attribute__((may_alias)) Whole;
typedef Whole Wholes __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(Real)), may_alias));
typedef Int Words __attribute__((vector_size(VECTOR_BYTES)));
constexpr Int WIDTH = 8 * sizeof(Real) - 1;  // bits of a magnitude
constexpr Whole MAGNITUDE = ~(Whole(1) << WIDTH);

// The bin of the k-th largest; `k` becomes its place in there.
INLINE Whole bin_of(const Int* counts, Int& k) {
  Int bin = BINS - 1;
  for (; bin > 0 && counts[bin] < k; bin--) k -= counts[bin];
  return bin;
}

// Leading bits, and zeros, of a magnitude that probably k elements reach, and not many more.
APART Whole guess(const Whole* x, Int count, Int k, Int* counts) {
  memset(counts, 0, BINS * sizeof(Int));
  Int step = (count / SAMPLE) | 1, sampled = parts_of(count, step);
  for (Int i = 0; i < count; i += step) counts[(x[i] & MAGNITUDE) >> (WIDTH - BITS)]++;
  double expected = double(k) / count * sampled;
  Int wanted = expected + 3 * __builtin_sqrt(expected) + 2;
  return bin_of(counts, wanted) << (WIDTH - BITS);
}

INLINE bool any(Wholes mask) {
  Words words = (Words)mask;
  Int all = 0;
  UNROLL for (Int j = 0; j < VECTOR_BYTES / 8; j++) all |= words[j];
  return all;
}

// Writes down magnitudes of at least `edge`, and where they are, without a branch: first which vectors have any; how many.
APART Int collect(const Whole* x, Int first, Int end, Whole edge, int32_t* places, Whole* reached) {
  int32_t hits[CHUNK / LANES + 1];
  Int hit = 0, found = 0, i = first;
  for (; i + LANES <= end; i += LANES) {
    hits[hit] = i;
    hit += any((*(const Wholes*)(x + i) & MAGNITUDE) >= edge);
  }
  if (i < end) hits[hit++] = i;
  for (Int h = 0; h < hit; h++) {
    for (Int j = hits[h]; j < least(hits[h] + LANES, end); j++) {
      Whole m = x[j] & MAGNITUDE;
      places[found] = j;
      reached[found] = m;
      found += m >= edge;
    }
  }
  return found;
}

// The k-th largest of the magnitudes; k: how many of its equals count.
APART Whole kth(const Whole* m, Int found, Int& k, Int* counts) {
  Whole leading = 0;
  for (Int shift = WIDTH; shift > 0; ) {
    Int step = least(shift, BITS);
    memset(counts, 0, BINS * sizeof(Int));
    for (Int j = 0; j < found; j++)
      if (m[j] >> shift == leading) counts[m[j] >> (shift - step) & ((1 << step) - 1)]++;
    leading = leading << step | bin_of(counts, k);
    shift -= step;
  }
  return leading;
}

// Moves the k largest of each chunk, and as many in proportion of the last one.
APART void take_from_chunks(Context* context, Real* x, Real* values, int32_t* indices, Int count, Int k, Int chunk) {
  context->parts(parts_of(count, chunk), 1, [=](Int first, Int end, Workspace& space) {
    space.rewind();
    Int* counts = space.take<Int>(BINS);
    Whole* sizes = space.take<Whole>(chunk);
    for (Int c = first; c < end; c++) {
      Int start = c * chunk, size = least(chunk, count - start), wanted = parts_of(size * k, chunk), equals = wanted;
      for (Int j = 0; j < size; j++) sizes[j] = ((const Whole*)x)[start + j] & MAGNITUDE;
      Whole edge = kth(sizes, size, equals, counts);
      for (Int j = 0, at = c * k; at < c * k + wanted; j++) {
        if (sizes[j] < edge || (sizes[j] == edge && equals-- <= 0)) continue;
        indices[at] = start + j;
        values[at++] = x[start + j];
        x[start + j] = 0;
      }
    }
  });
}

// Moves the k largest, of all or of each chunk, to (values, indices), in order, and leaves 0.
KERNEL(take_largest)(Context* context, Real* x, Real* values, int32_t* indices, Int count, Int k, Int chunk) {
  if (k == 0) return;
  if (chunk) return take_from_chunks(context, x, values, indices, count, k, chunk);
  Workspace& space = context->shared;
  space.rewind();
  Int chunks = parts_of(count, CHUNK), *counts = space.take<Int>(BINS), *found = space.take<Int>(chunks);
  int32_t* places = space.take<int32_t>(count);
  Whole *reached = space.take<Whole>(count), *bits = (Whole*)x;
  Whole edge = guess(bits, count, k, counts);
  Int all = 0;
  for (; all < k; edge = 0) {
    context->parts(chunks, 1, [=](Int first, Int end, Workspace&) {
      for (Int c = first, at = c * CHUNK; c < end; c++, at += CHUNK)
        found[c] = collect(bits, at, least(count, at + CHUNK), edge, places + at, reached + at);
    });
    all = 0;
    for (Int c = 0; c < chunks; all += found[c++]) {
      memmove(places + all, places + c * CHUNK, found[c] * sizeof(*places));
      memmove(reached + all, reached + c * CHUNK, found[c] * sizeof(*reached));
    }
  }
  Int equals = k;
  edge = kth(reached, all, equals, counts);
  for (Int j = 0, kept = 0; kept < k; j++) {
    if (reached[j] < edge || (reached[j] == edge && equals-- <= 0)) continue;
    indices[kept] = places[j];
    values[kept++] = x[places[j]];
    x[places[j]] = 0;
  }
}

KERNEL(add_pairs)(const Real* values, const int32_t* indices, Real* y, Int k) {
  for (Int j = 0; j < k; j++) y[indices[j]] += values[j];
}
