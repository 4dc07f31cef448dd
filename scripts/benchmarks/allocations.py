"""Arrays allocated in a steady training iteration, by model and flags: counted on every rank under a real mpirun.

The iteration counted is whole: a batch is gathered, brought to the device, forward, backward, exchange, update. Arrays
of NumPy's are counted, and those of compiled kernels; the first are told in bytes, of the second numba does not say how
large they are. Exits with 1 where there is any, on any rank.
"""

import argparse
import subprocess
import sys

from ringtrain.bench.allocations import LEAST_BYTES, Count, counted
from ringtrain.data.gather import Gather
from ringtrain.nn import spec
from ringtrain.ops.catalogue import make_ops
from ringtrain.resolve import resolve
from ringtrain.train.assemble import assemble, open_data
from ringtrain.transport.world import connect

MODELS = ("digits", "mlp", "lenet", "cifar10_quick", "cifar10_full", "resnet20")
BATCH, WARM_UP, COUNTED = 32, 3, 5
# Ways of training that do something of their own with gradients: each model is trained in each.
WAYS = {
    "": {},
    "--clip-norm": {"clip_norm": 0.001},  # so that it clips
    "--optimizer adamw": {"optimizer": "adamw", "lr": 0.001},
    "--optimizer lars": {"optimizer": "lars", "lr": 0.1, "trust": 0.001},
    "--optimizer lamb --clip-norm": {"optimizer": "lamb", "lr": 0.001, "clip_norm": 0.001},
    "--sync sharded --optimizer lars": {"sync": "sharded", "optimizer": "lars", "lr": 0.1, "trust": 0.001},
    "--fc hybrid --optimizer lamb": {"fc": "hybrid", "optimizer": "lamb", "lr": 0.001},
}


def measure(transport, name: str, way: dict) -> Count:
    """What is allocated in COUNTED iterations."""
    model = spec.load(name)
    flags = {"model": name, "synthetic": True, "batch": BATCH * transport.size, "iterations": 100, **way}
    config = resolve(("recipe", model.recipe), ("flags", flags))
    ops = make_ops(config.ops, config.dtype)
    run = assemble(config, model, open_data(config, model, transport), transport, ops, lambda: False)
    gather = Gather(run.data.train, run.sampler, run.division, run.augment, config.seed)
    slot = gather.slot()

    def iterate(iteration: int) -> None:
        run.worker.iterate(gather.fill(slot, iteration, transport.rank))

    for iteration in range(WARM_UP):
        iterate(iteration)
    with counted() as count:
        for iteration in range(WARM_UP, WARM_UP + COUNTED):
            iterate(iteration)
    run.exchange.close()
    return count


def told(count: Count) -> str:
    line = f"{count.arrays / COUNTED:6.1f} arrays, {sum(count.sizes) / COUNTED:10,.0f} bytes an iteration"
    return line + "".join(f", {number / COUNTED:.1f} of {name}" for name, number in count.kernels.items())


def rank_main(models) -> int:
    transport = connect()
    everything = 0
    for name in models:
        for way, flags in WAYS.items():
            count = measure(transport, name, flags)
            everything += count.arrays
            if transport.rank == 0 or count.arrays:
                print(f"{name:14} {way:32} rank {transport.rank} of {transport.size} {told(count)}", flush=True)
    transport.close()
    return 1 if everything else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        return rank_main(options.models)
    print(f"arrays of {LEAST_BYTES} bytes or more, {COUNTED} iterations after {WARM_UP}, {BATCH} examples a rank")
    command = ["mpirun", "-np", str(options.ranks), sys.executable, __file__, "--as-rank", *options.models]
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
