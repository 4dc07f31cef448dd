"""An open data set: arrays of all its examples, held once a node in a shared window where the node has one.

Opening checks everything that needs no images (layout.py), and the checksum of the class names and statistics
(metadata.py). Then one rank a node, the owner, reads images and labels into the window, checks the range of the labels
and, for sets of up to VERIFY_BYTES, the checksums: sha256 takes 0.5 s (a processor with instructions for it) to 6 s a
GB, so 1.6 s at most. Only `ringtrain data check` verifies larger sets. The owner writes its error into the window, so
every rank of the node raises the same error and none waits.

    window   0 … 4095 what went wrong, or zeros | train images | train labels | test images | test labels
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import BESIDE, Progress, no_progress
from ringtrain.data.file.contents import HEADER_BYTES, arrays_of, content_problems, places_of
from ringtrain.data.file.heaps import heap_problem
from ringtrain.data.file.layout import layout_problems
from ringtrain.data.file.metadata import (
    DatasetMetadata,
    metadata_checksum,
    read_metadata,
    seal_problems,
)
from ringtrain.data.split import ArraySplit, Split
from ringtrain.errors import DataError, nearest, plain
from ringtrain.storage.hdf5 import is_own, open_file

DIGITS = Path(__file__).parents[1] / "digits.h5"


@dataclass(frozen=True, slots=True)
class DataSet:
    """An open data set. ``held``: where its arrays lie: "node window" (once a node) or "private" (in this process).

    ``classes`` is empty where labels are values. Shapes: mean, std float64 [C], mean_image float32 [H, W, C], all
    of the training inputs.
    """

    name: str
    train: Split
    test: Split | None
    classes: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray
    mean_image: np.ndarray
    source: str
    licence: str
    held: str = "private"

    @property
    def checksum(self) -> str:
        """One text that is equal for two sets only if all examples, class names and statistics are. Ranks compare it,
        and checkpoints keep it. It begins with the examples' checksums; see :func:`.content.difference`."""
        return (
            f"{'+'.join(split.checksum for _, split in self.splits())}{BESIDE}{metadata_checksum(self.classes, self)}"
        )

    def splits(self):
        """Yield (name, split) of each split that exists."""
        yield "train", self.train
        if self.test is not None:
            yield "test", self.test


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """The shared memory of a node. window(nbytes): a uint8 array that all ranks of the node see, or None on all of
    them; barrier(): waits for them; owner: true on the one rank that reads."""

    window: Callable[[int], np.ndarray | None]
    barrier: Callable[[], None]
    owner: bool


def open_dataset(path, node: NodeMemory | None = None, progress: Progress = no_progress) -> DataSet:
    """Open the data set of a file, or the bundled one if ``path`` is "digits".

    With ``node`` this is collective over the node's ranks, and the arrays lie in its window.
    Raises: DataError naming the problem of the file.
    """
    path = DIGITS if str(path) == "digits" else Path(path)
    with open_hdf5(path) as file:
        with hdf5_errors(path):
            for problem in layout_problems(file):
                raise DataError(texts.IN_FILE(path=path, problem=problem))
            metadata = read_metadata(file)
            for problem in seal_problems(file, metadata):
                raise DataError(texts.IN_FILE(path=path, problem=problem))
            names = [name for name in ("train", "test") if is_own(file, name)]
            nbytes = places_of(file, names)[1]
        window = node.window(nbytes) if node else None
        if node is None or window is None:
            memory = _private_memory(path, nbytes)
            _fill(path, file, names, memory, metadata, progress)
        else:
            memory = window
            _fill_for_node(path, file, names, memory, metadata, node, progress)
        with hdf5_errors(path):
            return _assemble(file, names, memory, metadata, "private" if window is None else "node window")


@contextmanager
def open_hdf5(path: Path):
    """Open an HDF5 file. Raises: DataError if it is missing, truncated, or not HDF5."""
    try:
        problem = heap_problem(_existing(path))
        if problem:
            raise DataError(texts.DAMAGED(path=path, problem=problem))
        file = open_file(path)
    except (OSError, RuntimeError) as error:
        raise DataError(_why_not_opened(path, str(error))) from error
    with file:
        yield file


@contextmanager
def hdf5_errors(path: Path):
    """Raise HDF5's errors about malformed bytes as DataError."""
    try:
        yield
    except MemoryError as error:
        raise DataError(texts.TOO_LARGE(path=path)) from error
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise DataError(texts.DAMAGED(path=path, problem=error)) from error


def _existing(path: Path) -> Path:
    if path.is_dir():
        raise DataError(texts.FOLDER_NO_DATA_SET(path=path))
    if not path.exists():
        beside = [p.name for p in path.parent.glob("*.h5")] if path.parent.is_dir() else []
        raise DataError(texts.NO_DATA_SET(path=path, hint=nearest(path.name, [*beside, "digits"])))
    if not path.is_file():
        raise DataError(texts.NO_REGULAR_FILE(path=path))
    return path


def _why_not_opened(path: Path, error: str) -> str:
    if "truncated" in error:
        return texts.TRUNCATED(path=path, nbytes=path.stat().st_size)
    if "signature not found" in error:
        return texts.NO_HDF5(path=path)
    return texts.NOT_OPENED(path=path, error=error)


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────
def _private_memory(path: Path, nbytes: int):
    try:
        return np.empty(nbytes, np.uint8)
    except (MemoryError, ValueError) as error:
        raise DataError(texts.NEEDS_MEMORY(path=path, gigabytes=nbytes / 1e9)) from error


def _fill_for_node(
    path: Path, file, names: list[str], memory, metadata: DatasetMetadata, node: NodeMemory, progress: Progress
) -> None:
    """Fill the window on the owner; the other ranks wait, and raise the owner's error."""
    if node.owner:
        try:
            _fill(path, file, names, memory, metadata, progress)
        except BaseException as error:
            _write_header(memory, str(error))
            node.barrier()
            raise
    node.barrier()
    went_wrong = _read_header(memory)
    if went_wrong:
        raise DataError(went_wrong)


def _write_header(memory, text: str) -> None:
    data = (text or texts.NOT_READ).encode()[: HEADER_BYTES - 1]
    memory[: len(data)] = np.frombuffer(data, np.uint8)


def _read_header(memory) -> str:
    return bytes(memory[:HEADER_BYTES]).rstrip(b"\0").decode(errors="replace")


def _fill(path, file, names, memory, metadata: DatasetMetadata, progress: Progress) -> None:
    """Read every array into ``memory``.

    Raises: DataError if a label, a checksum or a statistic is wrong, or reading fails.
    """
    with hdf5_errors(path):
        problem = next(content_problems(file, names, memory, metadata, progress), None)
    if problem:
        raise DataError(texts.IN_FILE(path=path, problem=problem))


def _assemble(file, names, memory, metadata: DatasetMetadata, held: str) -> DataSet:
    arrays = arrays_of(file, names, memory)
    for array in arrays.values():
        array.flags.writeable = False
    splits = {
        name: ArraySplit(arrays[name, "images"], arrays[name, "labels"], file[name].attrs["checksum"]) for name in names
    }
    return DataSet(
        train=splits["train"],
        test=splits.get("test"),
        classes=tuple(map(plain, metadata.classes)),
        mean=metadata.mean,
        std=metadata.std,
        mean_image=metadata.mean_image,
        held=held,
        **{key: plain(file.attrs[key]) for key in ("name", "source", "licence")},
    )
