"""The time of each kernel in a training iteration, beside the least time for its bytes.

Every launch of an iteration is timed by two events on the stream, a convolution by cuDNN among them; what lies between
two events on a device, about 5 µs, is in the time of small kernels. The floor of a kernel is the bytes of the arrays
that it is given, each once, at the bandwidth of a large copy measured here, but for those of which it reads a few
lines; products are bound by arithmetic instead, and their rate is told beside that of a large product of cuBLAS.
Nothing is recorded as a graph meanwhile, so the sum is that of the kernels alone.
"""

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from files import run_program, write_rows

from ringtrain.config.resolve import recipe_layer, resolve
from ringtrain.errors import DeviceError
from ringtrain.nn import spec
from ringtrain.ops.cuda import CudaOps
from ringtrain.ops.cuda.boxes import TensorMap
from ringtrain.ops.cuda.cupy_runtime import make_runtime
from ringtrain.ops.cuda.runtime import Matrix
from ringtrain.train.assembly.assemble import assemble
from ringtrain.train.assembly.data import open_data
from ringtrain.transport.cuda_aware.decision import STAGED, CudaDecision
from ringtrain.transport.world import connect, on_device

TIMES = 10  # that each ceiling is measured
# Arguments of which a kernel reads a line for each group of rows, and no more: their bytes are not counted.
TOUCHED = {"finish_moments": (0,), "finish_moments_float64": (0,)}


@dataclass(slots=True)
class Spent:
    """The launches, between two events each, and the bytes of one kernel in an iteration."""

    nbytes: int = 0
    events: list = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(after.seconds_since(before) for before, after in self.events)


class Profiled:
    """A runtime that keeps the time of every launch, under its kernel's name."""

    records = False

    def __init__(self, runtime):
        self._runtime = runtime
        self.spent: dict[str, Spent] = defaultdict(Spent)

    def __getattr__(self, name):
        return getattr(self._runtime, name)

    def record(self, stream):
        raise DeviceError("kernels are timed one by one: nothing is recorded")

    def compile(self, source, name, options, architecture=None):
        kernels = self._runtime.compile(source, name, options, architecture)
        return {function: ProfiledKernel(name, function, kernel, self) for function, kernel in kernels.items()}

    def product(self, a, b, c, *rest):
        *_, stream = rest
        self.timed("cuBLAS", stream, [m.array for m in (a, b, c)], lambda: self._runtime.product(a, b, c, *rest))

    def timed(self, name, stream, arrays, work) -> None:
        """``work()`` issues what reads or writes ``arrays``, a kernel or a library's."""
        spent = self.spent[name]
        before = stream.record(timed=True)
        work()
        spent.events.append((before, stream.record(timed=True)))
        spent.nbytes += sum(array.size * array.dtype.itemsize for array in arrays)

    def synchronize(self) -> dict[str, Spent]:
        """Return the launches since the last call."""
        spent, self.spent = self.spent, defaultdict(Spent)
        return spent


class ProfiledKernel:
    def __init__(self, source: str, function: str, kernel, profile: Profiled):
        self._name, self._kernel, self._profile = f"{source}: {function}", kernel, profile
        self._touched = TOUCHED.get(function, ())

    def launch(self, blocks, threads, stream, arguments, shared_bytes):
        arrays = [each.array if isinstance(each, TensorMap) else each for each in arguments]
        kept = (each for i, each in enumerate(arrays) if i not in self._touched)
        whole = [each for each in kept if not isinstance(each, np.generic | type(None))]
        launch = self._kernel.launch
        self._profile.timed(self._name, stream, whole, lambda: launch(blocks, threads, stream, arguments, shared_bytes))


# ── the two ceilings ──────────────────────────────────────────────────────────────────────────────────────────────
def timed(stream, work) -> float:
    work()
    before = stream.record(timed=True)
    for _ in range(TIMES):
        work()
    after = stream.record(timed=True)
    after.wait()
    return after.seconds_since(before) / TIMES


def copy_rate(runtime, stream, nbytes: int) -> float:
    """Return bytes a second, read and written."""
    a, b = (runtime.empty((nbytes,), "uint8") for _ in range(2))
    return 2 * nbytes / timed(stream, lambda: runtime.copy(a, b, stream))


def product_rate(ops, runtime, stream, edge: int) -> float:
    """Return the FLOP/s of cuBLAS on random numbers: zeros would run faster."""
    random = np.random.default_rng(0).standard_normal((edge, edge)).astype(ops.active)
    a, b, c = (Matrix(ops.from_host(random), edge, edge, edge) for _ in range(3))
    precise = ops.precision == "float32"
    return 2 * edge**3 / timed(stream, lambda: runtime.product(a, b, c, False, precise, stream))


# ── an iteration ──────────────────────────────────────────────────────────────────────────────────────────────────
def spent_in(options, ops, profile) -> dict[str, Spent]:
    """Return the median iteration, by the time of all kernels."""
    model = spec.load_model(options.model)
    flags = {"model": options.model, "synthetic": True, "batch": options.batch, "check_collectives": False}
    flags["iterations"] = 1_000_000  # longer than any warm-up
    config = resolve(recipe_layer(model.name, model.recipe), ("flags", {**flags, "augment": False}))
    transport = on_device(connect(), ops.runtime, CudaDecision(STAGED, "", ()))
    data = open_data(config, model, transport)
    run = assemble(config, model, data, transport, ops, lambda: False)
    iterations = []
    with run.batches(transport, 0, 1) as batches:
        batch = next(batches)
        run.worker.rehearse(batch)
        for _ in range(options.warm_up + options.iterations):
            run.worker.iterate(batch)
            ops.synchronize()
            iterations.append(profile.synchronize())
    by_time = sorted(iterations[options.warm_up :], key=seconds_of)
    return by_time[(len(by_time) - 1) // 2]


def seconds_of(kernels: dict[str, Spent]) -> float:
    return sum(spent.seconds for spent in kernels.values())


def rows(kernels: dict[str, Spent], bandwidth: float) -> list[dict]:
    total = seconds_of(kernels)
    return [
        {
            "kernel": name,
            "launches": len(spent.events),
            "ms": 1e3 * spent.seconds,
            "share %": 100 * spent.seconds / total,
            "floor by bytes, ms": 1e3 * spent.nbytes / bandwidth,
            "times its floor": spent.seconds / (spent.nbytes / bandwidth) if spent.nbytes else None,
        }
        for name, spent in sorted(kernels.items(), key=lambda each: -each[1].seconds)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--ceilings", action="store_true", help="these alone: of a copy, and of a product")
    parser.add_argument("--copied", type=int, default=1 << 30, help="bytes of the copy")
    parser.add_argument("--edge", type=int, default=8192, help="rows and columns of the product")
    options = parser.parse_args()
    profile = Profiled(make_runtime(0))
    ops = CudaOps(profile, "float32", options.precision)
    stream = profile.stream()
    ceilings = {"copy, TB/s": copy_rate(profile, stream, options.copied) / 1e12}
    ceilings["product, TFLOP/s"] = product_rate(ops, make_runtime(0), stream, options.edge) / 1e12
    write_rows(options.folder, ceilings, "ceilings.json")
    print(json.dumps(ceilings), flush=True)
    if not options.ceilings:
        profile.synchronize()
        write_rows(options.folder, rows(spent_in(options, ops, profile), 1e12 * ceilings["copy, TB/s"]))


if __name__ == "__main__":
    run_program(main)
