"""A synthetic set like ImageNet, in the forms in which it is kept: JPEG files, tar shards, smaller JPEGs, uint8 arrays.

Amplitudes fall with the frequency as they do in photographs, so a JPEG of 500 x 375 at quality 90 has about 110 KB.
"""

import io
import tarfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

WIDTH, HEIGHT, QUALITY = 500, 375, 90
FALL, CONTRAST, COLOUR = 1.15, 55, 0.35  # exponent of the frequency; deviation of luma, and of chroma as a part of it
UPRIGHT = 5  # every so manieth image is higher than wide
CLASSES, SHARDS = 20, 4
SMALL, LARGE_SIDE, SIDE = 256, 256, 224


@dataclass(frozen=True, slots=True)
class Form:
    """One form of the set. ``path``: that of --data, where FOLDER is the set's; ``crop``: whether --random-resized-crop
    is given; ``files``: what a cold measurement drops from memory; ``stream``: --stream"""

    path: str
    crop: bool
    files: str
    stream: str = "yes"


FORMS = {
    "JPEG files 500 x 375": Form("FOLDER/photos", True, "photos"),
    "JPEG in tar 500 x 375": Form("FOLDER/shards/train-{000..003}.tar", True, "shards"),
    "JPEG in tar, shorter side 256": Form("FOLDER/small/train-{000..003}.tar", True, "small"),
    "uint8 256 x 256 in HDF5, cropped": Form("FOLDER/256.h5:images,labels", True, "256.h5"),
    "uint8 256 x 256 in HDF5, whole": Form("FOLDER/256.h5:images,labels", False, "256.h5"),
    "uint8 256 x 256 in memory, cropped": Form("FOLDER/256.h5:images,labels", True, "256.h5", "no"),
    "uint8 224 x 224 in .npy, whole": Form("FOLDER/224.npy,FOLDER/labels.npy", False, "224.npy"),
}
TINY = Form("FOLDER/tiny/train-{000..003}.tar", True, "tiny")  # what is left are the costs of an image of any size
TINY_SIDE = 8
TARS = ("shards", "small", "tiny")


def photograph(number: int) -> Image.Image:
    """Return an image of random waves, of sizes and colours as in photographs."""
    random = np.random.default_rng(number)
    height, width = (WIDTH, HEIGHT) if number % UPRIGHT == 0 else (HEIGHT, WIDTH)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    planes = []
    for contrast in (CONTRAST, COLOUR * CONTRAST, COLOUR * CONTRAST):
        waves = random.standard_normal((*frequency.shape, 2)) @ (1, 1j) / frequency**FALL
        plane = np.fft.irfft2(waves, (height, width))
        planes.append(128 + contrast * plane / plane.std())
    pixels = np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels, "YCbCr").convert("RGB")


def jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def shorter_side(image: Image.Image, side: int) -> Image.Image:
    scale = side / min(image.size)
    return image.resize([round(extent * scale) for extent in image.size], Image.Resampling.BILINEAR)


def square(image: Image.Image, side: int) -> np.ndarray:
    """Return the centre of an image whose shorter side is resized. Shapes: → uint8 [side, side, 3]"""
    image = shorter_side(image, side)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return np.asarray(image.crop((left, top, left + side, top + side)))


def make(folder: Path, images: int) -> None:
    """Write all forms of the set."""
    photos, labels = folder / "photos" / "train", np.arange(images, dtype=np.int32) % CLASSES
    for path in (*(folder / name for name in TARS), *(photos / f"{label:03}" for label in range(CLASSES))):
        path.mkdir(parents=True, exist_ok=True)
    small = np.lib.format.open_memmap(folder / "224.npy", "w+", np.uint8, (images, SIDE, SIDE, 3))
    np.save(folder / "labels.npy", labels)
    with ExitStack() as stack:
        file = stack.enter_context(h5py.File(folder / "256.h5", "w"))
        paths = {name: [folder / name / f"train-{shard:03}.tar" for shard in range(SHARDS)] for name in TARS}
        tars = {name: [stack.enter_context(tarfile.open(path, "w")) for path in each] for name, each in paths.items()}
        large = file.create_dataset("images", (images, LARGE_SIDE, LARGE_SIDE, 3), np.uint8)
        file["labels"] = labels
        for number in range(images):
            photo, name = photograph(number), f"{labels[number]:03}/{number:05}.jpg"
            data = [jpeg(photo), jpeg(shorter_side(photo, SMALL)), jpeg(photo.resize((TINY_SIDE, TINY_SIDE)))]
            (photos / name).write_bytes(data[0])
            for content, shards in zip(data, tars.values(), strict=True):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shards[number * SHARDS // images].addfile(member, io.BytesIO(content))
            large[number], small[number] = square(photo, LARGE_SIDE), square(photo, SIDE)
    small.flush()
