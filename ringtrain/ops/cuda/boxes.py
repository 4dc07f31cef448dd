"""Boxes of arrays that Hopper's TMA unit copies to shared memory, and the maps by which a kernel names them.

Extents, strides and boxes are innermost axis first, strides of all axes but the innermost; all in elements. What lies
outside of an array is copied as 0. Lines of a box are 128 bytes, and swizzled."""

from dataclasses import dataclass

LINE_BYTES = 128
WIDE_BYTES = 16  # addresses and strides are multiples of it
FURTHEST_CORNER = 127  # of a box of pixels, from the image's
LONGEST_STEP = 8


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of an array of three axes."""

    extents: tuple[int, int, int]
    strides: tuple[int, int]
    box: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class PixelBoxes:
    """Boxes of ``pixels`` × ``channels`` of images of extents (channels, width, height, images).

    A pixel is where a window begins, and windows are ``step`` apart. lower: (w, h) of an image's first window, from
    its first pixel; upper: of its last window, from its last pixel. A kernel names the first window of a box and a tap
    in it; a box may reach into the images behind."""

    extents: tuple[int, int, int, int]
    lower: tuple[int, int]
    upper: tuple[int, int]
    step: int
    channels: int
    pixels: int

    @property
    def strides(self) -> tuple[int, int, int]:
        channels, width, height, _ = self.extents
        return channels, width * channels, height * width * channels


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A kernel's parameter of type TensorMap. ``value``: what the runtime passes; ``array``: on whose memory."""

    value: object
    array: object


def windows(extents, lower, counts, step: int, channels: int, pixels: int) -> PixelBoxes:
    """Return the boxes of images with ``counts`` (across, down) windows, the first of them at ``lower``."""
    sides = zip(lower, counts, extents[1:3], strict=True)
    upper = tuple(first + (count - 1) * step - (extent - 1) for first, count, extent in sides)
    return PixelBoxes(tuple(extents), tuple(lower), upper, step, channels, pixels)


def reachable(boxes: PixelBoxes) -> bool:
    """Whether the corners and the step of these boxes can be encoded."""
    corners = (*boxes.lower, *boxes.upper)
    return boxes.step <= LONGEST_STEP and all(-FURTHEST_CORNER <= corner <= FURTHEST_CORNER for corner in corners)
