"""Load: many ranks on few cores, many small collectives, many starts; each must leave memory as it was.

train        8 and 16 ranks train the digits, however few cores there are; memory, files and threads are watched
collectives  10,000 small all-reduces by our schedules, in memory that ranks share and by the MPI, each under the guard
restarts     100 times: start, train a few iterations, end; nothing is left in shared memory, no process, no file

Exits with 1 where memory grows, or anything is left.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from worlds.left import Leftovers
from worlds.private import enter
from worlds.runs import last_words, losses, reached, wait_for
from worlds.steady import BOUND, Watch, table
from worlds.world import MIB, Hung, World, own_memory

PARTS = ("train", "collectives", "restarts")
REQUEUE = 75
FOREVER, SETTLED = 10**8, 200  # iterations, and after how many a world is watched
OFTEN = 10  # iterations between two evaluations, and two checkpoints
ALGORITHMS = ("ring", "mapped", "mpi")
COUNT = 1000  # float32 of a collective: 4 kB
BLOCKS = 20  # of collectives, between which memory is looked at
DEADLINE_S = 300.0
GROWTH = MIB // 4  # of all those collectives after the first block: 25 bytes a collective
ITERATIONS = 3


# ── train ─────────────────────────────────────────────────────────────────────────────────────────────────────
def train(options, place: Path) -> list[str]:
    lost = []
    for ranks in options.ranks:
        out = place / f"train-{ranks}"
        given = ["-m", "ringtrain", "train", "--data", "digits", "--iterations", FOREVER, "--out", out]
        given += ["--evaluate-every", OFTEN, "--checkpoint-every", OFTEN]
        world = World(ranks, given, out.with_suffix(".txt"), place / "mpi")
        watch = Watch(world, partial(reached, out, SETTLED))
        wait_for(world, out, 1)  # before that a signal would end it
        until = time.monotonic() + options.seconds
        while world.running and time.monotonic() < until:
            time.sleep(0.2)
        trends = watch.stop()
        world.signal(signal.SIGUSR1)
        status, count = world.wait(), len(losses(out))
        print(f"\n{ranks} ranks on {len(os.sched_getaffinity(0))} cores: {count:,} iterations, ended with {status}")
        print("\n".join([*table(trends), BOUND]), flush=True)
        lost += [] if trends else [f"{ranks} ranks were not watched for long enough: give more --seconds"]
        lost += [f"{ranks} ranks: rank {one.rank} grows" for one in trends if one.grows]
        lost += [] if status == REQUEUE and count else [f"{ranks} ranks ended with {status}: {last_words(out)}"]
    return lost


# ── collectives ───────────────────────────────────────────────────────────────────────────────────────────────
def collectives(options, place: Path) -> list[str]:
    output = place / "collectives.txt"
    given = [__file__, "collectives", "--as-rank", "--count", options.count]
    status = World(options.collective_ranks, given, output, place / "mpi").wait()
    print("\n" + output.read_text(), end="", flush=True)
    return [f"collectives: ended with {status}"] if status else []


def collectives_of_a_rank(options) -> int:
    from ringtrain.exchange.guard import Guard
    from ringtrain.exchange.reductions import prepare
    from ringtrain.transport.world import connect

    transport = connect()
    guard, grows = Guard(transport), False
    for tag, algorithm in enumerate(ALGORITHMS):
        buffer = transport.allocate(COUNT, np.float32)
        reduction = prepare(transport, buffer, algorithm, _add, tag=tag, guard=guard)
        seconds, memory = [], []
        for _ in range(BLOCKS):
            transport.barrier()
            began = time.perf_counter()
            _repeat(reduction, buffer, options.count // BLOCKS, transport.size)
            seconds.append((time.perf_counter() - began) * BLOCKS / options.count)
            memory.append(own_memory())
        growth = max(transport.gather_json(memory[-1] - memory[0]))
        grows |= growth > GROWTH
        if transport.rank == 0:
            took = f"{statistics.median(seconds) * 1e6:8.1f} µs each, at most {max(seconds) * 1e6:,.1f} in a block"
            print(f"{algorithm:8} {options.count:,} of {COUNT} float32, {transport.size} ranks: {took}", end="")
            print(f"; memory of a rank +{growth >> 10} KiB", flush=True)
    guard.close()
    transport.close()
    return int(grows)


def _repeat(reduction, buffer, count: int, size: int) -> None:
    """Sums of ones, each looked at."""
    for _ in range(count):
        buffer[...] = 1
        reduction.start()
        reduction.wait(DEADLINE_S)
        if buffer[0] != size or buffer[-1] != size:
            raise AssertionError(f"{size} ones add up to {buffer[0]}")


def _add(a, b, y) -> None:
    np.add(a, b, out=y)


# ── restarts ──────────────────────────────────────────────────────────────────────────────────────────────────
def restarts(options, place: Path) -> list[str]:
    left, lost, took = Leftovers(place / "mpi"), [], []
    for number in range(options.restarts):
        out, began = place / "restarts" / f"{number:03}", time.monotonic()
        out.parent.mkdir(exist_ok=True)
        given = ["-m", "ringtrain", "train", "--data", "digits", "--ops", "reference", "--iterations", ITERATIONS]
        given += ["--out", out]
        status = World(options.restart_ranks, given, out.with_suffix(".txt"), place / "mpi").wait()
        took.append(time.monotonic() - began)
        lost += [f"start {number}: ended with {status}: {last_words(out)}"] if status else []
        lost += [f"start {number}: left {what}" for what in left()]
        if (number + 1) % 10 == 0:
            print(f"# {number + 1} starts, {len(lost)} lost", flush=True)
    print(f"\n{len(took)} starts of {options.restart_ranks} ranks, {ITERATIONS} iterations each: ", end="")
    print(f"{statistics.median(took):.1f} s each, at most {max(took):.1f} s", flush=True)
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all unless named")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16], help="of train")
    parser.add_argument("--seconds", type=float, default=60, help="of train, each number of ranks")
    parser.add_argument("--count", type=int, default=10_000, help="of collectives, each algorithm")
    parser.add_argument("--collective-ranks", type=int, default=2)
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--restart-ranks", type=int, default=2)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        return collectives_of_a_rank(options)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: wanted {', '.join(PARTS)}")
    if not enter():
        print("no namespaces are to be had here: what others leave in shared memory counts as ours")
    with tempfile.TemporaryDirectory(prefix="ringtrain-load-") as place:
        return run(options, Path(place))


def run(options, place: Path) -> int:
    (place / "mpi").mkdir()
    left, lost = Leftovers(place / "mpi"), []
    for part in options.parts or PARTS:
        try:
            lost += {"train": train, "collectives": collectives, "restarts": restarts}[part](options, place)
        except Hung as error:
            lost.append(f"{part}: {error}")
        lost += [f"{part}: left {what}" for what in left()]
    print("\n" + "\n".join(lost or ["nothing lost: no process, no shared memory and no file was left"]))
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
