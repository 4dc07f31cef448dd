"""Count the arrays that COUNTED steady iterations of the models in sys.argv allocate; exit with 1 if there is any.

An iteration is whole: gather a batch, bring it to the device, forward, backward, exchange, update. Arrays of NumPy
count, and what the workspaces of compiled kernels grow by.
"""

import sys

import numpy as np

from ringtrain.config.resolve import resolve
from ringtrain.data.batches.gather import Changes, Gather
from ringtrain.nn import spec
from ringtrain.ops.catalogue import make_ops
from ringtrain.train.assembly.assemble import assemble
from ringtrain.train.assembly.data import open_data
from ringtrain.transport.world import connect
from tests.allocations import LEAST_BYTES, counted

BATCH, WARM_UP, COUNTED = 32, 3, 5
# Ways of training that treat gradients differently; each model is trained in each.
WAYS = {
    "": {},
    "--clip-norm": {"clip_norm": 0.001},  # so that it clips
    "--optimizer adamw": {"optimizer": "adamw", "lr": 0.001},
    "--optimizer lars": {"optimizer": "lars", "lr": 0.1, "trust_coefficient": 0.001},
    "--optimizer lamb --clip-norm": {"optimizer": "lamb", "lr": 0.001, "clip_norm": 0.001},
    "--sync sharded --optimizer lars": {"sync": "sharded", "optimizer": "lars", "lr": 0.1, "trust_coefficient": 0.001},
    "--fc hybrid --optimizer lamb": {"fc": "hybrid", "optimizer": "lamb", "lr": 0.001},
}


def measure(transport, name: str, way: dict) -> tuple[list[int], int]:
    """The bytes of each array of COUNTED iterations, and the bytes by which workspaces grow."""
    model = spec.load_model(name)
    flags = {"model": name, "synthetic": True, "batch": BATCH * transport.size, "iterations": 100, **way}
    config = resolve(("recipe", model.recipe), ("flags", flags))
    ops = make_ops(config.device.ops, config.device.dtype)
    run = assemble(config, model, open_data(config, model, transport), transport, ops, lambda: False)
    gather = Gather(run.data.train, run.sampler, run.division, Changes(augment=run.augment), config.run.seed)
    slot = gather.slot()

    def iterate(iteration: int) -> None:
        run.worker.iterate(gather.fill(slot, iteration, transport.rank))

    for iteration in range(WARM_UP):
        iterate(iteration)
    before = ops.workspace_bytes
    with counted() as sizes:
        for iteration in range(WARM_UP, WARM_UP + COUNTED):
            iterate(iteration)
    run.exchange.reducers.close()
    return sizes, ops.workspace_bytes - before


def main() -> int:
    with counted() as sizes:
        arrays = [np.empty(LEAST_BYTES - 1, np.uint8), np.zeros(1000), np.empty(LEAST_BYTES, np.uint8)]
    assert sizes == [each.nbytes for each in arrays[1:]]  # arrays are counted
    transport = connect()
    everything = 0
    for name in sys.argv[1:]:
        for way, flags in WAYS.items():
            sizes, grown = measure(transport, name, flags)
            arrays = len(sizes)
            everything += arrays + grown
            if transport.rank == 0 or arrays or grown:
                counts = f"{arrays} arrays, {sum(sizes):,} bytes; workspaces grow by {grown:,}"
                print(f"{name:14} {way:32} rank {transport.rank} of {transport.size} {counts}", flush=True)
    transport.close()
    return 1 if everything else 0


if __name__ == "__main__":
    sys.exit(main())
