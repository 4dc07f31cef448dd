"""Text as bytes, for a network that predicts each next byte.

The files are one text, one after another. Windows of context + 1 bytes follow one another without overlap: the inputs
of an example are the first bytes of its window, its labels the last ones, so that each label is the byte after its
input. What is left at the end makes no whole window, and is left out.
"""

import glob
from pathlib import Path

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import Content, Part, Progress
from ringtrain.data.file.grammar import WILD
from ringtrain.data.stored.base import JoinedArray, StoredArray
from ringtrain.data.stored.flat import FlatArray, OpenFiles
from ringtrain.errors import DataError, plain

CONTEXT = 128
LEAST_WINDOWS = 2  # one to train, one to test
WHAT = "text: a .txt file or a quoted pattern of them, whose bytes are taken; any other file with --context"
BYTES = np.dtype(np.uint8)
CLASSES = tuple(chr(b) if 0x21 <= b <= 0x7E else f"0x{b:02x}" for b in range(256))


def accepts(path: Path) -> bool:
    return path.suffix == ".txt" and not path.is_dir()


def read(path: Path, size, progress: Progress, context: int | None = None) -> Content:
    """Open the files; blocks of windows are read as they are written. Raises: DataError"""
    context, files, opened = context or CONTEXT, _files(path), OpenFiles()
    lengths = {file: file.stat().st_size for file in files}
    count, left = divmod(sum(lengths.values()), context + 1)
    if count < LEAST_WINDOWS:
        least = LEAST_WINDOWS * (context + 1)
        raise DataError(
            f"{path} is too short: it has {sum(lengths.values())} bytes, and --context {context} needs {least} at "
            "least, for one window to train on and one to test with; give more text or a smaller --context"
        )
    text = JoinedArray(
        [FlatArray(file, 0, (length,), BYTES, str(file), opened) for file, length in lengths.items() if length]
    )
    windows = Part(TextWindows(text, count, context, 0), TextWindows(text, count, context, 1))
    notes = (f"the last {left} bytes were left out: examples are windows of {context + 1} bytes",) if left else ()
    name = path.stem if len(files) == 1 else path.resolve().parent.name
    return Content(name, windows, None, CLASSES, f"text {path.name}", notes=notes, in_order=True)


def _files(path: Path) -> list[Path]:
    files = [path]
    if WILD & set(str(path)) and not path.exists():
        files = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if Path(name).is_file()]
    if not files:
        raise DataError(texts.NO_MATCH.format(text=plain(str(path))))
    if not files[0].is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise DataError(f"{plain(str(path))} {what}: name a file of text, or a pattern of them in quotes")
    return files


class TextWindows(StoredArray):
    """The bytes of each window from its byte ``first`` on. Shapes: text uint8 [bytes] → uint8 [count, context]"""

    def __init__(self, text: StoredArray, count: int, context: int, first: int):
        self._text, self._first = text, first
        self.where, self.shape, self.dtype = text.where, (count, context), BYTES

    def read(self, start: int, stop: int, out) -> None:
        context = self.shape[1]
        windows = self._text.rows(start * (context + 1), stop * (context + 1)).reshape(-1, context + 1)
        out[...] = windows[:, self._first : self._first + context]
