"""safetensors files: named arrays, and a table of texts. Files come from anywhere: nothing in them is executed, and a
wrong one is an error of one line."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ringtrain import parsing
from ringtrain.errors import UsageError, plain
from ringtrain.storage import files

SUFFIX = ".safetensors"
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # as they are stored
POINTER = b"version https://git-lfs.github.com/spec/"
MOST_HEADER = 100 << 20  # bytes, the library's own limit
NO_PACKAGE = "this needs the Python package {name}: python -m pip install 'ringtrain[{name}]'"
UNREADABLE = "{path}: cannot be read: {reason}"
NO_SAFETENSORS = "{path} is no whole safetensors file: {error}"


def _library():
    try:
        import safetensors
        import safetensors.numpy
    except ImportError:
        raise UsageError(NO_PACKAGE.format(name="safetensors")) from None
    return safetensors


class TensorFile:
    """An open safetensors file, checked by the library. ``shapes``: of its tensors, by name. Raises UsageError"""

    def __init__(self, path: Path):
        library = _library()
        self.path = path
        try:
            os.close(files.open_regular(path, os.O_RDONLY))
            with library.safe_open(str(path), framework="np") as opened:
                slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118, no mapping
                self.shapes = {name: tuple(each.get_shape()) for name, each in slices.items()}
                self._dtypes = {name: each.get_dtype() for name, each in slices.items()}
            self._starts = self._offsets()
        except OSError as error:
            raise UsageError(UNREADABLE.format(path=path, reason=error.strerror or error)) from None
        except (library.SafetensorError, ValueError) as error:
            with open(path, "rb") as file:
                if file.read(len(POINTER)) == POINTER:
                    raise UsageError(
                        f"{path} is a pointer of git-lfs, not the weights: `git lfs pull` in its repository replaces "
                        "it by the file"
                    ) from None
            raise UsageError(NO_SAFETENSORS.format(path=path, error=plain(str(error)))) from None

    def _offsets(self) -> dict[str, int]:
        """The first byte of each tensor. The library has checked the header."""
        with open(self.path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MOST_HEADER:
                raise ValueError(f"its header has more than {MOST_HEADER:,} bytes")
            header = parsing.parse_json(file.read(length).decode())
        try:
            return {name: 8 + length + int(header[name]["data_offsets"][0]) for name in self.shapes}
        except (KeyError, TypeError, IndexError) as error:
            # The header names a tensor twice, and the library took the other entry.
            raise ValueError(str(error)) from None

    def read(self, name: str) -> np.ndarray:
        """Return a tensor as float32, or float64 if it is that. Raises UsageError for another type, and for values that
        are not finite."""
        kind, shape = self._dtypes[name], self.shapes[name]
        if kind not in TYPES:
            raise UsageError(
                f"{self.path}: tensor {plain(name)!r} is of type {kind}; weights are of one of these: "
                f"{', '.join(TYPES)}"
            )
        count = int(np.prod(shape, dtype=np.int64))
        try:
            values = np.fromfile(self.path, TYPES[kind], count, offset=self._starts[name])
        except OSError as error:
            raise UsageError(UNREADABLE.format(path=self.path, reason=error.strerror or error)) from None
        if values.size != count:
            raise UsageError(NO_SAFETENSORS.format(path=self.path, error="it became shorter while it was read"))
        if kind == "BF16":
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if not np.isfinite(values).all():
            raise UsageError(
                f"{self.path}: tensor {plain(name)!r} has values that are not finite: take a file of a run that did "
                "not diverge"
            )
        return values.astype(np.float32, copy=False).reshape(shape) if kind != "F64" else values.reshape(shape)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], texts_by_name: Mapping[str, str]) -> None:
    """Write a safetensors file, whole or not at all. Raises as :func:`ringtrain.storage.files.write`."""
    content = _library().numpy.save(dict(tensors), dict(texts_by_name))
    files.write(path, content)
