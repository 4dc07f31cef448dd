"""The reader for a user's source. A new format is one file and its name in READERS."""

from pathlib import Path

from ringtrain.data import texts
from ringtrain.data.content import Content, Progress, no_progress
from ringtrain.data.file.grammar import AS_STORED
from ringtrain.data.readers import cifar, folder, idx, named_arrays, text
from ringtrain.errors import DataError
from ringtrain.template import joined

Size = tuple[int, int]  # height, width


# A format is a module with WHAT, in words; accepts(path): whether the names and first bytes are of it; and
# read(path, size, progress), which reads all of it.
READERS = (idx, cifar, text, named_arrays, folder)


def read_source(
    path, size: Size | None = None, progress: Progress = no_progress, context: int | None = None, layout=AS_STORED
) -> Content:
    """Open a source, or read it into memory; ``size`` resizes images of a folder, ``context`` takes any file as
    text, ``layout`` is that of arrays.

    Raises: DataError if no reader accepts it, listing the formats, or if it is damaged.
    """
    path = Path(path)
    try:
        reader = next((reader for reader in READERS if reader.accepts(path)), None) if context is None else text
        if reader is None:
            what = "is none of these" if path.exists() else "does not exist; a source is one of"
            raise DataError(joined([f"{path} {what}:", *(f"  - {reader.WHAT}" for reader in READERS)]))
        if size is not None and reader is not folder:
            raise DataError(f"--size is for folders of images; all images of {path} have one size: leave it out")
        more = {text: () if context is None else (context,), named_arrays: (layout,)}
        return reader.read(path, size, progress, *more.get(reader, ()))
    except OSError as error:
        raise DataError(texts.SOURCE_UNREADABLE.format(path=path, error=error)) from error
    except MemoryError as error:
        raise DataError(texts.TOO_LARGE.format(path=path)) from error
