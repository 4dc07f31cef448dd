// Images to network input.
#include "threads.hpp"

// One row of `pixels` pixels of C channels, or of `channels` if C is 0: y = (image - mean) · scale, mirrored by `step` -1.
template <Int C, class Source>
INLINE void prepare_row(const Source* image, const Real* mean, const Real* scale, Real* y, Int pixels, Int channels, Int step) {
  channels = C ? C : channels;
  for (Int q = 0; q < pixels; q++, image += channels, mean += channels, y += step * channels) {
    for (Int c = 0; c < channels; c++) y[c] = (Real(image[c]) - mean[c]) * scale[c];
  }
}

template <class Source>
INLINE void prepare(Context* context, const Source* images, Real* y, const Real* mean, const Real* scale,
                    const int32_t* top, const int32_t* left, const uint8_t* flip, Int n, Int H, Int W, Int C, Int P,
                    Int Q) {
  context->parts(n, parts_of(GRAIN, most(P * Q * C, 1)), [=](Int first, Int end, Workspace&) {
    for (Int i = first; i < end; i++) {
      Int q0 = most(0, -left[i]), q1 = most(q0, least(Q, W - left[i])), pixels = q1 - q0;
      for (Int p = 0; p < P; p++) {
        Int h = p + top[i];
        Real* row = y + (i * P + p) * Q * C;
        bool inside = h >= 0 && h < H;
        if (!inside || pixels < Q) memset(row, 0, Q * C * sizeof(Real));
        if (!inside || !pixels) continue;
        Int at = (h * W + left[i] + q0) * C, step = flip[i] ? -1 : 1;
        auto run = C == 3 ? prepare_row<3, Source> : C == 1 ? prepare_row<1, Source> : prepare_row<0, Source>;
        run(images + i * H * W * C + at, mean + at, scale, row + (flip[i] ? Q - 1 - q0 : q0) * C, pixels, C, step);
      }
    }
  });
}

// images: [n, H, W, C]; y: [n, P, Q, C]; mean: [H, W, C]; see Ops.prepare_images.
KERNEL(prepare_images)(Context* context, const uint8_t* images, Real* y, const Real* mean, const Real* scale,
                       const int32_t* top, const int32_t* left, const uint8_t* flip, Int n, Int H, Int W, Int C, Int P,
                       Int Q) {
  prepare(context, images, y, mean, scale, top, left, flip, n, H, W, C, P, Q);
}

KERNEL(prepare_floats)(Context* context, const float* images, Real* y, const Real* mean, const Real* scale,
                       const int32_t* top, const int32_t* left, const uint8_t* flip, Int n, Int H, Int W, Int C, Int P,
                       Int Q) {
  prepare(context, images, y, mean, scale, top, left, flip, n, H, W, C, P, Q);
}

KERNEL(prepare_doubles)(Context* context, const double* images, Real* y, const Real* mean, const Real* scale,
                        const int32_t* top, const int32_t* left, const uint8_t* flip, Int n, Int H, Int W, Int C, Int P,
                        Int Q) {
  prepare(context, images, y, mean, scale, top, left, flip, n, H, W, C, P, Q);
}
