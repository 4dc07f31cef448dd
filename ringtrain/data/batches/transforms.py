"""Changes of an image in training, on the host: RandomResizedCrop, colour jitter and TrivialAugment, with torchvision's
meaning.

The key of a draw is (seed, epoch, example), so an example looks the same on every rank, and after a resume.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ringtrain.data.batches import keys
from ringtrain.data.batches.draws import Draws
from ringtrain.data.batches.pictures import PictureSplit
from ringtrain.data.images import Box, Picture, pillow
from ringtrain.data.split import Shape

RATIO = (3 / 4, 4 / 3)  # width by height
TRIES = 10


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A random box of the image, of a share ``scale`` = (least, most) of its area, resized to ``height`` × ``width``.
    Source: torchvision.transforms.RandomResizedCrop; Szegedy et al. 2014"""

    height: int
    width: int
    scale: tuple[float, float] = (0.08, 1.0)

    def box(self, rows: int, columns: int, draws: Draws) -> Box:
        """Return the box in an image of ``rows`` × ``columns`` pixels."""
        for _ in range(TRIES):
            width, height = draws.sides(rows * columns, self.scale, RATIO)
            if 0 < width <= columns and 0 < height <= rows:
                return draws.below(rows - height + 1), draws.below(columns - width + 1), height, width
        width = min(columns, max(1, round(rows * RATIO[1])))
        height = min(rows, max(1, round(columns / RATIO[0])))
        return (rows - height) // 2, (columns - width) // 2, height, width


@dataclass(frozen=True, slots=True)
class ColourJitter:
    """Changes of uint8 RGB images, in a random order: factors of brightness, contrast and saturation from 1 - x to 1 +
    x, and a turn of the hue from -x to x of its circle. Source: torchvision.transforms.ColorJitter"""

    FLAG: ClassVar[str] = "--colour-jitter"
    CHANNELS: ClassVar[tuple[int, ...]] = (3,)
    brightness: float
    contrast: float
    saturation: float
    hue: float

    def of(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Shapes: uint8 [H, W, 3] → [H, W, 3]"""
        changed = pillow().fromarray(np.ascontiguousarray(image))
        changes = self._changes(draws)
        for number in draws.order(len(changes)):
            changed = changes[number](changed)
        return np.asarray(changed)

    def _changes(self, draws: Draws) -> list[Callable]:
        from PIL import ImageEnhance

        enhancers = (
            (ImageEnhance.Brightness, self.brightness),
            (ImageEnhance.Contrast, self.contrast),
            (ImageEnhance.Color, self.saturation),
        )
        factors = [draws.uniform(max(0.0, 1 - most), 1 + most) for _, most in enhancers]
        turn = round(draws.uniform(-self.hue, self.hue) * 255) % 256
        changes = [
            lambda image, enhancer=enhancer, factor=factor: enhancer(image).enhance(factor)
            for (enhancer, most), factor in zip(enhancers, factors, strict=True)
            if most
        ]
        return [*changes, lambda image: _turned(image, turn)] if self.hue else changes


def _turned(image, turn: int):
    """The image with its hue moved on by ``turn``/256 of the circle."""
    hue, *others = image.convert("HSV").split()
    moved = hue.point([(value + turn) % 256 for value in range(256)])
    return pillow().merge("HSV", (moved, *others)).convert("RGB")


@dataclass(frozen=True, slots=True)
class TrivialAugment:
    """One of 14 operations at one of 31 magnitudes, for uint8 images, grey or RGB; black comes in from outside.
    Source: torchvision.transforms.TrivialAugmentWide; Müller & Hutter 2021"""

    FLAG: ClassVar[str] = "--trivial-augment"
    CHANNELS: ClassVar[tuple[int, ...]] = (1, 3)

    def of(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Shapes: uint8 [H, W, C] → [H, W, C]"""
        picture = pillow().fromarray(np.ascontiguousarray(image if image.shape[2] == 3 else image[..., 0]))
        number, step, sign = draws.below(14), draws.below(31), 1 - 2 * draws.below(2)
        return np.asarray(self.operations(picture, step, sign)[number]()).reshape(image.shape)

    @staticmethod
    def operations(picture, step: int, sign: int) -> tuple[Callable, ...]:
        """Return the operations on a picture, in torchvision's order. ``step``: 0 to 30, of the magnitude"""
        from PIL import ImageEnhance, ImageOps

        def moved(*matrix: float):
            return picture.transform(picture.size, pillow().Transform.AFFINE, matrix)

        shear, pixels = 0.033 * step * sign, 32 * step // 30 * sign
        enhancers = ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Sharpness
        return (
            lambda: picture,
            lambda: moved(1, shear, 0, 0, 1, 0),
            lambda: moved(1, 0, 0, shear, 1, 0),
            lambda: moved(1, 0, -pixels, 0, 1, 0),
            lambda: moved(1, 0, 0, 0, 1, -pixels),
            lambda: picture.rotate(4.5 * step * sign),
            *(lambda enhancer=enhancer: enhancer(picture).enhance(1 + shear) for enhancer in enhancers),
            lambda: ImageOps.posterize(picture, 8 - round(step / 5)),
            lambda: ImageOps.solarize(picture, 255 - 17 * step // 2),
            lambda: ImageOps.autocontrast(picture),
            lambda: ImageOps.equalize(picture),
        )


@dataclass(frozen=True, slots=True)
class Transform:
    """What training does to each image. ``crop``: None for the view of evaluations; ``changes``: of pixels, in order"""

    crop: RandomResizedCrop | None = None
    changes: tuple[ColourJitter | TrivialAugment, ...] = ()

    def size(self, shape: Shape) -> tuple[int, int]:
        """Return (height, width) of the transformed images of a split of this shape."""
        return (shape[0], shape[1]) if self.crop is None else (self.crop.height, self.crop.width)

    def into(self, split: PictureSplit, example: int, seed: int, epoch: int, out: np.ndarray) -> int:
        """Write an example's image in an epoch, and return whose it is, as :meth:`.PictureSplit.use` does. Shapes: out
        [height, width, C]"""

        def show(picture: Picture) -> None:
            draws = Draws(keys.make_key(keys.TRANSFORM, seed, epoch, example))
            if self.crop is not None:
                picture.cut(self.crop.box(picture.height, picture.width, draws), out)
            else:
                split.view_into(picture, out)
            for change in self.changes:
                out[...] = change.of(out, draws)

        return split.use(example, show, seed)
