"""The reader of a checkpoint's HDF5 content, safe for files from untrusted sources.

A seal is no secret: a sealed file may come from elsewhere. So the reader touches only plain numbers and plain arrays
that lie in one piece in this very file, in numbers and sizes that a checkpoint can have.
"""

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import h5py
import numpy as np
from h5py import h5t

from ringtrain.parsing import parse_json
from ringtrain.records import read
from ringtrain.storage import hdf5
from ringtrain.storage.checkpoint import seal

COUNTS, WORDS = ("iteration", "examples_seen", "epoch"), ("version", "fingerprint")
TEXTS = ("config", "model", "model_name", "data_name", "data_checksum", "numerics")
SHOWN = (*TEXTS[2:], *WORDS)  # for people, unchanged


@dataclass(frozen=True, slots=True)
class CheckpointReader:
    """The fields of an open checkpoint."""

    path: Path
    file: h5py.File
    size: int  # of the file, in bytes
    ranks: bool = True  # whether its arrays of single ranks are read
    # bytes of the arrays read so far; a limit on them ends files in which many names share one array
    spent: list = field(default_factory=list)

    def fields(self) -> dict:
        """Return all arguments of a Checkpoint. Raises: CheckpointError; and from HDF5 OSError, KeyError, ValueError,
        TypeError, RuntimeError, MemoryError."""
        kept = ("inputs", "ranks") if self.ranks else ("inputs",)
        written = {k: v.tobytes().decode() for k, v in self.arrays(self.file, "text").items()}
        classes = {"classes": parse_json(written.get("classes", "[]"))}
        optimizer = self.group(self.file, "optimizer")
        values = {
            **written,
            **read(dict[str, tuple[str, ...]], classes, {"plain": True}),
            **{name: self.count(name) for name in COUNTS},
            **{name: self.bytes_of(self.file, name).decode() for name in WORDS},
            "weights": self.arrays(self.file, "weights"),
            "optimizer": {slot: self.arrays(optimizer, slot) for slot in optimizer},
            "scalars": {k: v.item() for k, v in self.arrays(self.file, "scalars").items()},
            "best": self.best(),
            **{each: self.arrays(self.file, each) for each in kept if each in self.file},
        }
        for name in SHOWN:
            text = values.get(name, "")  # Checkpoint's constructor reports required fields that are missing
            if not hdf5.is_text(text):
                raise seal.damaged(self.path, f"its {name} is not printable text: {str(text)[:60]!r}")
        return values

    def count(self, name: str) -> int:
        value = hdf5.attribute(self.file, name, [h5t.INTEGER])
        if not isinstance(value, np.integer) or not 0 <= value < 1 << 62:
            raise seal.wrong_value(self.path, name, value)
        return int(value)

    def best(self) -> float | None:
        value = hdf5.attribute(self.file, "best", [h5t.FLOAT])
        if not isinstance(value, np.floating) or math.isinf(value) or value < 0:
            raise seal.wrong_value(self.path, "best", value)
        return None if math.isnan(value) else float(value)

    def bytes_of(self, owner, name: str) -> bytes:
        value = hdf5.attribute(owner, name, [h5t.STRING])
        if not isinstance(value, bytes):
            raise seal.wrong_value(self.path, f"{name} of {owner.name}", value)
        return bytes(value)

    def arrays(self, parent: h5py.Group, name: str) -> dict[str, np.ndarray]:
        group = self.group(parent, name)
        return {unquote(key): self.array(group, key) for key in group}

    def group(self, parent: h5py.Group, name: str) -> h5py.Group:
        child = self.child(parent, name)
        if not isinstance(child, h5py.Group):
            raise seal.damaged(self.path, f"{child.name} is not a group")
        return child

    def array(self, group: h5py.Group, name: str) -> np.ndarray:
        stored = self.child(group, name)
        self.accept(stored)
        array = np.empty(stored.shape, stored.dtype)
        stored.read_direct(array) if array.size else None
        if self.bytes_of(stored, "sha256").decode() != array_digest(stored.name, array):
            raise seal.damaged(self.path, f"the values of {stored.name} do not match their sha256")
        return array

    def child(self, group: h5py.Group, name: str):
        if not hdf5.is_own(group, name):
            raise seal.damaged(self.path, f"{group.name}/{name} is missing, or is a link to elsewhere")
        return group[name]

    def accept(self, array) -> None:
        """Refuse any array that a checkpoint never has: above all one that reads another file, or claims more than the
        file holds."""
        if not isinstance(array, h5py.Dataset) or array.dtype.kind not in "fiub" or array.dtype.hasobject:
            raise seal.damaged(self.path, f"{array.name} is not an array of numbers")
        if array.shape is None:  # a null dataspace
            raise seal.damaged(self.path, f"{array.name} has no shape")
        if hdf5.storage_problem(array) or array.chunks:
            raise seal.damaged(self.path, f"the values of {array.name} are not contiguous in this file")
        nbytes = hdf5.nbytes_of(array)
        self.spent.append(nbytes)
        if (nbytes and nbytes != array.id.get_storage_size()) or sum(self.spent) > self.size:
            raise seal.damaged(self.path, f"{array.name} claims more bytes than the file has")


def array_digest(name: str, array: np.ndarray) -> str:
    """Return the sha256 of an array's name, type, shape and values."""
    sha = hashlib.sha256(f"{name} {array.dtype.str} {array.shape} ".encode())
    sha.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha.hexdigest()
