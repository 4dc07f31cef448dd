"""`ringtrain train --reproducible`: the sha256 of the weights at several numbers of ranks, and what it costs.

Each model is trained anew by an mpirun at each number of ranks; once more with other buckets and another
OMP_NUM_THREADS; and from the middle of that on at another number. Exits with 1 where the hashes of a model differ.

The cost is of an iteration at ``--cost-ranks`` ranks, on random images, with and without it in turn, in one mpirun: the
ratio of their medians.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ringtrain.data.batches import Batch
from ringtrain.nn.spec import load
from ringtrain.resolve import resolve
from ringtrain.train.assemble import Assembly, assemble, open_data
from ringtrain.train.device import host_ops
from ringtrain.transport.base import Transport
from ringtrain.transport.world import connect

DEFAULTS = ("digits", "resnet20")
OTHER_THREADS, OTHER_BUCKETS = "3", 65536
MANY, WARM_UP = 1000, 3  # iterations
COLUMNS = "{:14} {:22} {:64}"


def train(ranks: int, out: Path, *flags, threads: str | None = None) -> dict:
    """The record of the end of a run. ``threads``: of OMP_NUM_THREADS; None: as it is."""
    environment = os.environ | ({"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads} if threads else {})
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), sys.executable, "-m", "ringtrain"]
    given = ["train", "--out", str(out), "--evaluate-every", "1000000", *map(str, flags)]
    done = subprocess.run([*command, *given], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(given)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    lines = (out / "log.jsonl").read_text().splitlines()
    return next(record for record in map(json.loads, reversed(lines)) if record["event"] == "end")


def hashes(model: str, folder: Path, options) -> list[str]:
    """Of each run of a model, printed as they come."""
    wanted = ["--model", model, "--reproducible", "--shards", options.shards, *options.flags]
    found = []

    def told(what: str, end: dict) -> None:
        print(COLUMNS.format(model, what, end["weights_sha256"]), flush=True)
        found.append(end["weights_sha256"])

    for ranks in options.ranks:
        out = folder / f"{model}-{ranks}"
        told(f"{ranks} ranks", train(ranks, out, *wanted, "--iterations", options.iterations))
    (first, second), half = options.resume, options.iterations // 2
    out = folder / f"{model}-whole"
    kept = ["--iterations", options.iterations, "--checkpoint-every", half, "--keep", options.iterations]
    whole = train(first, out, *wanted, *kept, "--bucket-bytes", OTHER_BUCKETS, threads=OTHER_THREADS)
    told(f"{first} ranks, otherwise", whole)
    stopped = out / "checkpoints" / f"iteration-{half:08}.h5"
    told(f"{first}, then {second} ranks", train(second, folder / f"{model}-parts", "--resume", stopped))
    return found


def cost(model: str, options) -> None:
    """Printed by rank 0 of an mpirun of this program."""
    given = ["--as-rank", "--shards", options.shards, "--pairs", options.pairs, model]
    more = ["--batch", options.batch] if options.batch else []
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", options.cost_ranks, sys.executable, __file__]
    subprocess.run(list(map(str, [*command, *more, *given])), check=True)


def one_of(model: str, transport: Transport, options, reproducible: bool) -> Assembly:
    """A run on random images, put together."""
    spec = load(model)
    flags = {"model": model, "synthetic": True, "iterations": MANY, "reproducible": reproducible, "guard": False}
    flags |= {"batch": options.batch} if options.batch else {}
    flags |= {"shards": options.shards} if reproducible else {}
    config = resolve(("recipe", spec.recipe), ("flags", flags))
    ops = host_ops(config)
    return assemble(config, spec, open_data(config, spec, transport), transport, ops, lambda: False)


def first_batch(run: Assembly) -> Batch:
    with run.batches(run.transport, 0, 1) as batches:
        return next(batches)


def rank_main(options) -> int:
    """An iteration of each kind in turn: seconds of the slowest rank."""
    for model in options.models:
        runs = [one_of(model, connect(), options, reproducible) for reproducible in (False, True)]
        transport, seconds = runs[0].transport, np.zeros((options.pairs, 2))
        batches = [first_batch(run) for run in runs]
        for pair in range(-WARM_UP, options.pairs):
            for which in (0, 1) if pair % 2 else (1, 0):
                transport.barrier()
                began = time.perf_counter()
                runs[which].worker.iterate(batches[which])
                if pair >= 0:
                    seconds[pair, which] = time.perf_counter() - began
        slowest = np.max([np.array(own) for own in transport.gather_json(seconds.tolist())], axis=0)
        plain, kept = np.median(slowest, axis=0)
        if transport.rank == 0:
            told = f"{1e3 * plain:,.1f} ms an iteration without it, {1e3 * kept:,.1f} ms with it"
            print(f"{model:14} at {transport.size} ranks: {kept / plain:.2f} x the time: {told}", flush=True)
        for run in runs:
            run.exchange.close()
            run.transport.close()
    return 0


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=DEFAULTS)
    parser.add_argument("--ranks", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--resume", type=numbers, default=[4, 2], help="ranks of the first half, and of the second")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--data", help="an HDF5 file; left out: random images, but for digits")
    parser.add_argument("--batch", type=int, help="the model's own, where left out")
    parser.add_argument("--pairs", type=int, default=40, help="of iterations by which the cost is measured; 0: none")
    parser.add_argument("--cost-ranks", type=int, default=2)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        return rank_main(options)
    options.flags = ["--batch", options.batch] if options.batch else []
    differing = 0
    print(COLUMNS.format("model", "run", "weights sha256"), flush=True)
    with tempfile.TemporaryDirectory() as name:
        for model in options.models:
            data = ["--data", options.data] if options.data else [] if model == "digits" else ["--synthetic"]
            own = argparse.Namespace(**{**vars(options), "flags": [*options.flags, *data]})
            differing += len(set(hashes(model, Path(name), own))) > 1
            if options.pairs:
                cost(model, own)
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
