"""`ringtrain train --reproducible`: the sha256 of the weights at several numbers of ranks, and what it costs.

Each model is trained anew by an mpirun at each number of ranks, and once more stopped in the middle and gone on with at
another number, with other buckets and another OMP_NUM_THREADS. Exits with 1 where the hashes of a model differ.

The cost is that of a run without it: pairs of runs, one after the other in turn, of synthetic data at ``--cost-ranks``
ranks; the ratio of the medians of images/s.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

DEFAULTS = ("digits", "resnet20")
OTHER_THREADS, OTHER_BUCKETS = "3", 65536
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
    first, second = options.resume
    out, half = folder / f"{model}-parts", options.iterations // 2
    train(first, out, *wanted, "--iterations", half, "--bucket-bytes", OTHER_BUCKETS, threads=OTHER_THREADS)
    told(f"{first}, then {second} ranks", train(second, out, "--resume", "auto", "--iterations", options.iterations))
    return found


def cost(model: str, folder: Path, options) -> str:
    """In words."""
    speeds: dict[bool, list[float]] = {False: [], True: []}
    wanted = ["--model", model, "--synthetic", "--iterations", options.cost_iterations, "--keep", 1]
    for pair in range(options.pairs):
        for kept in (False, True) if pair % 2 else (True, False):
            out = folder / f"{model}-cost-{pair}-{kept}"
            more = ["--reproducible", "--shards", options.shards] if kept else []
            speeds[kept].append(train(options.cost_ranks, out, *wanted, *more)["images_per_s"])
    plain, kept = (median(speeds[which]) for which in (False, True))
    return f"{plain / kept:.2f} x the time: {plain:,.0f} images/s without it, {kept:,.0f} with it"


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
    parser.add_argument("--pairs", type=int, default=3, help="of runs by which the cost is measured; 0: it is not")
    parser.add_argument("--cost-ranks", type=int, default=2)
    parser.add_argument("--cost-iterations", type=int, default=60)
    options = parser.parse_args()
    options.flags = ["--batch", options.batch] if options.batch else []
    differing = 0
    print(COLUMNS.format("model", "run", "weights sha256"), flush=True)
    with tempfile.TemporaryDirectory() as name:
        for model in options.models:
            data = ["--data", options.data] if options.data else [] if model == "digits" else ["--synthetic"]
            own = argparse.Namespace(**{**vars(options), "flags": [*options.flags, *data]})
            differing += len(set(hashes(model, Path(name), own))) > 1
            if options.pairs:
                print(f"{model:14} at {options.cost_ranks} ranks: {cost(model, Path(name), own)}", flush=True)
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
