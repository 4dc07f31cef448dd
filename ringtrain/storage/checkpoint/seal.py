"""The seal of a checkpoint: one line before the HDF5 content that says what every other byte of the file must be.

    offset 0      magic, version, length of the content, its sha256; padded with blanks to 511 bytes, and a newline
    offset 512    HDF5, which allows any bytes before itself (a "user block"): h5ls, h5dump and h5py read the file

It is checked before the HDF5 library sees the file, so that a truncated file or a flipped bit, wherever it
is, is found by us and not by a crash in a parser. The line holds nothing but what it must, so a bit flipped
in itself is found too.
"""

import hashlib
import os
import re
from pathlib import Path

from ringtrain.errors import CheckpointError
from ringtrain.storage import texts

BLOCK = 512  # the smallest user block that HDF5 allows
VERSION = 1
_MAGIC = "ringtrain-checkpoint"
_PIECE = 1 << 20


def make_seal(content: memoryview) -> bytes:
    """The seal of this content: ``BLOCK`` bytes."""
    return _block(content.nbytes, hashlib.sha256(content).hexdigest())


def check_seal(path: Path, file) -> None:
    """Compare a file, open for reading in bytes, with its seal. ``path`` is what errors call it.

    Raises: CheckpointError where the file is no checkpoint, is of another version, is truncated or was
    changed. OSError where it cannot be read.
    """
    head = file.read(BLOCK)
    count = _promised(path, head)
    held = os.fstat(file.fileno()).st_size - BLOCK
    if held != count:
        raise damaged(path, texts.OTHER_LENGTH(found=held + BLOCK, written=count + BLOCK))
    if head != _block(count, _digest(file)):
        raise damaged(path, texts.BYTES_CHANGED)


def damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(texts.DAMAGED(path=path, problem=what))


def _promised(path: Path, head: bytes) -> int:
    """The length that the seal says."""
    words = head.decode("ascii", "replace").split()
    if len(head) < BLOCK and _MAGIC.encode().startswith(head[: len(_MAGIC)]):
        raise damaged(path, texts.TOO_SHORT(nbytes=len(head)))
    if words[:1] != [_MAGIC]:
        raise CheckpointError(texts.NO_CHECKPOINT_FILE(path=path, magic=_MAGIC))
    if len(words) != 6 or not re.fullmatch("[0-9]{1,18}", words[3]):
        raise damaged(path, texts.FIRST_LINE)
    if words[1] != str(VERSION):
        raise CheckpointError(texts.OTHER_VERSION(path=path, version=words[1], wanted=VERSION))
    return int(words[3])


def _block(count: int, digest: str) -> bytes:
    line = f"{_MAGIC} {VERSION} bytes {count} sha256 {digest}"
    return f"{line:<{BLOCK - 1}}\n".encode()


def _digest(file) -> str:
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()
