"""The values of an open source: their ranges in memory, their reading, and what is computed on the way.

What is kept in memory lies in one window: inputs and labels, or of a streamed set its class numbers alone. Statistics
and checksums that no file notes are computed in the same pass, exactly up to VERIFY_BYTES of a part; of a larger part
from SAMPLED examples, chosen by a fixed key, so that every node and every start finds the same.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import CLASS_NUMBERS, IGNORE, MOST_CLASSES, Checksum, Part, Progress, no_progress
from ringtrain.data.file.format import STATISTICS
from ringtrain.data.file.source import OpenSource
from ringtrain.data.file.statistics import FloatSums, NotFinite, pixel_statistics, running_statistics
from ringtrain.data.stored.base import ChosenRows, ReshapedRows, row_blocks
from ringtrain.errors import DataError
from ringtrain.splitmix import splitmix

VERIFY_BYTES = 256 << 20
SAMPLED = 4096
SAMPLE_KEY = splitmix(10)
HEADER_BYTES = 4096
ALIGN = 64

Key = tuple[str, str]
COMPUTED = "computed"  # of the whole set: statistics, checksums and the highest class number, where no file notes them


def plan(source: OpenSource, streamed: bool) -> dict[Key, tuple[tuple[int, ...], np.dtype]]:
    """Return the shape and type of each array that is kept in memory, by (part, key)."""
    arrays: dict[Key, tuple[tuple[int, ...], np.dtype]] = {}
    for name, part in source.parts.items():
        count = part.inputs.count
        if not streamed:
            arrays[name, "images"] = part.inputs.shape, part.inputs.dtype
        if not streamed or part.label_shape == ():
            arrays[name, "labels"] = (count, *part.label_shape), part.label_dtype
        elif not part.of_values:
            arrays[name, "numbered"] = (count,), CLASS_NUMBERS
        if part.checksum is None:
            arrays[COMPUTED, name] = (64,), np.dtype(np.uint8)
    if source.statistics is None:
        shape = source.parts["train"].inputs.shape[1:]
        arrays[COMPUTED, "mean"] = arrays[COMPUTED, "std"] = shape[-1:], np.dtype(np.float64)
        arrays[COMPUTED, "mean_image"] = shape, np.dtype(np.float32)
    if source.parts["train"].of_values:
        arrays[COMPUTED, "label moments"] = (2, *(source.parts["train"].label_shape[-1:] or (1,))), np.dtype(np.float64)
    arrays[COMPUTED, "highest"] = (1,), np.dtype(np.int64)
    return arrays


def byte_ranges(planned) -> tuple[dict[Key, tuple[int, int]], int]:
    """Return the (start, stop) of each array in the window, in bytes, and the window's size."""
    ranges: dict[Key, tuple[int, int]] = {}
    end = HEADER_BYTES
    for key, (shape, dtype) in planned.items():
        start = -(-end // ALIGN) * ALIGN
        end = start + int(np.prod(shape, dtype=object)) * dtype.itemsize
        ranges[key] = (start, end)
    return ranges, end


def fill(source: OpenSource, arrays: dict[Key, np.ndarray], progress: Progress = no_progress) -> None:
    """Read everything into ``arrays``. Raises: DataError if labels, checksums or statistics are wrong."""
    source.verify()
    highest = max(_read_labels(source, name, part, arrays) for name, part in source.parts.items())
    arrays[COMPUTED, "highest"][0] = highest
    verify = source.nbytes <= VERIFY_BYTES
    if verify:
        verify_parts(source.joined, progress)
    for name, part in source.parts.items():
        _fill_inputs(source, name, part, arrays, verify, progress)


def _read_labels(source: OpenSource, name: str, part: Part, arrays: dict[Key, np.ndarray]) -> int:
    """Check the labels of a part, and fill the arrays that there are for them; the highest class number."""
    kept, numbered = arrays.get((name, "labels")), arrays.get((name, "numbered"))
    if part.labels is None:
        if kept is not None:
            kept.fill(IGNORE)
        return IGNORE
    lowest = highest = IGNORE
    values = FloatSums(ReshapedRows(part.labels, part.label_shape or (1,)))
    for rows, block in label_blocks(part):
        if part.of_values:
            values.add(block.reshape(len(block), *(part.label_shape or (1,))))
        else:
            low, high = int(block.min()), int(block.max())
            lowest, highest = min(lowest, low), max(highest, high)
        if kept is not None:
            kept[rows] = block
        if numbered is not None:
            numbered[rows] = np.count_nonzero(block.reshape(len(block), -1) != IGNORE, axis=1)
    if part.of_values:
        computed = values.finish()
        if name == "train":
            arrays[COMPUTED, "label moments"][...] = computed.mean, computed.std
        return highest
    classes = MOST_CLASSES if source.classes is None else len(source.classes)
    if lowest >= IGNORE and highest < classes:
        return highest
    if source.classes is None:
        raise DataError(_out_of_range(part, lowest, highest))
    for _, block in label_blocks(part) if kept is None else [(None, kept)]:
        for problem in label_problems(name, block, classes):
            raise DataError(f"{source.where}: {problem}")
    return highest


def _out_of_range(part: Part, low: int, high: int) -> str:
    where = part.labels.where if part.labels is not None else part.inputs.where
    return texts.LABELS_RANGE.format(where=where, low=low, high=high, most=MOST_CLASSES - 1)


def label_blocks(part: Part) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield (slice, labels in the type of batches) of each block. Raises: DataError for class numbers beyond int32"""
    for rows, block in part.labels.blocks() if part.labels is not None else ():
        if not part.of_values and block.dtype.itemsize >= 4 and block.dtype != np.int32:
            low, high = int(block.min()), int(block.max())
            if low < IGNORE or high >= MOST_CLASSES:
                raise DataError(_out_of_range(part, low, high))
        yield rows, block.astype(part.label_dtype, copy=False)


def _fill_inputs(
    source: OpenSource, name: str, part: Part, arrays: dict[Key, np.ndarray], verify: bool, progress: Progress
) -> None:
    exact, computed = part.nbytes <= VERIFY_BYTES, name == "train" and source.statistics is None
    statistics, digest = running_statistics(part.inputs) if computed and exact else None, ""
    kept, takers = arrays.get((name, "images")), [statistics] if statistics is not None else []
    if exact and (part.checksum is None or verify):
        digest = read_part(part, progress, kept, takers)
    elif kept is not None or takers:
        read_inputs(part, kept, takers, progress)
    if part.checksum is None:
        arrays[COMPUTED, name][:] = np.frombuffer((digest or sampled_checksum(part)).encode(), np.uint8)
    elif digest:
        for problem in checksum_problems(name, part.checksum, digest):
            raise DataError(f"{source.where}: {problem}")
    if computed:
        sampled = ChosenRows(part.inputs, sample(part.count))
        values = statistics.finish() if statistics is not None else pixel_statistics(sampled)
        for key in STATISTICS:
            arrays[COMPUTED, key][...] = getattr(values, key)


def verify_parts(parts: Iterable[Part], progress: Progress = no_progress) -> None:
    """Compare parts with the checksums that their files note of them. Raises: DataError"""
    for part in parts:
        if part.checksum is not None:
            for problem in checksum_problems(part.inputs.where, part.checksum, read_part(part, progress)):
                raise DataError(problem)


def read_part(
    part: Part,
    progress: Progress,
    kept: np.ndarray | None = None,
    takers: Sequence = (),
    label_takers: Sequence = (),
    what: str = "reading",
) -> str:
    """Read all inputs as :func:`read_inputs`, then all labels; return the checksum of both. ``label_takers`` get each
    block of labels."""
    running = Checksum(part)
    read_inputs(part, kept, [running, *takers], progress, what)
    for _, block in label_blocks(part):
        running.add_labels(block)
        for taker in label_takers:
            taker.add(block)
    return running.finish()


def read_inputs(
    part: Part, kept: np.ndarray | None, takers: Sequence, progress: Progress, what: str = "reading"
) -> None:
    """Read all inputs, a block at a time, into memory if they are kept, and give each block to the takers."""
    for rows in row_blocks(part.inputs.count, part.inputs.row_bytes):
        if kept is None:
            block = part.inputs.rows(rows.start, rows.stop)
        else:
            block = kept[rows]
            part.inputs.read(rows.start, rows.stop, block)
        for taker in takers:
            taker.add(block)
        progress(what, rows.stop, part.inputs.count)


# ── samples of large parts ────────────────────────────────────────────────────────────────────────────────────
def sample(count: int) -> np.ndarray:
    """Return up to SAMPLED examples of ``count``, in order: the same ones everywhere. Shapes: → int64 [n]"""
    return np.array(sorted({splitmix(SAMPLE_KEY ^ number) % count for number in range(SAMPLED)}), np.int64)


def sampled_checksum(part: Part) -> str:
    """Return a checksum of types, shapes and the sample's bytes."""
    running, examples = Checksum(part), sample(part.count)
    for _, block in ChosenRows(part.inputs, examples).blocks():
        running.add(block)
    for _, block in ChosenRows(part.labels, examples).blocks() if part.labels is not None else ():
        running.add_labels(block.astype(part.label_dtype))
    return running.finish()


# ── problems ──────────────────────────────────────────────────────────────────────────────────────────────────
def label_problems(name: str, labels: np.ndarray, classes: int) -> Iterator[str]:
    """Yield a problem if labels are not class numbers."""
    wrong = np.argwhere((labels < IGNORE) | (labels >= classes))
    if len(wrong):
        yield (
            f"{len(wrong)} of {labels.size} {name} labels are out of range: the first is label "
            f"{labels[tuple(wrong[0])]} of example {wrong[0][0]}; the labels lie in {labels.min()} … {labels.max()}, "
            f"but there are {classes} classes, so 0 … {classes - 1}, or -1 for no label (--ignore-label N: or N); make "
            "the file with `ringtrain data make` again"
        )


def part_label_problems(name: str, part: Part, classes: int) -> Iterator[str]:
    """Yield the problems of a part's labels: values that are not finite, or of each block :func:`label_problems`."""
    wrong = NotFinite(part.labels or part.inputs)
    for rows, block in label_blocks(part):
        if part.of_values:
            wrong.add(block, rows.start)
        else:
            yield from label_problems(name, block, classes)
    yield from wrong.problems()


def checksum_problems(name: str, noted: str, computed: str) -> Iterator[str]:
    """Yield a problem if the examples differ from the written ones."""
    if noted != computed:
        yield (
            f"the {name} examples changed after they were written: their checksum is {computed[:12]}…, the file says "
            f"{noted[:12]}…; make the file with `ringtrain data make` or copy it again"
        )


def class_names(source: OpenSource, highest: int | None = None) -> tuple[str, ...]:
    """Return the names of the classes, () for values: the file's, or numbers up to the highest in the labels. Raises:
    DataError if a label is no class number"""
    if source.parts["train"].of_values:
        return ()
    if source.classes is not None:
        return source.classes
    if highest is None:
        highest = max(_read_labels(source, name, part, {}) for name, part in source.parts.items())
    return tuple(str(number) for number in range(highest + 1))
