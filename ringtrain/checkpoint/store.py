"""A checkpoint: all that a run needs to go on, at any number of ranks, and the HDF5 file it is kept in.

    /                attributes: iteration, examples_seen, epoch, best, version, fingerprint
    /text            config, model, model_name, data_name, data_checksum, numerics
    /scalars         one number each
    /weights         one data set a parameter, in the model's order, "/" in a name written as %2F
    /optimizer/SLOT  likewise

Every data set carries the sha256 of its name, type, shape and values, made from the arrays as they were in
memory; the file as a whole carries a seal (see :mod:`ringtrain.checkpoint.seal`). The file is composed in
memory, so a full disk is met by a plain write, and not within the HDF5 library; the price is memory for a
second copy on rank 0.
"""

import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

import h5py
import numpy as np

from ringtrain.checkpoint import files, seal
from ringtrain.errors import CheckpointError

Arrays = Mapping[str, np.ndarray]
_PLAIN = "".join(chr(c) for c in range(33, 127) if chr(c) not in "/%")  # in a name, written as they are
_OPEN = {"libver": ("v110", "v110")}  # any HDF5 from 1.10 on reads it; its metadata is checksummed


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The state of a run between two iterations. It holds no generator's state: what is drawn is drawn by
    keys.

    iteration:     finished iterations
    examples_seen: by all ranks, counted over all epochs
    epoch:         finished epochs
    weights:       parameter name → array in the parameter's shape; running statistics included
    optimizer:     slot → parameter name → array
    scalars:       other numbers of the state, such as the optimizer's step
    config:        the resolved configuration of the run, as text
    model:         the model file, as text
    model_name:    for the reader
    fingerprint:   of the parameters, see :func:`fingerprint`
    data_name, data_checksum: the data set trained on
    best:          best test accuracy so far, a fraction; None where there was no evaluation
    version:       of the ringtrain that wrote it
    numerics:      whose kernels computed it; "" in checkpoints of versions that did not say
    """

    iteration: int
    examples_seen: int
    epoch: int
    weights: Arrays
    optimizer: Mapping[str, Arrays]
    scalars: Mapping[str, int | float]
    config: str
    model: str
    model_name: str
    fingerprint: str
    data_name: str
    data_checksum: str
    best: float | None
    version: str
    numerics: str = ""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name → shape."""
        return {name: np.shape(array) for name, array in self.weights.items()}


def fingerprint(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """sha256 of the names and shapes of a model's parameters, in the order of names."""
    lines = sorted(f"{name}{list(map(int, shape))}" for name, shape in shapes.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint: afterwards the file holds it whole; if that fails, it holds what it held before.

    Raises: RingtrainError, UsageError as :func:`ringtrain.checkpoint.files.write`.
    """
    image = io.BytesIO()
    with h5py.File(image, "w", userblock_size=seal.BLOCK, **_OPEN) as file:
        _write(file, checkpoint)
    with image.getbuffer() as content:
        content[: seal.BLOCK] = seal.block(content[seal.BLOCK :])
        files.write(Path(path), content)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint, and check every byte of it.

    Raises: CheckpointError, naming the file, where it is missing, unreadable, damaged, or not a checkpoint.
    """
    path = Path(path)
    try:
        seal.check(path)
        with h5py.File(path, "r", locking=False) as file:
            found = _Reader(path, file).checkpoint()
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be read ({error.strerror or error}); give one that can be read"
        ) from error
    except (KeyError, ValueError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        raise seal.damaged(path, f"it does not hold what a checkpoint holds ({error})") from error
    if found.fingerprint != fingerprint(found.shapes):
        raise seal.damaged(path, "its fingerprint is not that of its weights")
    return found


def fits(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Check that a checkpoint is of a model with these parameters. ``source`` names the checkpoint in the
    error.

    Raises: CheckpointError, naming the first parameters that differ.
    """
    held = checkpoint.shapes
    differing = [
        f"{name}: {_said(held, name)} in the checkpoint, {_said(shapes, name)} in the model"
        for name in {**shapes, **held}
        if _said(held, name) != _said(shapes, name)
    ]
    if differing:
        more = f"; and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise CheckpointError(
            f"checkpoint {source} is of another model, {checkpoint.model_name!r}: "
            f"{'; '.join(differing[:3])}{more}; give the model it was made with, or another checkpoint"
        )


def _said(shapes: Mapping, name: str) -> str:
    return str(tuple(shapes[name])) if name in shapes else "absent"


# Writing.


def _write(file: h5py.File, checkpoint: Checkpoint) -> None:
    for name in ("iteration", "examples_seen", "epoch"):
        file.attrs[name] = np.int64(getattr(checkpoint, name))
    file.attrs["best"] = np.float64(math.nan if checkpoint.best is None else checkpoint.best)
    for name in ("version", "fingerprint"):
        file.attrs[name] = np.bytes_(getattr(checkpoint, name).encode())
    names = ("config", "model", "model_name", "data_name", "data_checksum", "numerics")
    _write_arrays(file, "text", {name: _text(getattr(checkpoint, name)) for name in names})
    _write_arrays(file, "scalars", checkpoint.scalars)
    _write_arrays(file, "weights", checkpoint.weights)
    slots = file.create_group("optimizer", track_order=True)
    for slot, arrays in checkpoint.optimizer.items():
        _write_arrays(slots, slot, arrays)


def _write_arrays(parent: h5py.Group, name: str, arrays: Arrays) -> None:
    group = parent.create_group(name, track_order=True)
    for key, value in arrays.items():
        array = np.asarray(value, order="C")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        written = group.create_dataset(quote(key, safe=_PLAIN), data=array)
        written.attrs["sha256"] = np.bytes_(_digest(written.name, array))


def _text(text: str) -> np.ndarray:
    # Bytes: HDF5 keeps strings of free length as objects in a heap, and a checkpoint holds no objects.
    return np.frombuffer(text.encode(), np.uint8)


def _digest(name: str, array: np.ndarray) -> str:
    digest = hashlib.sha256(f"{name} {array.dtype.str} {array.shape} ".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return digest.hexdigest()


def _word(found, name: str) -> str:
    """An attribute that was written as bytes. Of a number, ``bytes`` would make so many zeros."""
    value = found.attrs[name]
    if not isinstance(value, bytes):
        raise TypeError(f"{name} is {type(value).__name__}, not text")
    return bytes(value).decode()


# Reading. A seal is no secret: a file may be sealed and yet not be ours, so only plain arrays are touched.


@dataclass(frozen=True, slots=True)
class _Reader:
    path: Path
    file: h5py.File
    spent: list = field(default_factory=list)

    def checkpoint(self) -> Checkpoint:
        attributes = self.file.attrs
        best = float(attributes["best"])
        texts = self.arrays(self.group(self.file, "text"))
        return Checkpoint(
            **{name: int(attributes[name]) for name in ("iteration", "examples_seen", "epoch")},
            **{name: _word(self.file, name) for name in ("version", "fingerprint")},
            **{name: array.tobytes().decode() for name, array in texts.items()},
            weights=self.arrays(self.group(self.file, "weights")),
            optimizer=self.slots(self.group(self.file, "optimizer")),
            scalars={k: v.item() for k, v in self.arrays(self.group(self.file, "scalars")).items()},
            best=None if math.isnan(best) else best,
        )

    def slots(self, parent: h5py.Group) -> dict:
        return {name: self.arrays(self.group(parent, name)) for name in parent}

    def arrays(self, group: h5py.Group) -> dict[str, np.ndarray]:
        return {unquote(name): self.array(group, name) for name in group}

    def group(self, parent: h5py.Group, name: str) -> h5py.Group:
        found = self.child(parent, name)
        if not isinstance(found, h5py.Group):
            raise seal.damaged(self.path, f"{found.name} is not a group")
        return found

    def array(self, group: h5py.Group, name: str) -> np.ndarray:
        found = self.child(group, name)
        self.accept(found)
        array = np.empty(found.shape, found.dtype)
        found.read_direct(array) if array.size else None
        if _word(found, "sha256") != _digest(found.name, array):
            raise seal.damaged(self.path, f"the values of {found.name} do not match their sha256")
        return array

    def child(self, group: h5py.Group, name: str):
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise seal.damaged(self.path, f"{group.name}/{name} is missing, or is a link to elsewhere")
        return group[name]

    def accept(self, found) -> None:
        """Refuse what :func:`save` does not write: above all what reads another file, or claims more than
        there is."""
        if not isinstance(found, h5py.Dataset) or found.dtype.kind not in "fiub" or found.dtype.hasobject:
            raise seal.damaged(self.path, f"{found.name} is not an array of numbers")
        if found.external or found.is_virtual or found.chunks:
            raise seal.damaged(self.path, f"the values of {found.name} are not in one piece in this file")
        self.spent.append(found.nbytes)
        if sum(self.spent) > self.path.stat().st_size:
            raise seal.damaged(self.path, f"{found.name} claims more bytes than the file has")
