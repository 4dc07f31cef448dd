"""What an iteration on a GPU costs beside its kernels' own time: launches, graph nodes, bytes of arrays, and Python.

A driver that does nothing takes the work of :class:`Worker`, so no device is needed; CuPy is.
docs/benchmarks/gpu.md says what the figures are.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from itertools import chain

from null_cupy import COPY, NullCupy

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
BATCH, PRECISION = 128, "bfloat16"
TURNS = 4  # batches in turn: more than are on the device at a time
WARM_UP, BLOCKS, BLOCK = 2 * TURNS, 9, 100  # iterations, blocks of them


def assembled(name: str, cupy: NullCupy):
    model = spec.load_model(name)
    flags = {"model": name, "synthetic": True, "augment": False, "batch": BATCH, "iterations": 10**6, "accumulate": 1}
    flags |= {"device": "cuda", "precision": PRECISION, "check_collectives": False, "mpi_cuda": "staged"}
    config = resolve(recipe_layer(model.name, model.recipe), ("flags", flags))
    ops = CudaOps(CupyRuntime(cupy, 0), "float32", PRECISION, fixed=True)
    transport = on_device(connect(), ops.runtime, CudaDecision(STAGED, "", ()))
    data = open_data(config, model, transport)
    return assemble(config, model, data, transport, ops, lambda: False)


def measured(name: str) -> tuple[dict, list[tuple[str, float, float]]]:
    """Return the row of a net, and (kernel, launches, GB) of an iteration, of single launches and of graphs."""
    cupy = NullCupy()
    run = assembled(name, cupy)
    with run.batches(run.transport, 0, TURNS) as batches:
        turns = [next(batches) for _ in range(TURNS)]
        run.worker.rehearse(turns[0])

        def iterate(count: int) -> None:
            for i in range(count):
                run.worker.iterate(turns[i % TURNS], lambda i=i: turns[(i + 1) % TURNS])

        iterate(WARM_UP)
        cupy.log.clear()
        iterate(TURNS)
        log, seconds = cupy.log.copy(), []
        for _ in range(BLOCKS):
            began = time.perf_counter()
            iterate(BLOCK)
            seconds.append((time.perf_counter() - began) / BLOCK)
    graphs, single = [each for each in log if isinstance(each, list)], [each for each in log if isinstance(each, tuple)]
    kernels, nbytes = Counter(), Counter()
    for kernel, count in chain(single, *graphs):
        kernels[kernel] += 1
        nbytes[kernel] += count
    copies = sum(kernel == COPY for kernel, _ in single)
    counts = {"graphs": len(graphs), "nodes": sum(map(len, graphs)), "launches": len(single) - copies, "copies": copies}
    row = {"model": name, "batch": BATCH} | {what: count / TURNS for what, count in counts.items()}
    row |= {"GB": nbytes.total() / TURNS / 1e9}
    row |= {"Python, µs": 1e6 * min(seconds), "median, µs": 1e6 * statistics.median(seconds)}
    return row, [(kernel, each / TURNS, nbytes[kernel] / TURNS / 1e9) for kernel, each in kernels.most_common()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--kernels", action="store_true", help="also list the kernels of each net")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CUPY_CACHE_DIR"] = folder  # what a compiler that does nothing has compiled is of no use later
        for name in options.models:
            row, kernels = measured(name)
            print(row, flush=True)
            for kernel, count, gigabytes in kernels if options.kernels else ():
                print(f"   {count:8.1f} {gigabytes:9.3f} GB  {kernel}")


if __name__ == "__main__":
    try:
        main()
    except RingtrainError as error:
        sys.exit(f"iteration: {error}")
