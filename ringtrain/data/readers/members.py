"""The files of a folder, or of an archive, by name: read into memory, never extracted to disk."""

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from ringtrain.data.content import Progress
from ringtrain.data.decoding import decoding
from ringtrain.errors import DataError

ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
PACKED = {b"\x1f\x8b": gzip, b"BZh": bz2, b"\xfd7zXZ\0": lzma}  # by their first bytes
PIECE_BYTES = 1 << 20
READS_AT_END = 1000  # of a whole archive: a few
LARGEST_BYTES = 256 << 20  # of a member: an archive can expand to anything, and a batch of CIFAR has 148 MiB at most


def is_archive(path: Path) -> bool:
    try:
        return path.is_file() and tarfile.is_tarfile(path)
    except Exception:  # tarfile and its decoders raise exceptions of any type for a damaged file
        return path.name.endswith(ENDINGS)


def member_names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir() if entry.is_file()}


def read_members(path: Path, wanted: Collection[str], progress: Progress) -> dict[str, bytes]:
    """Return {name: contents} of those ``wanted`` files that exist, in any folder of the archive.

    Raises: DataError if the archive is damaged, has a name twice, or a member of more than 256 MiB.
    """
    if path.is_dir():
        return {name: (path / name).read_bytes() for name in sorted(member_names(path) & set(wanted))}
    with decoding(f"{path} is truncated or damaged, copy it again"):
        return _read_archive(path, wanted, progress)


def _read_archive(path: Path, wanted, progress: Progress) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    total = path.stat().st_size
    # As a stream: a compressed archive returns to an earlier member only by starting again.
    # The stub of tarfile wants a file that writes and seeks, but a stream is only read.
    with open(path, "rb") as file, decompressed(file) as unpacked:
        with tarfile.open(fileobj=_Ending(unpacked), mode="r|") as archive:  # type: ignore[call-overload]
            for member in archive:
                name = PurePosixPath(member.name).name
                if member.isfile() and name in wanted:
                    if name in contents:
                        raise DataError(f"{path} has two files named {name}: keep one of them")
                    if member.size > LARGEST_BYTES:
                        raise DataError(
                            f"{path}: {member.name} has {member.size} bytes; ringtrain reads at most {LARGEST_BYTES}"
                        )
                    contents[name] = archive.extractfile(member).read()
                    progress("reading", file.tell(), total)
        while unpacked.read(PIECE_BYTES):  # to its end, where the checksum is
            pass
    return contents


def decompressed(file, packed=PACKED):
    """The bytes of a file, decoded by a module that compares their checksum, as tarfile's own gzip does not."""
    head = file.peek(6)
    return next((module.open(file) for magic, module in packed.items() if head.startswith(magic)), file)


class _Ending:
    """A file that allows only a few reads at its end: tarfile, asked to skip a huge damaged length, would read there
    for ever."""

    def __init__(self, file):
        self._file, self._left = file, READS_AT_END

    def read(self, count: int) -> bytes:
        data = self._file.read(count)
        self._left -= not data
        if self._left < 0:
            raise EOFError("it ends before its own size")
        return data
