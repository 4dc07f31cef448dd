"""Images: decoded from files in memory by Pillow, cut out and resized by a kernel.

Results depend on the bytes alone. A file's EXIF orientation is applied, its alpha dropped, its palette looked up; of
several frames or pages the first is taken, profiles of colour are not looked at. Files with more than 8 bits a channel
are refused. What Pillow does of that by itself differs by format: it turns TIFF, and cuts 16 bits of colour to 8.
"""

import ctypes
import warnings
import zlib
from abc import ABC, abstractmethod
from io import BytesIO

import numpy as np

from ringtrain.data import texts
from ringtrain.data.decoding import decoder_errors
from ringtrain.errors import DataError
from ringtrain.ops.cpu.resize import Box, Part, fits, resize_image

__all__ = ["Box", "FilePicture", "Part", "Picture", "StoredPicture", "decode_image", "pillow", "resize"]

# By a file's bytes, not its name: other formats of Pillow start programs (PostScript).
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
GREY = frozenset(("1", "L", "LA"))
COLOUR = frozenset(("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV"))
PNG = b"\x89PNG\r\n\x1a\n"
MODES = {1: "L", 3: "RGB"}
ORIENTATION, BITS_PER_SAMPLE, XMP = 0x0112, 0x0102, 0x02BC  # tags of TIFF and EXIF
EXIF_CHUNKS = {b"eXIf", b"iTXt", b"tEXt", b"zTXt"}  # of a PNG, which may lie behind the pixels
TURNS = {  # how an image of an orientation is put upright, by Pillow's names
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip
TURNED = (5, 6, 7, 8)  # orientations that exchange height and width


def pillow():
    """Return Pillow's module Image. Raises: DataError if it is not installed, or too old"""
    try:
        from PIL import Image

        Image.Image.__arrow_c_array__  # noqa: B018 (what :func:`pixels_of` needs)
    except (ImportError, AttributeError) as error:
        raise DataError(
            "files of images need Pillow 11.3 or newer, which is not installed: pip install --upgrade "
            "'ringtrain[images]'"
        ) from error
    return Image


class Picture(ABC):
    """An image of ``height`` × ``width`` pixels as it is stored."""

    height: int
    width: int

    @abstractmethod
    def pixels(self) -> np.ndarray:
        """Return all of it. Shapes: → [height, width, C]"""

    def seen(self) -> np.ndarray:
        """Return all of it where it lies. Shapes: → [height, width, C], or [height, width, 4] of 3 channels"""
        return self.pixels()

    def cut(self, box: Box, out: np.ndarray) -> None:
        """Write the pixels in a box to ``out``, resized. Shapes: out [height, width, C]"""
        resize_into(self.seen(), out, box)

    def show(self, part: Part, out: np.ndarray) -> None:
        """Write a part of any real size to ``out``, resized beside its surroundings. Shapes: out [height, width, C]"""
        resize_into(self.seen(), out, (0, 0, self.height, self.width), part)


class StoredPicture(Picture):
    """An image that is an array [H, W, C]."""

    def __init__(self, image: np.ndarray):
        self._image = image
        self.height, self.width = image.shape[:2]

    def pixels(self) -> np.ndarray:
        return self._image


class FilePicture(Picture):
    """An image in the bytes of a file, whose header alone is read at first. ``where``: its name in errors;
    ``channels``: 1, grey, or 3, RGB; ``grey``: whether the file has no colour. Raises: DataError"""

    def __init__(self, data: bytes, where: str, channels: int):
        if channels not in MODES:
            raise DataError(f"files of images have 1 channel or 3, not {channels}: use arrays, in an HDF5 file")
        self._where, self._mode, self._channels = where, MODES[channels], channels
        chunks = _chunks(data, where)
        self._image = _opened(data, where)
        self._turn = _orientation(self._image, chunks)
        self.grey = self._image.mode in GREY
        self.width, self.height = self._image.size if self._turn not in TURNED else self._image.size[::-1]

    def pixels(self) -> np.ndarray:
        with decoder_errors(texts.NO_IMAGE.format(file=self._where)):
            return np.ascontiguousarray(self.seen()[..., : self._channels])

    def seen(self) -> np.ndarray:
        return pixels_of(self.decoded())

    def show(self, part: Part, out: np.ndarray) -> None:
        with decoder_errors(texts.NO_IMAGE.format(file=self._where)):
            super().show(part, out)

    def cut(self, box: Box, out: np.ndarray) -> None:
        """As the interface says. A JPEG that is much larger than needed is decoded at 1/2, 1/4 or 1/8 of its size,
        which the DCT gives in less time."""
        top, left, rows, columns = box
        height, width = out.shape[:2]
        least = max(1, self.height * height // rows), max(1, self.width * width // columns)
        with decoder_errors(texts.NO_IMAGE.format(file=self._where)):
            self._image.draft(None, least if self._turn in TURNED else least[::-1])
            image = self.decoded()
            if image.size == (self.width, self.height):
                resize_into(pixels_of(image), out, box)
            else:
                down, across = image.height / self.height, image.width / self.width
                part = top * down, left * across, rows * down, columns * across
                resize_into(pixels_of(image), out, (0, 0, image.height, image.width), part)

    def decoded(self):
        """Return Pillow's image, upright and of the mode of the channels."""
        if self._image.mode == self._mode:
            self._image.load()
            image = self._image
        else:
            image = self._image.convert(self._mode)
        if self._turn == 1:
            return image
        return image.transpose(pillow().Transpose[TURNS[self._turn]])


def _opened(data: bytes, where: str):
    """Pillow's image, whose header is read, not the pixels. Raises: DataError"""
    module = pillow()
    # No warnings of Pillow: they concern bytes, and an image is taken or refused as a whole.
    if not any(action == "ignore" and module and module.match("PIL.x") for action, _, _, module, _ in warnings.filters):
        warnings.filterwarnings("ignore", module=r"PIL\.")
    with decoder_errors(texts.NO_IMAGE.format(file=where)):
        try:
            image = module.open(BytesIO(data), formats=FORMATS)
        except module.UnidentifiedImageError:
            # Pillow's words have an address, which is another one on each rank.
            raise ValueError(f"no known format; it begins with {data[:24]!r}" if data else "it is empty") from None
        bits = _bits(image)
    known = image.mode in GREY | COLOUR
    if not known or bits > 8:
        image.close()
        mode = f"{image.mode} with {bits} bits a channel" if known else image.mode
        raise DataError(f"{where} has pixels of type {mode}: convert it to 8 bits a channel first")
    return image


def _bits(image) -> int:
    """The bits of a channel in the file, as far as Pillow takes more than 8: of colour its mode does not tell."""
    if image.format == "TIFF":
        return max(image.tag_v2.get(BITS_PER_SAMPLE, (1,)))
    if image.format not in ("PNG", "PPM"):
        return 8
    form = image.tile[0][3]  # for the decoder; of a PPM with the largest value
    return form[1].bit_length() if isinstance(form, tuple) else 16 if "16" in form else 8


def _chunks(data: bytes, where: str) -> set[bytes]:
    """The types of a PNG's chunks, whose CRC-32 is right: Pillow skips the pixels' one. Raises: DataError"""
    at, view, types = len(PNG), memoryview(data), set()
    while data.startswith(PNG) and at + 12 <= len(data):
        end = at + 8 + int.from_bytes(view[at : at + 4])
        noted, computed = view[end : end + 4], zlib.crc32(view[at + 4 : end])
        if len(noted) == 4 and int.from_bytes(noted) != computed:
            raise DataError(
                f"{where} changed after it was written: the CRC-32 of its chunk at byte {at} is {computed:08x}, the "
                f"file says {int.from_bytes(noted):08x}; copy it again"
            )
        types.add(bytes(view[at + 4 : at + 8]))
        at = end + 4
    return types


def _orientation(image, chunks: set[bytes]) -> int:
    """The EXIF orientation that is to be applied, 1 to 8; 1, upright, where there is none to be read. ``chunks``: the
    types of a PNG's chunks"""
    if image.format == "PNG" and not chunks & EXIF_CHUNKS:
        return 1  # it would be decoded to look for it
    try:
        if image.format == "TIFF":
            if XMP in image.tag_v2:
                image.load()  # which may turn it, and only then is its size known
            return 1
        orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # malformed bytes raise exceptions of any type; the pixels may be good
        return 1
    return orientation if orientation in range(1, 9) else 1


def decode_image(data: bytes, where: str, channels: int) -> np.ndarray:
    """Return the pixels of an image file. ``where``: its name in errors; ``channels``: 1, grey, or 3, RGB. Shapes: →
    uint8 [H, W, channels]

    Raises: DataError if it is no image, or truncated, or has more than 8 bits a channel.
    """
    return FilePicture(data, where, channels).pixels()


def resize(image: np.ndarray, height: int, width: int, box: Box | None = None) -> np.ndarray:
    """Return an image, or a box of it, resized. Shapes: [H, W, C] → [height, width, C]"""
    out = np.empty((height, width, image.shape[2]), image.dtype)
    resize_into(image, out, box or (0, 0, *image.shape[:2]))
    return out


def resize_into(image: np.ndarray, out: np.ndarray, box: Box, part: Part | None = None) -> None:
    """Resize a box of an image, or a part of any real extent of the pixels in the box, to ``out``: bilinear, over all
    pixels in the box that a new one covers (antialias). Channels of other images than uint8 with 1 or 3 are resized one
    by one, in float32. Shapes: [H, W, C], or [H, W, 4] for an ``out`` of 3 channels, → [height, width, C]"""
    top, left, rows, columns = box
    height, width, channels = out.shape
    if part is None and (rows, columns) == (height, width):
        out[...] = image[top : top + rows, left : left + columns, :channels]
    elif image.dtype == np.uint8 and channels in MODES and fits(box, width, channels):
        resize_image(np.ascontiguousarray(image), out, box, part)
    else:
        _resize_channels(image[top : top + rows, left : left + columns], out, part or (0, 0, rows, columns))


def _resize_channels(image: np.ndarray, out: np.ndarray, part: Part) -> None:
    module, (height, width, channels) = pillow(), out.shape
    (top, left, rows, columns), (most_rows, most_columns) = part, image.shape[:2]
    corners = left, top, min(most_columns, left + columns), min(most_rows, top + rows)
    for channel in range(channels):
        plane = module.fromarray(np.ascontiguousarray(image[..., channel], np.float32))
        resized = plane.resize((width, height), module.Resampling.BILINEAR, corners)
        out[..., channel] = np.rint(resized) if out.dtype == np.uint8 else resized


# ── pixels where Pillow has them ──────────────────────────────────────────────────────────────────────────────────────
# Source: the Arrow C data interface, https://arrow.apache.org/docs/format/CDataInterface.html
class ArrowArray(ctypes.Structure):
    """An array of Arrow."""


ArrowArray._fields_ = [
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowArray))),
]
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _ForeignMemory:
    """Memory that an array is made of, and what keeps it."""

    def __init__(self, address: int, shape: tuple[int, ...], keeper):
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": shape, "data": (address, True)}
        self._keeper = keeper


def pixels_of(image) -> np.ndarray:
    """Return the pixels of an image of mode L or RGB, which must not change. Shapes: → uint8 [H, W, S], where S is 1,
    or for RGB 4, the last without a meaning, or 3 if the pixels had to be copied"""
    shape = image.height, image.width, 1 if image.mode == "L" else 4
    try:
        _, capsule = image.__arrow_c_array__()
    except ValueError:  # a large image lies in several pieces
        return np.asarray(image, np.uint8).reshape(*shape[:2], -1)
    array = ArrowArray.from_address(_pointer(capsule, b"arrow_array"))
    values = array.children[0].contents if array.n_children else array
    return np.asarray(_ForeignMemory(values.buffers[1], shape, (image, capsule)))
