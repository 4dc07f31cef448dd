"""SplitMix64: the bijection of the 64-bit integers that all keyed random numbers are made with.

Source: Steele, Lea & Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
"""

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def splitmix(x: int) -> int:
    """Return the image of ``x``, an integer from 0 to 2^64 - 1."""
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * FIRST) & MASK
    x = ((x ^ (x >> 27)) * SECOND) & MASK
    return x ^ (x >> 31)
