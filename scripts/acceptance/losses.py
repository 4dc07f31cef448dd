"""Losses of the first iterations on the GPU beside those on the CPU, at several numbers of ranks, and by strategy.

The CPU's losses are kept in losses.json, beside this file: they are of float32, and the same bits on every CPU that has
fused multiply-adds. `losses.py --make` makes the file anew. Runs of bfloat16 are held against the same losses.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from files import read_json, run_program, write_rows

from ringtrain.errors import RingtrainError
from ringtrain.exchange.catalogue import STRATEGIES as CATALOGUE
from ringtrain.ops.cuda.cupy_runtime import visible_devices

KEPT = Path(__file__).with_name("losses.json")
RANKS = (1, 2, 4)
# What rounding may make of 20 iterations. Two values of a window of lenet's pools are nearly equal: rounding decides
# which is the larger, and with it whose gradient goes on. On the CPU initial weights off by 1e-6 of their size end up
# to 2e-4 away in this way, and those off by 1e-7 at most 3e-8; an H100 gave both. In batch normalisation rounding
# grows from iteration to iteration.
MODELS, ALLOWED = ("lenet", "resnet20"), 1e-3
# Of resnet20 in bfloat16: on the host's device 7e-4 over 20 iterations of 8 examples.
ALLOWED_HALF = 5e-3
# After such a step of lenet's pools, ranks that go their own ways differ by more: on an H100 up to 2.3e-3, where they
# were 1e-7 apart until then.
ALLOWED_OUTER = 4e-3
TOLD = ("cannot run", "is left out")  # in notes: of device memory, and of libraries
# Of 128 examples each of 4 ranks has a ghost batch of 32.
ITERATIONS, BATCH, RATE = 20, 128, 0.01
SMALL, TINY = (2, 8), "tests/fakes/rehearsal/tiny.toml"  # iterations, batch and net of a rehearsal


@dataclass(frozen=True, slots=True)
class Strategy:
    """``wanted``: what its losses are held against: ONE, those of one rank of the CPU; SAME, those of the CPU's ranks
    by the same flags; FALLS, nothing, as they depend on who is faster: they are to be finite and to fall. ``allowed``:
    how far apart they may be."""

    flags: tuple[str, ...]
    wanted: str
    allowed: float = ALLOWED


PERIOD = ("--average-every", "4")
ONE, SAME, FALLS = "one rank of the CPU", "the CPU's ranks", "falling"
STRATEGIES = {
    **{sync: Strategy(("--sync", sync), ONE) for sync in ("sharded", "master")},
    "server": Strategy(("--sync", "server", "--servers", "2"), ONE),
    **{fc: Strategy(("--fc", fc), ONE) for fc in ("hybrid", "pipeline")},
    "averaging every 1": Strategy(("--sync", "averaging", "--average-every", "1"), ONE),
    **{algorithm: Strategy(("--algorithm", algorithm), ONE) for algorithm in ("ring", "tree", "butterfly", "mapped")},
    **{f"overlap {overlap}": Strategy(("--overlap", overlap), ONE) for overlap in ("none", "forward")},
    "delayed": Strategy(("--sync", "delayed"), SAME),
    "averaging every 4": Strategy(("--sync", "averaging", "--average-every", "4"), SAME),
    **{method: Strategy(("--compress", method), SAME) for method in ("top-k", "powersgd")},
    "wire bfloat16": Strategy(("--algorithm", "ring", "--wire", "bfloat16"), SAME),
    "gossip": Strategy(("--sync", "gossip"), SAME),
    **{name: Strategy(("--sync", name, *PERIOD), SAME, ALLOWED_OUTER) for name in ("diloco", "sparseloco", "easgd")},
    "streaming-diloco": Strategy(
        ("--sync", "streaming-diloco", *PERIOD, "--fragments", "2", "--average-delay", "1"), SAME
    ),
    "post-local": Strategy(("--sync", "post-local", *PERIOD, "--average-from", "8"), SAME),
    "noloco": Strategy(("--sync", "noloco", "--gossip-every", "4"), SAME),
    "sgp": Strategy(("--sync", "sgp"), SAME),
    "sign": Strategy(("--compress", "sign"), SAME),
    "4 bits": Strategy(("--compress", "quantise", "--compress-bits", "4"), SAME),
    "quorum": Strategy(("--sync", "averaging", *PERIOD, "--quorum", "2", "--grace-s", "0.1"), FALLS),
    "muon": Strategy(("--optimizer", "muon", "--lr", "0.0005"), SAME),
    "staleness 2": Strategy(("--sync", "server", "--servers", "2", "--staleness", "2"), FALLS),
}
NAMED = {flag for strategy in STRATEGIES.values() for flag in strategy.flags} | {"allreduce"}
STRATEGIES |= {name: Strategy(("--sync", name), FALLS) for name in CATALOGUE if name not in NAMED}
STRATEGY_MODEL, STRATEGY_RANKS = "lenet", (2, 4)


class Failed(RingtrainError):
    """A run's command and the end of its output."""


class Runs:
    """``run(command)``: (exit code, output). ``kept``: losses of the CPU by :meth:`wanted`."""

    def __init__(self, folder: Path, run, kept: dict[str, list[float]], iterations=ITERATIONS, batch=BATCH):
        self._folder, self._run, self._kept = folder, run, kept
        self._iterations, self._batch = iterations, batch

    def wanted(self, model: str, ranks: int, strategy: Strategy) -> str | None:
        """Return the name in losses.json of the run of the CPU that a run is held against."""
        if strategy.wanted == FALLS:
            return None
        batch = [] if self._batch == BATCH else ["--batch", str(self._batch)]
        return " ".join(
            [Path(model).stem, *(["1"] if strategy.wanted == ONE else [str(ranks), *strategy.flags]), *batch]
        )

    def losses(self, device: str, model: str, ranks: int, flags: tuple[str, ...]) -> tuple[list[float], list[str]]:
        """Return (losses, notes with words of :data:`TOLD`). Raises Failed."""
        out = self._folder / "-".join([Path(model).stem, str(ranks), device, *flags]).replace("/", "")
        command = f"mpirun --oversubscribe --bind-to none -np {ranks}".split()
        command += [sys.executable, *f"-m ringtrain train --model {model} --synthetic --device {device}".split()]
        command += f"--iterations {self._iterations} --batch {self._batch} --lr {RATE} --lr-policy constant".split()
        command += ["--out", str(out), *flags]
        code, said = self._run(command)
        if code:
            raise Failed(f"{device}: {' '.join(command)}: {said[-1500:]}")
        records = list(map(json.loads, (out / "log.jsonl").read_text().splitlines()))
        notes = [record["text"] for record in records if record["event"] == "note"]
        kept = [text for text in notes if any(words in text for words in TOLD)]
        return [record["loss"] for record in records if record["event"] == "iteration"], kept

    def row(self, what: str, model: str, ranks: int, strategy: Strategy) -> dict:
        """Return the row of a run. One that fails is an infinite distance, and the other runs go on."""
        about = {"what": what, "ranks": ranks, "held against": strategy.wanted, "allowed": strategy.allowed}
        wanted = self.wanted(model, ranks, strategy)
        try:
            losses, notes = self.losses("cuda", model, ranks, strategy.flags)
        except Failed as failed:
            return {**about, "apart": math.inf, "said": str(failed)}
        about |= {"first": losses[0], "last": losses[-1], "said": "; ".join(notes)}
        return {**about, "apart": _falling(losses) if wanted is None else _apart(losses, self._kept.get(wanted, []))}


def _apart(losses: list[float], wanted: list[float]) -> float:
    """Return the largest difference of two losses of an iteration; infinite if their numbers differ."""
    if len(losses) != len(wanted):
        return math.inf
    each = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(losses, wanted, strict=True)]
    return max(each) if all(map(math.isfinite, each)) else math.inf


def _falling(losses: list[float]) -> float:
    """Return 0 if the last loss is below the first, else infinity."""
    return 0.0 if all(map(math.isfinite, losses)) and losses[-1] < losses[0] else math.inf


# ── which runs ────────────────────────────────────────────────────────────────────────────────────────────────────
HALF = ("--precision", "bfloat16")
FIRST = (  # of a device: what everything else rests on
    ("lenet, reproducible", "lenet", 1, Strategy(("--reproducible",), ONE)),
    ("resnet20, bfloat16", "resnet20", 1, Strategy(HALF, ONE, ALLOWED_HALF)),
    ("lenet, mapped", "lenet", 2, Strategy(("--algorithm", "mapped"), ONE)),
)


def by_ranks(models: Sequence[str], ranks: tuple[int, ...] = RANKS) -> Iterator[tuple]:
    for model in models:
        yield from ((model, model, each, Strategy((), ONE)) for each in ranks)


def by_strategy() -> Iterator[tuple]:
    for name, strategy in STRATEGIES.items():
        yield from ((f"{STRATEGY_MODEL}, {name}", STRATEGY_MODEL, each, strategy) for each in STRATEGY_RANKS)


def make(folder: Path) -> dict[str, list[float]]:
    """Return the losses of the CPU that any of the runs is held against."""
    runs, of_cpu = Runs(folder, run, {}), {}
    for _, model, ranks, strategy in (*by_ranks(MODELS), *by_strategy()):
        name = runs.wanted(model, ranks, strategy)
        if name is not None and name not in of_cpu:
            of_one = strategy.wanted == ONE
            of_cpu[name], _ = runs.losses("cpu", model, 1 if of_one else ranks, () if of_one else strategy.flags)
    small = Runs(folder / "small", run, {}, *SMALL)
    of_cpu[small.wanted(TINY, 1, FIRST[0][-1])], _ = small.losses("cpu", TINY, 1, ())
    return of_cpu


def run(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--first", action="store_true", help="the first runs of a device")
    parser.add_argument("--models", default="", help=f"of {', '.join(MODELS)}, with commas")
    parser.add_argument("--strategies", action="store_true", help="each of them, too")
    parser.add_argument("--small", action="store_true", help="few iterations of a small batch, for a rehearsal")
    parser.add_argument("--make", action="store_true", help="make losses.json anew, by runs on this machine's CPU")
    options, rows = parser.parse_args(), []
    if options.make:
        with tempfile.TemporaryDirectory() as folder:
            lines = (f"{json.dumps(name)}: {json.dumps(losses)}" for name, losses in make(Path(folder)).items())
            KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")  # a line a run
        return 0
    visible_devices()  # before runs that would be in vain without one
    runs = Runs(options.folder, run, read_json(KEPT), *(SMALL if options.small else ()))
    wanted = FIRST if options.first else ()
    models = [name for name in options.models.split(",") if name]
    if options.small:
        wanted, models = [(what, TINY, *rest) for what, _, *rest in wanted], [TINY for _ in models[:1]]
    for each in (*wanted, *by_ranks(models), *(by_strategy() if options.strategies else ())):
        rows.append(runs.row(*each))
        print(rows[-1], flush=True)
        write_rows(options.folder, rows)
    return 1 if rows and all("first" not in row for row in rows) else 0


if __name__ == "__main__":
    run_program(main)
