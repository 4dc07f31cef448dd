// Direct convolution: no copy of images, padded or as columns. The inputs that a row of a window meets lie one after
// another in NHWC, so a window is `rows` runs of memory.
//
// Pixels whose windows lose the same rows and columns to the padding are taken together: padding is never multiplied.
#include "convolution.hpp"
#include "products.hpp"
#include "threads.hpp"

// PIXELS · VECTORS sums are in flight going forward and back, or NARROW · 1; INPUTS · VECTORS for weights.
#if VECTOR_BYTES == 64 || defined(__aarch64__)
constexpr int VECTORS = 2, PIXELS = 12, NARROW = 12, INPUTS = 12;  // 24 sums in 32 registers
#else
constexpr int VECTORS = 2, PIXELS = 6, NARROW = 8, INPUTS = 6;  // 12 sums in 16 registers
#endif

INLINE Int clamp(Int a, Int low, Int high) { return most(low, least(a, high)); }

// ── features, a vector at a time ──────────────────────────────────────────────────────────────────────────
// The last vector ends with the last feature, and may overlap the one before: whole vectors are loaded and stored. Less
// features than LANES are a part of one vector.
namespace {
struct Features {
  Int count;
  Int vectors() const { return parts_of(count, LANES); }
  Int panels() const { return parts_of(vectors(), VECTORS); }
  Int lanes() const { return least(count, LANES); }
  Int start(Int vector) const { return least(vector * LANES, most(0, count - LANES)); }
  Int wide(Int panel) const { return least(VECTORS, vectors() - panel * VECTORS); }  // vectors of a panel
};
}

INLINE Vec load_lanes(const Real* p, Int lanes) {
  if (lanes == LANES) return load(p);
  Vec v = {};
  memcpy(&v, p, lanes * sizeof(Real));
  return v;
}
APART void store_lanes(Real* p, Vec v, Int lanes) { memcpy(p, &v, lanes * sizeof(Real)); }

// ── forward and back ──────────────────────────────────────────────────────────────────────────────────────
// Outputs (i, j) of an image, windows that start at pixel (i · step - top, j · step - left) of another.
namespace {
struct Pass {
  const Real* x;
  Int h, w, x_pixel;
  Int r, s, step, top, left;
  Real* y;
  Int rows, columns, y_image, y_row, y_pixel;
  Int channels, features, groups;  // of a group: inputs, outputs
  const Real* bias;
  bool relu;

  Int depth() const { return r * s * channels; }
  Int packed() const { return Features{features}.vectors() * LANES * depth(); }  // weights of a group
};
}

// Neighbouring outputs of an axis whose windows keep the same taps.
namespace {
struct Span { Int begin, end, first, taps; };
}

static Int make_spans(Int count, Int taps, Int step, Int before, Int size, Span* spans) {
  Int made = 0;
  for (Int i = 0; i < count; i++) {
    Int first = clamp(before - i * step, 0, taps), kept = most(0, clamp(size + before - i * step, 0, taps) - first);
    if (kept == 0) first = 0;
    if (made && spans[made - 1].first == first && spans[made - 1].taps == kept) spans[made - 1].end++;
    else spans[made++] = {i, i + 1, first, kept};
  }
  return made;
}

namespace {
struct Pixel { const Real* x; Real* y; };
struct Alike { Int first, count; Span rows, columns; };  // pixels whose windows keep the same taps

// A window: `rows` times `pieces` runs of inputs; weights are skipped behind a row.
struct Window { Int rows, row_step, pieces, piece_step, run, row_skip; };
struct Target { Int at[VECTORS], lanes; const Real* bias; bool relu; };

template <int T, int V>
APART void tile(const Pixel* pixels, const Window& window, Int row, const Real* w, const Target& target) {
  Vec sum[T][V];
  const Real* x[T];
  UNROLL for (int v = 0; v < V; v++) {
    Vec b = target.bias ? load_lanes(target.bias + target.at[v], target.lanes) : (Vec){};
    UNROLL for (int t = 0; t < T; t++) sum[t][v] = b;
  }
  UNROLL for (int t = 0; t < T; t++) x[t] = pixels[t].x;
  for (Int r = 0; r < window.rows; r++, row += window.row_step, w += window.row_skip) {
    Int start = row;
    for (Int piece = 0; piece < window.pieces; piece++, start += window.piece_step) {
      const Real* end = w + window.run * V * LANES;
      for (Int i = start; w < end; i++, w += V * LANES) {
        Vec f[V];
        UNROLL for (int v = 0; v < V; v++) f[v] = load(w + v * LANES);
        UNROLL for (int t = 0; t < T; t++) {
          Vec a = splat(x[t][i]);
          UNROLL for (int v = 0; v < V; v++) sum[t][v] = fma(a, f[v], sum[t][v]);
        }
      }
    }
  }
  if (target.relu)
    UNROLL for (int t = 0; t < T; t++) UNROLL for (int v = 0; v < V; v++) sum[t][v] = positive(sum[t][v]);
  Int first = target.at[0], last = target.at[V - 1], lanes = target.lanes;
  if (lanes == LANES) UNROLL for (int t = 0; t < T; t++) {
    store(pixels[t].y + first, sum[t][0]);
    if (V > 1) store(pixels[t].y + last, sum[t][V - 1]);
  }
  else UNROLL for (int t = 0; t < T; t++) store_lanes(pixels[t].y + first, sum[t][0], lanes);
}

// What is left of a tile is filled up with its last pixel.
template <int T, int V>
APART void last_tile(const Pixel* pixels, Int count, const Window& window, Int row, const Real* w,
                     const Target& target) {
  if constexpr (T > 2) if (count <= T - 2) return last_tile<T - 2, V>(pixels, count, window, row, w, target);
  Pixel filled[T];
  for (Int t = 0; t < T; t++) filled[t] = pixels[least(t, count - 1)];
  tile<T, V>(filled, window, row, w, target);
}

template <int T, int V>
static void tiles(const Pixel* pixels, Int count, const Window& window, Int row, const Real* w, const Target& target) {
  for (; count >= T; pixels += T, count -= T) tile<T, V>(pixels, window, row, w, target);
  if (count) last_tile<T, V>(pixels, count, window, row, w, target);
}

// All features of pixels that are alike in a panel.
static void panel_of(const Pass& pass, const Pixel* pixels, const Alike& alike, Int group, Int panel, const Real* w) {
  Features features = {pass.features};
  Int wide = features.wide(panel), vectors = wide * LANES, joined = pass.groups == 1 ? alike.columns.taps : 1;
  Window window = {alike.rows.taps, pass.w * pass.x_pixel, alike.columns.taps / most(1, joined), pass.x_pixel,
                   joined * pass.channels, (pass.s - alike.columns.taps) * pass.channels * vectors};
  Target target = {{}, features.lanes(), pass.bias, pass.relu};
  for (Int v = 0; v < wide; v++) target.at[v] = group * pass.features + features.start(panel * VECTORS + v);
  const Real* from = w + group * pass.packed() + panel * VECTORS * LANES * pass.depth() +
                     (alike.rows.first * pass.s + alike.columns.first) * pass.channels * vectors;
  if (wide == VECTORS) tiles<PIXELS, VECTORS>(pixels, alike.count, window, group * pass.channels, from, target);
  else tiles<NARROW, 1>(pixels, alike.count, window, group * pass.channels, from, target);
}

// A block of pixels that weights are read for once: inputs stay in the L2 cache, and pixels on an edge fill tiles.
constexpr Int IN_L2 = 256 * 1024, LEAST_PIXELS = 256, MOST_PIXELS = 1024;

// The outputs of rows first .. end, counted through the batch, for packed weights.
static void run_rows(const Pass& pass, Int first, Int end, const Real* w, Workspace& space) {
  Span *rows = space.take<Span>(pass.rows), *columns = space.take<Span>(pass.columns);
  Int high = make_spans(pass.rows, pass.r, pass.step, pass.top, pass.h, rows);
  Int wide = make_spans(pass.columns, pass.s, pass.step, pass.left, pass.w, columns);
  Int inputs = pass.step * pass.step * pass.x_pixel * Int(sizeof(Real));  // that an output pixel has to itself, bytes
  Int block = least(end - first, most(1, clamp(IN_L2 / inputs, LEAST_PIXELS, MOST_PIXELS) / pass.columns));
  Int panels = Features{pass.features}.panels();
  Pixel* pixels = space.take<Pixel>(block * pass.columns);
  Alike* alike = space.take<Alike>(high * wide);
  for (Int from = first; from < end; from += block) {
    Int to = least(end, from + block), kinds = 0, listed = 0;
    for (Int a = 0; a < high; a++) for (Int b = 0; b < wide; b++) {
      Span u = rows[a], v = columns[b];
      if (u.taps == 0 || v.taps == 0) u.first = v.first = u.taps = v.taps = 0;
      Int started = listed;
      for (Int n = from / pass.rows; n * pass.rows < to; n++) {
        const Real* image = pass.x + n * pass.h * pass.w * pass.x_pixel;
        Int top = from - n * pass.rows, bottom = to - n * pass.rows;
        for (Int i = most(u.begin, top); i < least(u.end, bottom); i++) for (Int j = v.begin; j < v.end; j++) {
          Int at = u.taps ? (i * pass.step - pass.top + u.first) * pass.w + j * pass.step - pass.left + v.first : 0;
          pixels[listed++] = {image + at * pass.x_pixel, pass.y + n * pass.y_image + i * pass.y_row + j * pass.y_pixel};
        }
      }
      if (listed > started) alike[kinds++] = {started, listed - started, u, v};
    }
    for (Int group = 0; group < pass.groups; group++) for (Int panel = 0; panel < panels; panel++)
      for (Int i = 0; i < kinds; i++) panel_of(pass, pixels + alike[i].first, alike[i], group, panel, w);
  }
}

// `packed`: for each group and panel the weights [r, s, channels, vectors of the panel].
static void run(Context& context, const Pass& pass, Int n, const Real* packed) {
  context.parts(n * pass.rows, 1, [&](Int first, Int end, Workspace& space) {
    run_rows(pass, first, end, packed, space);
  });
}

constexpr Int PACKED_ROWS = 16;  // of weights, at once: memory is read and written in pieces that are long enough

static const Real* pack_forward(Context& context, const Pass& pass, const Real* w, Int k) {
  Features features = {pass.features};
  Int depth = pass.depth(), lanes = features.lanes();
  Real* packed = context.shared.take<Real>(pass.groups * pass.packed());
  auto pack = [=](Int group, Int panel, Int first, Int end) {
    for (Int v = 0, wide = features.wide(panel); v < wide; v++) {
      const Real* from = w + group * features.count + features.start(panel * VECTORS + v);
      Real* to = packed + group * pass.packed() + (panel * VECTORS * depth + v) * LANES;
      for (Int i = first; i < end; i++) store(to + i * wide * LANES, load_lanes(from + i * k, lanes));
    }
  };
  context.parts(depth, PACKED_ROWS, [=](Int first, Int end, Workspace&) {
    for (Int group = 0; group < pass.groups; group++) for (Int i = first; i < end; i += PACKED_ROWS)
      for (Int panel = 0; panel < features.panels(); panel++) pack(group, panel, i, least(end, i + PACKED_ROWS));
  });
  return packed;
}

// y = x · w + bias, and max(., 0) with relu; bias may be null.
KERNEL(direct_forward)(Context* context, const Real* x, const Real* w, const Real* bias, Real* y, const Int* shape,
                       bool relu) {
  const Convolution& z = *(const Convolution*)shape;
  Pass pass = {x, z.h, z.w, z.c, z.r, z.s, z.stride, z.pad, z.pad, y, z.p, z.q, z.p * z.q * z.k, z.q * z.k, z.k,
               z.c / z.groups, z.k / z.groups, z.groups, bias, relu};
  context->shared.rewind();
  run(*context, pass, z.n, pack_forward(*context, pass, w, z.k));
}

// The weights of the taps (r, s), (r, s - stride) … (r - stride, s) …, where channels and features change places.
static const Real* pack_back(Context& context, const Pass& pass, const Real* w, const Convolution& z, Int r, Int s) {
  Features channels = {pass.features};
  Int panels = channels.panels(), lanes = channels.lanes(), k = pass.channels;
  Real* packed = context.shared.take<Real>(pass.groups * pass.packed());
  auto turn = [=](const Real* from, Real* to, Int step) {
    for (Int i = 0; i < k; i++, from++, to += step) {
      Vec f = {};
      if (lanes == LANES) UNROLL for (Int j = 0; j < LANES; j++) f[j] = from[j * z.k];
      else for (Int j = 0; j < lanes; j++) f[j] = from[j * z.k];
      store(to, f);
    }
  };
  context.parts(pass.groups * panels, 1, [=](Int first, Int end, Workspace&) {
    for (Int each = first; each < end; each++) {
      Int group = each / panels, panel = each % panels, width = channels.wide(panel) * LANES;
      Real* to = packed + group * pass.packed() + panel * VECTORS * LANES * pass.depth();
      for (Int a = 0; a < pass.r; a++) for (Int b = 0; b < pass.s; b++, to += k * width) {
        const Real* tap = w + ((r - a * z.stride) * z.s + s - b * z.stride) * channels.count * z.k + group * k;
        for (Int v = 0; v < width / LANES; v++)
          turn(tap + channels.start(panel * VECTORS + v) * z.k, to + v * LANES, width);
      }
    }
  });
  return packed;
}

// dx: the pixels of each phase of the stride are a convolution of dy by the taps that meet them, turned round.
KERNEL(direct_back)(Context* context, const Real* dy, const Real* w, Real* dx, const Int* shape) {
  const Convolution& z = *(const Convolution*)shape;
  Int t = z.stride, image = z.h * z.w * z.c;
  if (t > z.r || t > z.s)  // some phases meet no tap
    context->parts(z.n, 1, [=](Int first, Int end, Workspace&) {
      memset(dx + first * image, 0, (end - first) * image * sizeof(Real));
    });
  for (Int a = 0; a < least(t, z.h); a++) for (Int b = 0; b < least(t, z.w); b++) {
    // Pixel a + t · i meets the taps r ≡ a + pad (mod t), the last of them first: in row (a + pad - r) / t + i of dy.
    Int ra = (a + z.pad) % t, sb = (b + z.pad) % t;
    Int rs = parts_of(most(0, z.r - ra), t), ss = parts_of(most(0, z.s - sb), t);
    if (rs == 0 || ss == 0) continue;
    Int r0 = ra + (rs - 1) * t, s0 = sb + (ss - 1) * t;
    Pass pass = {dy, z.p, z.q, z.k, rs, ss, 1, (r0 - a - z.pad) / t, (s0 - b - z.pad) / t, dx + (a * z.w + b) * z.c,
                 parts_of(z.h - a, t), parts_of(z.w - b, t), image, t * z.w * z.c, t * z.c,
                 z.k / z.groups, z.c / z.groups, z.groups, 0, false};
    context->shared.rewind();
    run(*context, pass, z.n, pack_back(*context, pass, w, z, r0, s0));
  }
}

// ── weights ───────────────────────────────────────────────────────────────────────────────────────────────
constexpr Int SUMMED = 128;  // pixels, about: those of a block are summed before they are added to dw
constexpr Int AHEAD = 8;     // pixels that are asked for before they are used

// A row of pixels: the inputs that one tap of their windows meets, and their gradients.
struct Row { const Real *x, *dy, *copied; };
// Where a tile's inputs and a panel's gradients are in a row, and how far those of the next pixel are, and a vector.
struct Steps { Int x_shift, x, dy_shift, dy, vector; bool copied; };
// The sums of M inputs and V vectors go to dw, k elements a row: the first `skip` lanes of the last vector are the one
// before's.
struct Sums { Real* dw; Int k, at[VECTORS], lanes, skip; bool add; };

// Lanes first .. end of v.
APART void store_sums(Real* to, Vec v, Int first, Int end, bool add) {
  for (Int i = first; i < end; i++) to[i] = add ? to[i] + v[i] : v[i];
}

template <int M, int V>
APART void outer(const Row* rows, Int count, Int pixels, const Steps& steps, const Sums& sums) {
  Vec sum[M][V] = {};
  Int x_step = steps.copied ? M : steps.x, dy_step = steps.dy, vector = steps.vector;
  for (Int r = 0; r < count; r++) {
    const Real *x = steps.copied ? rows[r].copied : rows[r].x + steps.x_shift, *dy = rows[r].dy + steps.dy_shift;
    for (Int q = 0; q < pixels; q++, x += x_step, dy += dy_step) {
      __builtin_prefetch(x + AHEAD * x_step);
      Vec f[V];
      UNROLL for (int v = 0; v < V; v++) f[v] = load(dy + v * vector);
      UNROLL for (int m = 0; m < M; m++) {
        Vec a = splat(x[m]);
        UNROLL for (int v = 0; v < V; v++) sum[m][v] = fma(a, f[v], sum[m][v]);
      }
    }
  }
  Real* to = sums.dw + sums.at[0];
  Int k = sums.k, last = sums.at[V - 1] - sums.at[0], lanes = sums.lanes, skip = sums.skip;
  if (lanes < LANES || skip) {
    UNROLL for (int m = 0; m < M; m++) {
      if (V > 1) store_sums(to + m * k, sum[m][0], 0, lanes, sums.add);
      store_sums(to + m * k + last, sum[m][V - 1], skip, lanes, sums.add);
    }
    return;
  }
  UNROLL for (int m = 0; m < M; m++, to += k) UNROLL for (int v = 0; v < V; v++)
    store(to + v * LANES, sums.add ? load(to + v * LANES) + sum[m][v] : sum[m][v]);
}

template <int M, int V>
INLINE void outer_of(Int inputs, const Row* rows, Int count, Int pixels, const Steps& steps, const Sums& sums) {
  if (inputs == M) return outer<M, V>(rows, count, pixels, steps, sums);
  if constexpr (M > 1) outer_of<M - 1, V>(inputs, rows, count, pixels, steps, sums);
}

// The M inputs of each pixel, one pixel after another.
template <int M> INLINE void copy_inputs(Int inputs, Row* rows, Int count, Int shift, Int step, Int pixels, Real* to) {
  if constexpr (M > 1) if (inputs < M) return copy_inputs<M - 1>(inputs, rows, count, shift, step, pixels, to);
  for (Int r = 0; r < count; r++) {
    const Real* x = rows[r].x + shift;
    rows[r].copied = to;
    for (Int q = 0; q < pixels; q++, x += step, to += M) {
      __builtin_prefetch(x + AHEAD * step);
      memcpy(to, x, M * sizeof(Real));
    }
  }
}

// dw's rows are cut into tiles of inputs: all of a tap's, and all taps of a group's.
struct Tiles {
  Int taps, run, each, of_tap, of_group;

  explicit Tiles(const Convolution& z) {
    // Without padding a row of a window is one tap of s · c inputs.
    Int c = z.c / z.groups, joined = z.pad == 0 && z.groups == 1 ? z.s : 1;
    taps = z.s / joined; run = joined * c;
    each = parts_of(run, parts_of(run, INPUTS)); of_tap = parts_of(run, each); of_group = z.r * taps * of_tap;
  }
};
}

// The gradients of pixels first .. first + count as panels, one after another, each as high as `room` pixels.
static void pack_gradients(const Real* dy, Int k, const Features& features, Int count, Real* to, Int room) {
  for (Int panel = 0; panel < features.panels(); panel++, to += room * VECTORS * LANES)
    for (Int v = 0; v < features.wide(panel); v++) {
      const Real* from = dy + features.start(panel * VECTORS + v);
      for (Int i = 0; i < count; i++) store(to + (i * VECTORS + v) * LANES, load_lanes(from + i * k, features.lanes()));
    }
}

namespace {
struct Met { Int count, left, right; };
}

// The rows first .. end of pixels whose windows find the tap (r, s) in the image, and which pixels of a row do.
// `dy` is that of the first row, `dy_step` elements a pixel.
static Met find_rows(const Convolution& z, const Real* x, const Real* dy, Int dy_step, Int r, Int s, Int first, Int end,
                     Row* rows) {
  Int left = clamp(parts_of(most(0, z.pad - s), z.stride), 0, z.q), met = 0;
  Int right = clamp(parts_of(most(0, z.w + z.pad - s), z.stride), left, z.q);
  for (Int i = first; i < end && left < right; i++) {
    Int h = i % z.p * z.stride + r - z.pad;
    if (h < 0 || h >= z.h) continue;
    const Real* inputs = x + ((i / z.p * z.h + h) * z.w + left * z.stride + s - z.pad) * z.c;
    rows[met++] = {inputs, dy + ((i - first) * z.q + left) * dy_step, 0};
  }
  return {met, left, right};
}

constexpr Int FEW_TILES = 8;   // for less, packing gradients does not pay
constexpr Int FEW_PANELS = 4;  // for less, copying inputs does not

// The tiles first .. end of dw.
static void weight_tiles(const Convolution& z, const Real* x, const Real* dy, Real* dw, const Tiles& tiles, Int first,
                         Int end, bool add, Workspace& space) {
  Features features = {z.k / z.groups};
  Int block = least(most(1, SUMMED / z.q), most(1, z.n * z.p)), room = block * z.q, x_step = z.stride * z.c;
  Int panels = features.panels(), panel_step = VECTORS * LANES * room, lanes = features.lanes();
  bool packs = lanes < LANES || tiles.of_group > FEW_TILES, copies = panels > FEW_PANELS;
  Int dy_step = packs ? VECTORS * LANES : z.k;
  Real* packed = packs ? space.take<Real>(panels * panel_step) : 0;
  Real* copied = copies ? space.take<Real>(room * INPUTS) : 0;
  Row* rows = space.take<Row>(block);
  for (Int from = 0; from == 0 || from < z.n * z.p; from += block, add = true) {
    Int to = least(from + block, z.n * z.p), held = -1;  // the group whose gradients are packed
    Met met = {};
    for (Int i = first; i < end; i++) {
      Int group = i / tiles.of_group, tap = i % tiles.of_group / tiles.of_tap, m = i % tiles.of_tap * tiles.each;
      const Real* gradients = dy + from * z.q * z.k;
      if (packs && group != held)
        pack_gradients(gradients + group * features.count, z.k, features, (to - from) * z.q, packed, room);
      held = group;
      if (i == first || m == 0)
        met = find_rows(z, x + group * (z.c / z.groups), packs ? packed : gradients, dy_step, tap / tiles.taps,
                        tap % tiles.taps, from, to, rows);
      Int inputs = least(tiles.each, tiles.run - m), pixels = met.right - met.left;
      if (copies) copy_inputs<INPUTS>(inputs, rows, met.count, m, x_step, pixels, copied);
      for (Int panel = 0; panel < panels; panel++) {
        Int wide = features.wide(panel), last = panel * VECTORS + wide - 1;
        Sums sums = {dw + (tap * tiles.run + m) * z.k, z.k, {}, lanes, last * LANES - features.start(last), add};
        for (Int v = 0; v < wide; v++) sums.at[v] = group * features.count + features.start(panel * VECTORS + v);
        Int shift = packs ? panel * panel_step : sums.at[0], vector = packs ? LANES : sums.at[wide - 1] - sums.at[0];
        Steps steps = {m, x_step, shift, dy_step, vector, copies};
        if (wide == VECTORS) outer_of<INPUTS, VECTORS>(inputs, rows, met.count, pixels, steps, sums);
        else outer_of<INPUTS, 1>(inputs, rows, met.count, pixels, steps, sums);
      }
    }
  }
}

constexpr Int FEW_CHANNELS = 4;  // for so few an image is copied between its padding: then a row of a window is one tap

// An image of h · w pixels of c inputs between zeros, as hp · wp pixels: its first one is at (pad, pad).
static void pad_image(const Real* x, Real* y, Int h, Int w, Int c, Int pad, Int hp, Int wp) {
  Int first = least(pad, wp), count = most(0, least(w, wp - pad));
  for (Int i = 0; i < hp; i++, y += wp * c) {
    if (i < pad || i >= pad + h) { memset(y, 0, wp * c * sizeof(Real)); continue; }
    memset(y, 0, first * c * sizeof(Real));
    memcpy(y + first * c, x + (i - pad) * w * c, count * c * sizeof(Real));
    memset(y + (first + count) * c, 0, (wp - first - count) * c * sizeof(Real));
  }
}

// dw = sum over pixels of x · dy; or dw += it.
KERNEL(direct_weights)(Context* context, const Real* x, const Real* dy, Real* dw, const Int* shape, bool accumulate) {
  Convolution z = *(const Convolution*)shape;
  context->shared.rewind();
  if (z.pad && z.c <= FEW_CHANNELS && z.groups == 1) {
    Int h = z.h + 2 * z.pad, w = z.w + 2 * z.pad;
    Real* padded = context->shared.take<Real>(z.n * h * w * z.c);
    context->parts(z.n, 1, [&](Int first, Int end, Workspace&) {
      for (Int i = first; i < end; i++)
        pad_image(x + i * z.h * z.w * z.c, padded + i * h * w * z.c, z.h, z.w, z.c, z.pad, h, w);
    });
    x = padded; z.h = h; z.w = w; z.pad = 0;
  }
  Tiles tiles(z);
  context->parts(z.groups * tiles.of_group, 1, [&](Int first, Int end, Workspace& space) {
    weight_tiles(z, x, dy, dw, tiles, first, end, accumulate, space);
  });
}
