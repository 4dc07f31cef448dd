// The sizes of a convolution, as base.py names them: n images of h · w pixels of c channels, k features of p · q
// pixels, a window of r · s taps. `pad_rows`: above and below, where that is another; depthwise kernels take it. Python
// hands them over as an array of int64.
#pragma once
#include "vector.hpp"

struct Convolution { Int n, h, w, c, p, q, k, r, s, stride, pad, groups, pad_rows; };
