"""Train for long while other runs start, are disturbed and resume; check that nothing is lost and nothing grows.

One world of many ranks trains all the time; its memory, files and threads must stay as they are. Beside it, runs of one
to four ranks with a random strategy end by themselves, by SIGTERM or SIGUSR1 (status 75), or by the death of a rank,
and resume from their checkpoint with as many ranks or others. Their losses must be finite, all iterations there, equal
runs equal to the bit, and no process or file of shared memory may be left. Exits with 1 if a run broke a rule.
"""

import math
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import click
import numpy as np
from worlds import Leftovers, World, end, losses, memory_of, newest, records, scratch

REQUEUE, ITERATIONS, MOST_RANKS, SETTLED = 75, 60, 4, 100
MIB = 1 << 20
GROWTH, FEW = MIB, 3  # of a rank's memory; of files and threads, which may come and go
EXACT = (  # equal runs have equal weights
    *("", "-a ring", "-a tree --bucket-bytes 2000", "--sync sharded -a ring", "--sync delayed -a ring"),
    *("--sync averaging --average-every 4 -a ring", "--compress top-k --compress-ratio 0.1", "--reproducible"),
)
LOOSE = ("-a mpi",)
OF_TWO = ("--sync gossip", "--sync server --asynchronous", "--fc hybrid -a ring", "--fc pipeline", "--sync master")
UNDISTURBED, ASKED = "nothing", "SIGUSR1 of mpirun"
TERMINATED, KILLED = "SIGTERM of ranks", "SIGKILL of a rank"
STATUSES = {UNDISTURBED: (0,), ASKED: (0, REQUEUE), TERMINATED: (0, REQUEUE), KILLED: range(256)}


def train(ranks: int, out: Path, flags: str, iterations: int, *more) -> World:
    fixed = ["--data", "digits", "--out", out, "--iterations", iterations]
    fixed += ["--checkpoint-every", 10, "--evaluate-every", 10]
    return World(ranks, [*fixed, *flags.split(), *more], out.with_suffix(".txt"))


def play(draw: random.Random, out: Path, weights: dict) -> tuple[str, str]:
    """Run one of the small runs. Returns (its description, the broken rule or "")."""
    flags, event, at = draw.choice(EXACT + LOOSE + OF_TWO), draw.choice(list(STATUSES)), draw.randint(1, ITERATIONS - 1)
    ranks, then = (draw.randint(2 if flags in OF_TWO else 1, MOST_RANKS) for _ in range(2))
    what = f"{ranks} ranks {flags or '--sync allreduce'}, {event}"
    world = train(ranks, out, flags, ITERATIONS)
    if event != UNDISTURBED and world.until(lambda: newest(out) >= at):
        disturb(world, event, at)
    ended = world.wait()
    if ended not in STATUSES[event]:
        return what, f"ended with {ended}: {world.last_words()}"
    if ended:
        again = train(then, out, flags, ITERATIONS, "--resume", "auto")
        if again.wait():
            return what, f"does not resume with {then} ranks: {again.last_words()}"
    if losses(out).keys() != set(range(1, ITERATIONS + 1)) or not all(map(math.isfinite, losses(out).values())):
        return what, "an iteration is not in the log, or its loss is not finite"
    if flags in EXACT and (not ended or (then == ranks and event != KILLED)):
        digest = [record["weights_sha256"] for record in records(out) if record["event"] == "end"][-1]
        if weights.setdefault((flags, ranks), digest) != digest:
            return what, "other weights than an equal run before"
    return what, ""


def disturb(world: World, event: str, at: int) -> None:
    pids = world.pids()
    if event == ASKED:
        world.signal(signal.SIGUSR1)
    elif event == TERMINATED:
        end(pids.values(), signal.SIGTERM)
    elif pids:
        end([pids[at % len(pids)]])


class Watch:
    """Samples of memory, files and threads of each rank of a world."""

    def __init__(self, world: World):
        self._pids, self._samples = world.pids().values(), []

    def sample(self) -> None:
        with suppress(OSError, KeyError):  # a rank has ended
            self._samples.append([sample_of(pid) for pid in self._pids])

    def growth(self) -> list[str]:
        """Return a line for a world that grows: by a line through the second half of the samples."""
        later = np.array(self._samples[len(self._samples) // 2 :], float)  # [samples, ranks, kinds]
        if len(later) < 8:
            return ["too few samples to see whether it grows: give more --minutes"]
        grown = np.polyfit(np.arange(len(later)), later[:, :, 0], 1)[0] * len(later)
        ranges = np.ptp(later[:, :, 1:], axis=0).max(axis=0)
        print(f"the steady world: {grown.max() / MIB:.2f} MiB at most, files and threads within {ranges.tolist()}")
        return ["the steady world grows"] if grown.max() > GROWTH or ranges.max() > FEW else []


def sample_of(pid: int) -> tuple[int, int, int]:
    """Return (bytes, open files, threads) of a process."""
    memory = memory_of(pid)
    return memory["RssAnon"] + memory["RssShmem"], len(os.listdir(f"/proc/{pid}/fd")), memory["Threads"]


@click.command(help=__doc__)
@click.option("--minutes", type=float, default=10, show_default=True)
@click.option("--ranks", default=8, show_default=True, help="Of the world that trains all the time.")
@click.option("--seed", default=0, show_default=True)
def soak(minutes, ranks, seed):
    left, draw, weights, broken, runs = Leftovers(), random.Random(seed), {}, [], 0
    with scratch("soak") as scratch_folder:
        folder = Path(scratch_folder)
        steady = train(ranks, folder / "steady", f"--batch {8 * ranks}", 10**8)
        steady.until(lambda: newest(folder / "steady") >= SETTLED)
        watch, until, left_by_runs = Watch(steady), time.monotonic() + 60 * minutes, Leftovers()
        while steady.running and time.monotonic() < until:
            runs += 1
            what, why = play(draw, folder / f"run-{runs:05}", weights)
            broken += [f"{what}: {why}"] if why else []
            print(f"{runs:5}  {what}{': BROKEN: ' if why else ''}{why}", flush=True)
            broken += [f"left {each}" for each in left_by_runs(steady)]
            watch.sample()
        steady.signal(signal.SIGUSR1)
        ended = steady.wait()
        broken += watch.growth() + [f"the steady world ended with {ended}"] * (ended != REQUEUE)
        broken += [f"left {each}" for each in left()]
    print("\n".join([f"{runs} runs", *(broken or ["nothing lost"])]))
    sys.exit(bool(broken))


if __name__ == "__main__":
    soak()
