"""The geometry of a convolution or a pooling window on an image."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """A square kernel of ``kernel`` elements, moved by ``stride`` over an image padded by ``pad`` zeros a side."""

    kernel: int
    stride: int = 1
    pad: int = 0
    groups: int = 1

    def output(self, size: int) -> int:
        """Return the output size for an input size."""
        return (size + 2 * self.pad - self.kernel) // self.stride + 1


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """A square pooling window. ``ceil`` is Caffe's rule: a last window that is only partly inside counts."""

    kernel: int
    stride: int
    pad: int = 0
    ceil: bool = False

    def output(self, size: int) -> int:
        """Return the output size for an input size."""
        span = size + 2 * self.pad - self.kernel
        if not self.ceil:
            return span // self.stride + 1
        count = -(-span // self.stride) + 1
        # Caffe: a window that would start behind the image, or in the padding there, is left out.
        if (count - 1) * self.stride >= size + self.pad:
            count -= 1
        return count
