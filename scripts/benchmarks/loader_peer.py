"""PyTorch's side of :mod:`loader`: its DataLoader, with torchvision's transforms written with Pillow. A program that
serves :mod:`side`.

Images stay bytes, as ringtrain's do: the device makes floats of them. A worker has a core, and four batches ahead.
"""

import math
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from side import on_cores, options_and_rank, serve
from torch.utils.data import DataLoader, Dataset

SIDE, AHEAD = 224, 4
TICKS = os.sysconf("SC_CLK_TCK")


def box_of(rows: int, columns: int) -> tuple[int, int, int, int]:
    """Return a random (top, left, height, width), as torchvision's RandomResizedCrop."""
    for _ in range(10):
        area = rows * columns * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= columns and 0 < height <= rows:
            return random.randint(0, rows - height), random.randint(0, columns - width), height, width
    side = min(rows, columns)
    return (rows - side) // 2, (columns - side) // 2, side, side


def cropped(image: Image.Image, box, flip: bool) -> np.ndarray:
    top, left, height, width = box
    image = image.crop((left, top, left + width, top + height)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.array(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image)


class Examples(Dataset):
    """Examples by their number; ``box`` and ``flip`` are drawn where they are not given."""

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, example: int):
        return torch.from_numpy(self.changed(example)), self._labels[example]

    def changed(self, example: int, box=None, flip: bool | None = None) -> np.ndarray:
        image, flip = self._image(example), random.random() < 0.5 if flip is None else flip
        if isinstance(image, np.ndarray):
            return np.array(image[:, ::-1] if flip else image)
        return cropped(image, box or box_of(image.height, image.width), flip)


class Files(Examples):
    """Image files in folders, as torchvision's ImageFolder reads them."""

    def __init__(self, folder: str):
        self._paths = [str(path) for path in sorted((Path(folder) / "photos" / "train").rglob("*.jpg"))]
        self._labels = [int(Path(path).parent.name) for path in self._paths]

    def _image(self, example: int):
        with open(self._paths[example], "rb") as file:
            return Image.open(file).convert("RGB")


class Rows(Examples):
    """Arrays in a file, which is mapped."""

    def __init__(self, path: str, offset: int, side: int, count: int, crop: bool):
        self._images, self._labels = np.memmap(path, np.uint8, "r", offset, (count, side, side, 3)), [0] * count
        self._crop = crop

    def _image(self, example: int):
        return Image.fromarray(self._images[example]) if self._crop else self._images[example]


class Endless:
    """Batches of one random order after another."""

    def __init__(self, count: int, batch: int):
        self._count, self._batch = count, batch

    def __iter__(self):
        left: list[int] = []
        while True:
            while len(left) < self._batch:
                left += torch.randperm(self._count).tolist()
            yield left[: self._batch]
            left = left[self._batch :]


class Peer:
    """A DataLoader at its best settings: workers stay, and collate into shared memory."""

    def __init__(self, options, rows: dict | None, cores: int):
        self._set = Rows(**rows) if rows else Files(options.folder)
        batches, self._cores = Endless(len(self._set), options.batch), cores
        more = {"num_workers": cores, "persistent_workers": True, "prefetch_factor": AHEAD}
        self._loader = DataLoader(self._set, batch_sampler=batches, **more)

    def warm(self, seconds: float) -> dict:
        batches = iter(self._loader)
        for _ in range(AHEAD * self._cores + 2):
            next(batches)
        began, cpu, images = time.perf_counter(), _cpu_s(batches), 0
        while time.perf_counter() - began < seconds:
            images += len(next(batches)[0])
        block = {"images": images, "seconds": time.perf_counter() - began, "cpu_s": _cpu_s(batches) - cpu}
        _settle(batches)
        return block

    def work(self, chosen: str, out: str) -> None:
        with np.load(chosen) as file:
            choices = zip(*(file[name].tolist() for name in ("examples", "boxes", "flips")), strict=True)
            np.savez(out, images=np.stack([self._set.changed(*each) for each in choices]))


def _cpu_s(batches) -> float:
    """The CPU seconds of this process and its workers."""
    seconds = time.process_time()
    for worker in batches._workers:
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / TICKS  # utime and stime of proc_pid_stat(5)
    return seconds


def _settle(batches) -> None:
    """Wait until no worker reads ahead: that would be in another side's time."""
    before = -1.0
    while (now := _cpu_s(batches)) - before > 2 / TICKS:
        before = now
        time.sleep(0.2)


if __name__ == "__main__":
    options, _ = options_and_rank()
    done = on_cores(lambda name, cores: Peer(options, options.forms[name], cores), "warm", "work")
    serve(done | {"about": lambda: f"torch {torch.__version__}"})
