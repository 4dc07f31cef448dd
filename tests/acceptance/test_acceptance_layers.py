"""The acceptance's stage of convolutions, on a device that is not there: every way is tried, a wrong one is seen."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.cuda.choice import KernelVariant
from ringtrain.ops.cuda.convolution.plan import make_convolution_plan
from ringtrain.ops.reference import ReferenceOps
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cuda_support import needs_compiler

pytestmark = needs_compiler
PLAN = make_convolution_plan((2, 5, 6, 8), (3, 3, 8, 16), (2, 3, 3, 16), ConvGeometry(3, 2, 1))


class Numpy:
    """In PyTorch's place: the reference, in float64, of the numbers that the arrays hold."""

    def __init__(self, runtime):
        self._runtime, self._stream = runtime, runtime.stream()

    def host(self, array):
        values = np.empty(array.shape, array.dtype)
        self._runtime.download(array, values, self._stream)
        return values

    def fill(self, plan, arrays):
        random = np.random.default_rng(0)
        active = arrays["x"].dtype
        for name in ("x", "dy", "w"):
            values = random.standard_normal(arrays[name].shape).astype(active).astype(arrays[name].dtype)
            self._runtime.upload(values, arrays[name], self._stream)
        self._stream.synchronize()

    def results(self, plan, arrays):
        x, w, dy = (self.host(arrays[name]).astype(np.float64) for name in ("x", "w", "dy"))
        ops = ReferenceOps("float64")
        y, dw, dx = np.empty_like(dy), np.empty_like(w), np.empty_like(x)
        ops.conv2d(x, w, None, y, plan.geometry)
        ops.conv2d_back(x, w, y, dy.copy(), dw, None, dx, plan.geometry)
        return [("forward", y), ("input_back", dx), ("weights_back", dw)]

    def apart(self, array, wanted):
        return float(np.linalg.norm(self.host(array).astype(np.float64) - wanted) / np.linalg.norm(wanted))

    def seconds(self, plan, arrays, what):
        return 1.0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_way_of_every_pass_is_right_and_timed(acceptance, readings, tmp_path, precision):
    rows = list(acceptance("layers").Bench(HostRuntime(), precision, Numpy).rows(PLAN))
    assert {row["pass"] for row in rows} == {"forward", "input_back", "weights_back"}
    ways = {row["way"] for row in rows if row["pass"] == "forward"}
    assert {"implicit", "implicit 64x64"} <= ways
    assert ("wgmma 128x64" in ways) == (precision == "bfloat16")
    assert all(row["us"] > 0 and (row["us"] == 1e6) == (row["way"] == "PyTorch") for row in rows), rows
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    reading = readings.layers(tmp_path)
    assert reading.short == "" and len(reading.rows) == 3
    assert set(reading.figures) == {
        f"{precision} {what}, × torch" for what in ("forward", "input_back", "weights_back")
    }
    (tmp_path / "failed.json").write_text(json.dumps([{"kind": "wgmma", "said": "ended by signal 6"}]))
    assert readings.layers(tmp_path).short == "wgmma: ended by signal 6"


def row(way, us, shape="a", **more):
    facts = {"pass": "forward", "shape": shape, "precision": "bfloat16", "library": way in ("cuDNN", "PyTorch")}
    return {**facts, "way": way, "us": us, "recorded": True, "error": 0.001, "TF/s": 1.0, **more}


def test_the_fastest_way_by_wgmma_is_beside_cudnn(readings, tmp_path):
    """Also where another way is the fastest; a shape that cuDNN cannot do counts for neither."""
    ways = ("wgmma 128x128", 12.0), ("columns, wgmma 128x64", 10.0), ("implicit", 8.0), ("cuDNN", 9.0)
    rows = [*(row(*each) for each in ways), row("wgmma 128x64", 5.0, "b"), row("cuDNN", 1.0, "c")]
    rows[-1] = {**rows[-1], "shape": "b", "said": "no engine"}
    del rows[-1]["us"]
    rows += [row("PyTorch", 30.0), row("PyTorch", 30.0, "b")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    reading = readings.layers(tmp_path)
    first, second = reading.rows
    assert (first["way"], first["us"], first["wgmma"]) == ("implicit", 8.0, "columns, wgmma 128x64")
    assert (first["wgmma us"], first["cuDNN us"], first["wgmma × cuDNN"]) == (10.0, 9.0, 0.9)
    assert second["wgmma us"] == 5.0 and "cuDNN us" not in second
    assert reading.figures == {"bfloat16 forward, × torch": 60 / 13, "bfloat16 forward, wgmma × cuDNN": 0.9}


def test_a_way_that_is_wrong_or_fails_is_named(acceptance, readings, tmp_path, monkeypatch):
    layers = acceptance("layers")

    def nothing(plan, *arguments):
        """A kernel that leaves what it is given as it was."""

    def fails(plan, *arguments):
        raise RuntimeError("EXECUTION_FAILED")

    def call(self, device, work, ways, *rest, **named):
        variants, wrong = list(ways()), (("idle", nothing), ("broken", fails), ("cuDNN", fails))
        self.ways[work[0]] = [*variants, *(KernelVariant(*each) for each in wrong)]
        return variants[0]

    monkeypatch.setattr(layers.Every, "__call__", call)
    rows = list(layers.Bench(HostRuntime(), "float32", Numpy).rows(PLAN))
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    reading = readings.layers(tmp_path)
    assert reading.short.startswith(
        "6 ways are wrong: idle of forward 5x6x8 → 3x3x16, 3x3/2 in float32 (1.0), broken of forward"
    )
    # a library may say that it cannot
    assert "RuntimeError: EXECUTION_FAILED" in reading.short and "cuDNN of" not in reading.short
    assert {"RuntimeError: EXECUTION_FAILED"} <= {row["libraries that cannot"] for row in reading.rows}


STAND_IN = """
import json, os, sys
from pathlib import Path
folder, kind = Path(sys.argv[1]), sys.argv[sys.argv.index("--kind") + 1]
row = {"pass": "forward", "shape": "a", "precision": "bfloat16", "library": False, "way": kind, "us": 1.0, "TF/s": 1.0}
(folder / "rows.json").write_text(json.dumps([{**row, "error": 0.0}]))
if kind == "wgmma":
    os.abort()
"""


def test_a_kind_that_ends_its_process_leaves_the_others(acceptance, readings, monkeypatch, tmp_path):
    layers, program = acceptance("layers"), tmp_path / "stand_in.py"
    program.write_text(STAND_IN)
    monkeypatch.setattr(layers, "__file__", str(program))
    options = SimpleNamespace(folder=tmp_path, model="a", batch=1, precision="bfloat16", peer="b", seconds=120)
    assert layers.measure_each(options, ["own", "wgmma", "PyTorch"]) == 1
    reading = readings.layers(tmp_path)
    assert reading.short == "wgmma: ended by signal 6: " and reading.rows[0]["ways"] == 3


def test_kinds_of_ways(acceptance):
    kinds = {
        "implicit 64x64": "own", "columns, own": "own", "columns, wgmma 128x64": "wgmma", "columns, cuBLAS": "cuBLAS",
        "normalised, cuDNN": "cuDNN",
    }  # fmt: skip
    assert {way: acceptance("layers").kind_of(way) for way in kinds} == kinds


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_all_that_convolutions_compile_is_compiled_ahead(acceptance, monkeypatch, precision):
    asked, compile = [], HostRuntime.compile

    def record(self, source, name, options, architecture=None):
        asked.append((name.removesuffix(".cu"), frozenset(options), architecture or "sm_90"))
        return compile(self, source, name, options, architecture)

    monkeypatch.setattr(HostRuntime, "compile", record)
    list(acceptance("layers").Bench(HostRuntime(), precision, Numpy).rows(PLAN))
    ahead = {(name, frozenset(options), each) for name, options, each in acceptance("warm").jobs("sm_90", None)}
    assert ("convolution" in {name for name, *_ in asked}) and set(asked) <= ahead


def test_shapes_are_those_of_the_model_file(acceptance):
    """He et al. 2016, table 1: 53 convolutions of 23 shapes; the first and the last of them."""
    plans = acceptance("layers").plans_of("resnet50", 128)
    assert len(plans) == 23
    assert acceptance("layers").words(plans[0]) == "224x224x3 → 112x112x64, 7x7/2"
    assert acceptance("layers").words(plans[-1]) == "7x7x512 → 7x7x2048, 1x1/1" or plans[-1].p == 7
    assert all(plan.images == 128 for plan in plans)
