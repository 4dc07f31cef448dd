"""Pixels of Pillow's images where they lie, without a copy: by the interface for arrays of Arrow.

Source: the Arrow C data interface, https://arrow.apache.org/docs/format/CDataInterface.html
"""

import ctypes

import numpy as np

from ringtrain.errors import DataError


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
    """Return the pixels of an image of mode L or RGB, which must not change. Shapes: → uint8 [H, W, S], where S
    is 1, or for RGB 4, the last without a meaning, or 3 if the pixels had to be copied"""
    shape = image.height, image.width, 1 if image.mode == "L" else 4
    try:
        _, capsule = image.__arrow_c_array__()
    except ValueError:  # a large image lies in several pieces
        return np.asarray(image, np.uint8).reshape(*shape[:2], -1)
    array = ArrowArray.from_address(_pointer(capsule, b"arrow_array"))
    values = array.children[0].contents if array.n_children else array
    return np.asarray(_ForeignMemory(values.buffers[1], shape, (image, capsule)))
