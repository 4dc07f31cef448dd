"""64-bit keys of random numbers: a pure function of integers, instead of the state of a generator.

A key is built by absorbing integers one after the other:

    state = scramble(state + GOLDEN + number)        (mod 2^64, from state = 0)

with the finaliser of splitmix64 as ``scramble``. Dropout goes on absorbing, first the example and then the
element, from the key it is given: the same arithmetic, on arrays. So a random number depends on what it is
for, never on the rank, the order or the batch in which it is drawn.

Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators".
"""

import hashlib

GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
MASK = (1 << 64) - 1

# Dropout compares this many top bits of the random number with a whole threshold: no rounding can differ.
DROPOUT_BITS = 24


def scramble(state: int) -> int:
    state = ((state ^ (state >> 30)) * FIRST) & MASK
    state = ((state ^ (state >> 27)) * SECOND) & MASK
    return state ^ (state >> 31)


def absorb(state: int, number: int) -> int:
    return scramble((state + GOLDEN + number) & MASK)


def mix(*numbers: int) -> int:
    """The 64-bit key of these integers, in this order; negative ones are taken modulo 2^64."""
    state = 0
    for number in numbers:
        state = absorb(state, number)
    return state


def name_key(name: str) -> int:
    """The 64-bit key of a name: the first 8 bytes, little-endian, of its SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def dropout_threshold(rate: float) -> int:
    """Random numbers below this, of DROPOUT_BITS bits, drop their element."""
    return round(rate * (1 << DROPOUT_BITS))
