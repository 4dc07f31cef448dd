"""A data set's files, open: which arrays are inputs and labels of each part, before any of them is read."""

import contextlib
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import h5py

from ringtrain.data import texts
from ringtrain.data.content import IGNORE, Part
from ringtrain.data.decoding import hdf5_errors
from ringtrain.data.file import format
from ringtrain.data.file.format import PARTS
from ringtrain.data.file.grammar import AS_STORED, CHANNELS_FIRST, PAIRS, DataSpec, Layout, existing, parse_data
from ringtrain.data.file.statistics import PixelStatistics
from ringtrain.data.split import Shape
from ringtrain.data.stored.base import ChannelsLast, JoinedArray, ReshapedRows, StoredArray, WithoutLabel
from ringtrain.data.stored.chunked import stored_array
from ringtrain.data.stored.flat import OpenFiles
from ringtrain.data.stored.numpy_files import NpzFile, open_npy
from ringtrain.errors import DataError, plain
from ringtrain.storage import hdf5
from ringtrain.storage.hdf5 import CheckedFile, open_file

MOST_EXTENTS = 4  # of an input, without N


@dataclass(frozen=True, slots=True)
class OpenSource:
    """``statistics``: as a file of `data make` has them; ``classes``: their names, if known; ``joined``: the parts of
    files of `data make` that ``parts`` join, with the checksums that these files note; ``unused``: what lies beside the
    arrays, where these were taken by their usual names."""

    where: str
    name: str
    parts: dict[str, Part]
    classes: tuple[str, ...] | None
    source: str
    statistics: PixelStatistics | None = None
    joined: tuple[Part, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())

    @property
    def by_rows(self) -> bool:
        return all(array.by_rows for array in self.arrays)

    @property
    def arrays(self) -> list[StoredArray]:
        return [array for part in self.parts.values() for array in part.arrays]

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.unused:
            return ()
        what = f"{len(self.unused)} arrays or groups beside inputs and labels were left out"
        return (f"{self.where}: {what}: {plain(self.unused[0])}, …; to take others, name them after a colon",)

    def verify(self) -> None:
        """Compare all arrays with the checksums that their containers hold of them. Raises: DataError"""
        for array in self.arrays:
            array.verify()


def open_source(text, test=None, extents: int | None = None, layout: Layout = AS_STORED) -> OpenSource:
    """Open what ``--data`` names, and ``--test-data`` as its test part.

    extents: of the network's input; images [N, H, W] get an axis of one channel where it has three, or is not known,
             as `data make` stores them. :func:`input_shape` has the shape of other inputs for the network
    layout:  of arrays that `data make` did not write
    Raises: DataError naming the file and its problem
    """
    source = _laid_out(_open(parse_data(text)), extents, layout)
    if test is not None:
        other = _laid_out(_open(parse_data(test)), extents, layout)
        chosen = other.parts.get("test", other.parts["train"])
        parts = {"train": source.parts["train"], "test": chosen}
        joined = (*source.joined, *other.joined)
        source = replace(source, parts=parts, where=f"{source.where}, {other.where}", joined=joined)
    parts = {name: _with_channel(part, extents) for name, part in source.parts.items()}
    _check_parts(source.where, parts, extents)
    return replace(source, parts=parts)


def _laid_out(source: OpenSource, extents: int | None, layout: Layout) -> OpenSource:
    """The source with channels last and -1 for no label, as files of `data make` are."""
    if source.statistics is None and not source.joined:
        return replace(source, parts={name: _as_made(part, extents, layout) for name, part in source.parts.items()})
    if layout.ignored in range(len(source.classes or ())):
        raise DataError(f"{source.where} has {layout.ignored} as a class: give --ignore-label to `ringtrain data make`")
    return source


def _as_made(part: Part, extents: int | None, layout: Layout) -> Part:
    inputs, labels = part.inputs, part.labels
    axes = len(inputs.shape) - 1
    # Images [N, H, W], for a network of one axis more, have no channels.
    if layout.axes == CHANNELS_FIRST and axes > 1 and axes == (extents or axes):
        inputs = ChannelsLast(inputs)
        labels = ChannelsLast(labels) if labels is not None and len(labels.shape) == axes + 1 else labels
    if layout.ignored is not None and labels is not None and labels.dtype.kind in "iu":
        labels = WithoutLabel(labels, layout.ignored, IGNORE)
    return Part(inputs, labels)


def input_shape(stored: Shape, extents: int | None) -> Shape:
    """Return the shape of an input, without N, for a network with this many extents: an axis of one channel more where
    the network has one more; without a network for images [H, W]."""
    axes = len(stored)
    return (*stored, 1) if axes == (extents or (3 if axes == 2 else 0)) - 1 else stored


def _with_channel(part: Part, extents: int | None) -> Part:
    inputs = part.inputs
    stored = inputs.shape[1:]
    if not 0 < len(stored) <= MOST_EXTENTS:
        raise DataError(f"{inputs.where} has the shape {inputs.shape}: inputs are [N, …] with 1 to 4 axes after N")
    if part.checksum is None and len(stored) == 2:
        return replace(part, inputs=ReshapedRows(inputs, input_shape(stored, extents)))
    return part


def _check_parts(where: str, parts: dict[str, Part], extents: int | None) -> None:
    train, test = parts["train"], parts.get("test")
    if test is None:
        return
    read = [input_shape(part.inputs.shape[1:], extents) for part in (train, test)]
    if read[0] != read[1] or test.inputs.dtype != train.inputs.dtype:
        shown = (f"{part.inputs.dtype} {part.inputs.shape[1:]}" for part in (test, train))
        raise DataError(texts.SHAPES_DIFFER.format(name=where, **dict(zip(("test", "train"), shown, strict=True))))
    forms = [(part.label_shape, part.label_dtype.name) for part in (train, test)]
    if forms[0] != forms[1]:
        raise DataError(
            f"{where}: labels of the training part are {forms[0]}, of the test part {forms[1]} (shape, type)"
        )


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────
def _open(named: DataSpec) -> OpenSource:
    files = OpenFiles()
    opened = [_open_file(named, file, files) for file in named.files]
    if named.labels:
        labels = JoinedArray([open_npy(existing(file), files) for file in named.labels])
        inputs = JoinedArray([one.parts["train"].inputs for one in opened])
        return replace(opened[0], where=named.text, parts={"train": _part(inputs, labels)})
    return opened[0] if len(opened) == 1 else _joined(named.text, opened)


def _joined(text: str, opened: Sequence[OpenSource]) -> OpenSource:
    """Several files as one set: parts of one name follow each other."""
    for other in opened[1:]:
        if other.classes != opened[0].classes:
            raise DataError(
                f"{other.where} names other classes than {opened[0].where}: files of one set have the same classes"
            )
    parts = {}
    for name in PARTS:
        same_part = [one.parts[name] for one in opened if name in one.parts]
        if same_part:
            labels = [part.labels for part in same_part if part.labels is not None]
            if len(labels) not in (0, len(same_part)):
                raise DataError(f"{text}: some of the files have labels and some have none")
            parts[name] = Part(
                JoinedArray([part.inputs for part in same_part]), JoinedArray(labels) if labels else None
            )
    noted = tuple(part for one in opened for part in one.parts.values() if part.checksum is not None)
    unused = tuple(dict.fromkeys(name for one in opened for name in one.unused))
    return replace(opened[0], where=text, parts=parts, statistics=None, joined=noted, unused=unused)


def _open_file(named: DataSpec, path: Path, files: OpenFiles) -> OpenSource:
    existing(path)
    if path.suffix == ".npy":
        if named.names:
            raise DataError(f"{path} is one array without a name: leave out what stands after the colon")
        parts = {"train": Part(open_npy(path, files), None)}
        return OpenSource(named.text, path.stem, parts, None, f"array {path.name}")
    if path.suffix == ".npz":
        archive = NpzFile(path, files)
        parts, unused = _parts(path, archive.names, named.names, archive.array)
        return OpenSource(named.text, path.stem, parts, None, f"NumPy archive {path.name}", unused=unused)
    with open_hdf5(path) as file, hdf5_errors(path):
        if named.names is None and (format.is_data_set(file) or not {x for x, *_ in PAIRS} & {*file}):
            return _own_source(path, file, files)
        parts, unused = _parts(path, tuple(file), named.names, partial(_array_of, path, file, files))
        names = format.class_names_of(path, file)
        classes = None if names is None else tuple(map(plain, names))
        return OpenSource(named.text, path.stem, parts, classes, f"HDF5 file {path.name}", unused=unused)


def _array_of(path: Path, file: h5py.File, files: OpenFiles, name: str) -> StoredArray:
    stored = format.named_array(file, name)
    if isinstance(stored, str):
        raise DataError(f"{path}: {name} {stored}")
    return stored_array(path, name, stored, files)


def _own_source(path: Path, file: h5py.File, files: OpenFiles) -> OpenSource:
    """The source of a file of `data make`."""
    format.check_kind(path, file)
    parts = {}
    for name in PARTS:
        if name == "train" or file.id.links.exists(name.encode()):
            images, labels = (_array_of(path, file, files, f"{name}/{key}") for key in ("images", "labels"))
            _check_counts(images, labels)
            parts[name] = Part(images, labels, format.checksum_of(path, hdf5.find(file, name)[0], name))
    names = format.class_names_of(path, file) or ()
    statistics = format.read_statistics(path, file, parts["train"].inputs.shape[1:], names)
    name, source = (format.text_of(file, key) for key in format.TEXTS)
    return OpenSource(str(path), name or path.stem, parts, tuple(map(plain, names)), source, statistics)


def _parts(path: Path, available: Sequence[str], names, array) -> tuple[dict[str, Part], tuple[str, ...]]:
    """Return (parts, names of the arrays that are left out). If the user named the arrays, no name is returned."""
    if names is not None:
        x, y = names
        return {"train": _part(array(x), array(y) if y else None)}, ()
    for x, y, test_x, test_y in PAIRS:
        if x in available and y in available:
            parts = {"train": _part(array(x), array(y))}
            test_names = [name for name in (test_x, test_y) if name in available]
            if len(test_names) == 1:
                raise DataError(f"{path} has only one of {test_x} and {test_y}: give both, or none")
            parts |= {"test": _part(array(test_x), array(test_y))} if test_names else {}
            return parts, tuple(name for name in available if name not in (x, y, *test_names))
    for x, *_ in PAIRS:
        if x in available:
            return {"train": _part(array(x), None)}, tuple(name for name in available if name != x)
    raise DataError(
        f"{path} has the arrays {', '.join(available) or 'none'}; ringtrain reads x_train and y_train (x_test and "
        f"y_test too), x and y, images and labels, or MedMNIST's train_images …; or name them: {path}:x,y"
    )


def _part(inputs: StoredArray, labels: StoredArray | None) -> Part:
    if labels is None:
        return Part(inputs, None)
    _check_counts(inputs, labels)
    if labels.dtype.kind in "iu" and labels.shape[1:] == (1,):
        labels = ReshapedRows(labels, ())
    return Part(inputs, labels)


def _check_counts(inputs: StoredArray, labels: StoredArray) -> None:
    if labels.count != inputs.count:
        raise DataError(
            f"{labels.where}: labels have the shape {labels.shape} for {inputs.count} examples of {inputs.where}: "
            "each needs one label"
        )


@contextmanager
def open_hdf5(path: Path):
    """Open an HDF5 file. Raises: DataError if it is missing, truncated, or not HDF5."""
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(open_file(opened.enter_context(CheckedFile(existing(path)))))
        except (OSError, RuntimeError) as error:
            raise DataError(_why_not_opened(path, str(error))) from error
        yield file


def _why_not_opened(path: Path, error: str) -> str:
    if "truncated" in error:
        return (
            f"{path} is truncated: it ends after {path.stat().st_size} bytes; make the file with `ringtrain data "
            "make` or copy it again"
        )
    if "signature not found" in error and path.suffix == ".tar":
        return f"{path} is a tar file, which training reads as it is, but this command does not: unpack it first"
    if "signature not found" in error:
        return f"{path} is not an HDF5 file: make the file with `ringtrain data make`"
    return f"{path} could not be opened: {error}"
