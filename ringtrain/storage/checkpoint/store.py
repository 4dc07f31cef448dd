"""Checkpoints: the complete state of a run, for any number of ranks, and its HDF5 file.

    /                attributes: iteration, examples_seen, epoch, best, version, fingerprint
    /text            config, model, model_name, data_name, data_checksum, numerics; classes, a JSON list
    /scalars         one number each
    /inputs          how inputs are prepared: mean, std, shape, mean_image, view, label_moments
    /weights         one data set a parameter, in the model's order, "/" in a name written as %2F
    /optimizer/SLOT  likewise
    /ranks           arrays in which the ranks differed, one row a rank

Every data set carries the sha256 of its name, type, shape and values, made from the arrays in memory; the file as a
whole carries a seal (see :mod:`ringtrain.storage.checkpoint.seal`). The file is composed in memory, so a plain write
meets a full disk, and not the HDF5 library; this takes memory for a second copy on rank 0.
"""

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import h5py
import numpy as np
from numpy.typing import ArrayLike

from ringtrain.errors import CheckpointError
from ringtrain.storage import files
from ringtrain.storage.checkpoint import seal
from ringtrain.storage.checkpoint.reader import COUNTS, TEXTS, WORDS, CheckpointReader, array_digest
from ringtrain.storage.hdf5 import CheckedFile, open_file

Arrays = Mapping[str, np.ndarray]
_PLAIN = "".join(chr(c) for c in range(33, 127) if chr(c) not in "/%")  # in a name, written as they are
_OPEN = {"libver": ("v110", "v110")}  # any HDF5 from 1.10 on reads it; its metadata is checksummed


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The state of a run between two iterations. It holds no generator's state: keys give all random numbers."""

    iteration: int  # finished iterations
    examples_seen: int  # by all ranks, counted over all epochs
    epoch: int  # finished epochs
    weights: Arrays  # parameter name → array in the parameter's shape; running statistics included
    optimizer: Mapping[str, Arrays]  # slot → parameter name → array
    scalars: Mapping[str, int | float]  # other numbers of the state, such as the optimizer's step
    config: str  # the resolved configuration of the run, as text
    model: str  # the model file, as text
    model_name: str  # for the reader
    fingerprint: str  # of the parameters, see :func:`fingerprint`
    data_name: str  # the training data set
    data_checksum: str  # the training data set
    best: float | None  # best test accuracy so far, a fraction, or loss (--best-by); None without an evaluation
    version: str  # the ringtrain version that wrote it
    numerics: str = ""  # the kernels that computed it; "" in checkpoints of earlier versions
    classes: tuple[str, ...] = ()  # the names of the classes; none where the network predicts values
    # of the training data: mean and std float64 [C], shape int64 of one stored example, and mean_image float32
    # where the network subtracts it, view int64 of images of any size; empty in checkpoints of earlier versions
    inputs: Arrays = field(default_factory=dict)
    # where the ranks differed: name → [ranks, elements], flat as in the exchange
    ranks: Arrays = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: np.shape(array) for name, array in self.weights.items()}


def fingerprint(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the sha256 of the names and shapes of a model's parameters, in the order of names."""
    lines = sorted(f"{name}{list(map(int, shape))}" for name, shape in shapes.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def save_checkpoint(path: Path, checkpoint: Checkpoint, folder: files.Folder | None = None) -> None:
    """Write a checkpoint: the file then holds it whole; on failure the file keeps its former content. ``folder``: the
    file's, if it must not be a link.

    Raises: RingtrainError, UsageError as :meth:`ringtrain.storage.files.Folder.write`.
    """
    folder = folder or files.Folder(Path(path).parent)
    image = io.BytesIO()
    with h5py.File(image, "w", userblock_size=seal.BLOCK, **_OPEN) as file:
        _write(file, checkpoint)
    with image.getbuffer() as content:
        content[: seal.BLOCK] = seal.make_seal(content[seal.BLOCK :])
        folder.write(path, content)


def load_checkpoint(
    path: Path, opener: Callable[[str, int], int] = files.open_regular, ranks: bool = True
) -> Checkpoint:
    """Read a checkpoint, and check every byte of it. ``opener``: of the folder whose links are not followed;
    ``ranks``: whether to read the arrays of single ranks too, with which the run goes on.

    Raises: CheckpointError, naming the file, if it is missing, unreadable, damaged, or not a checkpoint.
    """
    path = Path(path)
    try:
        # One opening for both, so that the checked file is the one that is read, even if the name changes.
        with CheckedFile(path, opener=opener) as raw:
            seal.check_seal(path, raw)
            with open_file(raw) as file:
                checkpoint = Checkpoint(**CheckpointReader(path, file, os.fstat(raw.fileno()).st_size, ranks).fields())
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be read ({error.strerror or error}); give another one"
        ) from error
    except (KeyError, ValueError, TypeError, RuntimeError, MemoryError, OverflowError) as error:
        raise seal.damaged(path, f"its contents are not those of a checkpoint ({error})") from error
    if checkpoint.fingerprint != fingerprint(checkpoint.shapes):
        raise seal.damaged(path, "its fingerprint is not that of its weights")
    if shapes := [array.shape for array in checkpoint.ranks.values() if array.ndim != 2]:
        raise seal.wrong_value(path, "a shape of /ranks", shapes[0])
    return checkpoint


def check_parameters(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Check that a checkpoint has a model's parameters. ``source`` names the checkpoint in the error.

    Raises: CheckpointError, naming the first parameters that differ.
    """
    saved = checkpoint.shapes
    differing = [
        f"{name}: {_said(saved, name)} in the checkpoint, {_said(shapes, name)} in the model"
        for name in {**shapes, **saved}
        if _said(saved, name) != _said(shapes, name)
    ]
    if differing:
        more = f"; and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise CheckpointError(
            f"checkpoint {source} is of another model, {checkpoint.model_name!r}: {'; '.join(differing[:3])}{more}; "
            "give the model of the checkpoint, or another checkpoint"
        )


def check_resumable(checkpoint: Checkpoint, scalars: Sequence[str], source: str) -> None:
    """Check that a run can resume from it: every slot has an array for every parameter, and these scalars exist.

    Raises: CheckpointError
    """
    for slot, arrays in checkpoint.optimizer.items():
        if {name: np.shape(array) for name, array in arrays.items()} != checkpoint.shapes:
            raise CheckpointError(
                f"checkpoint {source} has an optimizer slot {slot!r} for other parameters than its weights: it was "
                "changed; use another one"
            )
    for name in scalars:
        if not math.isfinite(checkpoint.scalars.get(name, math.nan)):
            raise CheckpointError(f"checkpoint {source} has no finite number {name}: it was changed; use another one")


def _said(shapes: Mapping, name: str) -> str:
    return str(tuple(shapes[name])) if name in shapes else "absent"


# Writing.


def _write(file: h5py.File, checkpoint: Checkpoint) -> None:
    for name in COUNTS:
        file.attrs[name] = np.int64(getattr(checkpoint, name))
    file.attrs["best"] = np.float64(math.nan if checkpoint.best is None else checkpoint.best)
    for name in WORDS:
        file.attrs[name] = np.bytes_(getattr(checkpoint, name).encode())
    written = {name: getattr(checkpoint, name) for name in TEXTS} | {"classes": json.dumps(list(checkpoint.classes))}
    # Bytes: HDF5 keeps strings of free length as objects in a heap, and a checkpoint holds no objects.
    _write_arrays(file, "text", {name: np.frombuffer(text.encode(), np.uint8) for name, text in written.items()})
    for name in ("scalars", "weights", "inputs"):
        _write_arrays(file, name, getattr(checkpoint, name))
    if checkpoint.ranks:
        _write_arrays(file, "ranks", checkpoint.ranks)
    slots = file.create_group("optimizer", track_order=True)
    for slot, arrays in checkpoint.optimizer.items():
        _write_arrays(slots, slot, arrays)


def _write_arrays(parent: h5py.Group, name: str, arrays: Mapping[str, ArrayLike]) -> None:
    group = parent.create_group(name, track_order=True)
    for key, value in arrays.items():
        array = np.asarray(value, order="C")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        written = group.create_dataset(quote(key, safe=_PLAIN), data=array)
        written.attrs["sha256"] = np.bytes_(array_digest(written.name, array))
