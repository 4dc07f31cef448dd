"""Which way a convolution goes on the CPU: Winograd's, the direct one, or that of depthwise convolutions, which have a
kernel for each channel.

Winograd's way multiplies less, but transforms more. Per tile of M × M outputs, M = 7 - kernel, it has 36 products of
c × k, and its transforms go with c + k; weights are transformed once. Both are counted in multiplications of the direct
way. Measured on AVX2 (Zen 3, one thread, float32), an element of a tile's transforms, or of a weight's, is worth about
TRANSFORM of them, forward and back alike:

* 16 > 16 channels 3x3 @ 32 takes 0.65 of the direct time, 64 > 64 0.4, 512 > 512 @ 4 0.3; 5x5 32 > 32 @ 16 0.6.
* 12 > 12 3x3 and 8 > 16 5x5 @ 16 are draws, 3 > 16 3x3 takes twice the direct time.
* 512 > 512 @ 4 takes 1.3 of it with one image, 0.8 with four: the weights' transform. 64 > 64 @ 2 is a draw: one
  tile has 4 outputs instead of 16.

The gradient of the inputs has tiles of x, which are more where nothing is padded. float64 is for checks, which want
exact results.
"""

from ringtrain.ops.geometry import ConvGeometry

TRANSFORM = 12
TILE_INPUTS = 6


def way(geometry: ConvGeometry, x_shape: tuple[int, ...], y_shape: tuple[int, ...], dtype, to_inputs=False) -> str:
    """Return ``winograd``, ``direct`` or ``depthwise``: the way from x to y and to dw, or with ``to_inputs`` that from
    dy to dx.
    """
    if 1 < geometry.groups == x_shape[3] == y_shape[3]:
        return "depthwise"
    kernel = geometry.kernel
    possible = kernel in (3, 5) and geometry.stride == 1 and geometry.pad < kernel and dtype == "float32"
    if not possible:
        return "direct"
    n, p, q, k = y_shape
    c, k = x_shape[3] // geometry.groups, k // geometry.groups
    outputs = TILE_INPUTS + 1 - kernel
    high, wide = x_shape[1:3] if to_inputs else (p, q)
    tiles = n * -(-high // outputs) * -(-wide // outputs)
    direct = n * p * q * kernel**2 * c * k
    winograd = TILE_INPUTS**2 * (tiles * (c * k + TRANSFORM * (c + k)) + TRANSFORM * c * k)
    return "winograd" if winograd < direct else "direct"
