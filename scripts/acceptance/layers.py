"""The convolutions of a net beside PyTorch: every shape, each of three passes, every implementation.

Shapes are the model file's. A way's result is held against PyTorch's in float32, of the same numbers; its time is that
of replays of a recording, beside PyTorch's own of the same type. Each kind of way, PyTorch's among them, has a process
of its own: a fault ends all work of its process on a device.
"""

import argparse
import importlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from files import read_json, run_program, write_rows
from kernels import timed
from processes import ended, ending

from ringtrain.errors import RingtrainError
from ringtrain.nn import spec
from ringtrain.ops.cuda import CudaOps
from ringtrain.ops.cuda.choice import CUBLAS, CUDNN, WGMMA, Unable
from ringtrain.ops.cuda.convolution import FORWARD, INPUT_BACK, WEIGHTS_BACK
from ringtrain.ops.cuda.convolution.plan import ConvolutionPlan, make_convolution_plan
from ringtrain.ops.cuda.device import Device

KINDS = OWN, *_, PYTORCH = "own", WGMMA, CUBLAS, CUDNN, "PyTorch"
LIBRARIES = (CUDNN, CUBLAS)


def kind_of(way: str) -> str:
    """Return the kind of a way: part of its name, or ringtrain's own kernels."""
    return next((kind for kind in (WGMMA, CUBLAS, CUDNN) if kind in way), OWN)


class Every:
    """A Choice that takes the first way, and keeps all of them by pass."""

    def __init__(self):
        self.ways, self.table, self.notes = {}, {}, {}

    def __call__(self, device, work, ways, *rest, **named):
        self.ways[work[0]] = list(ways())
        return self.ways[work[0]][0]


def plans_of(model: str, batch: int) -> list[ConvolutionPlan]:
    """Return the plans of a model file's convolutions, each shape once, in the order of the net."""
    graph, plans = spec.load_model(model).graph(), {}
    for node in (node for node in graph.nodes if type(node.layer).__name__ == "Conv2D"):
        layer, x, y = node.layer, graph.shapes[node.inputs[0]], graph.shapes[node.name]
        weights = layer.kernel, layer.kernel, x[-1] // layer.groups, layer.channels
        plans[make_convolution_plan((batch, *x), weights, (batch, *y), layer.geometry)] = None
    return list(plans)


def words(plan: ConvolutionPlan) -> str:
    sizes = f"{plan.height}x{plan.width}x{plan.channels} → {plan.p}x{plan.q}x{plan.features}"
    return f"{sizes}, {plan.kernel}x{plan.kernel}/{plan.stride}"


class Bench:
    """``peer``: fills arrays, and has results and times of its own (:class:`layers_torch.Torch`)."""

    def __init__(self, runtime, precision: str, make_peer):
        self._every, self._runtime = Every(), runtime
        plain = CudaOps(runtime, "float32", precision)
        self._device = Device(runtime, "float32", plain.active, choice=self._every)
        self._ops = CudaOps(runtime, "float32", precision, self._device)
        self._precision, self._peer = precision, make_peer(runtime)

    def rows(self, plan: ConvolutionPlan, kinds=KINDS) -> Iterator[dict]:
        arrays = self._arrays(plan)
        self._peer.fill(plan, arrays)
        x, w, dy, y, dx, dw = (arrays[name] for name in ("x", "w", "dy", "y", "dx", "dw"))
        self._ops.conv2d(x, w, None, y, plan.geometry)
        self._ops.conv2d_back(x, w, y, dy, dw, None, dx, plan.geometry)
        self._ops.synchronize()
        calls = {
            FORWARD: ((x, w, None, y, False, None, 0), y),
            INPUT_BACK: ((w, dy, dx, False), dx),
            WEIGHTS_BACK: ((x, dy, dw, False), dw),
        }
        for what, wanted in self._peer.results(plan, arrays):
            arguments, result = calls[what]
            about = {"pass": what, "shape": words(plan), "precision": self._precision}
            if PYTORCH in kinds:
                yield about | {"way": PYTORCH, "library": True, "us": 1e6 * self._peer.seconds(plan, arrays, what)}
            for way in self._every.ways[what]:
                if kind_of(way.name) in kinds:
                    named = {"way": way.name, "library": way.name.endswith(LIBRARIES)}
                    yield about | named | self._tried(plan, way, arguments, result, wanted)

    def _arrays(self, plan: ConvolutionPlan) -> dict:
        ops = self._ops
        image, out = (plan.images, plan.height, plan.width, plan.channels), (plan.images, plan.p, plan.q, plan.features)
        weights = (plan.kernel, plan.kernel, plan.group_channels, plan.features)
        shapes = {"x": image, "dx": image, "y": out, "dy": out}
        arrays = {name: ops.empty(shape, ops.active) for name, shape in shapes.items()}
        return arrays | {name: ops.empty(weights, ops.dtype) for name in ("w", "dw")}

    def _tried(self, plan: ConvolutionPlan, way, arguments, result, wanted) -> dict:
        try:
            self._ops.fill(result, 0)  # the result of the former way
            way.run(plan, *arguments)
            self._ops.synchronize()
            error = self._peer.apart(result, wanted)
            seconds = self._seconds(lambda: way.run(plan, *arguments))
        except (Unable, RingtrainError, RuntimeError, ValueError) as failure:
            return {"said": f"{type(failure).__name__}: {failure}"[:300]}
        return {"error": error, "us": 1e6 * seconds, "TF/s": plan.flops / seconds / 1e12}

    def _seconds(self, run) -> float:
        stream = self._device.stream
        with self._runtime.record(stream) as graphs:
            run()
        return timed(stream, lambda: graphs[0].launch(stream))


def measure(options) -> None:
    """Write the rows of one kind, after each shape."""
    from ringtrain.ops.cuda.cupy_runtime import make_runtime

    bench = Bench(make_runtime(0), options.precision, importlib.import_module(options.peer).Torch)
    rows = []
    for plan in plans_of(options.model, options.batch):
        rows += bench.rows(plan, [options.kind])
        write_rows(options.folder, rows)
    if not any("us" in row for row in rows):
        why = rows[0]["said"] if rows else "there are no such ways"
        sys.exit(f"layers: {options.kind} did none of {len(rows)}: {why}")


def measure_each(options, kinds: list[str]) -> int:
    """Have a process measure each kind, and put their rows together, after each. Returns how many failed."""
    rows, failed, end_at = [], [], time.monotonic() + options.seconds
    for number, kind in enumerate(kinds):
        folder = options.folder / kind
        folder.mkdir(exist_ok=True)
        words = [sys.executable, __file__, folder, "--kind", kind, "--model", options.model, "--batch", options.batch]
        words += ["--precision", options.precision, "--peer", options.peer]
        limit = (end_at - time.monotonic()) / (len(kinds) - number)
        with open(folder / "output.txt", "w+") as output:
            code = ended(list(map(str, words)), limit, stdout=output, stderr=output)
        last = (folder / "output.txt").read_text().strip().rpartition("\n")[2]
        rows += read_json(folder / "rows.json") or []
        failed += [{"kind": kind, "said": f"{ending(code)}: {last}"[:300]}] if code != 0 else []
        write_rows(options.folder, rows)
        write_rows(options.folder, failed, "failed.json")
        print(f"{kind:8} {ending(code) if code != 0 else 'done'} {last}", flush=True)
    return len(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=95, help="of all kinds together")
    parser.add_argument("--kinds", default=",".join(KINDS), help="with commas")
    parser.add_argument("--kind", help="measure this kind in this process")
    parser.add_argument("--peer", default="layers_torch", help="the module of PyTorch's side")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends its children too
    return measure(options) if options.kind else int(measure_each(options, options.kinds.split(",")) > 0)


if __name__ == "__main__":
    run_program(main)
