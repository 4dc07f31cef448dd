"""Image files, tar shards and folders of them for tests."""

import io
import tarfile

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
