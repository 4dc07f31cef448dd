"""Training iterations beside PyTorch: the same net, weights, batch, precision and thread count, one rank.

Before anything is timed both are shown to do the same work: each layer's output, the loss in training mode and the
gradient of every parameter are compared, on weights that switch nothing off. A net that differs is refused, with the
layer's name, and the exit code is 1. Batch normalisation is by the whole batch on both sides.

Blocks of iterations are timed in turn, ringtrain, PyTorch, ringtrain, PyTorch ..., on one batch that stays the same,
and medians are compared: a ratio above 1 says that ringtrain is faster. PyTorch runs channels last with fused SGD; on
a GPU also as one CUDA graph. On the CPU torch, which nothing else of ringtrain needs to run, is installed into the
environment of scripts/bench, unless it is there.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from same_work import TOLERANCES, refusal, summary, told
from side import Side, interleaved

TORCH = "torch==2.13.0"
MODELS = ("lenet", "cifar10_full", "resnet20")
OF_CPU = ("float32", "float64")


def ready_torch(device: str) -> None:
    if importlib.util.find_spec("torch") is not None:
        return
    if device == "cuda":
        raise SystemExit("bench pytorch: torch is not installed: install a build for the CUDA of this driver")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", TORCH], check=True)


def compared(options, name: str):
    """Return (run, its batch, peer, row so far). Ends the program if they are not the same net."""
    from own_side import assembled, masks, work

    run, batch = assembled(options, name)
    ready_torch(options.device)
    from peer_side import Peer

    peer = Peer(options, run, batch, masks(run, batch))
    own, theirs = work(run, batch), peer.work()
    why = refusal(own, theirs, options.precision)
    if why and options.precision != "float64":
        print(f"{name}: {why}: held against PyTorch in float64 now", flush=True)
        exact = argparse.Namespace(**{**vars(options), "precision": "float64"})
        why = refusal(own, theirs, options.precision, Peer(exact, run, batch, masks(run, batch)).work())
    if why:
        raise SystemExit(f"{name}: ringtrain and PyTorch do not compute the same, so nothing is timed: {why}")
    found = summary(own, theirs)
    print(f"{name:14} {told(found)}", flush=True)
    about = {"model": name, "batch": options.batch, "precision": options.precision, "threads": options.threads}
    ops = run.worker.ops
    return run, batch, peer, {**about, **found, "device": ops.describe(), "left_out": "; ".join(ops.notes())}


def measure(options, name: str, keep) -> dict:
    """Return the row of a net. ``keep(row)``: called with the figures so far, since the rest may take too long."""
    run, batch, peer, row = compared(options, name)
    own = Side("ringtrain", lambda: run.worker.iterate(batch), run.worker.ops.synchronize)
    if options.check:
        return row
    sides = [own, peer.eager(), peer.graph()]
    row |= _rates(options, interleaved([side for side in sides if side], options))
    keep(row)
    if options.compile:
        later = _rates(options, interleaved([own, peer.compiled()], options))
        row["ratio"] |= later["ratio"]
        row["images_per_s"]["compile"] = later["images_per_s"]["compile"]
    return row


def _rates(options, seconds: dict[str, float]) -> dict:
    images = {side: options.batch / each for side, each in seconds.items()}
    ratios = {side: seconds[side] / seconds["ringtrain"] for side in seconds if side != "ringtrain"}
    return {"images_per_s": images, "ratio": ratios}


def line(row: dict) -> str:
    rates = ", ".join(f"{side} {rate:,.0f}" for side, rate in row["images_per_s"].items())
    ratios = ", ".join(f"{ratio:.2f} of {side}" for side, ratio in row["ratio"].items())
    return f"{row['model']:14} batch {row['batch']:<5} {row['precision']:9} images/s: {rates}: {ratios}"


def write(path: str | None, rows: list[dict]) -> None:
    """Write the rows, whole or not at all: another process may read them at any time."""
    if path:
        made = Path(f"{path}.part")
        made.write_text(json.dumps(rows, indent=1))
        os.replace(made, path)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=tuple(TOLERANCES), default="float32", help="float64: of the CPU")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="of both, on the CPU [1]")
    parser.add_argument("--iterations", type=int, default=10, help="of a block")
    parser.add_argument("--blocks", type=int, default=7, help="of each side; medians are over them")
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="torch.compile as a further side, timed last")
    parser.add_argument("--check", action="store_true", help="compare what is computed, and time nothing")
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    if (options.precision in OF_CPU) is not (options.device == "cpu") and options.precision != "float32":
        parser.error(f"--precision {options.precision} is not of --device {options.device}")
    return options


def main() -> int:
    from ringtrain.errors import RingtrainError

    options, rows = parse(), []
    for name in options.models:
        try:
            rows.append(measure(options, name, lambda row: write(options.json, [*rows, row])))
        except RingtrainError as error:
            raise SystemExit(f"bench pytorch: {error}") from None
        if not options.check:
            print(line(rows[-1]), flush=True)
        write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
