"""Convolutions by wgmma, run on the host: each pass against the reference, in either order of warps and copies; and
where they are offered."""

from dataclasses import replace

import numpy as np
import pytest

from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.cuda import wgmma
from ringtrain.ops.cuda.choice import Choice
from ringtrain.ops.cuda.convolution import FORWARD, INPUT_BACK, WEIGHTS_BACK, CudaConvolution
from ringtrain.ops.cuda.convolution.plan import make_convolution_plan
from ringtrain.ops.cuda.convolution.wgmma import WgmmaConvolution, phases
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.gemm import products_of
from ringtrain.ops.precision import active_dtype
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cuda_support import cuda_ops, get, needs_compiler, put
from tests.ops.test_ops_cuda_convolution import FixedChoice, assert_passes
from tests.ops.test_ops_cuda_products import device_of
from tests.ops.test_ops_cuda_wgmma import SMALL, both_orders, drawn, long_sums

pytestmark = [needs_compiler, pytest.mark.usefixtures("hopper")]


# ── convolution ──────────────────────────────────────────────────────────────────────────────────────────────────
# images, height, width, channels, features
SHAPES = {
    "3x3": (9, 8, 7, 16, 24, ConvGeometry(3, 1, 1)),
    "3x3, stride 2, more channels than a step": (2, 9, 8, 72, 136, ConvGeometry(3, 2, 1)),
    "1x1, stride 2: pixels without a window": (2, 8, 8, 16, 72, ConvGeometry(1, 2)),
    "5x5, stride 3": (3, 11, 13, 8, 8, ConvGeometry(5, 3, 2)),
    "one pixel": (70, 1, 1, 64, 64, ConvGeometry(3, 1, 1)),
    "no padding": (5, 6, 5, 80, 8, ConvGeometry(3)),
    "padding of two": (2, 6, 5, 8, 264, ConvGeometry(3, 1, 2)),
    "even": (3, 7, 9, 64, 128, ConvGeometry(2, 2)),
}


def convolved(name, precision, tile, passes=3):
    """What both passes give, of which the tile does so many as there are."""
    choice = FixedChoice(f"wgmma {tile}")
    results = assert_passes(cuda_ops("float32", precision, choice=choice), precision, SHAPES[name])
    assert choice.taken == passes
    return results


@pytest.mark.device
@pytest.mark.parametrize("tile", wgmma.TILES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_every_pass(name, tile):
    c, k = SHAPES[name][3:5]
    taken = 2 * (k > tile.columns // 2) + (c > tile.columns // 2)
    convolved(name, "bfloat16", tile, 3 if tile == SMALL else taken)


@pytest.mark.device
def test_passes_of_float16():
    convolved("3x3, stride 2, more channels than a step", "float16", SMALL)


@pytest.mark.device
def test_channels_behind_the_last_one_are_0_in_both_factors():
    """A step has 64 of them: infinite weights of the next tap, which lie behind those of a tap, must not meet a 0."""
    ops, geometry = cuda_ops("float32", "bfloat16", choice=FixedChoice("wgmma 128x64")), ConvGeometry(3, 1, 1)
    x, w = np.ones((1, 4, 4, 8), "float32").astype(ops.active), np.ones((3, 3, 8, 8), "float32")
    w[2, 2] = np.inf
    y = ops.empty((1, 4, 4, 8), ops.active)
    ops.conv2d(ops.from_host(x), ops.from_host(w), None, y, geometry)
    assert np.isinf(ops.to_host(y).astype(np.float32)[0, :3, :3]).all()


@pytest.mark.device
def test_arrays_that_begin_between_16_bytes_are_convolved_all_the_same():
    device = device_of("bfloat16")
    plan = plan_of(2, 6, 5, 16, 8, ConvGeometry(3, 1, 1))
    x, dy = drawn(device, 2, 6, 5, 16), drawn(device, 2, 6, 5, 8)
    shifted = put(device, np.concatenate([x.reshape(-1)[:3], x.reshape(-1)]))[3:].reshape(x.shape)
    results = []
    for image in (put(device, x), shifted):
        dw = device.runtime.empty((3, 3, 16, 8), "float32")
        WgmmaConvolution(device, SMALL).weights_back(plan, image, put(device, dy), dw, False)
        results.append(get(device, dw))
    assert np.abs(results[0] - results[1]).max() <= 1e-5 * np.abs(results[0]).max()


def plan_of(n, h, w, c, k, geometry):
    image, weights = (n, h, w, c), (geometry.kernel, geometry.kernel, c // geometry.groups, k)
    return make_convolution_plan(image, weights, (n, geometry.output(h), geometry.output(w), k), geometry)


def test_phases_are_the_pixels_each_once():
    for h, w, geometry in ((9, 8, ConvGeometry(3, 2, 1)), (11, 4, ConvGeometry(5, 3, 2)), (2, 7, ConvGeometry(1, 4))):
        counts = np.zeros((h, w), int)
        for down, across in phases(plan_of(1, h, w, 8, 8, geometry)):
            rows, columns = (each.start + geometry.stride * np.arange(each.count) for each in (down, across))
            counts[np.ix_(rows, columns)] += 1
        assert (counts == 1).all()


# ── ways ─────────────────────────────────────────────────────────────────────────────────────────────────────────
class Capable(HostRuntime):
    def __init__(self, *capability):
        super().__init__()
        self.facts = replace(self.facts, capability=capability)


def offered(what, plan, active="bfloat16", capability=(9, 0)):
    device = Device(Capable(*capability), "float32", active_dtype(active, "float32"))
    return [
        variant.name
        for variant in CudaConvolution(device)._variants(what, plan, None, False)
        if "wgmma" in variant.name
    ]


def test_ways_are_offered_where_they_can_be_taken():
    plan = plan_of(2, 8, 8, 64, 256, ConvGeometry(3, 2, 1))
    every = ["wgmma 128x256", "wgmma 128x128", "wgmma 128x64"]
    assert offered(FORWARD, plan) == offered(WEIGHTS_BACK, plan, "float16") == every
    assert offered(INPUT_BACK, plan) == every[2:]
    direct = plan_of(2, 8, 8, 64, 256, ConvGeometry(1))
    assert offered(FORWARD, direct) == [f"columns, {name}" for name in every]
    assert offered(FORWARD, plan_of(2, 8, 8, 3, 64, ConvGeometry(3, 1, 1))) == ["columns, wgmma 128x64"]


@pytest.mark.parametrize(
    "plan",
    [
        plan_of(2, 8, 8, 64, 64, ConvGeometry(3, 1, 1, 2)),
        plan_of(2, 8, 8, 16, 12, ConvGeometry(3, 1, 1)),
        plan_of(2, 80, 80, 16, 16, ConvGeometry(33, 1, 1)),
        plan_of(2, 20, 20, 16, 16, ConvGeometry(1, 9)),
        plan_of(2, 8, 8, 16, 16, ConvGeometry(3, 1, 200)),
    ],
    ids=["groups", "12 features", "kernel of 33", "stride of 9", "padding of 200"],
)
def test_what_the_unit_cannot_take_has_no_such_way(plan):
    assert not any(name.startswith("wgmma") for name in offered(FORWARD, plan))


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_only_hopper_has_such_ways(capability):
    plan = plan_of(2, 8, 8, 64, 64, ConvGeometry(3, 1, 1))
    assert offered(FORWARD, plan, capability=capability) == [] == offered(FORWARD, plan, "float32")
    device = Device(Capable(*capability), "float32", active_dtype("bfloat16", "float32"))
    assert not any("wgmma" in variant.name for variant in products_of(device, device.kernels, 64, 64, True))


@pytest.mark.device
def test_a_trial_takes_them_and_a_fixed_choice_the_first():
    fastest = Choice(measure=lambda *_: next(later_is_faster))
    later_is_faster = iter(range(100, 0, -1))
    for choice, name in ((fastest, "wgmma 128x64"), (Choice(fixed=True), "implicit")):
        ops = cuda_ops("float32", "bfloat16", choice=choice)
        x, w = (
            ops.from_host(np.ones(s, "float32").astype(t))
            for s, t in (((1, 4, 4, 8), ops.active), ((3, 3, 8, 8), "float32"))
        )
        y = ops.empty((1, 2, 2, 8), ops.active)
        for _ in range(3):
            ops.segment("layer", lambda: ops.conv2d(x, w, None, y, ConvGeometry(3)))  # noqa: B023
        assert (ops.to_host(y).astype(np.float32) == 72).all() and choice.notes == []
        chosen = [each.name for each in choice.table.values()]
        assert chosen == [name] or (choice is fastest and chosen[0] in (name, "cuDNN"))


@pytest.mark.device
def test_either_order_gives_the_same_bits(monkeypatch):
    monkeypatch.setattr(wgmma, "LEAST_STEPS", 1)

    def run():
        results = convolved("3x3, stride 2, more channels than a step", "bfloat16", SMALL)
        return [long_sums(), *(x.tobytes() for x in results.values())]

    forwards, backwards = both_orders(run, monkeypatch)
    assert forwards == backwards
