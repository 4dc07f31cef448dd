"""Trials of ways: the device is timed, on a machine whose two clocks the test owns, and numbers are compared."""

import itertools
from contextlib import contextmanager

import numpy as np
import pytest

from ringtrain.errors import DeviceError, DeviceFullError
from ringtrain.ops.cuda import products
from ringtrain.ops.cuda.choice import SETTING, Choice, KernelVariant, kinds_left_out
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.faults import Unable
from ringtrain.ops.cuda.trials import PIECE, PIECES, distance, sample_of, seconds_of
from tests.ops.cuda_support import device_runtime, on_device
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


@pytest.mark.parametrize(
    "at_once, fault, kind, words",
    [
        (True, Unable("no capture"), Unable, "no capture"),
        (False, DeviceError("capture was invalidated"), Unable, says("recorded", "capture was invalidated")),
        (False, DeviceFullError("no memory"), DeviceFullError, "^no memory$"),
    ],
)
def test_what_cannot_be_recorded_is_told_at_once_or_where_its_recording_ends(at_once, fault, kind, words):
    model = Model(fault=None if at_once else fault)

    def run():
        if at_once and model._costs is not None:
            raise fault
        model.issue(1e-6)

    with pytest.raises(kind, match=words):
        seconds_of(model, run)


@on_device
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


# ── choice ───────────────────────────────────────────────────────────────────────────────────────────────────────
class Clock:
    """Seconds of each way by its name, whatever it really takes. ``names``: of the trials, in order; ``results``: what
    a way gives, where that is not what the others give."""

    def __init__(self, seconds, results=None):
        self.seconds, self.results, self.names = seconds, results or {}, []

    def trial(self, variant):
        if isinstance(self.seconds[variant.name], Exception):
            raise self.seconds[variant.name]
        self.names.append(variant.name)
        return variant.name

    def measure(self, _device, run):
        return self.seconds[run()]

    def look(self, _device, _out):
        return np.array(self.results.get(self.names[-1], [3.0, 4.0]))

    def choice(self, fixed=False):
        return Choice(fixed, self.measure, self.look)


class Standing:
    """What a choice asks of a device. ``cleared``: how often the result was."""

    recording, stream = False, None

    def __init__(self, active="float32"):
        self.runtime, self.active, self.cleared = self, active, 0

    def numbers(self, factors=None):
        return factors or self.active

    def clear(self, _array, _stream):
        self.cleared += 1


def ways(*names):
    return lambda: [KernelVariant(name, None) for name in names]


def test_the_fastest_is_taken_and_told():
    refusals = {"none": Unable("no engine"), "large": DeviceFullError("no memory")}
    clock, device = Clock({"own": 3e-3, "blas": 1e-3, "small": 2e-3, **refusals}), Standing()
    choice = clock.choice()
    names = ways("none", "own", "blas", "small", "large")
    assert choice(device, "work", names, clock.trial).name == "blas"
    assert clock.names == ["own"] * 2 + ["blas"] * 2 + ["small"] * 2
    assert device.cleared == 3
    assert choice(device, "work", None, None).name == "blas" and len(clock.names) == 6
    chosen = choice.table["work"]
    assert (chosen.name, chosen.seconds["blas"]) == ("blas", 1e-3)
    assert choice.notes == [says("none", "no engine", 1), says("large", "no memory", 1)]
    device.recording = True
    assert choice(device, "work", None, None).name == "blas"


def test_a_stream_that_has_not_taken_a_way_does_not_record_it():
    """It allocates at its first call, on each stream. Nothing is kept of such a recording."""
    clock, beside, theirs = Clock({"own": 3e-3, "blas": 1e-3}), Standing(), ways("own", "blas")()
    choice = clock.choice()
    choice(Standing(), "work", ways("own", "blas"), clock.trial)
    for recording, variant in ((True, theirs[0]), (False, theirs[1]), (True, theirs[1])):
        beside.recording = recording
        assert choice(beside, "work", lambda: theirs, None) is variant
    assert len(clock.names) == 4


# What our own kernel and cuBLAS, which is faster, give; the types of activations and factors; which is taken.
RESULTS = [
    *(([3.0, 4.0], other, "float32", None, "own") for other in ([3.0, 4.01], [3.0, np.nan], [np.inf, 4.0])),
    ([3.0, 4.0], [0.0, 0.0], "float32", None, "own"),  # what is left of a way that writes nothing
    ([3.0, 4.0], [3.0, 4.001], "float32", None, "blas"),
    ([3.0, 4.0], [3.0, 4.04], "tf32", None, "blas"),
    ([3.0, 4.0], [3.0, 4.1], "bfloat16", None, "blas"),
    ([3.0, 4.0], [3.0, 4.05], "bfloat16", "float32", "own"),  # gradients are of float32 in a net of bfloat16, too
    ([0.0, 0.0], [0.0, 0.0], "float32", None, "blas"),
    ([3.0, np.nan], [3.0, np.nan], "float32", None, "blas"),  # nor is one judged beside numbers that are none
    ([3.0, np.inf], [1.0, 1.0], "float32", None, "blas"),
]


@pytest.mark.parametrize("value, other, active, factors, taken", RESULTS)
def test_a_way_that_gives_other_numbers_than_rounding_does_is_left_out(value, other, active, factors, taken):
    clock, device = Clock({"own": 3e-3, "blas": 1e-3}, {"own": value, "blas": other}), Standing(active)
    choice = clock.choice()
    for work in ("work", "more"):
        assert choice(device, work, ways("own", "blas"), clock.trial, factors=factors).name == taken
        assert ("blas" in choice.table[work].seconds) == (taken == "blas")
    assert choice.notes == ([says("blas", says("own", "0.001"), 2)] if taken == "own" else [])


def test_the_first_way_that_gives_numbers_is_the_one_that_is_named():
    clock = Clock({"own": Unable("no tile"), "library": 2e-3, "blas": 1e-3}, {"blas": [0.0, 0.0]})
    choice = clock.choice()
    assert choice(Standing(), "work", ways("own", "library", "blas"), clock.trial).name == "library"
    other = says("library", "0.001")
    assert choice.notes == [says("own", "no tile", 1), says("blas", other, 1)]


def test_where_no_way_can_be_timed_the_first_tells_why():
    clock = Clock({"own": DeviceFullError("no memory"), "blas": DeviceFullError("no memory")})
    choice = clock.choice()
    assert choice(Standing(), "work", ways("blas", "own"), clock.trial).name == "blas"
    assert not choice.table["work"].seconds


def test_a_defect_of_our_own_is_not_passed_over():
    clock = Clock({"own": DeviceError("it does not compile"), "blas": 1e-3})
    with pytest.raises(DeviceError, match="it does not compile"):
        clock.choice()(Standing(), "work", ways("own", "blas"), clock.trial)


def test_nothing_is_timed_while_recording_or_where_the_choice_is_fixed():
    device, clock = Standing(), Clock({})
    fixed = clock.choice(fixed=True)
    assert fixed(device, "work", ways("own", "blas"), clock.trial).name == "own"
    assert not fixed.table["work"].seconds
    assert clock.choice()(device, "work", ways("own"), clock.trial).name == "own"
    device.recording, choice = True, clock.choice()
    assert choice(device, "work", ways("own", "blas"), clock.trial).name == "own"
    assert clock.names == [] and choice.table == {}


# ── cuBLAS ───────────────────────────────────────────────────────────────────────────────────────────────────────
def multiplied(spoil, active):
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


def raises(error):
    def spoil(*_):
        raise error

    return spoil


def gives(value):
    def spoil(runtime, right, operands):
        right(*operands)
        runtime.upload(np.full(25, value, "float32"), operands[2].array, operands[-1])

    return spoil


OTHER = says("own", "0.001")
LIBRARIES = {  # what cuBLAS does, in a net of which type, and why it is left out
    "fails": (raises(DeviceError("the function failed to launch")), "float32", "the function failed to launch"),
    "raises": (raises(AttributeError("undefined symbol")), "float32", "undefined symbol"),
    "gives NaN": (gives(np.nan), "float32", OTHER),
    "gives half": (gives(2.5), "float32", OTHER),
    "gives nothing": (lambda *_: None, "float32", OTHER),
    "gives too little for products of float32": (gives(5.05), "float16", OTHER),
    "is right": (lambda runtime, right, operands: right(*operands), "float32", None),
}


@on_device
@pytest.mark.parametrize("spoil, active, why", LIBRARIES.values(), ids=LIBRARIES)
def test_a_library_that_fails_or_is_wrong_is_left_out(spoil, active, why):
    host, choice = multiplied(spoil, active)
    assert (host == 5).all()
    assert choice.notes == ([says("cuBLAS", 1, why)] if why else [])
    assert next(iter(choice.table.values())).name == ("own" if why else "cuBLAS")


# ── kinds of ways that are left out ──────────────────────────────────────────────────────────────────────────────
NAMES = "columns, own", "columns, wgmma 128x64", "normalised, cuDNN", "columns, cuBLAS"
WAYS = [KernelVariant(name, name) for name in NAMES]


@pytest.mark.parametrize(
    ("setting", "left"),
    [
        ("", [*NAMES]),
        ("wgmma", ["columns, own", "normalised, cuDNN", "columns, cuBLAS"]),
        ("WGMMA, cudnn,", ["columns, own", "columns, cuBLAS"]),
    ],
)
def test_kinds_are_left_out_of_every_choice_with_a_note(monkeypatch, setting, left):
    monkeypatch.setenv(SETTING, setting)
    choice, tried = Choice(measure=lambda device, run: 1.0, look=lambda *_: np.ones(1)), []
    choice(Standing(), "a product", lambda: WAYS, lambda variant: tried.append(variant.name))
    assert list(dict.fromkeys(tried)) == left
    settings = [kind for kind in ("wgmma", "cuDNN", "cuBLAS") if kind.lower() in setting.lower()]
    assert choice.notes == [says(kind, f"{SETTING}={setting}") for kind in settings]


def test_the_only_way_is_not_left_out(monkeypatch):
    monkeypatch.setenv(SETTING, "cudnn")
    assert Choice()(Standing(), "x", lambda: WAYS[2:3], None) == WAYS[2]


def test_a_kind_that_is_not_there_is_refused():
    with pytest.raises(DeviceError, match=says(SETTING, "wgmma,cutlass", "'cutlass'")):
        kinds_left_out("wgmma,cutlass")
