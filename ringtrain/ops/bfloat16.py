"""bfloat16 in software: the upper half of a float32, kept as uint16, since NumPy has no such type.

Every operation goes through float32 and rounds once, to nearest, ties to even. Results are exactly rounded, but slow:
several passes over memory, instead of one on a machine with bfloat16 instructions."""

import numpy as np

HALF_STEP = np.uint32(0x7FFF)
QUIET_NAN = np.uint16(0x7FC0)


def decode(bits) -> np.ndarray:
    """Return float32 of the same values and shape as the uint16 ``bits``."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode(x) -> np.ndarray:
    """Return the uint16 bits of ``x``, rounded to the nearest bfloat16. Wider types round to float32 first."""
    wide = np.ascontiguousarray(x, np.float32).view(np.uint32)
    odd = (wide >> np.uint32(16)) & np.uint32(1)
    bits = ((wide + HALF_STEP + odd) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(x), QUIET_NAN, bits)
