"""Trials of ways: the device is timed, on a machine whose two clocks the test owns, and numbers are compared."""

import itertools
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from ringtrain.errors import DeviceError, DeviceFullError
from ringtrain.ops.cuda import products
from ringtrain.ops.cuda.choice import SETTING, Choice, KernelVariant, kinds_left_out
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.faults import Unable
from ringtrain.ops.cuda.trials import PIECE, PIECES, distance, sample_of, seconds_of
from tests.ops.cuda_support import device_runtime, needs_compiler
from tests.says import says

ISSUE_S, LAUNCH_S, EVENT_S = 20e-6, 8e-6, 1e-6  # what Python takes


class Model:
    """A device and the host that gives it work: ``host`` is when Python is, ``free`` when the device has done all.
    ``fault``: what a recording ends with."""

    def __init__(self, records=True, fault=None):
        self.host = self.free = 0.0
        self.runtime, self.stream, self.issued, self._costs = self, self, 0, None
        self.records, self._fault = records, fault

    def issue(self, seconds):
        self.issued += 1
        if self._costs is not None:
            self._costs.append(seconds)
            return
        self.host += ISSUE_S
        self._do(seconds)

    def _do(self, seconds):
        self.free = max(self.free, self.host) + seconds

    @contextmanager
    def _recording(self):
        assert self.records
        self._costs, graphs = [], []
        yield graphs
        costs, self._costs = self._costs, None
        if self._fault:
            raise self._fault
        graphs.append(Replay(self, sum(costs)))

    def record(self, timed=None):
        if timed is None:
            return self._recording()
        self.host += EVENT_S
        return Point(self, max(self.host, self.free))


class Replay:
    def __init__(self, model, seconds):
        self._model, self._seconds = model, seconds

    def launch(self, stream):
        self._model.host += LAUNCH_S
        self._model._do(self._seconds)


class Point:
    def __init__(self, model, time):
        self._model, self.time = model, time

    def wait(self):
        self._model.host = max(self._model.host, self.time)

    def seconds_since(self, earlier):
        return self.time - earlier.time


@pytest.mark.parametrize("launches, seconds", [(1, 2e-6), (3, 5e-6), (1, 4e-3)])
def test_what_is_timed_is_the_device_and_not_python(launches, seconds):
    """20 µs pass in Python for each launch; events around what is issued one by one would tell 20 µs or more."""
    model = Model()

    def run():
        for _ in range(launches):
            model.issue(seconds)

    assert seconds_of(model, run) == pytest.approx(launches * seconds, rel=0.05, abs=2e-6)


def test_long_work_is_done_less_often():
    calls = []
    for seconds in (1e-6, 100e-6, 1e-3):
        model = Model()
        seconds_of(model, lambda model=model, seconds=seconds: model.issue(seconds))
        calls.append(model.issued - 1)  # all but the one that is timed roughly
    assert calls == [10, 2, 1]


def test_where_nothing_is_recorded_what_is_issued_is_timed():
    model = Model(records=False)
    assert seconds_of(model, lambda: model.issue(50e-6)) == pytest.approx(70e-6)


def test_what_cannot_be_recorded_is_told():
    model = Model()

    def run():
        if model._costs is not None:
            raise Unable("no capture")

    with pytest.raises(Unable, match="no capture"):
        seconds_of(model, run)


@pytest.mark.parametrize(
    "fault, kind, words",
    [
        (DeviceError("capture was invalidated"), Unable, says("recorded", "capture was invalidated")),
        (DeviceFullError("no memory"), DeviceFullError, "^no memory$"),
    ],
)
def test_what_fails_where_its_recording_ends_is_told_as_well(fault, kind, words):
    model = Model(fault=fault)
    with pytest.raises(kind, match=words):
        seconds_of(model, lambda: model.issue(1e-6))


@pytest.mark.device
@needs_compiler
@pytest.mark.parametrize("size", [0, 1, 1000, PIECE + 1, PIECES * PIECE, 300_001])
def test_a_sample_has_the_first_and_the_last_elements(size):
    device = Device(device_runtime(), "float32", "float32")
    host = np.arange(size, dtype="float32")
    array = device.runtime.empty(size, "float32")
    device.runtime.upload(host, array, device.stream)
    seen = sample_of(device, array.reshape((size, 1)))
    assert seen.dtype == np.float64 and set(seen) <= set(host) and set(host[:PIECE]) <= set(seen)
    assert set(host[-PIECE:] if size else []) <= set(seen)
    assert size > PIECES * PIECE or set(seen) == set(host)
    assert len(seen) <= PIECES * PIECE


def test_distance():
    a, zero = np.array([3.0, 4.0]), np.zeros(2)
    assert distance(np.array([3.0, 4.5]), a) == pytest.approx(0.1) and distance(zero, zero) == 0
    assert distance(a, zero) == np.inf and np.isnan(distance(a * np.nan, a)) and distance(np.array([]), zero[:0]) == 0


# ── cuBLAS ───────────────────────────────────────────────────────────────────────────────────────────────────────
def multiplied(spoil, active="float32"):
    """(product of ones by the way that was chosen, the choice), where cuBLAS is ``spoil(runtime, right, given)``."""
    later_is_faster = itertools.count(1000, -1)
    runtime, choice = device_runtime(), Choice(measure=lambda *_: next(later_is_faster))
    right = runtime.product
    runtime.product = lambda *operands: spoil(runtime, right, operands)
    try:
        device = Device(runtime, "float32", active, choice=choice)
        x, y = (runtime.empty((5, 5), "float32") for _ in range(2))
        runtime.upload(np.ones((5, 5), "float32"), x, device.stream)
        products.product(device, x, x, y)
        host = np.empty((5, 5), "float32")
        runtime.download(y, host, device.stream)
    finally:
        del runtime.product
    return host, choice


def fails(runtime, right, operands):
    raise DeviceError("the function failed to launch on the GPU")


def raises(runtime, right, operands):
    raise AttributeError("undefined symbol")


def gives_nan(runtime, right, operands):
    right(*operands)
    runtime.upload(np.full(25, np.nan, "float32"), operands[2].array, operands[-1])


def gives_half(runtime, right, operands):
    right(*operands)
    runtime.upload(np.full(25, 2.5, "float32"), operands[2].array, operands[-1])


def gives_a_percent_more(runtime, right, operands):
    right(*operands)
    runtime.upload(np.full(25, 5.05, "float32"), operands[2].array, operands[-1])


def gives_nothing(runtime, right, operands):
    pass


OTHER = says("own", "0.001")
REFUSALS = {
    fails: says("the function failed to launch on the GPU"),
    raises: says("undefined symbol"),
    gives_nan: OTHER,
    gives_half: OTHER,
    gives_nothing: OTHER,
}


@pytest.mark.device
@needs_compiler
@pytest.mark.parametrize("spoil, why", REFUSALS.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_a_library_that_fails_or_is_wrong_is_left_out(spoil, why):
    host, choice = multiplied(spoil)
    assert (host == 5).all()
    assert choice.notes == [says("cuBLAS", 1, why)]
    assert next(iter(choice.table.values())).name == "own"


@pytest.mark.device
@needs_compiler
def test_a_library_that_is_right_is_taken():
    host, choice = multiplied(lambda runtime, right, operands: right(*operands))
    assert (host == 5).all() and choice.notes == [] and next(iter(choice.table.values())).name == "cuBLAS"


@pytest.mark.device
@needs_compiler
def test_a_product_of_float32_is_held_to_it_in_a_net_of_16_bits():
    host, choice = multiplied(gives_a_percent_more, "float16")
    assert (host == 5).all() and choice.notes == [says("cuBLAS", 1, OTHER)]


# ── kinds of ways that are left out ──────────────────────────────────────────────────────────────────────────────
NAMES = "columns, own", "columns, wgmma 128x64", "normalised, cuDNN", "columns, cuBLAS"
WAYS = [KernelVariant(name, name) for name in NAMES]


class IdleDevice:
    """All that a choice asks of a device whose ways and results are made up."""

    recording, stream, runtime = False, None, SimpleNamespace(clear=lambda *_: None)

    def numbers(self, factors):
        return "float32"


@pytest.mark.parametrize(
    ("setting", "left_out", "left"),
    [
        ("", None, [*NAMES]),
        ("wgmma", None, ["columns, own", "normalised, cuDNN", "columns, cuBLAS"]),
        ("WGMMA, cudnn,", None, ["columns, own", "columns, cuBLAS"]),
        ("cublas", {"wgmma": "a trap"}, ["columns, own", "normalised, cuDNN"]),
    ],
)
def test_kinds_are_left_out_of_every_choice_with_a_note(monkeypatch, setting, left_out, left):
    monkeypatch.setenv(SETTING, setting)
    choice, tried = Choice(left_out=left_out, measure=lambda device, run: 1.0, look=lambda *_: np.ones(1)), []
    choice(IdleDevice(), "a product", lambda: WAYS, lambda variant: tried.append(variant.name))
    assert list(dict.fromkeys(tried)) == left
    settings = [kind for kind in ("wgmma", "cuDNN", "cuBLAS") if kind.lower() in setting.lower()]
    reasons = (left_out or {}) | dict.fromkeys(settings, f"{SETTING}={setting}")
    assert choice.notes == [says(kind, why) for kind, why in reasons.items()]


def test_the_only_way_is_not_left_out():
    assert Choice(left_out={"cuDNN": "why"})(IdleDevice(), "x", lambda: WAYS[2:3], None) == WAYS[2]


def test_a_kind_that_is_not_there_is_refused():
    with pytest.raises(DeviceError, match=says(SETTING, "wgmma,cutlass", "'cutlass'")):
        kinds_left_out("wgmma,cutlass")
