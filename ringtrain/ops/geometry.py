"""The geometry of a convolution or a pooling window."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """A kernel of ``kernel`` elements a side, moved by ``stride`` over an array padded by ``pad`` zeros a side."""

    kernel: int
    stride: int = 1
    pad: int = 0
    groups: int = 1

    def output(self, size: int) -> int:
        return (size + 2 * self.pad - self.kernel) // self.stride + 1


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """A square pooling window. ``ceil`` is Caffe's rule: a last window that is only partly inside counts."""

    kernel: int
    stride: int
    pad: int = 0
    ceil: bool = False

    def output(self, size: int) -> int:
        span = size + 2 * self.pad - self.kernel
        if not self.ceil:
            return span // self.stride + 1
        count = -(-span // self.stride) + 1
        # Caffe: a window that would start behind the image, or in the padding there, is left out.
        if (count - 1) * self.stride >= size + self.pad:
            count -= 1
        return count


def window_sizes(shape: Sequence[int], geometry: ConvGeometry) -> tuple[int, ...]:
    """Return the sizes of the windows of an array [N, ..., C] of 1 to 3 spatial axes, as compiled kernels take them: N;
    three extents; channels of all groups, and groups; three counts of windows; three of taps; the stride; three pads.
    An axis that is not there has one element and one window of it."""
    count, *extents, channels = shape
    missing = 3 - len(extents)
    outputs = [geometry.output(extent) for extent in extents]
    axes = (extents, 1), (outputs, 1), ([geometry.kernel] * len(extents), 1), ([geometry.pad] * len(extents), 0)
    extents, outputs, taps, pads = ([fill] * missing + list(values) for values, fill in axes)
    return (count, *extents, channels, geometry.groups, *outputs, *taps, geometry.stride, *pads)
