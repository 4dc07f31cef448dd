"""Crop offsets and mirror flags of each image: numbers that ``ops.prepare_images`` acts on.

The key of a draw is (seed, epoch, example), so an example looks the same on every rank, and after a resume.
"""

from dataclasses import dataclass

import numpy as np

from ringtrain.data.batches import keys
from ringtrain.errors import DataError

FIELD = 21  # bits of the hash for each of top and left


@dataclass(frozen=True, slots=True)
class Augment:
    """Crops of ``height`` × ``width`` pixels out of the image with ``pad`` zeros a side: random ones, a random half of
    them mirrored with ``flip``; or, with ``centre``, the middle, never mirrored: a larger size pads the image."""

    pad: int
    flip: bool
    height: int
    width: int
    centre: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the crop."""
        return self.height, self.width

    def check(self, shape) -> None:
        """Check that the crop fits into images of [H, W, C] = ``shape``. Raises: DataError"""
        if self.centre:
            return
        if self.pad < 0 or self.height > shape[0] + 2 * self.pad or self.width > shape[1] + 2 * self.pad:
            raise DataError(
                f"a crop of {self.height}x{self.width} does not fit into images of {shape[0]}x{shape[1]} padded by "
                f"{self.pad}: use a smaller crop or a larger pad"
            )

    def draw(self, shape, seed: int, epoch: int, batch, scratch) -> None:
        """Fill ``batch.top``, ``.left`` and ``.flip``. Shapes: int32, int32, uint8 [n]; scratch uint64 [2, ≥
        n]"""
        if self.centre:
            batch.top.fill((shape[0] - self.height) // 2)
            batch.left.fill((shape[1] - self.width) // 2)
            batch.flip.fill(0)
            return
        n = batch.examples.size
        hashed, spare = scratch[0, :n], scratch[1, :n]
        keys.hashes(keys.make_key(keys.AUGMENT, seed, epoch), batch.examples, hashed, spare)
        _draw_offset(hashed, 0, shape[0] + 2 * self.pad - self.height + 1, self.pad, spare, batch.top)
        _draw_offset(hashed, FIELD, shape[1] + 2 * self.pad - self.width + 1, self.pad, spare, batch.left)
        if self.flip:
            np.right_shift(hashed, np.uint64(63), out=spare)
            np.copyto(batch.flip, spare, casting="unsafe")
        else:
            batch.flip.fill(0)


def _draw_offset(hashed, shift: int, choices: int, pad: int, spare, out) -> None:
    """Write numbers from -pad to choices - 1 - pad to ``out``: the hash field's value as a fraction,
    times ``choices``."""
    np.right_shift(hashed, np.uint64(shift), out=spare)
    np.bitwise_and(spare, np.uint64((1 << FIELD) - 1), out=spare)
    np.multiply(spare, np.uint64(choices), out=spare)
    np.right_shift(spare, np.uint64(FIELD), out=spare)
    np.copyto(out, spare, casting="unsafe")
    np.subtract(out, pad, out=out)
