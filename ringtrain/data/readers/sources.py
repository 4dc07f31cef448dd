"""The reader for a user's source. A new format is one file and one line of READERS."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringtrain.data import texts
from ringtrain.data.content import Content, Progress, no_progress
from ringtrain.data.readers import cifar, folder, idx, named_arrays
from ringtrain.errors import DataError
from ringtrain.template import joined

Size = tuple[int, int]  # height, width


@dataclass(frozen=True, slots=True)
class SourceReader:
    """A format. accepts(path): whether the names and first bytes are of this format; read(path, size, progress): reads
    all of it."""

    what: str
    accepts: Callable[[Path], bool]
    read: Callable[[Path, Size | None, Progress], Content]
    resizes: bool = False


READERS = (
    SourceReader(
        "IDX: a folder or a prefix with train-images-idx3-ubyte, train-labels-idx1-ubyte (and t10k-…), .gz or not",
        idx.accepts,
        idx.read,
    ),
    SourceReader(
        "CIFAR-10 or CIFAR-100: the folder of the python or binary batches, or its .tar.gz or .tar.xz",
        cifar.accepts,
        cifar.read,
    ),
    SourceReader(
        (
            ".npz or HDF5 with the arrays x_train and y_train (x_test and y_test too), x and y, or images and "
            "labels; FILE.h5:x,y; x.npy,y.npy; a pattern of such files"
        ),
        named_arrays.accepts,
        named_arrays.read,
    ),
    SourceReader(
        "a folder of images: one subfolder a class, under train/ and test/ (or val/, valid/, validation/) or directly",
        folder.accepts,
        folder.read,
        resizes=True,
    ),
)


def read_source(path, size: Size | None = None, progress: Progress = no_progress) -> Content:
    """Open a source, or read it into memory; ``size`` resizes images of a folder.

    Raises: DataError if no reader accepts it, listing the formats, or if it is damaged.
    """
    path = Path(path)
    try:
        reader = _reader(path)
        if size is not None and not reader.resizes:
            raise DataError(f"--size is for folders of images; all images of {path} have one size: leave it out")
        return reader.read(path, size, progress)
    except OSError as error:
        raise DataError(texts.SOURCE_UNREADABLE(path=path, error=error)) from error
    except MemoryError as error:
        raise DataError(texts.TOO_LARGE(path=path)) from error


def _reader(path: Path) -> SourceReader:
    for reader in READERS:
        if reader.accepts(path):
            return reader
    what = "is none of these" if path.exists() else "does not exist; a source is one of"
    raise DataError(joined([f"{path} {what}:", *(f"  - {reader.what}" for reader in READERS)]))
