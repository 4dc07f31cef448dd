"""Tiny sources in each format, of values that are known."""

import gzip
import pickle
import struct

import numpy as np
from PIL import Image

from tests.data.image_makers import tar

CLASSES_10 = ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_folder(folder, gz=False, prefix="", train=6, test=4):
    """Images 3 high, 2 wide; example i is all i, of class i % 3."""
    folder.mkdir(exist_ok=True)
    for split, count in (("train", train), ("t10k", test)):
        images = np.repeat(np.arange(count, dtype=np.uint8), 6).reshape(count, 3, 2)
        for kind, array in (("images-idx3", images), ("labels-idx1", images[:, 0, 0] % 3)):
            data = idx(array)
            name = f"{prefix}{split}-{kind}-ubyte" + (".gz" if gz else "")
            (folder / name).write_bytes(gzip.compress(data) if gz else data)
    return folder


def cifar_planes(count, start=0):
    """uint8 [count, 3072]: example i has red i, green 100 + i, blue 200 + row."""
    planes = np.zeros((count, 3, 32, 32), np.uint8)
    for i in range(count):
        planes[i, 0], planes[i, 1] = start + i, 100 + start + i
    planes[:, 2] = 200 + np.arange(32)[:, None]
    return planes.reshape(count, 3072)


def cifar_images(count, start=0):
    return np.moveaxis(cifar_planes(count, start).reshape(count, 3, 32, 32), 1, 3)


def cifar10_python(protocol=2):
    files = {"batches.meta": {"label_names": CLASSES_10, "num_vis": 3072}}
    for number in range(5):
        files[f"data_batch_{number + 1}"] = {"data": cifar_planes(2, 2 * number), "labels": [number, number + 5]}
    files["test_batch"] = {"data": cifar_planes(3, 50), "labels": [0, 1, 2]}
    return {name: pickle.dumps(value, protocol) for name, value in files.items()}


def cifar100_python():
    files = {"meta": {"fine_label_names": [f"fine {n}" for n in range(100)], "coarse_label_names": ["x"]}}
    for name, count in (("train", 4), ("test", 2)):
        fine = [99 - i for i in range(count)]
        files[name] = {"data": cifar_planes(count), "fine_labels": fine, "coarse_labels": [0] * count}
    return {name: pickle.dumps(value) for name, value in files.items()}


def in_folder(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def in_archive(path, files, folder="some-folder"):
    tar(path, ((f"{folder}/{name}", data) for name, data in files.items()))
    return path


def image(path, mode, value, size=(5, 4)):
    """``size`` is width, height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)
    return path
