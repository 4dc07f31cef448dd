"""Keyed 64-bit hashes: example order, splits and augmentation come from them, not from a random stream.

``splitmix(x)`` is a bijection of the 64-bit integers whose output passes for random. A key of several
integers is a chain of it, ``splitmix(… splitmix(splitmix(0 ^ a) ^ b) …)``, and example i under a key is
``splitmix(key ^ i)``. Two examples never collide, since each step is a bijection, so a sort by hash has no
ties: every sort gives the same order, in any version of NumPy. The inverse exists too: a permutation sorts the
hashes in place, computes each example from its hash, and allocates nothing.

These values decide the examples of every run ever logged: a test holds some of them, and they never change.

Source: Steele, Lea, Flood, Fast splittable pseudorandom number generators, OOPSLA 2014 (SplitMix64).
"""

import numpy as np

from ringtrain.splitmix import FIRST, GOLDEN, MASK, SECOND, splitmix

BLOCK = 1 << 14  # elements hashed at a time: the block and its scratch stay in the cache

RAMP = np.arange(BLOCK, dtype=np.int64)

# The purpose of a key, as its first integer: draws for different purposes are independent.
ORDER, SPLIT, AUGMENT, SYNTHETIC = 1, 2, 3, 4
BLOCKS = 9
TRANSFORM, MIX, PARTNERS, ERASE, SAMPLE, PARTS, REPLACE = 11, 12, 13, 14, 15, 16, 17


def make_key(*values: int) -> int:
    """Return one key of any integers, in order; negative ones count modulo 2^64."""
    key = 0
    for value in values:
        key = splitmix(key ^ (value & MASK))
    return key


def _xorshift(x, bits: int, scratch):
    np.right_shift(x, np.uint64(bits), out=scratch)
    x ^= scratch


def _unxorshift(x, bits: int, scratch):
    # The inverse of x ^ x >> b is x ^ x >> b ^ x >> 2b ^ …; here 3b is past the last bit.
    _xorshift(x, bits, scratch)
    np.right_shift(scratch, np.uint64(bits), out=scratch)
    x ^= scratch


def splitmix_into(x, scratch):
    """Replace each element by its splitmix. Shapes: uint64 [n] both"""
    x += np.uint64(GOLDEN)
    _xorshift(x, 30, scratch)
    x *= np.uint64(FIRST)
    _xorshift(x, 27, scratch)
    x *= np.uint64(SECOND)
    _xorshift(x, 31, scratch)


def unsplitmix_into(x, scratch):
    """Invert :func:`splitmix_into`."""
    _unxorshift(x, 31, scratch)
    x *= np.uint64(pow(SECOND, -1, 1 << 64))
    _unxorshift(x, 27, scratch)
    x *= np.uint64(pow(FIRST, -1, 1 << 64))
    _unxorshift(x, 30, scratch)
    x -= np.uint64(GOLDEN)


def _blocks(x, scratch):
    for start in range(0, x.size, BLOCK):
        block = x[start : start + BLOCK]
        yield block, scratch[: block.size]


def count_up(out):
    """Write 0, 1, 2 … to ``out``; NumPy's arange has no ``out``. Shapes: int64 [n]"""
    for start in range(0, out.size, BLOCK):
        block = out[start : start + BLOCK]
        np.add(RAMP[: block.size], start, out=block)
    return out


def hashes(key: int, examples, out=None, scratch=None):
    """Return splitmix(key ^ example) of each. Shapes: int64 [n] → uint64 [n]; ``scratch`` of at least min(n, BLOCK)."""
    out = np.empty(examples.size, np.uint64) if out is None else out
    scratch = np.empty(min(out.size, BLOCK), np.uint64) if scratch is None else scratch
    np.bitwise_xor(examples.view(np.uint64), np.uint64(key), out=out)
    for block, spare in _blocks(out, scratch):
        splitmix_into(block, spare)
    return out


def permutation(key: int, count: int, out=None, scratch=None):
    """Return the numbers 0 … count - 1 in the order of their hashes. Shapes: → int64 [count], in ``out`` if given."""
    out = np.empty(count, np.int64) if out is None else out
    scratch = np.empty(min(count, BLOCK), np.uint64) if scratch is None else scratch
    hashed = out.view(np.uint64)
    count_up(out)
    hashes(key, out, hashed, scratch)
    hashed.sort()
    for block, spare in _blocks(hashed, scratch):
        unsplitmix_into(block, spare)
    np.bitwise_xor(hashed, np.uint64(key), out=hashed)
    return out
