// The inner loops of convolutions: sums that stay in registers.
#pragma once
#include "vector.hpp"

// NV vectors of features make a panel, QUADS * 4 pixels times NV sums are in flight going forward, MR * NV for weights.
#if VECTOR_BYTES == 64 || defined(__aarch64__)
constexpr int NV = 2, QUADS = 3, MR = 12;  // 24 sums in 32 registers
#else
constexpr int NV = 2, QUADS = 1, MR = 6;  // 8 and 12 sums in 16 registers
#endif
constexpr Int PANEL = NV * LANES;

// sum[pixel][vector] += inputs · weights for G times 4 neighbouring pixels, `step` elements apart, and V vectors of
// features, over `rows` runs of `run` inputs. Weights are a panel: [rows * run, PANEL].
template <int G, int V>
INLINE void pixels(const Real* const* x, Int step, Int rows, Int row_step, Int run, const Real* w, Vec (&sum)[G * 4][V]) {
  for (Int r = 0; r < rows; r++) {
    const Real* at[G];
    UNROLL for (int g = 0; g < G; g++) { at[g] = x[g] + r * row_step; asm("" : "+r"(at[g])); }
    for (Int i = 0; i < run; i++, w += PANEL) {
      Vec f[V];
      UNROLL for (int v = 0; v < V; v++) f[v] = load(w + v * LANES);
      UNROLL for (int g = 0; g < G; g++) UNROLL for (int j = 0; j < 4; j++) {
        Vec a = splat(at[g][j * step]);
        UNROLL for (int v = 0; v < V; v++) sum[g * 4 + j][v] = fma(a, f[v], sum[g * 4 + j][v]);
      }
      UNROLL for (int g = 0; g < G; g++) at[g]++;
    }
  }
}

// sum[input][vector] += inputs · gradients for M inputs and V vectors of features, over `rows` times `count` pixels,
// `step` inputs apart. Gradients are panels: [count, PANEL] each.
template <int M, int V>
INLINE void outer(const Real* const* x, Int shift, Int step, Int rows, Int count, const Real* const* dys, Vec (&sum)[M][V]) {
  for (Int r = 0; r < rows; r++) {
    const Real *at = x[r] + shift, *dy = dys[r];
    for (Int q = 0; q < count; q++, at += step, dy += PANEL) {
      Vec f[V];
      UNROLL for (int v = 0; v < V; v++) f[v] = load(dy + v * LANES);
      UNROLL for (int m = 0; m < M; m++) {
        Vec a = splat(at[m]);
        UNROLL for (int v = 0; v < V; v++) sum[m][v] = fma(a, f[v], sum[m][v]);
      }
    }
  }
}

// One image of h · w pixels of c inputs, `x_row` elements a row and `x_pixel` a pixel, between zeros, as hp · wp
// pixels: the image's first pixel is at (top, left), which may be negative.
INLINE void pad_image(const Real* x, Real* y, Int h, Int w, Int c, Int top, Int left, Int hp, Int wp, Int x_pixel) {
  for (Int i = 0; i < hp; i++, y += wp * c) {
    Int at = i - top;
    if (at < 0 || at >= h) { memset(y, 0, wp * c * sizeof(Real)); continue; }
    Int first = left > 0 ? left : 0, skip = left < 0 ? -left : 0, count = least(w - skip, wp - first);
    memset(y, 0, first * c * sizeof(Real));
    const Real* from = x + (at * w + skip) * x_pixel;
    if (x_pixel == c) memcpy(y + first * c, from, count * c * sizeof(Real));
    else for (Int j = 0; j < count; j++) memcpy(y + (first + j) * c, from + j * x_pixel, c * sizeof(Real));
    memset(y + (first + count) * c, 0, (wp - first - count) * c * sizeof(Real));
  }
}
