// Numbers in few bits, in blocks that have scales of their own, and whole numbers in as many bits as they need: see
// ops/levels.py. A block, or eight whole numbers, begin in a byte of their own: threads share no byte.
#include "threads.hpp"

constexpr Int BLOCK = 256, MOVES = 2, EIGHT = 8;

namespace {
struct Means { double sum[2] = {}, count[2] = {}; };
}

INLINE void pack_part(const int32_t* x, uint8_t* packed, Int count, Int width) {
  uint64_t bits = 0, mask = (uint64_t(1) << width) - 1;
  Int held = 0;
  for (Int i = 0; i < count; i++) {
    bits |= (uint32_t(x[i]) & mask) << held;
    for (held += width; held >= 8; held -= 8, bits >>= 8) *packed++ = bits;
  }
  if (held) *packed = bits;
}

INLINE void unpack_part(const uint8_t* packed, int32_t* x, Int count, Int width) {
  uint64_t bits = 0, mask = (uint64_t(1) << width) - 1;
  Int held = 0;
  for (Int i = 0; i < count; i++) {
    for (; held < width; held += 8) bits |= uint64_t(*packed++) << held;
    x[i] = bits & mask;
    bits >>= width;
    held -= width;
  }
}

// Calls with a width that the compiler knows, where that is worth it.
template <class Run> INLINE void with_width(Int width, Run run) {
  switch (width) {
    case 1: return run(1);
    case 2: return run(2);
    case 4: return run(4);
    case 8: return run(8);
    default: run(width);
  }
}

INLINE Real size_of(Real x) { return x < 0 ? -x : x; }

// Sums and numbers of the magnitudes up to an edge, and above it, of a block with zeros behind its elements: every
// eighth is added up, then these eight, as all implementations do.
INLINE Means sums_about(const Real* sizes, Real edge) {
  double sum[2][EIGHT] = {}, above[EIGHT] = {};
  for (Int i = 0; i < BLOCK; i += EIGHT) {
    UNROLL for (Int j = 0; j < EIGHT; j++) {
      Real size = sizes[i + j];
      bool larger = size > edge;
      sum[0][j] += larger ? Real(0) : size;
      sum[1][j] += larger ? size : Real(0);
      above[j] += larger;
    }
  }
  Means means;
  for (Int j = 0; j < EIGHT; j++) {
    means.sum[0] += sum[0][j];
    means.sum[1] += sum[1][j];
    means.count[1] += above[j];
  }
  return means;
}

// The codes of 1 or 2 bits of a block; scales of a block are `stride` apart.
INLINE void halves(const Real* x, Int count, int32_t* codes, Real* scales, Int stride, Int bits) {
  Real sizes[BLOCK] = {};
  for (Int i = 0; i < count; i++) sizes[i] = size_of(x[i]);
  Real mean = sums_about(sizes, __builtin_inf()).sum[0] / double(count);
  for (Int i = 0; i < count; i++) codes[i] = x[i] < 0;
  scales[0] = mean;
  if (bits == 1) return;
  Real edge = mean, next = mean;
  for (Int move = 0; move <= MOVES; move++) {
    edge = next;
    Means means = sums_about(sizes, edge);
    means.count[0] = count - means.count[1];
    for (Int h = 0; h < 2; h++) scales[h * stride] = means.count[h] ? Real(means.sum[h] / means.count[h]) : Real(0);
    next = (scales[0] + scales[stride]) / 2;
  }
  for (Int i = 0; i < count; i++) codes[i] |= int32_t(sizes[i] > edge) << 1;
}

// The codes of 3 to 8 bits of a block.
INLINE void steps(const Real* x, Int count, int32_t* codes, Real* scale, Int bits) {
  Int half = Int(1) << (bits - 1);
  Real top = half - 1, largest = 0;
  int32_t wrong = 0;
  for (Int i = 0; i < count; i++) {
    Real size = size_of(x[i]);
    largest = size > largest ? size : largest;
    wrong |= !(size - size == 0);
  }
  *scale = wrong ? Real(__builtin_nan("")) : largest / top;
  Real step = *scale > 0 ? *scale : Real(__builtin_inf());
  for (Int i = 0; i < count; i++) {
    Real code = sizeof(Real) == 4 ? Real(__builtin_rintf(x[i] / step)) : Real(__builtin_rint(x[i] / step));
    code = code > -top ? code : -top;  // also of a NaN
    codes[i] = int32_t(code < top ? code : top) + int32_t(half);
  }
}

// run(element's place in the block, its number)
template <class Run> INLINE void numbers(const int32_t* codes, Int count, const Real* scales, Int stride, Int bits, Run run) {
  if (bits > 2) {
    Real scale = scales[0];
    int32_t half = 1 << (bits - 1);
    for (Int i = 0; i < count; i++) run(i, Real(codes[i] - half) * scale);
    return;
  }
  Real low = scales[0], high = bits == 2 ? scales[stride] : low;
  for (Int i = 0; i < count; i++) {
    Real size = codes[i] & 2 ? high : low;
    run(i, codes[i] & 1 ? -size : size);
  }
}

KERNEL(take_levels)(Context* context, Real* x, Real* scales, uint8_t* packed, Int count, Int bits) {
  Int blocks = parts_of(count, BLOCK);
  context->parts(blocks, GRAIN / BLOCK, [=](Int first, Int end, Workspace&) {
    for (Int b = first; b < end; b++) {
      int32_t codes[BLOCK];
      Real* part = x + b * BLOCK;
      Int size = least(BLOCK, count - b * BLOCK);
      if (bits > 2) steps(part, size, codes, scales + b, bits);
      else halves(part, size, codes, scales + b, blocks, bits);
      numbers(codes, size, scales + b, blocks, bits, [=](Int i, Real number) { part[i] -= number; });
      with_width(bits, [&](Int width) { pack_part(codes, packed + b * BLOCK / 8 * width, size, width); });
    }
  });
}

KERNEL(add_levels)(Context* context, const Real* scales, const uint8_t* packed, Real* y, Int count, Int bits) {
  Int blocks = parts_of(count, BLOCK);
  context->parts(blocks, GRAIN / BLOCK, [=](Int first, Int end, Workspace&) {
    for (Int b = first; b < end; b++) {
      int32_t codes[BLOCK];
      Real* part = y + b * BLOCK;
      Int size = least(BLOCK, count - b * BLOCK);
      with_width(bits, [&](Int width) { unpack_part(packed + b * BLOCK / 8 * width, codes, size, width); });
      numbers(codes, size, scales + b, blocks, bits, [=](Int i, Real number) { part[i] += number; });
    }
  });
}

KERNEL(pack_bits)(Context* context, const int32_t* x, uint8_t* packed, Int count, Int width) {
  context->parts(parts_of(count, EIGHT), GRAIN / EIGHT, [=](Int first, Int end, Workspace&) {
    Int start = first * EIGHT;
    pack_part(x + start, packed + first * width, least(count, end * EIGHT) - start, width);
  });
}

// The i-th k whole numbers have i · 2^width added.
KERNEL(unpack_bits)(Context* context, const uint8_t* packed, int32_t* x, Int count, Int width, Int k) {
  context->parts(parts_of(count, EIGHT), GRAIN / EIGHT, [=](Int first, Int end, Workspace&) {
    Int start = first * EIGHT, stop = least(count, end * EIGHT);
    unpack_part(packed + first * width, x + start, stop - start, width);
    for (Int i = start; i < stop; i++) x[i] += int32_t(i / k << width);
  });
}
