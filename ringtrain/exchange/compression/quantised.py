"""Quantised gradients: a rank sends each parameter in levels of few bits, and keeps what rounding leaves for later.

Levels and scales of 1 to 8 bits are those of :mod:`ringtrain.ops.levels`; 1 bit is the sign and the mean magnitude of a
block. Rounding is to nearest, never at random: with error feedback it need not be unbiased.

Bytes of a slot, of n float32: n/8 · bits, and 4 of scales for each 256 elements (8 with 2 bits): 1.02n, 0.52n, 0.28n
and 0.14n for 8, 4, 2 bits and 1. So from 8, 16, 29 and 57 ranks on an all-reduce of whole gradients sends less. In two
phases, as 1-bit Adam's, owners of parts would add and quantise the sum once more, with residuals of their own: a rank
would send 2/p of these bytes.

Source: Seide et al., 1-bit stochastic gradient descent, Interspeech 2014; Karimireddy et al., Error feedback fixes
SignSGD, ICML 2019 (1 bit); Tang et al., 1-bit Adam, ICML 2021 (its compression, without its optimizer).
"""

from ringtrain.arrays import Array
from ringtrain.exchange.compression.gathered import GatheredCompressor
from ringtrain.ops.base import Ops
from ringtrain.ops.levels import level_bytes


class Quantised(GatheredCompressor):
    """Levels of ``bits`` bits, 1 to 8."""

    def __init__(self, bits: int):
        self._bits = bits
        self.name = self.header = f"{bits} bits" if bits > 1 else "sign"

    def nbytes(self, count: int, itemsize: int) -> int:
        return level_bytes(count, self._bits, itemsize)

    def take(self, ops: Ops, x: Array, sent: Array, scratch: Array) -> None:
        ops.take_levels(x, sent, self._bits)

    def add(self, ops: Ops, sent: Array, y: Array, scratch: Array) -> None:
        ops.add_levels(sent, y, self._bits)
