"""Splits of images that are viewed as they are read: image files of any size, or arrays that are resized."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from ringtrain.data.images import Picture, StoredPicture, fit, resize, shorter_to
from ringtrain.data.split import Shape, Split


@dataclass(frozen=True, slots=True)
class View:
    """What an evaluation sees of an image, before the centre crop of the model's input.

    to: (height, width); or the length of the shorter side, then the centre square; or None: the shorter side is 256/224
        of the crop's, then the centre crop of ``crop``
    """

    crop: tuple[int, int]
    to: tuple[int, int] | int | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of all images."""
        if self.to is None:
            return self.crop
        return (self.to, self.to) if isinstance(self.to, int) else self.to

    def of(self, image: np.ndarray) -> np.ndarray:
        """Shapes: [H, W, C] → [height, width, C]"""
        if self.to is None:
            return fit(image, *self.crop)
        return shorter_to(image, self.to) if isinstance(self.to, int) else resize(image, *self.to)


class PictureSplit(Split):
    """A split whose examples are images with a class number each. ``view``: None for images of one size, as they are;
    ``threads``: that read a batch at a time"""

    view: View | None
    threads: int

    def viewed(self, picture: Picture) -> np.ndarray:
        """Return an image as evaluations see it. Shapes: → [H, W, C]"""
        return picture.pixels() if self.view is None else self.view.of(picture.pixels())

    @abstractmethod
    def picture(self, example: int) -> Picture:
        """Return an image, as it is stored."""

    def image(self, example: int) -> np.ndarray:
        return self.picture(example).pixels()

    def read(self, examples, images, labels) -> None:
        for row, example in enumerate(examples.tolist()):
            images[row] = self.viewed(self.picture(example))
        self.read_labels(examples, labels)

    def read_labels(self, examples, labels) -> None:
        """Read the labels alone. Shapes: int64 [n], int32 [n]"""
        assert self.labels is not None, "a split of pictures has a class number for each"
        np.take(self.labels, examples, out=labels, mode="clip")


@dataclass(frozen=True, slots=True, eq=False)
class StoredPictures(PictureSplit):
    """The images of another split, one class number each."""

    source: Split
    view: View | None
    threads: int

    @property
    def count(self) -> int:  # type: ignore[override]
        return self.source.count

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        return self.source.shape if self.view is None else (*self.view.size, self.source.shape[2])

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        return self.source.dtype

    @property
    def label_shape(self) -> Shape:  # type: ignore[override]
        return self.source.label_shape

    @property
    def label_dtype(self) -> np.dtype:  # type: ignore[override]
        return self.source.label_dtype

    @property
    def checksum(self) -> str:  # type: ignore[override]
        return self.source.checksum

    @property
    def labels(self) -> np.ndarray | None:  # type: ignore[override]
        return self.source.labels

    @property
    def row_bytes(self) -> int:
        return self.source.row_bytes

    def ahead(self, spans) -> None:
        self.source.ahead(spans)

    def behind(self, spans) -> None:
        self.source.behind(spans)

    def valid(self, examples) -> int:
        return self.source.valid(examples)

    def picture(self, example: int) -> Picture:
        return StoredPicture(self.source.image(example))
