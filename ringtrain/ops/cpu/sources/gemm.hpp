// Matrix products: c = a · b, each matrix plain or transposed, with bias and ReLU on the way out.
//
//     blocks of rows, whose part of a fits the L2 cache
//       blocks of DEPTH of the sum: a is packed
//         groups of panels of b that fit L1: packed while the first strip of rows reads them
//           strips of MR rows, tiles of MR x PANEL sums in registers
//
// An element of c is summed in order within a block of DEPTH, and the blocks' sums are added in order: tiles, panels
// and threads decide nothing. Source: Goto & van de Geijn 2008; Van Zee & van de Geijn 2015.
#pragma once
#include "products.hpp"
#include "threads.hpp"

constexpr Int DEPTH = 256, LINE = 64 / Int(sizeof(Real));
constexpr Int A_IN_L2 = 192 * 1024 / Int(sizeof(Real)), B_IN_L1 = 16 * 1024 / Int(sizeof(Real));  // elements
constexpr Int WORTH_A_THREAD = 256 * 1024;                                                        // multiply-adds
// A product is turned where b is transposed and c has at most so many rows, over a sum of at least so many elements.
constexpr Int MOST_TURNED = 256, LEAST_TURNED = 32, TURNED_ROWS = 96;

// Element (i, j) is at[i * row + j * column]; one of the steps is 1.
namespace {
struct Matrix {
  const Real* at;
  Int row, column;
  const Real* from(Int i, Int j) const { return at + i * row + j * column; }
};
}
// `step`: elements from one line in memory to the next.
INLINE Matrix matrix(const Real* at, Int step, bool transposed) {
  return transposed ? Matrix{at, 1, step} : Matrix{at, step, 1};
}

// c[m, n] = a[m, k] · b[k, n], plus c with `add`, plus bias[n] unless null, and max(·, 0) with `relu`.
namespace {
struct Product {
  Matrix a, b;
  Real* c;
  Int c_step, m, n, k;
  bool add;
  const Real* bias;
  bool relu;
};
}

// ── tiles ────────────────────────────────────────────────────────────────────────────────────────────────────────────
// Some rows of c: rows of a times panels of b, [depth, PANEL] each, one behind the other. With `copy` b lies where it
// was given, and these panels are made there.
namespace {
struct Strip {
  const Real* a;
  Int a_row, a_column;
  const Real* b;
  Int b_row, depth;
  Real* copy;
  const Real* ahead;  // is read soon: a line for each `every` rows of b
  Int ahead_step, every;
  Real* c;
  Int c_step, columns;
  bool add;
  const Real* bias;
  bool relu;
};
}

template <int M, int V, bool COPY> INLINE void sum_tile(Strip& s, const Real* b, Real* copy, Vec (&sum)[M][V]) {
  constexpr int TRIPLES = (M + 2) / 3;
  const Real *at[TRIPLES], *ahead = s.ahead;
  Int row = s.a_row, column = s.a_column, step = COPY ? s.b_row : PANEL, ahead_step = s.ahead_step;
  Int depth = s.depth, every = s.every;
  UNROLL for (int g = 0; g < TRIPLES; g++) { at[g] = s.a + g * 3 * row; asm("" : "+r"(at[g])); }
  for (Int p = 0; p < depth; ahead += ahead_step) {
    __builtin_prefetch(ahead, 0, 2);
    for (Int stop = least(depth, p + every); p < stop; p++, b += step) {
      Vec f[V];
      UNROLL for (int v = 0; v < V; v++) f[v] = load(b + v * LANES);
      if (COPY) { UNROLL for (int v = 0; v < V; v++) store(copy + v * LANES, f[v]); copy += PANEL; }
      UNROLL for (int m = 0; m < M; m++) {
        Vec a = splat(at[m / 3][m % 3 * row]);
        UNROLL for (int v = 0; v < V; v++) sum[m][v] = fma(a, f[v], sum[m][v]);
      }
      UNROLL for (int g = 0; g < TRIPLES; g++) at[g] += column;
    }
  }
  s.ahead = ahead;
}

template <int M, int V, bool COPY>
INLINE void do_tile(Strip& s, const Real* b, Real* copy, Real* c, Int c_step, const Real* bias) {
  Vec sum[M][V] = {};
  UNROLL for (int m = 0; m < M; m++) __builtin_prefetch(c + m * c_step, 1);
  sum_tile<M, V, COPY>(s, b, copy, sum);
  UNROLL for (int m = 0; m < M; m++) UNROLL for (int v = 0; v < V; v++) {
    Real* to = c + m * c_step + v * LANES;
    Vec y = sum[m][v];
    if (s.add) y = load(to) + y;
    if (bias) y += load(bias + v * LANES);
    store(to, s.relu ? positive(y) : y);
  }
}

APART void copy_rows(const Real* from, Int step, Real* to, Int to_step, Int rows, Int columns) {
  for (Int i = 0; i < rows; i++, from += step, to += to_step) {
    Int j = 0;
    for (; j + LANES <= columns; j += LANES) store(to + j, load(from + j));
    for (; j < columns; j++) to[j] = from[j];
  }
}

// The last columns, of which there are fewer than a panel has.
template <int M, int V> INLINE void do_edge(Strip& s, const Real* b, Real* c, Int columns, const Real* bias) {
  Real edge[M * PANEL] = {}, edge_bias[PANEL] = {};
  if (s.add) copy_rows(c, s.c_step, edge, PANEL, M, columns);
  if (bias) copy_rows(bias, 0, edge_bias, 0, 1, columns);
  do_tile<M, V, false>(s, b, 0, edge, PANEL, bias ? edge_bias : 0);
  copy_rows(edge, PANEL, c, s.c_step, M, columns);
}

template <int M> APART void do_strip(Strip& s) {
  const Real *b = s.b, *bias = s.bias;
  Real *c = s.c, *end = c + s.columns / PANEL * PANEL;
  Int panel = PANEL * s.depth, left = s.columns % PANEL;
  if (s.copy) {
    for (Real* copy = s.copy; c < end; c += PANEL, b += PANEL, copy += panel, bias += bias ? PANEL : 0)
      do_tile<M, NV, true>(s, b, copy, c, s.c_step, bias);
    return;
  }
  for (; c < end; c += PANEL, b += panel, bias += bias ? PANEL : 0) do_tile<M, NV, false>(s, b, 0, c, s.c_step, bias);
  if (left > LANES) do_edge<M, NV>(s, b, c, left, bias);
  else if (left) do_edge<M, 1>(s, b, c, left, bias);
}

static void do_rows(Int rows, Strip s) {
#define STRIP(M) case M: return do_strip<M <= MR ? M : 1>(s);
  switch (rows) {
    STRIP(1) STRIP(2) STRIP(3) STRIP(4) STRIP(5) STRIP(6) STRIP(7) STRIP(8) STRIP(9) STRIP(10) STRIP(11) STRIP(12)
  }
#undef STRIP
}

// ── packing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
#if defined(__clang__)
namespace {
template <int... J> struct Lanes {};
template <int N, int... J> struct UpTo : UpTo<N - 1, N - 1, J...> {};
template <int... J> struct UpTo<0, J...> { typedef Lanes<J...> type; };
}
template <int S, int... J> INLINE void exchange(Vec& a, Vec& b, Lanes<J...>) {
  Vec low = __builtin_shufflevector(a, b, (J & S ? LANES + J - S : J)...);
  b = __builtin_shufflevector(a, b, (J & S ? LANES + J : J + S)...);
  a = low;
}
#endif
// Lanes of a whose number has the bit S change places with those of b whose number has not.
template <int S> INLINE void exchange(Vec& a, Vec& b) {
#if defined(__clang__)  // which makes poor code of single elements
  exchange<S>(a, b, typename UpTo<LANES>::type());
#else
  Vec low, high;
  UNROLL for (Int j = 0; j < LANES; j++) {
    low[j] = j & S ? b[(j - S) & (LANES - 1)] : a[j];
    high[j] = j & S ? b[j] : a[(j + S) & (LANES - 1)];
  }
  a = low;
  b = high;
#endif
}

// LANES rows of LANES elements become columns. Source: Eklundh 1972.
template <int S = LANES / 2> INLINE void transpose(Vec (&r)[LANES]) {
  UNROLL for (Int i = 0; i < LANES; i++) if (!(i & S)) exchange<S>(r[i], r[i + S]);
  if constexpr (S > 1) transpose<S / 2>(r);
}

// to[depth, PANEL] = `count` columns of b, and zeros.
static void pack_panel(const Matrix& b, const Real* from, Int depth, Int count, Real* to) {
  if (b.column == 1) {
    if (count < PANEL) memset(to, 0, depth * PANEL * sizeof(Real));
    copy_rows(from, b.row, to, PANEL, depth, count);
    return;
  }
  for (int v = 0; v < NV; v++, count -= LANES, from += LANES * b.column, to += LANES) {
    Int p = 0;
    if (count >= LANES) for (; p + LANES <= depth; p += LANES) {
      Vec r[LANES];
      UNROLL for (Int j = 0; j < LANES; j++) r[j] = load(from + j * b.column + p);
      transpose(r);
      UNROLL for (Int j = 0; j < LANES; j++) store(to + (p + j) * PANEL, r[j]);
    }
    for (; p < depth; p++) for (Int j = 0; j < LANES; j++) to[p * PANEL + j] = j < count ? from[j * b.column + p] : 0;
  }
}

// Rows as strips of nearly equal height.
namespace {
struct Strips {
  Int rows, count, each, more;
  Strips(Int rows) : rows(rows), count(parts_of(rows, MR)), each(rows / most(1, count)), more(rows % most(1, count)) {}
  Int first(Int i) const { return i * each + least(i, more); }
  Int height(Int i) const { return each + (i < more); }
};
}

constexpr Int A_VECTORS = (MR + LANES - 1) / LANES;

// A block of a: a plain one is copied row by row, a transposed one strip by strip, [depth, MR] each; or, without
// memory for it, it stays as it is.
namespace {
struct PackedA {
  const Real* at;
  Int row, column, strip;  // strip: elements from one to the next, where it is not known by its first row

  PackedA(const Matrix& a, const Real* from, const Strips& strips, Int depth, Real* to) {
    if (!to) *this = {from, a.row, a.column, 0};
    else if (a.column == 1) {
      for (Int i = 0; i < strips.rows; i++) memcpy(to + i * depth, from + i * a.row, depth * sizeof(Real));
      *this = {to, depth, 1, 0};
    } else {
      *this = {to, 1, MR, depth * MR};
      for (Int i = 0; i < strips.count; i++) pack_strip(a, from, strips, i, depth, to + i * strip);
    }
  }
  const Real* from(const Strips& strips, Int i) const { return at + (strip ? i * strip : strips.first(i) * row); }

 private:
  PackedA(const Real* at, Int row, Int column, Int strip) : at(at), row(row), column(column), strip(strip) {}
  static void pack_strip(const Matrix& a, const Real* from, const Strips& strips, Int i, Int depth, Real* to) {
    Int first = strips.first(i);
    from += first;
    if (first + A_VECTORS * LANES > strips.rows) { copy_rows(from, a.column, to, MR, depth, strips.height(i)); return; }
    for (Int p = 0; p < depth; p++, from += a.column, to += MR)  // what is too much is overwritten
      UNROLL for (Int v = 0; v < A_VECTORS; v++) store(to + v * LANES, load(from + v * LANES));
  }
};
}

// ── products ─────────────────────────────────────────────────────────────────────────────────────────────────────────
// One group of panels of b, columns first … end, and rows p … p + depth.
namespace {
struct Group { Int p, depth, first, end; };
}

// Make the panels of a group, except for whole ones of a plain b, which the first strip packs as it reads them.
INLINE Int pack_group(const Product& z, const Group& g, bool read, Real* panels) {
  Int columns = g.end - g.first, whole = read ? columns / PANEL * PANEL : 0;
  for (Int j = whole; j < columns; j += PANEL)
    pack_panel(z.b, z.b.from(g.p, g.first + j), g.depth, least(PANEL, columns - j), panels + j * g.depth);
  return whole;
}

// The rows of a block of c, columns of one group. `next` is what is read after it.
static void multiply_group(const Product& z, const Group& g, const Group& next, Int row, const Strips& strips,
                           const PackedA& a, Real* panels) {
  bool plain = z.b.column == 1, last = g.p + g.depth == z.k;
  Int whole = pack_group(z, g, plain, panels), every = most(2, least(8, strips.count - 1));
  Int ahead = plain ? 0 : next.depth;  // rows of the next group that have been asked for
  for (Int i = 0; i < strips.count; i++) {
    Int height = strips.height(i);
    Strip s = {a.from(strips, i), a.row, a.column, panels, PANEL, g.depth, 0, panels, 0, every,
               z.c + (row + strips.first(i)) * z.c_step + g.first, z.c_step, g.end - g.first, z.add || g.p,
               last && z.bias ? z.bias + g.first : 0, last && z.relu};
    if (i == 0 && whole) {
      Strip reading = s;
      reading.b = z.b.from(g.p, g.first); reading.b_row = z.b.row; reading.copy = panels; reading.columns = whole;
      do_rows(height, reading);
      s.b += whole * g.depth; s.c += whole; s.columns -= whole;
      if (s.bias) s.bias += whole;
    } else if (ahead < next.depth) {
      s.ahead = z.b.from(next.p + ahead, next.first); s.ahead_step = z.b.row;
      ahead += parts_of(g.depth, every) * parts_of(g.end - g.first, PANEL);
    }
    do_rows(height, s);
  }
}

// Rows first_row … end_row, columns first … end of c.
static void multiply_part(const Product& z, Int first_row, Int end_row, Int first, Int end, Workspace& space) {
  Int depth = least(DEPTH, z.k), high = most(MR, A_IN_L2 / most(1, depth) / MR * MR);
  Int wide = most(PANEL, B_IN_L1 / most(1, depth) / PANEL * PANEL);
  bool pack_a = end - first > 2 * PANEL;
  Real *packed_a = pack_a ? space.take<Real>(up(least(high, end_row - first_row), MR) * depth + A_VECTORS * LANES) : 0;
  Real* panels = space.take<Real>(wide * depth);
  for (Int row = first_row; row < end_row; row += high) {
    Strips strips(least(high, end_row - row));
    Int p = 0;
    do {
      Group g = {p, least(DEPTH, z.k - p), first, 0};
      PackedA a(z.a, z.a.from(row, p), strips, g.depth, packed_a);
      for (; g.first < end; g.first = g.end) {
        g.end = least(g.first + wide, end);
        Group next = {p, g.depth, g.end, end};
        if (g.end == end) next = {p + g.depth, least(DEPTH, z.k - p - g.depth), first, end};
        multiply_group(z, g, next, row, strips, a, panels);
      }
      p += g.depth;
    } while (p < z.k);
  }
}

// A row of tiles of cᵀ = bᵀ · aᵀ in `sums`: rows i … i + count, where packed is aᵀ.
static void multiply_turned_rows(const Product& z, Int row, Int count, const Real* packed, Real* sums, Int width) {
  Strips strips(count);
  for (Int p = 0; p < z.k; p += DEPTH) {
    Int depth = least(DEPTH, z.k - p);
    for (Int i = 0; i < strips.count; i++) {
      const Real* from = z.b.from(p, row + strips.first(i));
      do_rows(strips.height(i), {from, z.b.column, 1, packed + p * width, PANEL, depth, 0, from, 0, depth,
                                 sums + strips.first(i) * width, width, width, p > 0, 0, false});
    }
  }
}

// c, its columns first … first + count, from sums[count, width].
static void turn_back(const Product& z, Int first, Int count, const Real* sums, Int width) {
  for (Int j = 0; j < z.m; j += LANES, sums += LANES) {
    Int lanes = least(LANES, z.m - j), i = 0;
    Real* c = z.c + j * z.c_step + first;
    for (; i + LANES <= count; i += LANES) {
      Vec r[LANES];
      UNROLL for (Int l = 0; l < LANES; l++) r[l] = load(sums + (i + l) * width);
      transpose(r);
      UNROLL for (Int l = 0; l < LANES; l++) {
        if (l >= lanes) break;
        Real* to = c + l * z.c_step + i;
        store(to, z.add ? load(to) + r[l] : r[l]);
      }
    }
    for (; i < count; i++) for (Int l = 0; l < lanes; l++) {
      Real *to = c + l * z.c_step + i, sum = sums[i * width + l];
      *to = z.add ? *to + sum : sum;
    }
  }
}

// Few rows of c, and b transposed: by cᵀ = bᵀ · aᵀ. The large b is then read as it lies, and the small aᵀ is packed,
// once: [blocks of DEPTH, panels, depth, PANEL].
static void multiply_turned(Context* context, const Product& z) {
  Int panels = parts_of(z.m, PANEL), width = panels * PANEL;
  Matrix turned = {z.a.at, z.a.column, z.a.row};
  context->shared.rewind();
  Real* packed = context->shared.take<Real>(width * z.k);
  context->parts(parts_of(z.k, DEPTH) * panels, parts_of(WORTH_A_THREAD, 8 * DEPTH * PANEL), [=](Int first, Int end, Workspace&) {
    for (Int i = first; i < end; i++) {
      Int p = i / panels * DEPTH, j = i % panels * PANEL, depth = least(DEPTH, z.k - p);
      pack_panel(turned, turned.from(p, j), depth, least(PANEL, z.m - j), packed + p * width + j * depth);
    }
  });
  Int grain = parts_of(WORTH_A_THREAD, most(1, TURNED_ROWS * z.k * z.m));
  context->parts(parts_of(z.n, TURNED_ROWS), grain, [=](Int first, Int end, Workspace& space) {
    Real* sums = space.take<Real>(TURNED_ROWS * width);
    for (Int i = first * TURNED_ROWS, stop = least(z.n, end * TURNED_ROWS); i < stop; i += TURNED_ROWS) {
      multiply_turned_rows(z, i, least(TURNED_ROWS, stop - i), packed, sums, width);
      turn_back(z, i, least(TURNED_ROWS, stop - i), sums, width);
    }
  });
}

// Columns are parted among threads, or rows where there are more tiles of them.
static void multiply(Context* context, const Product& z) {
  bool transposed = z.b.column != 1;
  if (transposed && z.m <= MOST_TURNED && z.k >= LEAST_TURNED && !z.bias && !z.relu) return multiply_turned(context, z);
  Int tall = parts_of(z.m, MR), wide = parts_of(z.n, PANEL);
  bool by_rows = tall > wide;
  Int grain = parts_of(WORTH_A_THREAD, most(1, z.k * (by_rows ? z.n * MR : z.m * PANEL)));
  context->parts(by_rows ? tall : wide, grain, [=](Int first, Int end, Workspace& space) {
    if (by_rows) multiply_part(z, first * MR, least(z.m, end * MR), 0, z.n, space);
    else multiply_part(z, 0, z.m, first * PANEL, least(z.n, end * PANEL), space);
  });
}
