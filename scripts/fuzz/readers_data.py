"""Readers of data sets, of what they are made from, and of checkpoints."""

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np

from ringtrain.checkpoint import seal, store
from ringtrain.data import cifar, summary
from ringtrain.data.check import check_file
from ringtrain.data.dataset import open_dataset
from ringtrain.data.make import make_dataset
from ringtrain.data.pickles import load_plain
from ringtrain.data.sources import read_source
from scripts.fuzz.containers import of_hdf5, of_pickle, of_tar, of_zip, packed
from scripts.fuzz.mutation import any_of, bundle, of_bundle, parts_of, reword, spoil
from scripts.fuzz.reader import Reader, empty, written
from scripts.fuzz.samples import CLASSES_10, checkpoints, data_sets, images, npz_archives, pictures


# ── HDF5 ──────────────────────────────────────────────────────────────────────────────────────────────────────
def _data_set(data: bytes, folder: Path):
    path = written(folder, "bad.h5", data)

    def look() -> None:
        problems = check_file(path)
        opened = open_dataset(path)
        assert not [text for text in problems if "off by" not in text], f"opened, and yet: {problems}"
        summary.facts(opened), summary.split_rows(opened), summary.class_rows(opened)

    return look


def _checkpoint(data: bytes, folder: Path):
    content = data[seal.BLOCK :]
    path = written(folder, "bad.h5", seal.block(memoryview(content)) + content if content else data)
    return lambda: store.load(path)


def _raw_checkpoint(data: bytes, folder: Path):
    path = written(folder, "bad.h5", data)
    return lambda: store.load(path)


# ── sources ───────────────────────────────────────────────────────────────────────────────────────────────────
def _made(source: Path, folder: Path):
    """What a source becomes can be opened: the file lies beside the folder, which must stay as it is."""
    out = folder.parent / f"{folder.name}.out"

    def make() -> None:
        out.mkdir(exist_ok=True)
        try:
            make_dataset(source, out / "made.h5")
            open_dataset(out / "made.h5")
        finally:
            empty(out)

    return make


IDX = (
    "bad-train-images-idx3-ubyte",
    "bad-train-labels-idx1-ubyte",
    "bad-t10k-images-idx3-ubyte",
    "bad-t10k-labels-idx1-ubyte",
)


def _idx(array) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def _idx_seeds() -> list[bytes]:
    parts = [_idx(images(4, (3, 2))), _idx(np.arange(4, dtype=np.uint8) % 3)] * 2
    return [bundle(parts), bundle([*parts[:2], b"", b""]), bundle([gzip.compress(part) for part in parts])]


def _idx_folder(data: bytes, folder: Path):
    for name, part in zip(IDX, parts_of(data, 4), strict=True):
        if part:
            written(folder / "bad", name, part)
    return _made(folder / "bad", folder)


def _planes(count: int) -> np.ndarray:
    return images(count, (3072,))


PYTHON = {name: {"data": _planes(2), "labels": [3, 9]} for name in (*cifar.TEN, "test_batch")}
PYTHON |= {"batches.meta": {"label_names": CLASSES_10, "num_vis": 3072}}
BATCH, NAMES = PYTHON["test_batch"], PYTHON["batches.meta"]
BINARY = {f"{name}.bin": bytes([3]) + bytes(3072) + bytes([9]) + bytes(3072) for name in (*cifar.TEN, "test_batch")}
BINARY |= {"batches.meta.txt": "\n".join(CLASSES_10).encode()}


def _pickled(data: bytes, folder: Path):
    batch, names = parts_of(data, 2)
    layout = cifar.LAYOUTS[0]

    def read() -> None:
        layout.read_batch(batch, "bad: batch")
        layout.read_names(names, "bad: names")
        load_plain(batch, "bad")

    return read


def _pickle_seeds() -> list[bytes]:
    return [bundle([pickle.dumps(BATCH, protocol), pickle.dumps(NAMES, protocol)]) for protocol in range(6)]


def _batches(data: bytes, folder: Path):
    """Both kinds, whole but for two files."""
    batch, names = parts_of(data, 2)
    for name, value in PYTHON.items() if batch[:1] in (b"\x80", b"(") else ():
        written(folder, f"bad/{name}", pickle.dumps(value))
    for name, value in BINARY.items() if batch[:1] not in (b"\x80", b"(") else ():
        written(folder, f"bad/{name}", value)
    binary = (folder / "bad/test_batch.bin").exists()
    written(folder, "bad/data_batch_3.bin" if binary else "bad/data_batch_3", batch)
    written(folder, "bad/batches.meta.txt" if binary else "bad/batches.meta", names)
    return _made(folder / "bad", folder)


def _batch_seeds() -> list[bytes]:
    pickled = [pickle.dumps(PYTHON["test_batch"], 4), pickle.dumps(PYTHON["batches.meta"], 4)]
    return [bundle(pickled), bundle([BINARY["test_batch.bin"], BINARY["batches.meta.txt"]])]


def _archives() -> list[bytes]:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("test_batch.bin", "batches.meta.txt"):
            member = tarfile.TarInfo(f"é/{name}")
            member.size = len(BINARY[name])
            archive.addfile(member, io.BytesIO(BINARY[name]))
    return [made.getvalue(), gzip.compress(made.getvalue())]


def _archive(data: bytes, folder: Path):
    path = written(folder, "bad.tar", data)
    return lambda: read_source(path)


def _npz(data: bytes, folder: Path):
    return _made(written(folder, "bad.npz", data), folder)


def _pictures(data: bytes, folder: Path):
    one, other = parts_of(data, 2)
    written(folder, "bad/rose/1.png", one)
    written(folder, "bad/tulip/2.jpg", other)
    return lambda: write_nothing(read_source(folder / "bad", (3, 4)))


def write_nothing(content) -> None:
    """A data set of it would be refused for reasons that are told, or could be written."""
    assert content.train.images.shape[1:3] == (3, 4)


def _picture_seeds() -> list[bytes]:
    found = pictures()
    return [bundle([one, found[0]]) for one in found]


DATA = (
    Reader("data-set", "HDF5 data sets", data_sets, any_of(of_hdf5, of_hdf5, spoil), _data_set, ("bad.h5",)),
    Reader(
        "checkpoint",
        "checkpoints with a seal that fits",
        checkpoints,
        any_of(of_hdf5, of_hdf5, spoil),
        _checkpoint,
        ("bad.h5",),
    ),
    Reader(
        "checkpoint-raw",
        "checkpoints as they are",
        checkpoints,
        any_of(spoil, spoil, reword),
        _raw_checkpoint,
        ("bad.h5",),
    ),
    Reader("idx", "IDX files", _idx_seeds, of_bundle(4, any_of(spoil, spoil, spoil, packed)), _idx_folder, ("bad",)),
    Reader(
        "pickle",
        "pickled CIFAR batches",
        _pickle_seeds,
        of_bundle(2, of_pickle(BATCH), of_pickle(NAMES)),
        _pickled,
        ("bad",),
    ),
    Reader(
        "cifar",
        "CIFAR batches in a folder",
        _batch_seeds,
        of_bundle(2, any_of(spoil, of_pickle(BATCH)), any_of(spoil, reword, of_pickle(NAMES))),
        _batches,
        ("bad",),
    ),
    Reader(
        "archive", "CIFAR in tar archives", _archives, any_of(of_tar, of_tar, spoil, packed), _archive, ("bad.tar",)
    ),
    Reader("npz", "NumPy archives", npz_archives, any_of(of_zip, of_zip, spoil), _npz, ("bad.npz",)),
    Reader("images", "folders of images", _picture_seeds, of_bundle(2, spoil), _pictures, ("bad",)),
)
