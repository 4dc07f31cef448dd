"""The convolutions of a net beside PyTorch: every shape, each of three passes, every implementation.

Shapes are the model file's. A way's result is held against PyTorch's in float32, of the same numbers; its time is that
of replays of a recording, beside PyTorch's own of the same type.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from files import write_rows

from ringtrain.errors import RingtrainError
from ringtrain.nn import spec
from ringtrain.ops.cuda import CudaOps
from ringtrain.ops.cuda.choice import Unable
from ringtrain.ops.cuda.convolution import FORWARD, INPUT_BACK, WEIGHTS_BACK
from ringtrain.ops.cuda.convolution.plan import ConvolutionPlan, make_convolution_plan
from ringtrain.ops.cuda.device import Device

PRECISIONS = ("bfloat16", "float32")
LIBRARIES = ("cuDNN", "cuBLAS")
REPLAYS = 10


class Every:
    """A Choice that takes the first way, and keeps all of them by pass."""

    def __init__(self):
        self.ways, self.table, self.notes = {}, {}, {}

    def __call__(self, device, work, ways, *rest, **named):
        self.ways[work[0]] = found = list(ways())
        return found[0]


def plans_of(model: str, batch: int) -> list[ConvolutionPlan]:
    """Return the plans of a model file's convolutions, each shape once, in the order of the net."""
    graph = spec.load_model(model).graph()
    nodes = [node for node in graph.nodes if type(node.layer).__name__ == "Conv2D"]
    found = []
    for node in nodes:
        layer, x, y = node.layer, graph.shapes[node.inputs[0]], graph.shapes[node.name]
        weights = layer.kernel, layer.kernel, x[-1] // layer.groups, layer.channels
        found.append(make_convolution_plan((batch, *x), weights, (batch, *y), layer.geometry))
    return list(dict.fromkeys(found))


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

    def rows(self, plan: ConvolutionPlan) -> Iterator[dict]:
        arrays = self._arrays(plan)
        self._peer.fill(plan, arrays)
        x, w, dy, y, dx, dw = (arrays[name] for name in ("x", "w", "dy", "y", "dx", "dw"))
        self._ops.conv2d(x, w, None, y, plan.geometry)
        self._ops.conv2d_back(x, w, y, dy, dw, None, dx, plan.geometry)
        self._ops.synchronize()
        given = {
            FORWARD: ((x, w, None, y, False, None, 0), y),
            INPUT_BACK: ((w, dy, dx, False), dx),
            WEIGHTS_BACK: ((x, dy, dw, False), dw),
        }
        for what, wanted in self._peer.results(plan, arrays):
            arguments, result = given[what]
            theirs = 1e6 * self._peer.seconds(plan, arrays, what)
            about = {"pass": what, "shape": words(plan), "precision": self._precision, "torch us": theirs}
            for way in self._every.ways[what]:
                told = {**about, "way": way.name, "library": way.name.endswith(LIBRARIES)}
                yield told | self._tried(plan, way, arguments, result, wanted)

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
        graphs[0].launch(stream)
        before = stream.record(timed=True)
        for _ in range(REPLAYS):
            graphs[0].launch(stream)
        after = stream.record(timed=True)
        after.wait()
        return after.seconds_since(before) / REPLAYS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    from ringtrain.ops.cuda.cupy_runtime import make_runtime

    runtime, rows = make_runtime(0), []
    from layers_torch import Torch

    benches = [Bench(runtime, precision, Torch) for precision in PRECISIONS]
    for plan in plans_of(options.model, options.batch):
        for bench in benches:
            rows += bench.rows(plan)
        write_rows(options.folder, rows)
        print(words(plan), flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RingtrainError as error:
        sys.exit(f"layers: {error}")
