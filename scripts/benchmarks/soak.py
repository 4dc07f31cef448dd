"""Training again and again under load, disturbed at random, with nothing lost.

One world of many ranks trains all the time, and is looked at: its memory, files and threads must stay as they are.
Beside it worlds of one to four ranks come and go, each with a strategy drawn at random: some train to the end, some are
told to stop by SIGTERM or SIGUSR1 (which must end with 75), of some a rank is killed; these go on from their checkpoint
with as many ranks or others. Of each, losses must be finite, all iterations there, its evaluation by other ranks the
same, the weights of equal runs the same to the bit, and nothing may be left in shared memory, no process, no file.

Exits with 1 where anything is lost. Longer: --minutes 600. The same again: --seed.
"""

import argparse
import json
import math
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from worlds.left import Leftovers
from worlds.private import enter
from worlds.runs import last_words, losses, reached, records, wait_for
from worlds.steady import BOUND, Watch, table
from worlds.world import Hung, World, send

NET = """
summary = "small, of most kinds of layers"
input = { shape = [8, 8, 1], mean = "image", std = "channel", pad = 1, flip = true }
layers = [
  { name = "conv", kind = "Conv2D", channels = 6, kernel = 3, pad = 1 },
  { name = "norm", kind = "BatchNorm" },
  { name = "relu", kind = "ReLU" },
  { name = "pool", kind = "MaxPool", kernel = 2, stride = 2 },
  { name = "flat", kind = "Flatten" },
  { name = "drop", kind = "Dropout", rate = 0.2 },
  { name = "fc", kind = "Linear", units = 10 },
]
[recipe]
batch = 64
lr = 0.02
momentum = 0.9
"""
# What is trained, by the default kernels: a net of our own, in ghost batches that divide a batch of 64; one that ships.
MODELS = {
    "small": ("--model", "net.toml", "--data", "digits", "--batch-norm", "ghost:8"),
    "digits": ("--model", "digits", "--data", "digits"),
}
REQUEUE = 75
MOST_RANKS = 4  # of those that come and go
ITERATIONS = 60
EVERY = 10  # iterations between checkpoints
FOREVER, SETTLED = 10**8, 100  # iterations of the steady world, and after how many it is watched


@dataclass(frozen=True, slots=True)
class Strategy:
    """flags: of `ringtrain train`; least: ranks; exact: whether equal runs have equal weights, to the bit; anywhere:
    whether all runs have, at any number of ranks, and whatever was done to them"""

    flags: str
    least: int = 1
    exact: bool = True
    anywhere: bool = False


STRATEGIES = (
    Strategy(""),
    Strategy("-a ring"),
    Strategy("-a tree --bucket-bytes 2000"),
    Strategy("-a mpi", exact=False),  # as the MPI pleases
    Strategy("--sync sharded -a ring"),
    Strategy("--sync delayed -a ring"),
    Strategy("--sync averaging --average-every 4 -a ring"),
    Strategy("--sync gossip", 2, exact=False),  # with whom one is in step hangs on the time
    Strategy("--sync master", 2),
    Strategy("--sync server --servers 1", 2),
    Strategy("--sync server --asynchronous", 2, exact=False),
    Strategy("--fc hybrid -a ring", 2),
    Strategy("--fc pipeline", 2, exact=False),
    Strategy("--compress top-k --compress-ratio 0.1"),
    Strategy("--wire bfloat16 -a ring", 2),
    Strategy("--reproducible", anywhere=True),
    Strategy("--reproducible --bucket-bytes 2000 -a canonical", anywhere=True),
)
# What happens to a world, and what it must end with. An mpirun that gets SIGTERM ends its ranks a second later: they
# save what they can, and its status is its own.
EVENTS = {
    "nothing": 0,
    "SIGUSR1 of mpirun": REQUEUE,
    "SIGTERM of ranks": REQUEUE,
    "SIGTERM of mpirun": None,
    "SIGKILL of a rank": None,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """at: the iteration at which it happens; then: with how many ranks it goes on; judges: that evaluate"""

    model: str
    strategy: Strategy
    ranks: int
    event: str
    at: int
    then: int
    judges: int


def draw(rng: random.Random) -> Plan:
    model, strategy = rng.choice(list(MODELS)), rng.choice(STRATEGIES)
    ranks, then = (rng.randint(strategy.least, MOST_RANKS) for _ in range(2))
    then = rng.choice((ranks, then))
    event, at, judges = rng.choice(list(EVENTS)), rng.randint(1, ITERATIONS - 1), rng.randint(1, MOST_RANKS)
    return Plan(model, strategy, ranks, event, at, then, judges)


@dataclass(slots=True)
class Soak:
    """left: beside the steady world; weights: of equal runs, by what they were; counts: of what happened; lost: what
    went wrong"""

    folder: Path
    left: Leftovers
    steady: World
    weights: dict[tuple, str] = field(default_factory=dict)
    counts: Counter = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    def train(self, ranks: int, plan: Plan, out: Path, *more) -> World:
        given = [*model_flags(plan.model, out.parent), "--out", out, *plan.strategy.flags.split(), *more]
        return World(ranks, ["-m", "ringtrain", "train", *given], out.with_suffix(".txt"), self.folder)

    def play(self, number: int, plan: Plan) -> None:
        out = self.folder.parent / f"run-{number:05}"
        more = ["--iterations", ITERATIONS, "--checkpoint-every", EVERY, "--evaluate-every", EVERY]
        world = self.train(plan.ranks, plan, out, *more)
        status, disturbed = self._disturbed(world, out, plan)
        if disturbed and status:
            self.counts["stopped" if status == REQUEUE else "killed"] += 1
            status = self.train(plan.then, plan, out, *more, "--resume", "auto").wait()
            self.counts["resumed"] += 1
        if status:
            raise Lost(f"ended with {status}: {last_words(out)}")
        end = self._end(out)
        self._evaluate(plan, out, end)
        as_before = not disturbed or (plan.then == plan.ranks and EVENTS[plan.event] == REQUEUE)
        if plan.strategy.anywhere or (plan.strategy.exact and as_before):
            self._compare(plan, end)

    def _disturbed(self, world: World, out: Path, plan: Plan) -> tuple[int, bool]:
        """Its exit status, and whether what was to happen did."""
        if plan.event == "nothing" or not wait_for(world, out, plan.at):
            return world.wait(), False
        _disturb(world, plan)
        status, wanted = world.wait(), EVENTS[plan.event]
        if wanted is not None and status not in (0, wanted):
            raise Lost(f"ended with {status} after {plan.event}: {last_words(out)}")
        return status, True

    def _end(self, out: Path) -> dict:
        """The record of its end. Raises Lost where not all is there, or not all is finite."""
        told, found = records(out), losses(out)
        ends = [record for record in told if record["event"] == "end"]
        self.counts["iterations"] += len(found)
        if not all(map(math.isfinite, found.values())):
            raise Lost("a loss is not finite")
        if not ends or ends[-1]["iterations"] != ITERATIONS:
            raise Lost(f"{ITERATIONS} iterations were wanted, and the log ends with {told[-1]}")
        return ends[-1]

    def _evaluate(self, plan: Plan, out: Path, end: dict) -> None:
        told = out.with_suffix(".json")
        given = ["-m", "ringtrain", "evaluate", out, "--json"]
        status = World(plan.judges, given, told, self.folder).wait()
        if status:
            raise Lost(f"evaluate ended with {status}: {told.read_text()[-300:]}")
        accuracy = json.loads(told.read_text().splitlines()[-1])["accuracy"]
        if abs(accuracy - end["test_accuracy"]) > 1e-9:
            raise Lost(f"{plan.judges} ranks evaluate {accuracy}, the run {end['test_accuracy']}")
        self.counts["evaluated"] += 1

    def _compare(self, plan: Plan, end: dict) -> None:
        ranks = "any" if plan.strategy.anywhere else plan.ranks
        key, digest = (plan.model, plan.strategy.flags, ranks), end["weights_sha256"]
        first = self.weights.setdefault(key, digest)
        if first != digest:
            raise Lost(f"weights are {digest[:12]}, and were {first[:12]} in an equal run before")
        self.counts["weights that were the same again"] += 1


class Lost(Exception):
    pass


def model_flags(model: str, place: Path) -> list[str]:
    return [str(place / word) if word == "net.toml" else word for word in MODELS[model]]


def _disturb(world: World, plan: Plan) -> None:
    name, _, whose = plan.event.partition(" of ")
    pids = world.pids()
    if whose == "mpirun":
        world.signal(signal.Signals[name])
    elif whose == "ranks":
        for pid in pids.values():
            send(pid, signal.Signals[name])
    elif pids:
        send(pids[plan.at % len(pids)], signal.SIGKILL)


def soak(state: Soak, minutes: float, seed: int) -> None:
    rng, until, steady = random.Random(seed), time.monotonic() + 60 * minutes, state.steady
    number = 0
    while time.monotonic() < until and steady.running:
        number, plan, began = number + 1, draw(rng), time.monotonic()
        try:
            state.play(number, plan)
            word = "ok"
        except (Lost, Hung) as error:
            word = f"LOST: {error}"
            state.lost.append(f"run {number}: {error}")
        state.counts["runs"] += 1
        state.lost += [f"run {number}: left {what}" for what in state.left({steady.pid, *steady.pids().values()})]
        went = f"{plan.ranks} ranks" + (f", {plan.event}, {plan.then}" if plan.event != "nothing" else "")
        took, flags = f"{time.monotonic() - began:5.1f} s", plan.strategy.flags or "--sync allreduce"
        print(f"{number:5}  {plan.model:6} {flags:46} {went:30} {took}  {word}", flush=True)


def steadily(state: Soak) -> None:
    """End the world that trains all the time, as a scheduler would."""
    if not state.steady.running:
        state.lost.append(
            f"the steady world ended by itself with {state.steady.wait()}: {last_words(state.folder.parent / 'steady')}"
        )
        return
    state.steady.signal(signal.SIGUSR1)
    try:
        status = state.steady.wait()
    except Hung as error:
        status = error
    if status != REQUEUE:
        state.lost.append(f"the steady world, told to stop: {status}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--ranks", type=int, default=8, help="of the world that trains all the time")
    parser.add_argument("--model", default="digits", choices=MODELS, help="of that world")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not enter():
        print("no namespaces are to be had here: what others leave in shared memory counts as ours")
    with tempfile.TemporaryDirectory(prefix="ringtrain-soak-") as place:
        return run(options, Path(place))


def run(options, place: Path) -> int:
    folder = place / "mpi"
    folder.mkdir()
    (place / "net.toml").write_text(NET)
    left, out = Leftovers(folder), place / "steady"
    given = [*model_flags(options.model, place), "--out", out, "--iterations", FOREVER, "--batch", 8 * options.ranks]
    given += ["--checkpoint-every", SETTLED // 4, "--evaluate-every", SETTLED // 4]
    steady = World(options.ranks, ["-m", "ringtrain", "train", *given], out.with_suffix(".txt"), folder)
    wait_for(steady, out, 1)
    state, watch = Soak(folder, Leftovers(folder), steady), Watch(steady, lambda: reached(out, SETTLED))
    soak(state, options.minutes, options.seed)
    trends = watch.stop()
    steadily(state)
    state.lost += left()
    if not trends:
        state.lost.append("the steady world was not watched for long enough to say if it grows: give more --minutes")
    state.lost += [f"rank {one.rank} of the steady world grows" for one in trends if one.grows]
    iterations = max(losses(out), default=0)
    print(f"\nthe steady world: {options.ranks} ranks, {iterations:,} iterations of {options.model}")
    print("\n".join([*table(trends), BOUND]), "\n")
    print(", ".join(f"{count:,} {what}" for what, count in state.counts.items()))
    print("\n".join(state.lost) if state.lost else "nothing lost: no process, no shared memory and no file was left")
    return int(bool(state.lost))


if __name__ == "__main__":
    sys.exit(main())
