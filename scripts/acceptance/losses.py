"""Losses of the first iterations on the GPU beside those on the CPU, at several numbers of ranks, and by strategy."""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from files import write_rows

from ringtrain.errors import RingtrainError
from ringtrain.exchange.catalogue import STRATEGIES as CATALOGUE
from ringtrain.ops.cuda.cupy_runtime import visible_devices

RANKS = (1, 2, 4)
# What rounding may make of 20 iterations. The CPU's two kinds of kernels are at most 4e-8 apart on lenet and mlp, and
# 4e-5 where ranks average weights. In batch normalisation rounding grows from iteration to iteration, so resnet20 has
# more; that has run on no GPU yet.
ALLOWED = {"lenet": 1e-4, "mlp": 1e-4, "cifar10_full": 1e-4, "resnet20": 1e-3}
TOLD = ("cannot run", "is left out")  # in notes: of device memory, and of libraries
# Of 128 examples each of 4 ranks has a ghost batch of 32.
ITERATIONS, BATCH, RATE = 20, 128, 0.01


@dataclass(frozen=True, slots=True)
class Strategy:
    """``wanted``: what its losses are held against: ONE, those of one rank of the CPU; SAME, those of the CPU's ranks
    by the same flags; FALLS, nothing, as they depend on who is faster: they are to be finite and to fall. ``allowed``:
    how far apart they may be."""

    flags: tuple[str, ...]
    wanted: str
    allowed: float = 1e-4


ONE, SAME, FALLS = "one rank of the CPU", "the CPU's ranks", "falling"
STRATEGIES = {
    "sharded": Strategy(("--sync", "sharded"), ONE),
    "master": Strategy(("--sync", "master"), ONE),
    "server": Strategy(("--sync", "server", "--servers", "2"), ONE),
    "hybrid": Strategy(("--fc", "hybrid"), ONE),
    "pipeline": Strategy(("--fc", "pipeline"), ONE),
    "averaging every 1": Strategy(("--sync", "averaging", "--average-every", "1"), ONE),
    "ring": Strategy(("--algorithm", "ring"), ONE),
    "tree": Strategy(("--algorithm", "tree"), ONE),
    "butterfly": Strategy(("--algorithm", "butterfly"), ONE),
    "mapped": Strategy(("--algorithm", "mapped"), ONE),
    "overlap none": Strategy(("--overlap", "none"), ONE),
    "overlap forward": Strategy(("--overlap", "forward"), ONE),
    "delayed": Strategy(("--sync", "delayed"), SAME),
    "averaging every 4": Strategy(("--sync", "averaging", "--average-every", "4"), SAME, 1e-3),
    "top-k": Strategy(("--compress", "top-k"), SAME, 1e-3),
    "powersgd": Strategy(("--compress", "powersgd"), SAME, 1e-3),
    "wire bfloat16": Strategy(("--algorithm", "ring", "--wire", "bfloat16"), SAME, 1e-3),
    "gossip": Strategy(("--sync", "gossip"), SAME, 1e-3),
    "staleness 2": Strategy(("--sync", "server", "--servers", "2", "--staleness", "2"), FALLS),
}
NAMED = {flag for strategy in STRATEGIES.values() for flag in strategy.flags} | {"allreduce"}
STRATEGIES |= {name: Strategy(("--sync", name), FALLS) for name in CATALOGUE if name not in NAMED}
STRATEGY_MODEL, STRATEGY_RANKS = "lenet", (2, 4)


class Failed(Exception):
    """A run's command and the end of its output."""


class Runs:
    """``run(command)``: (exit code, output). Runs of the CPU are done once each, one that failed too."""

    def __init__(self, folder: Path, run):
        self._folder, self._run = folder, run
        self._of_cpu: dict[tuple, list[float] | Failed] = {}

    def losses(self, device: str, model: str, ranks: int, flags: tuple[str, ...]) -> tuple[list[float], list[str]]:
        """Return (losses, notes with words of :data:`TOLD`). Raises Failed."""
        out = self._folder / "-".join([model, str(ranks), device, *flags]).replace("/", "")
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", ranks, sys.executable, "-m", "ringtrain"]
        command += ["train", "--model", model, "--synthetic", "--iterations", ITERATIONS, "--batch", BATCH]
        command += ["--lr", RATE, "--device", device, "--out", out, *flags]
        code, said = self._run(list(map(str, command)))
        if code:
            raise Failed(f"{device}: {' '.join(map(str, command))}: {said[-1500:]}")
        records = list(map(json.loads, (out / "log.jsonl").read_text().splitlines()))
        notes = [record["text"] for record in records if record["event"] == "note"]
        kept = [text for text in notes if any(words in text for words in TOLD)]
        return [record["loss"] for record in records if record["event"] == "iteration"], kept

    def of_cpu(self, model: str, ranks: int, flags: tuple[str, ...] = ()) -> list[float]:
        """Return the losses on the CPU. Raises Failed at every call for a run that failed."""
        key = model, ranks, flags
        if key not in self._of_cpu:
            try:
                self._of_cpu[key], _ = self.losses("cpu", *key)
            except Failed as failed:
                self._of_cpu[key] = failed
        found = self._of_cpu[key]
        if isinstance(found, Failed):
            raise found
        return found

    def row(self, what: str, model: str, ranks: int, strategy: Strategy) -> dict:
        """Return the row of a run. A failure on either side is an infinite distance, and the other runs go on."""
        told = {"what": what, "ranks": ranks, "held against": strategy.wanted, "allowed": strategy.allowed}
        try:
            wanted = self._wanted(model, ranks, strategy)
            found, notes = self.losses("cuda", model, ranks, strategy.flags)
        except Failed as failed:
            return {**told, "apart": math.inf, "said": str(failed)}
        told |= {"first": found[0], "last": found[-1], "said": "; ".join(notes)}
        return {**told, "apart": _falling(found) if wanted is None else _apart(found, wanted)}

    def _wanted(self, model: str, ranks: int, strategy: Strategy) -> list[float] | None:
        if strategy.wanted == FALLS:
            return None
        return self.of_cpu(model, 1) if strategy.wanted == ONE else self.of_cpu(model, ranks, strategy.flags)


def _apart(found: list[float], wanted: list[float]) -> float:
    """Return the largest difference of two losses of an iteration; infinite if their numbers differ."""
    if len(found) != len(wanted):
        return math.inf
    each = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, wanted, strict=True)]
    return max(each) if all(map(math.isfinite, each)) else math.inf


def _falling(found: list[float]) -> float:
    """Return 0 if the last loss is below the first, else infinity."""
    return 0.0 if all(map(math.isfinite, found)) and found[-1] < found[0] else math.inf


def compared(runs: Runs, models: list[str], strategies: bool) -> Iterator[dict]:
    for model in models:
        for ranks in RANKS:
            yield runs.row(model, model, ranks, Strategy((), ONE, ALLOWED[model]))
    for name, strategy in STRATEGIES.items() if strategies else ():
        for ranks in STRATEGY_RANKS:
            yield runs.row(f"{STRATEGY_MODEL}, {name}", STRATEGY_MODEL, ranks, strategy)


def run(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default="", help=f"of {', '.join(ALLOWED)}, with commas")
    parser.add_argument("--strategies", action="store_true", help="each of them, too")
    options, rows = parser.parse_args(), []
    visible_devices()  # before the CPU's runs, which would be in vain without one
    models = [name for name in options.models.split(",") if name]
    for each in compared(Runs(options.folder, run), models, options.strategies):
        rows.append(each)
        print(each, flush=True)
        write_rows(options.folder, rows)
    return 1 if rows and all("first" not in row for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RingtrainError as error:
        sys.exit(f"losses: {error}")
