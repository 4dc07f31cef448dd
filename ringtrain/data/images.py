"""Images: decoded from files in memory by Pillow, cut out and resized.

Results depend on the bytes alone. A file's EXIF orientation is applied, its alpha dropped, its palette looked up. Files
with more than 8 bits a channel are refused.
"""

import warnings
from abc import ABC, abstractmethod
from io import BytesIO

import numpy as np

from ringtrain.data import texts
from ringtrain.data.decoding import decoder_errors
from ringtrain.errors import DataError

# By a file's bytes, not its name: other formats of Pillow start programs (PostScript).
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
GREY, COLOUR = (
    frozenset(("1", "L", "LA")),
    frozenset(("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV")),
)
MODES = {1: "L", 3: "RGB"}
ORIENTATION = 0x0112  # of EXIF
TURNED = (5, 6, 7, 8)  # orientations that exchange height and width
# The part of an evaluation's image that the centre crop takes, as in torchvision: 224 of 256 pixels.
RESIZED, CROPPED = 256, 224

Box = tuple[int, int, int, int]  # top, left, height, width


def pillow():
    """Return Pillow's module Image. Raises: DataError if it is not installed"""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(texts.NO_PILLOW) from error
    return Image


class Picture(ABC):
    """An image of ``height`` × ``width`` pixels as it is stored."""

    height: int
    width: int

    @abstractmethod
    def pixels(self) -> np.ndarray:
        """Return all of it. Shapes: → [height, width, C]"""

    @abstractmethod
    def cut(self, box: Box, height: int, width: int) -> np.ndarray:
        """Return the pixels in a box, resized. Shapes: → [height, width, C]"""


class StoredPicture(Picture):
    """An image that is an array [H, W, C]."""

    def __init__(self, image: np.ndarray):
        self._image = image
        self.height, self.width = image.shape[:2]

    def pixels(self) -> np.ndarray:
        return self._image

    def cut(self, box: Box, height: int, width: int) -> np.ndarray:
        return resize(self._image, height, width, box)


class FilePicture(Picture):
    """An image in the bytes of a file, of which only the header is read at first. ``where``: its name in errors;
    ``channels``: 1, grey, or 3, RGB. Raises: DataError"""

    def __init__(self, data: bytes, where: str, channels: int):
        if channels not in MODES:
            raise DataError(texts.CHANNELS_OF_FILES(channels=channels))
        self._where, self._mode, self._shape = where, MODES[channels], (channels,)
        self._image = open_file(BytesIO(data), where)
        self._turn = _orientation(self._image)
        self.width, self.height = self._image.size if self._turn not in TURNED else self._image.size[::-1]

    def pixels(self) -> np.ndarray:
        with decoder_errors(texts.NO_IMAGE(file=self._where)):
            return _array(self._decoded(), self._shape)

    def cut(self, box: Box, height: int, width: int) -> np.ndarray:
        """As the interface says. A JPEG that is much larger than needed is decoded at 1/2, 1/4 or 1/8 of its size,
        which the DCT gives in less time."""
        top, left, rows, columns = box
        least = max(1, self.height * height // rows), max(1, self.width * width // columns)
        with decoder_errors(texts.NO_IMAGE(file=self._where)):
            self._image.draft(None, least if self._turn in TURNED else least[::-1])
            image = self._decoded()
            if image.size == (self.width, self.height):
                image, part = image.crop((left, top, left + columns, top + rows)), None
            else:
                down, across = image.height / self.height, image.width / self.width
                part = left * across, top * down, (left + columns) * across, (top + rows) * down
            return _array(image.resize((width, height), pillow().Resampling.BILINEAR, part), self._shape)

    def _decoded(self):
        image = self._image.convert(self._mode)
        if self._turn == 1:
            return image
        turns = pillow().Transpose
        return image.transpose(
            {
                2: turns.FLIP_LEFT_RIGHT,
                3: turns.ROTATE_180,
                4: turns.FLIP_TOP_BOTTOM,
                5: turns.TRANSPOSE,
                6: turns.ROTATE_270,
                7: turns.TRANSVERSE,
                8: turns.ROTATE_90,
            }[self._turn]
        )


def open_file(file, where: str):
    """Open an image (a path, or a file of bytes) and read its header, not its pixels. Raises: DataError"""
    module = pillow()
    _silence()
    with decoder_errors(texts.NO_IMAGE(file=where)):
        image = module.open(file, formats=FORMATS)
    if image.mode not in GREY | COLOUR:
        image.close()
        raise DataError(texts.PIXEL_TYPE(file=where, mode=image.mode))
    return image


def _silence() -> None:
    """Hide Pillow's warnings: they concern bytes, and an image is taken or refused as a whole."""
    if not any(action == "ignore" and module and module.match("PIL.x") for action, _, _, module, _ in warnings.filters):
        warnings.filterwarnings("ignore", module=r"PIL\.")


def _orientation(image) -> int:
    """The EXIF orientation, 1 to 8; 1, upright, where there is none to be read."""
    if image.format not in ("JPEG", "TIFF", "WEBP") and "exif" not in image.info:
        return 1  # a PNG would be decoded to look for it
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # malformed bytes raise exceptions of any type; the pixels may be good
        return 1
    return found if found in range(1, 9) else 1


def _array(image, channels: tuple[int, ...]) -> np.ndarray:
    return np.asarray(image, np.uint8).reshape(image.height, image.width, *channels)


def decode_image(data: bytes, where: str, channels: int) -> np.ndarray:
    """Return the pixels of an image file. ``where``: its name in errors; ``channels``: 1, grey, or 3, RGB. Shapes: →
    uint8 [H, W, channels]

    Raises: DataError if it is no image, or truncated, or has more than 8 bits a channel.
    """
    return FilePicture(data, where, channels).pixels()


def resize(image: np.ndarray, height: int, width: int, box: Box | None = None) -> np.ndarray:
    """Resize an image, or a box of it: bilinear, over all pixels that a new one covers (antialias). Channels of other
    images than uint8 with 1 or 3 are resized one by one, in float32. Shapes: [H, W, C] → [height, width, C]"""
    top, left, rows, columns = box or (0, 0, *image.shape[:2])
    image = np.ascontiguousarray(image[top : top + rows, left : left + columns])
    if (rows, columns) == (height, width):
        return image
    module = pillow()
    size, method = (width, height), module.Resampling.BILINEAR
    channels = image.shape[2]
    if image.dtype == np.uint8 and channels in (1, 3):
        whole = module.fromarray(image if channels > 1 else image[..., 0])
        return np.asarray(whole.resize(size, method)).reshape(height, width, channels)
    resized = np.empty((height, width, channels), image.dtype)
    for channel in range(channels):
        plane = module.fromarray(np.ascontiguousarray(image[..., channel], np.float32)).resize(size, method)
        resized[..., channel] = np.rint(plane) if image.dtype == np.uint8 else plane
    return resized


def fit(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return an evaluation's view of an image: resized so that the shorter side is 256/224 of the crop's, then the
    centre crop. Shapes: [H, W, C] → [height, width, C]. Source: torchvision's Resize(256), CenterCrop(224)"""
    rows, columns = image.shape[:2]
    resized = resize(image, *_fitted(rows, columns, height, width))
    return centre(resized, height, width)


def _fitted(rows: int, columns: int, height: int, width: int) -> tuple[int, int]:
    """The size, of the image's proportions, in which a crop of this size leaves a margin on the shorter side."""
    tall, wide = round(height * RESIZED / CROPPED), round(width * RESIZED / CROPPED)
    if tall * columns >= wide * rows:  # the height decides
        return tall, max(wide, tall * columns // rows)
    return max(tall, wide * rows // columns), wide


def shorter_to(image: np.ndarray, side: int) -> np.ndarray:
    """Resize an image's shorter side to ``side`` pixels, and return the centre square. Shapes: [H, W, C] → [side, side,
    C]"""
    rows, columns = image.shape[:2]
    size = (side, side * columns // rows) if rows <= columns else (side * rows // columns, side)
    return centre(resize(image, *size), side, side)


def centre(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the middle of an image that is at least as large. Shapes: [H, W, C] → [height, width, C]"""
    top, left = round((image.shape[0] - height) / 2), round((image.shape[1] - width) / 2)
    return image[top : top + height, left : left + width]
