"""An open data set: its examples in memory, held once a node in a shared window where the node has one; or streamed.

Opening checks everything that needs no values (source.py, format.py). Then one rank a node, the owner, reads into the
window what is kept in memory, checks labels, and, for sets of up to VERIFY_BYTES, the checksums that their file notes:
sha256 takes 0.5 s (a processor with instructions for it) to 6 s a GB, so 1.6 s at most. Only `ringtrain data check`
verifies larger sets. The owner writes its error into the window, so every rank of the node raises the same error and
none waits.

    window   0 … 4095 what went wrong, or zeros | train images | train labels | test images | test labels
    streamed 0 … 4095 what went wrong, or zeros | train labels, if they are class numbers | test labels
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringtrain.data.content import BESIDE, CLASS_NUMBERS, Part, Progress, no_progress
from ringtrain.data.decoding import hdf5_errors
from ringtrain.data.file.contents import COMPUTED, HEADER_BYTES, Key, byte_ranges, class_names, fill, plan
from ringtrain.data.file.format import STATISTICS, metadata_checksum
from ringtrain.data.file.grammar import AS_STORED, Layout
from ringtrain.data.file.source import OpenSource, input_shape, open_source
from ringtrain.data.file.statistics import PixelStatistics, statistics_for
from ringtrain.data.file.streamed import StreamedSplit
from ringtrain.data.split import ArraySplit, Shape, Split
from ringtrain.errors import DataError

STREAMED = "streamed"


@dataclass(frozen=True, slots=True)
class DataSet:
    """An open data set. ``location``: where its examples lie: "node window" (once a node), "private" (in this process),
    or "streamed" (in their files). ``notes``: on what the files have and the set leaves out.

    ``classes`` is empty where labels are values. Shapes: mean, std float64 [C], mean_image float32 [H, W, C], all
    of the training inputs; label_moments float64 [2, K], mean and std of labels that are values, along the last axis.
    """

    name: str
    train: Split
    test: Split | None
    classes: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray
    mean_image: np.ndarray
    source: str
    location: str = "private"
    notes: tuple[str, ...] = ()
    label_moments: np.ndarray | None = None

    @property
    def checksum(self) -> str:
        """One text that is equal for two sets only if all examples, class names and statistics are. Ranks compare it,
        and checkpoints keep it. It begins with the examples' checksums; see :func:`.content.difference`."""
        examples = "+".join(split.checksum for _, split in self.splits())
        return f"{examples}{BESIDE}{metadata_checksum(self.classes, self)}"

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


def open_dataset(
    path,
    node: NodeMemory | None = None,
    progress: Progress = no_progress,
    *,
    test=None,
    extents: int | None = None,
    most_bytes: int | None = None,
    layout: Layout = AS_STORED,
) -> DataSet:
    """Open the data set that ``path`` names (see grammar.py): files, arrays in files, or the bundled one as "digits".

    With ``node`` this is collective over the node's ranks, and what is in memory lies in its window.

    test:       names the test part, in place of the source's own
    extents:    of the network's input, so that images without an axis of channels get one
    layout:     of arrays that `data make` did not write
    most_bytes: of examples in memory; a larger set is streamed, 0 streams any. None: no limit
    Raises: DataError naming the problem of the file.
    """
    source = open_source(path, test, extents, layout)
    streamed = most_bytes is not None and source.nbytes > most_bytes
    if streamed and not source.by_rows:
        raise DataError(
            f"{source.where} is compressed as a whole, or stored column by column, so it cannot be streamed: save it "
            "with numpy.savez, make a file of it with `ringtrain data make`, or give --stream no"
        )
    planned = plan(source, streamed)
    ranges, nbytes = byte_ranges(planned)
    window = node.window(nbytes) if node else None
    try:
        memory = np.empty(nbytes, np.uint8) if window is None else window
    except (MemoryError, ValueError) as error:
        raise DataError(
            f"{source.where} needs {nbytes / 1000000000.0:.1f} GB of memory, which this host does not have"
        ) from error
    arrays = {key: memory[slice(*ranges[key])].view(dtype).reshape(shape) for key, (shape, dtype) in planned.items()}
    if node is None or window is None:
        _fill(source, arrays, progress)
    else:
        _fill_for_node(source, arrays, memory, node, progress)
    location = STREAMED if streamed else "private" if window is None else "node window"
    return _assemble(source, arrays, location, extents)


# ── form, without the inputs ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class SplitShape:
    """The size of a split. ``shape``: of one input, (H, W, C) of an image; ``label_shape``: of each label."""

    count: int
    shape: tuple[int, ...]
    label_shape: tuple[int, ...] = ()
    label_dtype: np.dtype = CLASS_NUMBERS


@dataclass(frozen=True, slots=True)
class DatasetForm:
    """The classes and splits of a data set."""

    name: str
    classes: tuple[str, ...]
    train: SplitShape


def read_form(path, test=None, extents: int | None = None, layout: Layout = AS_STORED) -> DatasetForm:
    """Read the form of the data set that ``--data`` names. Class numbers without names are counted by reading all
    labels.

    Raises: DataError if a file is missing, is no data set, or its layout is wrong.
    """
    source = open_source(path, test, extents, layout)
    source.verify()
    part = source.parts["train"]
    count, *shape = part.inputs.shape
    train = SplitShape(count, input_shape(tuple(shape), extents), part.label_shape, part.label_dtype)
    return DatasetForm(source.name, class_names(source), train)


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────
def _fill_for_node(source: OpenSource, arrays, memory, node: NodeMemory, progress: Progress) -> None:
    """Fill the window on the owner; the other ranks wait, and raise the owner's error."""
    if node.owner:
        try:
            _fill(source, arrays, progress)
        except BaseException as error:
            data = (str(error) or "the data set could not be read").encode()[: HEADER_BYTES - 1]
            memory[: len(data)] = np.frombuffer(data, np.uint8)
            node.barrier()
            raise
    node.barrier()
    went_wrong = bytes(memory[:HEADER_BYTES]).rstrip(b"\0").decode(errors="replace")
    if went_wrong:
        raise DataError(went_wrong)


def _fill(source: OpenSource, arrays, progress: Progress) -> None:
    with hdf5_errors(source.where):
        fill(source, arrays, progress)


def _assemble(source: OpenSource, arrays: dict[Key, np.ndarray], location: str, extents: int | None) -> DataSet:
    for array in arrays.values():
        array.flags.writeable = False
    shape = input_shape(source.parts["train"].inputs.shape[1:], extents)
    statistics = source.statistics or PixelStatistics(*(arrays[COMPUTED, key].copy() for key in STATISTICS))
    mean, std, mean_image = statistics_for(shape, statistics)
    classes = class_names(source, int(arrays[COMPUTED, "highest"][0]))
    splits = {name: _split(name, part, arrays, len(classes), shape) for name, part in source.parts.items()}
    return DataSet(
        name=source.name,
        train=splits["train"],
        test=splits.get("test"),
        classes=classes,
        mean=mean,
        std=std,
        mean_image=mean_image,
        source=source.source,
        location=location,
        notes=source.notes,
        label_moments=arrays.get((COMPUTED, "label moments")),
    )


def _split(name: str, part: Part, arrays: dict[Key, np.ndarray], classes: int, shape: Shape) -> Split:
    checksum = part.checksum or arrays[COMPUTED, name].tobytes().decode()
    if (name, "images") in arrays:
        return ArraySplit(arrays[name, "images"].reshape(-1, *shape), arrays[name, "labels"], checksum)
    kept = (arrays.get((name, key)) for key in ("labels", "numbered"))
    return StreamedSplit(part, shape, checksum, classes, *kept)
