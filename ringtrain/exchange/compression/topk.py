"""Top-k: a rank sends the elements of largest magnitude of each parameter, and keeps the rest for later.

It sends k = ceil(ratio · n) of a parameter's n elements, or of each chunk's, and every rank chooses its own.

Bytes of a slot, of float32: 8k with whole values and indices. With bits b of a value (32 if whole), chunks of N
elements (n without), or both: k · (b + log2 N) / 8, and 4 bytes of scales for each 256 values (8 with 2 bits). So 2
bits and chunks of 4096 are 1.8 bytes in place of 8.

Source: Stich, Cordonnier & Jaggi, Sparsified SGD with memory, NeurIPS 2018; Lin et al., Deep gradient compression, ICLR
2018, section 3, without momentum correction, factor masking and clipping of a rank's own gradient; Sarfi et al.,
Communication efficient LLM pre-training with SparseLoCo, 2025: chunks, their indices, values of 2 bits.
"""

import math

from ringtrain.arrays import Array
from ringtrain.errors import ConfigError
from ringtrain.exchange.compression.gathered import GatheredCompressor
from ringtrain.ops.base import Ops
from ringtrain.ops.levels import level_bytes, packed_bytes
from ringtrain.ops.pairs import INDEX, pair_bytes, pair_count


class TopK(GatheredCompressor):
    """Top-k.

    ratio: the share of each parameter's elements that a rank sends, above 0 and up to 1
    bits:  of a value; None: whole values
    chunk: elements of which the largest are chosen, a power of 2; 0: all of a parameter

    Raises: ConfigError for another chunk"""

    name = "top-k"

    def __init__(self, ratio: float, bits: int | None = None, chunk: int = 0):
        if chunk & (chunk - 1):
            raise ConfigError(
                f"--compress-chunk {chunk} is no power of 2: indices in a chunk take whole bits. Use "
                f"{1 << chunk.bit_length()} or {1 << chunk.bit_length() - 1}, or 0 for whole parameters"
            )
        self._ratio, self._bits, self._chunk, self._packed = ratio, bits, chunk, bool(bits or chunk)
        words = [f" of {chunk} elements" if chunk else "", f" in {bits} bits" if bits else ""]
        self.header = f"top-k {100 * ratio:g} %{''.join(words)}"

    def _k(self, count: int) -> int:
        return math.ceil(self._ratio * (self._chunk or count))

    def _sizes(self, count: int, itemsize: int) -> tuple[int, int, int]:
        """Return (pairs, bytes of their values, bits of an index)."""
        pairs = pair_count(count, self._k(count), self._chunk)
        values = level_bytes(pairs, self._bits, itemsize) if self._bits else -(-pairs * itemsize // 8) * 8
        return pairs, values, ((self._chunk or count) - 1).bit_length()

    def nbytes(self, count: int, itemsize: int) -> int:
        pairs, values, width = self._sizes(count, itemsize)
        return values + -(-packed_bytes(pairs, width) // 8) * 8 if self._packed else pair_bytes(pairs, itemsize)

    def scratch_bytes(self, count: int, itemsize: int) -> int:
        return pair_bytes(self._sizes(count, itemsize)[0], itemsize)

    def take(self, ops: Ops, x: Array, sent: Array, scratch: Array) -> None:
        pairs = scratch if self._packed else sent
        ops.take_largest(x, pairs, self._k(x.size), self._chunk)
        if not self._packed:
            return
        count, middle, width = self._sizes(x.size, ops.dtype.itemsize)
        values, indices = _halves(ops, scratch, count)
        if self._bits:
            ops.take_levels(values, sent[:middle], self._bits)
            ops.add_pairs(scratch, x, count)  # what rounding left
        else:
            ops.copy(scratch[:middle], sent[:middle])
        ops.pack_bits(indices, sent[middle:], width)

    def add(self, ops: Ops, sent: Array, y: Array, scratch: Array) -> None:
        count, middle, width = self._sizes(y.size, ops.dtype.itemsize)
        if self._packed:
            values, indices = _halves(ops, scratch, count)
            if self._bits:
                ops.fill(values, 0)
                ops.add_levels(sent[:middle], values, self._bits)
            else:
                ops.copy(sent[:middle], scratch[:middle])
            ops.unpack_bits(sent[middle:], indices, width, self._k(y.size))
        ops.add_pairs(scratch if self._packed else sent, y, count)


def _halves(ops: Ops, pairs: Array, count: int) -> tuple[Array, Array]:
    """Return the values and the indices of pairs."""
    middle = count * ops.dtype.itemsize
    return ops.typed(pairs[:middle], ops.dtype), ops.typed(pairs[middle : middle + count * INDEX.itemsize], INDEX)
