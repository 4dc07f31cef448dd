"""Mutators of files that hold others: HDF5, zip archives, tar archives, pickles. Most of what they make is whole."""

import io
import pickle
import zipfile
import zlib
from random import Random

import h5py
import numpy as np

from scripts.fuzz.mutation import NUMBERS, TEXTS, Mutator, change, spoil


# ── HDF5 ──────────────────────────────────────────────────────────────────────────────────────────────────────
def of_hdf5(random: Random, data: bytes) -> bytes:
    """Another attribute, array, link or group, put there by the HDF5 library."""
    image = io.BytesIO(data)
    try:
        with h5py.File(image, "r+") as file:
            for _ in range(random.choice((1, 1, 2))):
                random.choice(EDITS)(random, file)
        return image.getvalue()
    except Exception:  # what was spoiled before has no room for it
        return spoil(random, data)


def _objects(file) -> list[str]:
    found = ["/"]
    file.visit(found.append)
    return found


def _attribute(random: Random, file) -> None:
    owner = file[random.choice(_objects(file))]
    name = random.choice((*owner.attrs, "checksum", "sha256", "mean", "classes"))
    owner.attrs[name] = random.choice(VALUES)()


def _no_attribute(random: Random, file) -> None:
    owner = file[random.choice(_objects(file))]
    if len(owner.attrs):
        del owner.attrs[random.choice(list(owner.attrs))]


def _array(random: Random, file) -> None:
    name = random.choice(_objects(file)[1:])
    attributes = dict(file[name].attrs)
    del file[name]
    random.choice(ARRAYS)(file, name)
    if random.random() < 0.7:
        file[name].attrs.update(attributes)


def _none(random: Random, file) -> None:
    del file[random.choice(_objects(file)[1:])]


def _link(random: Random, file) -> None:
    name = random.choice(_objects(file)[1:])
    if name in file:
        del file[name]
    links = (h5py.SoftLink("/"), h5py.SoftLink("/nowhere"), h5py.ExternalLink("other.h5", "/"), file["/"])
    file[name] = random.choice(links)


EDITS = (_attribute, _attribute, _no_attribute, _array, _array, _none, _link)
VALUES = (
    lambda: np.array([], np.float64),
    lambda: np.array([np.nan, 1.0, 2.0]),
    lambda: np.zeros((2, 2)),
    lambda: np.array(["a\0b"[:1], "\x1b[2J", "é"], h5py.string_dtype()),
    lambda: h5py.Empty("f"),
    lambda: np.int64(-1),
    lambda: np.int64(2**62),
    lambda: np.uint64(2**64 - 1),
    lambda: np.bytes_(b"\xff\xfe"),
    lambda: np.array([("a", 1)], [("x", "S1"), ("y", "i4")]),
    lambda: "a" * 30_000,
    lambda: "\x1b]0;title\x07\n\u202e",
    lambda: True,
    lambda: np.void(b"abc"),
    lambda: np.array(2**40, "M8[s]").astype("i8"),
    lambda: 1.5 + 2j,
)
VAST = (1 << 20, 1 << 10, 1 << 10, 3)
ARRAYS = (
    lambda file, name: file.create_dataset(name, data=h5py.Empty("u1")),
    lambda file, name: file.create_dataset(name, VAST, "u1", chunks=(1, 64, 64, 3)),
    lambda file, name: file.create_dataset(name, VAST, "u1"),
    lambda file, name: file.create_dataset(name, (1 << 40,), "i4", chunks=(1024,)),
    lambda file, name: file.create_dataset(name, (0, 4, 5, 3), "u1"),
    lambda file, name: file.create_dataset(name, (2, 3), "u1", maxshape=(None, None)),
    lambda file, name: file.create_dataset(name, (1 << 31, 1 << 31, 0, 3), "u1", chunks=(1, 1, 1, 3)),
    lambda file, name: file.create_dataset(name, data=np.full(3, 7, ">i4")),
    lambda file, name: file.create_dataset(name, data=np.zeros((12, 4, 5, 3), np.uint8), compression="gzip"),
    lambda file, name: file.create_dataset(name, data=np.zeros((12, 4, 5, 3), np.uint8), compression="lzf"),
    lambda file, name: file.create_dataset(name, data=np.zeros((4, 5, 3), np.float16)),
    lambda file, name: file.create_dataset(name, data=np.array(["x"], h5py.string_dtype())),
    lambda file, name: file.create_dataset(name, data=np.zeros(2, [("a", "u1"), ("b", "f4")])),
    lambda file, name: file.create_dataset(name, (3,), h5py.ref_dtype),
    lambda file, name: file.create_dataset(name, (2,), h5py.vlen_dtype(np.uint8)),
    lambda file, name: file.create_dataset(name, (4, 5, 3), "f4", external=[("outside.raw", 0, 240)]),
    lambda file, name: file.create_virtual_dataset(name, h5py.VirtualLayout((12, 4, 5, 3), np.uint8)),
    lambda file, name: file.create_group(name),
    lambda file, name: file.__setitem__(name, np.dtype("f4")),
)


# ── archives ──────────────────────────────────────────────────────────────────────────────────────────────────
def of_zip(random: Random, data: bytes) -> bytes:
    """A member spoiled, renamed, left out or doubled, in an archive that is whole."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:  # what was spoiled before is no archive any more
        return spoil(random, data)
    return _zip(random, _edited(random, members))


def _edited(random: Random, members: list) -> list:
    members = list(members) or [("x.npy", b"")]
    place, kind = random.randrange(len(members)), random.randrange(8)
    name, content = members[place]
    if kind == 0:
        del members[place]
    elif kind == 1:
        members[place] = random.choice(members)[0], content
    elif kind == 2:
        members[place] = (random.choice(("x.npy", "y.npy", "../out", "a\x1b[2J.npy", "é", "labels.npy")), content)
    else:
        members[place] = name, (reheaded if content[:6] == b"\x93NUMPY" and kind < 6 else spoil)(random, content)
    return members


def reheaded(random: Random, content: bytes) -> bytes:
    """A .npy array with another header, of the right length."""
    length = int.from_bytes(content[8:10], "little")
    descr = random.choice(("|u1", "<i4", "<i8", "<f4", "|O", "<U9", "|V0", "|S0", ">u2", "<M8[s]", "x", "<c16"))
    shape = tuple(random.choice((*NUMBERS, 2, 3, 4, 12)) for _ in range(random.choice((0, 1, 1, 3, 4))))
    header = repr({"descr": descr, "fortran_order": random.choice((False, True, 0)), "shape": shape})
    header = random.choice((header, header, header[:-1], "(" * 3000, header.replace("shape", "shap"), "\0", "1L"))
    written = header.encode() + b" \n"
    return content[:8] + len(written).to_bytes(2, "little") + written + content[10 + length :]


def _zip(random: Random, members: list) -> bytes:
    made = io.BytesIO()
    kind = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(made, "w", kind) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content)
    return made.getvalue()


def of_tar(random: Random, data: bytes) -> bytes:
    """A header's field or a member spoiled, with its checksum right."""
    members = bytearray(data)
    if len(members) < 1024:
        return spoil(random, data)
    start = 512 * random.randrange(len(members) // 512)
    place, width = random.choice(((100, 8), (124, 12), (136, 12), (156, 1), (157, 100), (257, 8), (345, 155), (0, 100)))
    filled = random.choice((b"\xff" * width, b"\x80" + b"\x7f" * width, b"7" * width, b"\0" * width, b"-1", b"x", b"g"))
    members[start + place : start + place + width] = (filled + b"\0" * width)[:width]
    members[start + 148 : start + 156] = b" " * 8
    total = sum(members[start : start + 512])
    members[start + 148 : start + 156] = f"{total:06o}\0 ".encode()
    return bytes(members)


def packed(random: Random, data: bytes) -> bytes:
    """The same, within gzip."""
    compressor = zlib.compressobj(1, wbits=31)
    return compressor.compress(data) + compressor.flush()


# ── pickles ───────────────────────────────────────────────────────────────────────────────────────────────────
def of_pickle(value: dict) -> Mutator:
    """Pickles of that dictionary with other values in it, or spoiled. None is ever unpickled here."""

    def mutate(random: Random, data: bytes) -> bytes:
        if random.random() < 0.6:
            return spoil(random, data)
        made = dict(value)
        key = random.choice(list(made))
        made[key] = random.choice((_retyped(random, made[key]), change(random, {"a": [0]})))
        return pickle.dumps(made, random.randrange(6))

    return mutate


def _retyped(random: Random, value):
    if isinstance(value, np.ndarray):
        return random.choice((value.astype(">i4"), value[:, :3], value[:0], value.astype("U3"), value.T, value[0]))
    if isinstance(value, list):
        return random.choice((value[1:], [*value, -1], [value], [[1], [2, 3]], [10**30], [0.5] * 2, [*TEXTS], [2**63]))
    return random.choice((*NUMBERS, *TEXTS))
