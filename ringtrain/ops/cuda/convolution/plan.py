"""The sizes of a convolution, as its kernels take them."""

from dataclasses import dataclass

from ringtrain.ops.geometry import ConvGeometry

LONGEST_KERNEL = 32  # the gathering kernels divide by it with the precision of a float


def divider(divisor: int) -> tuple[int, int]:
    """Return (multiplier, shift) such that x // divisor = ((x · multiplier >> 32) + x) >> shift for 0 <= x < 2³¹.
    Source: Granlund & Montgomery 1994, section 4."""
    shift = (divisor - 1).bit_length()
    return (((1 << shift) - divisor << 32) // divisor + 1, shift)


@dataclass(frozen=True, slots=True)
class ConvolutionPlan:
    """The sizes of one convolution. channels and features: of all groups."""

    images: int
    height: int
    width: int
    channels: int
    p: int
    q: int
    features: int
    kernel: int
    stride: int
    pad: int
    groups: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Arguments of every kernel, except the groups."""
        return (
            self.images, self.height, self.width, self.channels, self.p, self.q, self.features,
            self.kernel, self.stride, self.pad,
        )  # fmt: skip

    @property
    def geometry(self) -> ConvGeometry:
        return ConvGeometry(self.kernel, self.stride, self.pad, self.groups)

    @property
    def group_channels(self) -> int:
        return self.channels // self.groups

    @property
    def group_features(self) -> int:
        return self.features // self.groups

    @property
    def depth(self) -> int:
        """Elements of a window, of one group."""
        return self.kernel**2 * self.group_channels

    @property
    def pixels(self) -> int:
        return self.images * self.p * self.q

    @property
    def pixels_in(self) -> int:
        return self.images * self.height * self.width

    @property
    def direct(self) -> bool:
        """Whether the image is the matrix of windows already."""
        return self.kernel == 1 and self.stride == 1 and self.pad == 0

    @property
    def flops(self) -> int:
        return 2 * self.pixels * self.features * self.depth


def make_convolution_plan(x_shape, w_shape, y_shape, geometry: ConvGeometry) -> ConvolutionPlan:
    (n, height, width, channels), (_, p, q, features) = x_shape, y_shape
    return ConvolutionPlan(
        n, height, width, channels, p, q, features, geometry.kernel, geometry.stride, geometry.pad, geometry.groups
    )
