"""Image files, tar shards and folders of them for tests."""

import io
import os
import struct
import tarfile
import zlib

import numpy as np
from PIL import Image


def pixels(height, width, seed=0):
    """Smooth pixels, which JPEG keeps. Shapes: → uint8 [height, width, 3]"""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))


def encoded(image, kind="PNG", **options):
    """The bytes of a file, of an array or one of Pillow's images."""
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, kind, **options)
    return file.getvalue()


def tar(path, members, **how):
    """Write (name, bytes) as a tar, compressed as its suffix says; returns the offset of each header."""
    with tarfile.open(path, "w" if path.suffix == ".tar" else f"w:{path.suffix[1:]}", **how) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with tarfile.open(path) as archive:
        return [member.offset for member in archive.getmembers()]


def labelled(first, count, classes=3):
    """Members by the convention of WebDataset, of images of different sizes."""
    for number in range(first, first + count):
        image = pixels(20 + number % 7, 30 - number % 5, seed=number)
        yield f"{number:04}.jpg", encoded(image, "JPEG")
        yield f"{number:04}.cls", str(number % classes).encode()


def shards(folder, count=2, each=12):
    """Write tar shards; returns their pattern."""
    for number in range(count):
        tar(folder / f"train-{number:03}.tar", labelled(number * each, each))
    return str(folder / f"train-{{000..{count - 1:03}}}.tar")


def bad_files():
    """(name, bytes) of files that are named as images and are none, one of each kind."""
    png, jpeg = encoded(pixels(20, 24)), encoded(pixels(20, 24), "JPEG")
    yield "cut.jpg", jpeg[:-200]
    yield "cut.png", png[:-200]
    yield "changed.png", png[:60] + bytes([png[60] ^ 1]) + png[61:]
    yield "empty.jpg", b""
    yield "magic.jpg", bytes(4) + jpeg[4:]
    yield "page.jpg", b"<!DOCTYPE html><html>404</html>"
    yield "pointer.jpg", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    for name, side in (("bomb.png", 60_000), ("nothing.png", 0)):
        header = png[12:16] + struct.pack(">II", side, side) + png[24:29]
        yield name, png[:12] + header + zlib.crc32(header).to_bytes(4) + png[33:]


def bad_folder(root, count=24):
    """Write a folder of two classes, with bad files and a broken link among good ones; returns the paths of these."""
    for name in "ab":
        (root / name).mkdir(parents=True)
    for number in range(count):
        (root / "ab"[number % 2] / f"{number}.png").write_bytes(encoded(pixels(20 + number, 24, number)))
    paths = [root / "ab"[number % 2] / name for number, (name, _) in enumerate(bad_files())]
    for path, (_, data) in zip(paths, bad_files(), strict=True):
        path.write_bytes(data)
    os.symlink("nowhere.png", root / "b" / "gone.png")
    return sorted([*map(str, paths), str(root / "b" / "gone.png")])
