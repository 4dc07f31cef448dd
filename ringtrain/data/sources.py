"""Which reader understands what a user has. A new format is one file and one line of READERS."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringtrain.data import cifar, folder, idx, npz
from ringtrain.data.content import Content, Progress, silent
from ringtrain.errors import DataError

Size = tuple[int, int]  # height, width


@dataclass(frozen=True, slots=True)
class Reader:
    """accepts(path): whether the names and first bytes are of this format; read(path, size, progress): all
    of it."""

    what: str
    accepts: Callable[[Path], bool]
    read: Callable[[Path, Size | None, Progress], Content]
    resizes: bool = False


READERS = (
    Reader(idx.WHAT, idx.accepts, idx.read),
    Reader(cifar.WHAT, cifar.accepts, cifar.read),
    Reader(npz.WHAT, npz.accepts, npz.read),
    Reader(folder.WHAT, folder.accepts, folder.read, resizes=True),
)


def read_source(path, size: Size | None = None, progress: Progress = silent) -> Content:
    """Everything of a source, in memory; ``size`` makes images of a folder that large.

    Raises: DataError where no reader understands it, listing what is understood, or where it is damaged.
    """
    path = Path(path)
    try:
        reader = _reader(path)
        if size is not None and not reader.resizes:
            raise DataError(f"--size is for folders of images; all images of {path} have one size: leave it out")
        return reader.read(path, size, progress)
    except OSError as error:
        raise DataError(f"{path} could not be read: {error}") from error
    except MemoryError as error:
        raise DataError(f"{path} could not be read: it takes more memory than there is") from error


def _reader(path: Path) -> Reader:
    for reader in READERS:
        if reader.accepts(path):
            return reader
    what = "is none of these" if path.exists() else "does not exist; a source is one of"
    raise DataError(f"{path} {what}:\n" + "\n".join(f"  - {reader.what}" for reader in READERS))
