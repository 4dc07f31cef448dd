"""Train for long while other runs come, are disturbed and go on; check that nothing is lost and nothing grows.

One world of many ranks trains all the time; its memory, files and threads must stay as they are. Beside it, runs of one
to four ranks with a random strategy end by themselves, by SIGTERM or SIGUSR1 (status 75), or by the death of a rank,
and go on from their checkpoint with as many ranks or others. Their losses must be finite, all iterations there, equal
runs equal to the bit, and no process or file of shared memory may be left. Exits with 1 if a run broke a rule.
"""

import argparse
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
from worlds import Leftovers, World, losses, records, scratch, send, status

REQUEUE, ITERATIONS, MOST_RANKS, SETTLED = 75, 60, 4, 100
MIB = 1 << 20
GROWTH, FEW = MIB, 3  # of a rank's memory; of files and threads, which may come and go
EXACT = (  # equal runs have equal weights
    *("", "-a ring", "-a tree --bucket-bytes 2000", "--sync sharded -a ring", "--sync delayed -a ring"),
    *("--sync averaging --average-every 4 -a ring", "--compress top-k --compress-ratio 0.1", "--reproducible"),
)
LOOSE = ("-a mpi",)
OF_TWO = ("--sync gossip", "--sync server --asynchronous", "--fc hybrid -a ring", "--fc pipeline", "--sync master")
EVENTS = ("nothing", "SIGUSR1 of mpirun", "SIGTERM of ranks", "SIGKILL of a rank")


class Lost(Exception):
    """A run broke a rule."""


def train(ranks: int, out: Path, flags: str, iterations: int, *more) -> World:
    given = ["-m", "ringtrain", "train", "--data", "digits", "--out", out, "--iterations", iterations]
    given += ["--checkpoint-every", 10, "--evaluate-every", 10, *flags.split(), *more]
    return World(ranks, given, out.with_suffix(".txt"))


def play(draw: random.Random, out: Path, weights: dict) -> str:
    """One run, described; raises Lost."""
    flags, event, at = draw.choice(EXACT + LOOSE + OF_TWO), draw.choice(EVENTS), draw.randint(1, ITERATIONS - 1)
    ranks, then = (draw.randint(2 if flags in OF_TWO else 1, MOST_RANKS) for _ in range(2))
    world = train(ranks, out, flags, ITERATIONS)
    if event != "nothing" and world.until(lambda: max(losses(out), default=0) >= at):
        disturb(world, event, at)
    ended = world.wait()
    told = f"{ranks} ranks {flags or '--sync allreduce'}, {event}"
    if ended is None or ended not in {"nothing": (0,), "SIGKILL of a rank": range(256)}.get(event, (0, REQUEUE)):
        raise Lost(f"{told}: ended with {ended}: {world.last_words()}")
    if ended:
        again = train(then, out, flags, ITERATIONS, "--resume", "auto")
        if again.wait():
            raise Lost(f"{told}: does not go on with {then} ranks: {again.last_words()}")
    ends = [record for record in records(out) if record["event"] == "end"]
    if losses(out).keys() != set(range(1, ITERATIONS + 1)) or not all(map(math.isfinite, losses(out).values())):
        raise Lost(f"{told}: an iteration is not in the log, or its loss is not finite")
    if flags in EXACT and (not ended or (then == ranks and event != "SIGKILL of a rank")):
        digest = ends[-1]["weights_sha256"]
        if weights.setdefault((flags, ranks), digest) != digest:
            raise Lost(f"{told}: other weights than an equal run before")
    return told


def disturb(world: World, event: str, at: int) -> None:
    name, pids = event.split()[0], world.pids()
    if event.endswith("mpirun"):
        world.signal(signal.Signals[name])
    for rank in pids if event.endswith("ranks") else [at % len(pids)] * (name == "SIGKILL"):
        send(pids[rank], signal.Signals[name])


class Watch:
    """Samples of memory, files and threads of each rank of a world."""

    def __init__(self, world: World):
        self._pids, self._samples = world.pids(), []

    def sample(self) -> None:
        with suppress(OSError, KeyError):
            found = [(status(pid), len(os.listdir(f"/proc/{pid}/fd"))) for pid in self._pids.values()]
            names = ("RssAnon", "RssShmem")
            memory = [sum(int(one[name].split()[0]) << 10 for name in names) for one, _ in found]
            self._samples.append(
                [(m, files, int(one["Threads"])) for m, (one, files) in zip(memory, found, strict=True)]
            )

    def growth(self) -> list[str]:
        """Ranks that grow, by a line through the second half of the samples."""
        later = np.array(self._samples[len(self._samples) // 2 :], float)  # [samples, ranks, kinds]
        if len(later) < 8:
            return ["too few samples to see whether it grows: give more --minutes"]
        grown = np.polyfit(np.arange(len(later)), later[:, :, 0], 1)[0] * len(later)
        ranges = np.ptp(later[:, :, 1:], axis=0).max(axis=0)
        print(f"the steady world: {grown.max() / MIB:.2f} MiB at most, files and threads within {ranges.tolist()}")
        return ["the steady world grows"] if grown.max() > GROWTH or ranges.max() > FEW else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--ranks", type=int, default=8, help="of the world that trains all the time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with scratch("soak") as place:
        return run(options, Path(place))


def run(options, place: Path) -> int:
    draw, left, weights, lost, counts = random.Random(options.seed), Leftovers(), {}, [], Counter()
    steady = train(options.ranks, place / "steady", f"--batch {8 * options.ranks}", 10**8)
    steady.until(lambda: max(losses(place / "steady"), default=0) >= SETTLED)
    watch, until, shared = Watch(steady), time.monotonic() + 60 * options.minutes, Leftovers()
    while steady.running and time.monotonic() < until:
        counts["runs"] += 1
        try:
            told = play(draw, place / f"run-{counts['runs']:05}", weights)
        except Lost as error:
            lost.append(told := f"LOST: {error}")
        print(f"{counts['runs']:5}  {told}", flush=True)
        lost += [f"left {what}" for what in shared({steady.pid, *steady.pids().values()})]
        watch.sample()
    steady.signal(signal.SIGUSR1)
    ended = steady.wait()
    lost += watch.growth() + [f"the steady world ended with {ended}"] * (ended != REQUEUE)
    lost += [f"left {what}" for what in left()]
    print("\n".join([f"{counts['runs']} runs", *(lost or ["nothing lost"])]))
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
