"""Copies by the TMA unit: maps, what the driver refuses, boxes of pixels, and what a device would do wrong silently."""

import numpy as np
import pytest

from ringtrain.ops.cuda import wgmma
from ringtrain.ops.cuda.boxes import PixelBoxes, windows
from ringtrain.ops.cuda.kernels import ARCHITECTURES, KernelLaunch, whole_source
from ringtrain.ops.cuda.signatures import parse_signatures
from tests.ops.cuda_support import device_runtime, needs_compiler

TYPES = {"REAL": "float", "ACT": "__half"}


# ── maps ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_windows_end_where_the_last_one_begins():
    """Of a 3 × 3 window every 2 pixels of 8 × 9, with a padding of 1: at -1, 1, 3, 5 and -1, 1, 3, 5, 7."""
    boxes = windows((64, 9, 8, 2), (-1, -1), (5, 4), 2, 64, 128)
    assert (boxes.lower, boxes.upper, boxes.strides) == ((-1, -1), (7 - 8, 5 - 7), (64, 576, 4608))


# ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────
PROBES = """
extern "C" __global__ void show(
    const __grid_constant__ TensorMap map, ACT *found, int pixels, int c, int w, int h, int n, int right, int down
) {
    extern __shared__ uint4 shared[];
    StageMemory memory(shared);
    Barrier *full = memory.full(0);
    barrier_make(full, 1);
    barriers_made();
    barrier_expect(full, pixels * 128);
    copy_pixels(memory.a(0), map, full, c, w, h, n, right, down);
    barrier_wait(full, 0);
    for (int i = 0; i < pixels * 64; i++)
        found[i] = ((ACT *)memory.a(0))[i / 64 * 64 + (i % 64 / 8 ^ i / 64 % 8) * 8 + i % 8];
}

"""


def probe(runtime, name):
    source = whole_source("join") + PROBES
    options = tuple(f"-D{name}={value}" for name, value in {**TYPES, **wgmma.TILES[-1].defines}.items())
    compiled = runtime.compile(source, "probe.cu", options, ARCHITECTURES["join"])
    return KernelLaunch(name, compiled[name], parse_signatures(source, TYPES)[name])


def pixels_of(images: int, corner: int, start, offset=0):
    """Return the numbers of 16 pixels of images of 4 × 4, counted from 1, whose channels all are that number."""
    runtime = device_runtime()
    stream, numbers = runtime.stream(), np.repeat(np.arange(1, 16 * images + 1, dtype=np.float16), 64)
    image, copied = runtime.empty(numbers.size, "float16"), runtime.empty(16 * 64, "float16")
    runtime.upload(numbers, image, stream)
    map = runtime.tensor_map(image, PixelBoxes((64, 4, 4, images), (corner, corner), (corner, corner), 1, 64, 16))
    arguments = map, copied, 16, 0, *start, offset, offset
    probe(runtime, "show")(1, 1, stream, *arguments, shared_bytes=wgmma.TILES[-1].shared_bytes)
    host = np.empty((16, 64), np.float16)
    runtime.download(copied, host.reshape(-1), stream)
    assert (host == host[:, :1]).all()
    return host[:, 0].astype(int).tolist()


# (images, corner of the box, first pixel (w, h, n), offset of the tap): pixels. As a Hopper printed them: Triton,
# python/tutorials/gluon/13-conv-im2col.py, examples 1 to 5.
PRINTED = {
    (1, 0, (0, 0, 0), 0): list(range(1, 17)),
    (1, -1, (-1, -1, 0), 0): [0, 0, 0, 0, 0, 1, 2, 3, 0, 5, 6, 7, 0, 9, 10, 11],
    (1, -1, (-1, -1, 0), 1): list(range(1, 17)),
    (2, 0, (3, 1, 0), 0): list(range(8, 24)),
    (2, -1, (2, 1, 0), 0): [7, 0, 9, 10, 11, 0, 0, 0, 0, 0, 17, 18, 19, 0, 21, 22],
}


@needs_compiler
@pytest.mark.usefixtures("hopper")
@pytest.mark.device
@pytest.mark.parametrize("arguments, wanted", PRINTED.items(), ids=str)
def test_boxes_of_pixels_are_those_that_a_device_copies(arguments, wanted):
    assert pixels_of(*arguments) == wanted
