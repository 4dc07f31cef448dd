"""The reader for a user's source. A new format is one file and one line of READERS."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringtrain.data import texts
from ringtrain.data.content import Content, Progress, no_progress
from ringtrain.data.readers import cifar, folder, idx, named_arrays
from ringtrain.errors import DataError

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
    SourceReader(texts.IDX_SOURCE, idx.accepts, idx.read),
    SourceReader(texts.CIFAR_SOURCE, cifar.accepts, cifar.read),
    SourceReader(texts.NPZ_SOURCE, named_arrays.accepts, named_arrays.read),
    SourceReader(texts.FOLDER_SOURCE, folder.accepts, folder.read, resizes=True),
)


def read_source(path, size: Size | None = None, progress: Progress = no_progress) -> Content:
    """Open a source, or read it into memory; ``size`` resizes images of a folder.

    Raises: DataError if no reader accepts it, listing the formats, or if it is damaged.
    """
    path = Path(path)
    try:
        reader = _reader(path)
        if size is not None and not reader.resizes:
            raise DataError(texts.SIZE_NOT_NEEDED(path=path))
        return reader.read(path, size, progress)
    except OSError as error:
        raise DataError(texts.SOURCE_UNREADABLE(path=path, error=error)) from error
    except MemoryError as error:
        raise DataError(texts.TOO_LARGE(path=path)) from error


def _reader(path: Path) -> SourceReader:
    for reader in READERS:
        if reader.accepts(path):
            return reader
    what = texts.NONE_OF_THESE if path.exists() else texts.DOES_NOT_EXIST
    raise DataError(
        texts.NO_SOURCE(path=path, problem=what, known="\n".join(f"  - {reader.what}" for reader in READERS))
    )
