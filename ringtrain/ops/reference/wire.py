"""Packing of 32 bits to 16: float32 elements as IEEE half precision, or as bfloat16, for a network.

The type of ``packed`` decides: float16, or uint16 for the bits of bfloat16, which NumPy has no type for. Both round to
nearest, ties to even; numbers beyond the range become infinite, and any NaN the type's quiet NaN.
"""

import numpy as np

from ringtrain.ops import bfloat16
from ringtrain.ops.reference.simple import put

QUIET_NAN = np.uint16(0x7E00)


def pack(x, packed):
    half = packed.dtype == np.float16
    packed[...] = (
        np.where(np.isnan(x), QUIET_NAN.view(np.float16), x.astype(np.float16)) if half else bfloat16.encode(x)
    )


def unpack(packed, x, accumulate=False):
    put(packed.astype(np.float32) if packed.dtype == np.float16 else bfloat16.decode(packed), x, accumulate)
