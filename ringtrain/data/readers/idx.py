"""IDX files, the format of MNIST and similar sets: train-images-idx3-ubyte[.gz] and so on.

    0 0 8 d        d = 3 axes for images, 1 for labels; 8 = unsigned bytes
    n h w          each a big-endian uint32
    bytes          row-major

Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database, "File formats".
"""

import gzip
import math
import re
import struct
from pathlib import Path

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import Content, Part, Progress, make_part
from ringtrain.data.decoding import decoding
from ringtrain.data.readers.members import decompressed
from ringtrain.errors import DataError

GZIP = {b"\x1f\x8b": gzip}

WHAT = "IDX: a folder or a prefix with train-images-idx3-ubyte, train-labels-idx1-ubyte (and t10k-…), .gz or not"
NAME = re.compile(r"(?P<prefix>.*?)(?P<split>train|t10k|test)-(?P<kind>images|labels)[-.]idx[13]-ubyte(\.gz)?")
PIECE_BYTES = 16 << 20
SPLITS = {"train": ("train",), "test": ("t10k", "test")}


def accepts(path: Path) -> bool:
    return bool(_named(path))


def _named(path: Path) -> dict:
    """Return {(prefix, split, kind): file} of a folder, of the files whose paths begin with ``path``, or of the pair of
    a file."""
    folder, start = (path, "") if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir():
        return {}
    matches = ((NAME.fullmatch(file.name), _inside(file)) for file in sorted(folder.iterdir()))
    named = {(m["prefix"], m["split"], m["kind"]): file for m, file in matches if m}
    one = NAME.fullmatch(start)
    beginning = {key: file for key, file in named.items() if file.name.startswith(start)}
    if one and beginning:
        return {key: file for key, file in named.items() if key[:2] == (one["prefix"], one["split"])}
    return beginning


def _inside(path: Path) -> Path:
    """The file in a folder of its own name, as Kaggle's MNIST has them."""
    files = [each for each in sorted(path.iterdir()) if NAME.fullmatch(each.name)] if path.is_dir() else []
    return files[0] if files else path


def read(path: Path, size, progress: Progress) -> Content:
    named = _named(path)
    prefixes = sorted({prefix for prefix, _, _ in named})
    if len(prefixes) > 1:
        known = ", ".join(str((path if path.is_dir() else path.parent) / prefix) for prefix in prefixes)
        raise DataError(f"{path} has IDX files of several data sets: name one of {known}")
    read = (_read_split(named, prefixes[0], names) for names in SPLITS.values())
    parts = [part for part in read if part is not None]
    highest = max(int(np.asarray(part.labels).max()) for part in parts)
    folder = path if path.is_dir() else path.parent
    return Content(
        name=prefixes[0].rstrip("-_.") or folder.resolve().name,
        train=parts[0],
        test=parts[1] if parts[1:] else None,
        classes=tuple(map(str, range(highest + 1))),
        source=f"IDX files {path.name}",
    )


def _read_split(named: dict, prefix: str, names) -> Part | None:
    for split in names:
        images, labels = (named.get((prefix, split, kind)) for kind in ("images", "labels"))
        if images and labels:
            return make_part(_read_array(images, 3), _read_array(labels, 1), str(images))
        if images or labels:
            missing = "labels" if images else "images"
            raise DataError(
                f"{images or labels} has no {missing} beside it: both {split}-images-… and {split}-labels-… are needed"
            )
    return None


def _read_array(path: Path, axes: int):
    reading = decoding(texts.NOT_READ_FILE.format(path=path))
    with reading, open(path, "rb") as stored, decompressed(stored, GZIP) as file:
        head = file.read(4 + 4 * axes)
        if head[:4] != bytes((0, 0, 8, axes)):
            raise DataError(
                f"{path} begins with the bytes {head[:4].hex(' ') or '(none)'}; IDX "
                f"{'images' if axes == 3 else 'labels'} begin with 00 00 08 0{axes} (unsigned bytes, axes: {axes})"
            )
        if len(head) < 4 + 4 * axes:
            raise DataError(f"{path} is truncated: it ends within its header, after {len(head)} bytes")
        shape = struct.unpack(f">{axes}I", head[4:])
        return np.frombuffer(_values(path, file, shape), np.uint8).reshape(shape)


def _values(path: Path, file, shape) -> bytes:
    """Read as many bytes as the header promises, and no more: a small file can unpack to any size."""
    count, data = math.prod(shape), bytearray()
    while piece := file.read(min(PIECE_BYTES, count + 1 - len(data))):
        data += piece
    if len(data) != count:
        raise DataError(
            f"{path} is {'truncated' if len(data) < count else 'too long'}: its header says "
            f"{'x'.join(map(str, shape))} = {count} bytes, and {len(data) if len(data) < count else 'more'} follow"
        )
    return bytes(data)
