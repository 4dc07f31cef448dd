"""Images of bytes, resized by the kernel: as plain sums of whole numbers, and as Pillow does up to rounding."""

import ctypes
import mmap
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from ringtrain.ops.cpu.library import FAMILY_SETTING, compiled_families, cpu_families
from ringtrain.ops.cpu.resize import fits, resize_image
from tests.new_process import in_new_process

WHOLE = 1 << 14
# (height, width), box, part of it, new size
CASES = [
    ((20, 24), (0, 0, 20, 24), None, (7, 9)),
    ((20, 24), (3, 5, 11, 13), None, (30, 41)),
    ((20, 24), (9, 11, 11, 13), None, (11, 13)),
    ((20, 24), (19, 23, 1, 1), None, (4, 5)),
    ((1, 1), (0, 0, 1, 1), None, (3, 2)),
    ((7, 1), (0, 0, 7, 1), None, (2, 3)),
    ((9, 2), (1, 0, 8, 2), None, (3, 17)),
    ((200, 3), (0, 0, 200, 3), None, (3, 3)),
    ((40, 50), (2, 3, 30, 41), (1.25, 0.5, 20.5, 33.75), (16, 12)),
    ((40, 50), (0, 0, 40, 50), (39.0, 49.5, 1.0, 0.5), (3, 3)),
    ((400, 600), (0, 0, 400, 600), (30.4, 7.7, 311.1, 501.3), (56, 64)),
]


def image_of(size, step, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (*size, step), np.uint8)


def resized(image, box, part, size, channels=3):
    out = np.empty((*size, channels), np.uint8)
    resize_image(image, out, box, part)
    return out


def shares(length, start, extent, size):
    """Shares of each old pixel in each new one: triangles, rounded so that they sum to one. Shapes: → int64 [size,
    length]"""
    scale = extent / size
    reach, shares = max(scale, 1.0), np.zeros((size, length), np.int64)
    for i in range(size):
        centre = start + (i + 0.5) * scale
        first, end = max(0, int(centre - reach + 0.5)), min(length, int(centre + reach + 0.5))
        weights = [max(0.0, 1 - abs((x - centre + 0.5) * (1 / reach))) for x in range(first, end)]
        edges = [int(sum(weights[:x]) / sum(weights) * WHOLE + 0.5) for x in range(len(weights) + 1)]
        shares[i, first:end] = np.diff(edges)
    return shares


def plain(image, box, part, size):
    top, left, rows, columns = box
    y, x, high, wide = part or (0, 0, rows, columns)
    pixels = image[top : top + rows, left : left + columns].astype(np.int64)
    across = np.einsum("qx,yxc->yqc", shares(columns, x, wide, size[1]), pixels)
    down = np.einsum("py,yqc->pqc", shares(rows, y, high, size[0]), (across + WHOLE // 2) // WHOLE)
    return (down + WHOLE // 2) // WHOLE


def test_any_box_is_as_plain_sums_and_near_pillows():
    random, image = np.random.default_rng(5), image_of((60, 70), 3)
    for _ in range(60):
        rows, columns, *new = (int(each) for each in random.integers(1, (61, 71, 40, 40)))
        top, left = int(random.integers(61 - rows)), int(random.integers(71 - columns))
        got = resized(image, (top, left, rows, columns), None, new).astype(int)
        assert (got == plain(image, (top, left, rows, columns), None, new)).all()
        cut = Image.fromarray(image).crop((left, top, left + columns, top + rows))
        apart = np.abs(got - np.asarray(cut.resize(new[::-1], Image.Resampling.BILINEAR)))
        assert apart.max() <= 2 and apart.mean() < 0.4, (rows, columns, new)  # it may begin with the rows


@pytest.mark.parametrize("value", [0, 1, 77, 254, 255])
def test_one_value_stays(value):
    image = np.full((333, 500, 3), value, np.uint8)
    for new in ((1, 1), (3, 2), (224, 224), (500, 700)):
        assert (resized(image, (0, 0, 333, 500), None, new) == value).all()


class Page:
    """Arrays that end where the process's memory ends: to read or write one byte more is a fault."""

    def __init__(self, nbytes):
        whole = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.memory = mmap.mmap(-1, whole + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + whole), mmap.PAGESIZE, 0) == 0
        self.array = np.frombuffer(self.memory, np.uint8, whole)[whole - nbytes :]


@pytest.mark.parametrize(("step", "channels"), [(3, 3), (4, 3), (1, 1)])
@pytest.mark.parametrize(("size", "box", "part", "new"), CASES)
def test_pixels_are_plain_sums_and_nothing_beyond_an_image_is_read_or_written(size, box, part, new, step, channels):
    page, new_page = Page(size[0] * size[1] * step), Page(new[0] * new[1] * channels)
    image, out = page.array.reshape(*size, step), new_page.array.reshape(*new, channels)
    image[...] = image_of(size, step)
    resize_image(image, out, box, part)
    assert (out == plain(image, box, part, new)[..., :channels]).all()


def test_all_families_give_the_same_bits():
    code = (
        "import numpy as np\nfrom ringtrain.ops.cpu.resize import resize_image\n"
        "image = (np.arange(90 * 110 * 3) ** 2 % 251).astype(np.uint8).reshape(90, 110, 3)\n"
        "out = np.empty((56, 57, 3), np.uint8)\nresize_image(image, out, (3, 4, 80, 100))\n"
        "import hashlib; print(hashlib.sha256(out).hexdigest())"
    )
    families = [family for family in cpu_families() if family in compiled_families()]
    runs = [in_new_process(code, env={**os.environ, FAMILY_SETTING: family}) for family in families]
    assert all(run.returncode == 0 for run in runs) and len({run.stdout for run in runs}) == 1


def test_threads_resize_at_the_same_time():
    images = [image_of((90, 110), 3, seed) for seed in range(12)]
    alone = [resized(image, (1, 2, 80, 100), None, (33, 44)) for image in images]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            several = list(pool.map(lambda image: resized(image, (1, 2, 80, 100), None, (33, 44)), images))
            assert all((a == b).all() for a, b in zip(alone, several, strict=True))


def test_a_box_that_would_take_much_memory_does_not_fit():
    assert fits((0, 0, 20_000, 20_000), 224, 3)
    assert not fits((0, 0, 1 << 27, 1), 224, 3)
    assert not fits((0, 0, 1, 1 << 27), 224, 3)
    assert not fits((0, 0, 30_000, 10), 30_000, 3)


@pytest.mark.parametrize("wrong", [np.float32, np.int8])
def test_other_types_are_refused(wrong):
    with pytest.raises((TypeError, ctypes.ArgumentError)):
        resize_image(image_of((4, 4), 3), np.empty((2, 2, 3), wrong), (0, 0, 4, 4))
