"""Mixup and CutMix of a batch, and random erasing of its examples, with torchvision's meaning.

One share (and box) is drawn for a global batch, by (seed, iteration). Each example meets another one of the same global
batch: the next in an order that is drawn by the same key. So any rank knows the partners of its examples, and reads
them itself. Boxes that are erased are drawn by (seed, epoch, example).
"""

import math
from dataclasses import dataclass

import numpy as np

from ringtrain.data.batches import keys
from ringtrain.data.batches.draws import Draws

AREA, RATIO, TRIES = (0.02, 0.33), (0.3, 3.3), 10  # of an erased box: share of the image, height by width


@dataclass(frozen=True, slots=True)
class Mix:
    """How a batch is mixed. ``share``: of each example in itself; its partner has the rest. ``box``: (top, left,
    height, width) of the pixels that are the partner's alone; None: all pixels are weighted means"""

    share: float
    box: tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True)
class Mixing:
    """``mixup``, ``cutmix``: the parameter of Beta(alpha, alpha) of the share; None: off. With both, each batch takes
    one of them. Source: Zhang et al. 2018 (mixup), Yun et al. 2019 (CutMix)"""

    mixup: float | None = None
    cutmix: float | None = None

    def __bool__(self) -> bool:
        return self.mixup is not None or self.cutmix is not None

    def draw(self, height: int, width: int, seed: int, iteration: int) -> Mix:
        """Return how an iteration's batch of images of this size is mixed."""
        draws = Draws(keys.make_key(keys.MIX, seed, iteration))
        boxed = draws.uniform() < 0.5 if self.mixup is not None and self.cutmix is not None else self.mixup is None
        alpha = self.cutmix if boxed else self.mixup
        assert alpha is not None, "a batch is mixed where one of the two is on"
        share = draws.beta(alpha)
        if not boxed:
            return Mix(share, None)
        row, column, half = draws.below(height), draws.below(width), 0.5 * math.sqrt(1 - share)
        high, wide = int(half * height), int(half * width)
        top, left = max(0, row - high), max(0, column - wide)
        box = top, left, min(height, row + high) - top, min(width, column + wide) - left
        return Mix(1 - box[2] * box[3] / (height * width), box)


def partners(count: int, seed: int, iteration: int) -> np.ndarray:
    """Return the place of each example's partner in a global batch: another one, where there is one. Shapes: → int64
    [count]"""
    order = keys.permutation(keys.make_key(keys.PARTNERS, seed, iteration), count)
    positions = np.empty(count, np.int64)
    positions[order] = np.roll(order, -1)
    return positions


@dataclass(frozen=True, slots=True)
class Erasing:
    """Boxes of examples that become the mean, for a share ``probability`` of them. Source: Zhong et al. 2020;
    torchvision.transforms.RandomErasing"""

    probability: float

    def draw(self, height: int, width: int, seed: int, epoch: int, examples, boxes) -> None:
        """Fill ``boxes`` with (top, left, height, width), zeros for nothing. Shapes: int64 [n], int32 [n, 4]"""
        for row, example in enumerate(examples.tolist()):
            boxes[row] = self._box(height, width, Draws(keys.make_key(keys.ERASE, seed, epoch, example)))

    def _box(self, rows: int, columns: int, draws: Draws) -> tuple[int, int, int, int]:
        if draws.uniform() >= self.probability:
            return 0, 0, 0, 0
        for _ in range(TRIES):
            height, width = draws.sides(rows * columns, AREA, RATIO)
            if height < rows and width < columns:
                return draws.below(rows - height + 1), draws.below(columns - width + 1), height, width
        return 0, 0, 0, 0
