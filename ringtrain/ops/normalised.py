"""Values passed between the fused steps of batch normalisation.

::
    conv2d ──► moments of its own tiles ──► norm_statistics ──► normalise, with a sum and max(·, 0)
                                                     └───────► the next conv2d, which normalises what it reads
"""

from dataclasses import dataclass
from typing import NamedTuple

from ringtrain.arrays import Array


@dataclass(frozen=True, slots=True)
class NormStatistics:
    """Statistics of each ghost batch of ``ghost`` consecutive examples, and the parameters of their normalisation.

    Shapes: mean, var (biased), scale = gamma/sqrt(var + eps) [G, C]; gamma, beta [C]"""

    mean: Array
    var: Array
    scale: Array
    gamma: Array
    beta: Array
    ghost: int
    eps: float


class Moments(NamedTuple):
    """Sums by slice that a convolution wrote for its output: array on the device, rows of a slice, slices of a ghost
    batch."""

    parts: Array
    slice_rows: int
    slices: int


class Measured(NamedTuple):
    """An activation, and the moments that it was made with."""

    x: Array
    moments: Moments


class Normalised(NamedTuple):
    """A lazy activation: norm(x), or with ``relu`` its ReLU; it is never in memory."""

    x: Array
    statistics: NormStatistics
    relu: bool

    @property
    def shape(self):
        return self.x.shape

    @property
    def size(self):
        return self.x.size
