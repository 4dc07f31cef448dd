import numpy as np
import pytest
from PIL import Image

from ringtrain.data.file.dataset import open_dataset
from tests.docs.playing import Stage


@pytest.fixture
def stage(tmp_path) -> Stage:
    """With small data under the names of sets that are not handed out with ringtrain."""
    stage = Stage(tmp_path)
    random = np.random.default_rng(0)

    def images(count, *shape):
        return random.integers(0, 256, (count, *shape), dtype=np.uint8)

    idx = stage.folder / "DOWNLOADS" / "fashion-mnist"
    idx.mkdir(parents=True)
    for part, count in (("train", 512), ("t10k", 128)):
        labels = np.arange(count, dtype=np.uint8) % 10
        (idx / f"{part}-images-idx3-ubyte").write_bytes(_idx(images(count, 28, 28)))
        (idx / f"{part}-labels-idx1-ubyte").write_bytes(_idx(labels))
    np.savez(stage.folder / "cifar10.npz", images=images(256, 32, 32, 3), labels=np.arange(256) % 10)
    assert stage.run("ringtrain data make cifar10.npz -o cifar10.h5 --test-fraction 0.25").returncode == 0
    _write_digits(stage.folder)
    return stage


def _write_digits(folder) -> None:
    """Images of digits in files and in an array."""
    digits = open_dataset("digits").test
    (folder / "photos" / "more").mkdir(parents=True)
    for name, digit in (("seven.png", 7), ("photos/0.png", 0), ("photos/1.jpg", 1), ("photos/more/2.png", 2)):
        image = digits.images[digits.labels.tolist().index(digit), ..., 0]
        Image.fromarray(image).resize((64, 48)).save(folder / name)
    np.savez(folder / "digits.npz", x=digits.images[:20], y=digits.labels[:20])


def _idx(array) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    return head + array.tobytes()
