"""Splits of images that are viewed as they are read: image files of any size, or arrays that are resized."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from ringtrain.data.batches import keys
from ringtrain.data.content import CLASS_NUMBERS, IGNORE
from ringtrain.data.images import Part, Picture, StoredPicture
from ringtrain.data.split import Shape, Split
from ringtrain.errors import DataError

# The part of an evaluation's image that the centre crop takes, as in torchvision: 224 of 256 pixels.
RESIZED, CROPPED = 256, 224
REPLACEMENTS = 100  # that are tried for a bad image


@dataclass(frozen=True, slots=True)
class View:
    """What an evaluation sees of an image, before the centre crop of the model's input."""

    crop: tuple[int, int]
    # (height, width); or the length of the shorter side, then the centre square; or None: the shorter side is
    # 256/224 of the crop's, then the centre crop of ``crop``
    to: tuple[int, int] | int | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of all images."""
        if self.to is None:
            return self.crop
        return (self.to, self.to) if isinstance(self.to, int) else self.to

    def part(self, rows: int, columns: int) -> Part:
        """Return what is seen of an image of ``rows`` × ``columns`` pixels: the centre of the resized image, in the
        pixels of the image. Source: torchvision's Resize(256), CenterCrop(224)"""
        height, width = self.size
        if self.to is None:
            tall, wide = _fitted(rows, columns, height, width)
        elif isinstance(self.to, int):
            tall, wide = (height, height * columns // rows) if rows <= columns else (width * rows // columns, width)
        else:
            tall, wide = height, width
        top, left = round((tall - height) / 2), round((wide - width) / 2)
        return top * rows / tall, left * columns / wide, height * rows / tall, width * columns / wide

    def into(self, picture: Picture, out: np.ndarray) -> None:
        """Write what is seen of an image. Shapes: out [height, width, C]"""
        picture.show(self.part(picture.height, picture.width), out)

    def of(self, image: np.ndarray) -> np.ndarray:
        """Return what is seen of an image. Shapes: [H, W, C] → [height, width, C]"""
        out = np.empty((*self.size, image.shape[2]), image.dtype)
        self.into(StoredPicture(image), out)
        return out


def _fitted(rows: int, columns: int, height: int, width: int) -> tuple[int, int]:
    """The size, of the image's proportions, in which a crop of this size leaves a margin on the shorter side."""
    tall, wide = round(height * RESIZED / CROPPED), round(width * RESIZED / CROPPED)
    if tall * columns >= wide * rows:  # the height decides
        return tall, max(wide, tall * columns // rows)
    return max(tall, wide * rows // columns), wide


class PictureSplit(Split):
    """A split whose examples are images with a class number each. ``view``: None for images of one size, as they are;
    ``threads``: that read a batch at a time"""

    view: View | None
    threads: int
    remedy = ""  # after the error of a bad image
    label_shape: Shape = ()
    label_dtype = CLASS_NUMBERS

    def valid(self, examples) -> int:
        assert self.labels is not None, "a split of pictures has a class number for each"
        return int(np.count_nonzero(self.labels[examples] != IGNORE))

    def view_into(self, picture: Picture, out: np.ndarray) -> None:
        """Write an image as evaluations see it. Shapes: out [H, W, C]"""
        if self.view is None:
            out[...] = picture.pixels()
        else:
            self.view.into(picture, out)

    @abstractmethod
    def picture(self, example: int) -> Picture:
        """Return an image, as it is stored."""

    def image(self, example: int) -> np.ndarray:
        return self.picture(example).pixels()

    def read(self, examples, images, labels) -> None:
        """As the interface says. A bad image that does not end the command becomes zeros without a label."""
        self.read_labels(examples, labels)
        for row, example in enumerate(examples.tolist()):
            if not self._shown(example, partial(self.view_into, out=images[row])):
                images[row], labels[row] = 0, IGNORE

    def use(self, example: int, show: Callable[[Picture], None], seed: int = 0) -> int:
        """Call ``show(picture)``, and return the example whose picture it is: in place of a bad one, which does not end
        the command, one that ``seed`` and the example's number choose. Raises: DataError"""
        others = (keys.make_key(keys.REPLACE, seed, example, turn) % self.count for turn in range(REPLACEMENTS))
        for number in chain([example], others):
            if self._shown(number, show):
                return number
        raise DataError(f"none of {REPLACEMENTS} images could replace a bad one: {(self.problems or {})[example]}")

    def _shown(self, example: int, show: Callable[[Picture], None]) -> bool:
        try:
            show(self.picture(example))
        except DataError as error:
            if self.problems is None:
                raise DataError(f"{error}{self.remedy}") from error
            self.problems[example] = str(error)
            return False
        return True

    def read_labels(self, examples, labels) -> None:
        """Read the labels alone. Shapes: int64 [n], int32 [n]"""
        assert self.labels is not None, "a split of pictures has a class number for each"
        np.take(self.labels, examples, out=labels, mode="clip")


class StoredPictures(PictureSplit):
    """The images of another split, one class number each."""

    def __init__(self, source: Split, view: View | None, threads: int):
        self.source, self.view, self.threads = source, view, threads
        self.count, self.dtype, self.checksum = source.count, source.dtype, source.checksum
        self.shape = source.shape if view is None else (*view.size, source.shape[2])
        self.labels = source.labels

    @property
    def row_bytes(self) -> int:
        return self.source.row_bytes

    def advise(self, spans, needed: bool) -> None:
        self.source.advise(spans, needed)

    def picture(self, example: int) -> Picture:
        return StoredPicture(self.source.image(example))
