"""float32 to 16 bits and back, by whole-number arithmetic on the bits, without a branch: vector instructions do it.

Numba has no 16-bit floating-point types on a CPU, and NumPy converts to float16 element by element. ``bits`` are the
uint32 of float32 elements, ``packed`` the uint16 of either type. Each result of an operation is cast to uint32 again,
since numba makes it 64 bits wide, and vectors half as long.

Half precision, by the size of x: from 2^16 on it is infinite; below 2^-14, where half precision is evenly spaced by
2^-24, adding 0.5 to x makes float32 round it there; between, the exponent is shifted by 112 and the mantissa loses 13
bits, rounded by adding just less than half of what the last bit is worth, and one more where that bit is odd. What is
carried on goes into the exponent, and is right there. Source: Giesen, float->half variants, 2012.
"""

import numpy as np

from ringtrain.ops.cpu.kernels.jit import kernel, u

U = np.uint32
MAGNITUDE, INFINITE = U(0x7FFFFFFF), U(0x7F800000)  # all bits but the sign; float32's infinity
BFLOAT16_NAN, HALF_NAN, HALF_INFINITE = U(0x7FC0), U(0x7E00), U(0x7C00)
ONE = U(1)
BFLOAT16_SHIFT, JUST_LESS_THAN_HALF = U(16), U(0x7FFF)

HALF_SHIFT, HALF_SIGN, HALF_MAGNITUDE = U(13), U(0x8000), U(0x7FFF)
TO_HALF = U((1 << 32) - (112 << 23) + 0xFFF)  # the exponent 112 less, and just less than half of the last bit
TO_FLOAT = U(112 << 23)
HALF_OVERFLOWS, HALF_IS_NORMAL = U(143 << 23), U(113 << 23)  # 2^16 and 2^-14
SPACED_EVENLY = np.float32(0.5)  # from here to 1 float32's step is 2^-24
SPACED_EVENLY_BITS = U(126 << 23)
HALF_EXPONENT = U(0x7C00 << 13)  # of half precision's bits, where float32 has its own
LEAST_NORMAL, STEP_OF_EXPONENT = np.float32(2.0**-14), U(1 << 23)
NOTHING = U(0)


@kernel
def pack_bfloat16(bits, packed):
    for i in range(packed.size):
        x = bits[u(i)]
        odd = U(U(x >> BFLOAT16_SHIFT) & ONE)
        rounded = U(U(U(x + JUST_LESS_THAN_HALF) + odd) >> BFLOAT16_SHIFT)
        packed[u(i)] = BFLOAT16_NAN if U(x & MAGNITUDE) > INFINITE else rounded


@kernel
def unpack_bfloat16(packed, x):
    for i in range(x.size):
        x[u(i)] = U(U(packed[u(i)]) << BFLOAT16_SHIFT).view(np.float32)


@kernel
def add_bfloat16(packed, x):
    for i in range(x.size):
        x[u(i)] += U(U(packed[u(i)]) << BFLOAT16_SHIFT).view(np.float32)


@kernel
def pack_half(bits, packed):
    for i in range(packed.size):
        x = U(bits[u(i)] & MAGNITUDE)
        sign = U(U(bits[u(i)] >> BFLOAT16_SHIFT) & HALF_SIGN)
        small = U(np.float32(x.view(np.float32) + SPACED_EVENLY).view(np.uint32) - SPACED_EVENLY_BITS)
        normal = U(U(U(x + TO_HALF) + U(U(x >> HALF_SHIFT) & ONE)) >> HALF_SHIFT)
        finite = small if x < HALF_IS_NORMAL else normal
        rounded = U(U(HALF_INFINITE if x >= HALF_OVERFLOWS else finite) | sign)
        packed[u(i)] = HALF_NAN if x > INFINITE else rounded


@kernel
def half(h):
    """The float32 of half precision's bits. Those of a subnormal number count 2^-24ths; put behind the exponent of
    2^-14 they are that number and 2^-14."""
    shifted = U(U(h & HALF_MAGNITUDE) << HALF_SHIFT)
    exponent = U(shifted & HALF_EXPONENT)
    normal = U(shifted + TO_FLOAT)
    beyond = U(normal + TO_FLOAT)  # infinite, or NaN
    small = np.float32(U(normal + STEP_OF_EXPONENT).view(np.float32) - LEAST_NORMAL).view(np.uint32)
    finite = small if exponent == NOTHING else normal
    magnitude = U(beyond if exponent == HALF_EXPONENT else finite)
    return U(magnitude | U(U(h & HALF_SIGN) << BFLOAT16_SHIFT)).view(np.float32)


@kernel
def unpack_half(packed, x):
    for i in range(x.size):
        x[u(i)] = half(U(packed[u(i)]))


@kernel
def add_half(packed, x):
    for i in range(x.size):
        x[u(i)] += half(U(packed[u(i)]))
