"""The seal of a checkpoint: one line before the HDF5 content that fixes every other byte of the file.

    offset 0      magic, version, length of the content, its sha256; padded with blanks to 511 bytes, and a newline
    offset 512    HDF5, which allows any bytes before itself (a "user block"): h5ls, h5dump and h5py read the file

The check runs before the HDF5 library sees the file, so it, and not a crash in a parser, reports a truncated file or a
flipped bit. The line holds nothing else, so it detects a flipped bit in itself too.
"""

import hashlib
import os
import re
from pathlib import Path

from ringtrain.errors import CheckpointError

BLOCK = 512  # the smallest user block that HDF5 allows
VERSION = 1
_MAGIC = "ringtrain-checkpoint"
_PIECE = 1 << 20


def make_seal(content: memoryview) -> bytes:
    """Return the seal of this content: ``BLOCK`` bytes."""
    return _block(content.nbytes, hashlib.sha256(content).hexdigest())


def check_seal(path: Path, file) -> None:
    """Compare a file, open for reading in bytes, with its seal. ``path`` is its name in errors.

    Raises: CheckpointError if the file is no checkpoint, has another version, is truncated or changed. OSError if it
    cannot be read.
    """
    head = file.read(BLOCK)
    count = _promised(path, head)
    nbytes = os.fstat(file.fileno()).st_size - BLOCK
    if nbytes != count:
        raise damaged(path, f"{nbytes + BLOCK:,} bytes long, but {count + BLOCK:,} were written")
    if head != _block(count, _digest(file)):
        raise damaged(path, "its bytes changed after they were written: they do not match its sha256")


def damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} is damaged: {what}; use another one (--resume auto takes the newest good one)"
    )


def wrong_value(path: Path, name: str, value) -> CheckpointError:
    return damaged(path, f"its contents are not those of a checkpoint: {name} is {value!r}")


def _promised(path: Path, head: bytes) -> int:
    """Return the length of the content according to the seal."""
    words = head.decode("ascii", "replace").split()
    if len(head) < BLOCK and _MAGIC.encode().startswith(head[: len(_MAGIC)]):
        raise damaged(path, f"only {len(head)} bytes long")
    if words[:1] != [_MAGIC]:
        raise CheckpointError(
            f"{path} is not a checkpoint of ringtrain: it does not begin with {_MAGIC!r}; give a file of a run's "
            "checkpoints folder, or the run's folder"
        )
    if len(words) != 6 or not re.fullmatch("[0-9]{1,18}", words[3]):
        raise damaged(path, "its first line is not one that ringtrain writes")
    if words[1] != str(VERSION):
        raise CheckpointError(
            f"checkpoint {path} has format version {words[1]}; this ringtrain reads version {VERSION}: use the "
            "ringtrain that wrote it"
        )
    return int(words[3])


def _block(count: int, digest: str) -> bytes:
    line = f"{_MAGIC} {VERSION} bytes {count} sha256 {digest}"
    return f"{line:<{BLOCK - 1}}\n".encode()


def _digest(file) -> str:
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()
