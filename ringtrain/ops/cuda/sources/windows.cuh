// Images seen as factors of a product: a line for each window, its elements those of the window, and the like.
#pragma once
#include "panel.cuh"

// x / divisor for 0 <= x < 2^31, by a multiplication. multiplier and shift: see convolution/plan.py.
// Source: Granlund & Montgomery 1994, "Division by Invariant Integers using Multiplication", section 4.
struct Divider {
    int divisor;
    unsigned multiplier;
    int shift;
    __device__ int operator()(int x) const {
        unsigned high = (unsigned)(((unsigned long long)multiplier * (unsigned)x) >> 32);
        return (int)((high + (unsigned)x) >> shift);
    }
};

struct Divided {
    int divisor;
    __device__ int operator()(int x) const { return x / divisor; }
};

// x / divisor for small numbers: both below 2^11.
struct SmallDivided {
    float inverse;
    __device__ explicit SmallDivided(int divisor) : inverse(1.0f / (float)divisor) {}
    __device__ int operator()(int x) const { return (int)(((float)x + 0.5f) * inverse); }
};

struct Place {
    int pixel, h, w;
};

struct Tap {
    int pixel, h, w, channel;
};

// Lines: windows, counted through the batch. Elements: (r, s, channel) of a window, r and s counted in ``step``s (of +1,
// or of -1 for windows that are read backwards). Window (p, q) begins at pixel (p · stride + top, q · stride + left).
// What lies beside the image is nowhere. ``image`` may begin at a channel that is not the first, of ``channels``.
template <typename ByImage, typename ByRow, typename ByDepth, typename ByTap> struct Windows {
    typedef Place Outer;
    typedef Tap Inner;
    const ACT *image;
    int height, width, channels;
    int rows, columns;  // of windows in an image
    int stride, top, left, step;
    int depth, taps;  // channels of an element, elements in a row of a window
    ByImage by_image;
    ByRow by_row;
    ByDepth by_depth;
    ByTap by_tap;

    __device__ Outer outer(int index) const {
        int n = by_image(index), within = index - n * (rows * columns), p = by_row(within);
        int h = p * stride + top, w = (within - p * columns) * stride + left;
        return {(n * height + h) * width + w, h, w};
    }

    __device__ Inner inner(int index) const {
        int tap = by_depth(index), r = by_tap(tap);
        int h = r * step, w = (tap - r * taps) * step;
        return {h * width + w, h, w, index - tap * depth};
    }

    __device__ const ACT *at(Outer window, Inner tap) const {
        bool inside = (unsigned)(window.h + tap.h) < (unsigned)height && (unsigned)(window.w + tap.w) < (unsigned)width;
        return inside ? image + (long long)(window.pixel + tap.pixel) * channels + tap.channel : (const ACT *)0;
    }

    __device__ int channel(Inner tap) const { return tap.channel; }
    __device__ const ACT *somewhere() const { return image; }
};

// Weights [R, S, depth of a group, K] for a sum over (r, s, k) of those taps that a phase has: line c, elements
// r = first_r + i · stride, s = first_s + j · stride, k of the group.
template <typename ByDepth, typename ByTap> struct TurnedWeights {
    typedef int Outer;
    typedef int Inner;
    const ACT *weights;
    int features, channels;  // a line's, of all groups; lines of a tap
    int kernel, stride, first_r, first_s;
    int depth, taps;
    ByDepth by_depth;
    ByTap by_tap;

    __device__ Outer outer(int c) const { return c * features; }

    __device__ Inner inner(int index) const {
        int tap = by_depth(index), i = by_tap(tap), j = tap - i * taps;
        int rs = (first_r + i * stride) * kernel + first_s + j * stride;
        return rs * channels * features + index - tap * depth;
    }

    __device__ const ACT *at(Outer line, Inner where) const { return weights + line + where; }
    __device__ const ACT *somewhere() const { return weights; }
};
