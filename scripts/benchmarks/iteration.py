"""What an iteration on a GPU costs beside its kernels' own time: launches, graph nodes, bytes of arrays, and Python.

A driver that does nothing takes the work of :class:`Worker`, so no device is needed; CuPy is. Bytes are those of
the arrays that each kernel is given, each once. The time is that of Python on this machine, one rank: the best and the
median of blocks of iterations, after the recordings are made.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from null_cupy import NullCupy

from ringtrain.config.resolve import recipe_layer, resolve
from ringtrain.errors import RingtrainError
from ringtrain.nn import spec
from ringtrain.ops.cuda import CudaOps
from ringtrain.ops.cuda.cupy_runtime import CupyRuntime
from ringtrain.train.assembly.assemble import assemble
from ringtrain.train.assembly.data import open_data
from ringtrain.transport.cuda_aware.decision import STAGED, CudaDecision
from ringtrain.transport.world import connect, on_device

MODELS = ("mlp", "lenet", "resnet20", "resnet50", "alexnet")
TURNS = 4  # batches in turn: more than are on the device at a time
WARM_UP, BLOCKS = 2 * TURNS, 9


def assembled(name: str, options, cupy: NullCupy):
    model = spec.load_model(name)
    flags = {"model": name, "synthetic": True, "batch": options.batch, "iterations": 1_000_000, "accumulate": 1}
    flags |= {"device": "cuda", "precision": options.precision, "check_collectives": False, "augment": False}
    flags |= {"mpi_cuda": "staged"}
    config = resolve(recipe_layer(model.name, model.recipe), ("flags", flags))
    ops = CudaOps(CupyRuntime(cupy, 0), "float32", options.precision, fixed=True)
    transport = on_device(connect(), ops.runtime, CudaDecision(STAGED, "", ()))
    data = open_data(config, model, transport)
    return assemble(config, model, data, transport, ops, lambda: False)


def measured(name: str, options) -> dict:
    cupy = NullCupy()
    run = assembled(name, options, cupy)
    with run.batches(run.transport, 0, TURNS) as batches:
        turns = [next(batches) for _ in range(TURNS)]
        run.worker.rehearse(turns[0])

        def iterate(count: int) -> None:
            for i in range(count):
                run.worker.iterate(turns[i % TURNS], lambda i=i: turns[(i + 1) % TURNS])

        iterate(WARM_UP)
        cupy.take()
        iterate(TURNS)
        work = cupy.take()
        seconds = []
        for _ in range(BLOCKS):
            began = time.perf_counter()
            iterate(options.iterations)
            seconds.append((time.perf_counter() - began) / options.iterations)
    return {
        "model": name,
        "batch": options.batch,
        "graphs": work.graphs / TURNS,
        "nodes": work.nodes / TURNS,
        "launches": work.launches / TURNS,
        "copies": work.copies / TURNS,
        "GB": sum(work.nbytes.values()) / TURNS / 1e9,
        "Python, µs": 1e6 * min(seconds),
        "median, µs": 1e6 * statistics.median(seconds),
        "kernels": {k: [v / TURNS, work.nbytes[k] / TURNS / 1e9] for k, v in work.kernels.most_common()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--iterations", type=int, default=100, help="of a block")
    parser.add_argument("--kernels", action="store_true", help="also list the kernels of each net")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.models:
        row = measured(name, options)
        rows.append(row)
        print({k: v for k, v in row.items() if k != "kernels"}, flush=True)
        if options.kernels:
            for kernel, (count, gb) in row["kernels"].items():
                print(f"   {count:8.1f} {gb:9.3f} GB  {kernel}")
    if options.json:
        options.json.write_text(json.dumps(rows))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RingtrainError as error:
        sys.exit(f"iteration: {error}")
