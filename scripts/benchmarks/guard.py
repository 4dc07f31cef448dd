"""The cost of the guard: the same all-reduce with and without it, in turns, a pair at a time.

A pair's time is that of its slowest rank; every rank writes its buffer before each sample, outside the clock. Small
all-reduces are timed several at once. The ratio is the median of the pairs' ratios, with its 95 % confidence interval
by the bootstrap. `auto` is the default of training. Prints a Markdown table. Exits with 1 if an interval lies entirely
above its limit.
"""

import argparse
import os
import subprocess
import sys
import time

import numpy as np

from ringtrain.allreduce.catalogue import make_allreduce
from ringtrain.allreduce.machine import cpu_model
from ringtrain.monitor.guard import Guard
from ringtrain.transport.world import connect

SIZES = (1 << 12, 1 << 15, 1 << 20, 1 << 24)
ALGORITHMS = ("auto", "mpi", "ring")
DEADLINE_S = 120.0
SAMPLE_BYTES, MOST = 1 << 19, 128  # small ones: so many at once that a sample moves about so much
RESAMPLES = 2000
HEADS = ("algorithm", "bytes", "without us", "with us", "ratio", "95 % interval", "limit")


def limit_of(nbytes: int) -> float:
    """By how much an all-reduce may become slower; no limit below 1 MiB, where a microsecond counts."""
    return 0.01 if nbytes >= 1 << 24 else 0.05 if nbytes >= 1 << 20 else float("inf")


def add(a, b, y) -> None:
    np.add(a, b, out=y)


def sampled(transport, reduction, buffer, repeats: int) -> float:
    """Seconds of one all-reduce."""
    buffer[...] = 0  # as backward writes a gradient; zeros stay what they are however often they are added
    transport.barrier()
    began = time.perf_counter()
    for _ in range(repeats):
        reduction.start()
        reduction.wait(DEADLINE_S)
    return (time.perf_counter() - began) / repeats


def measure(transport, guard: Guard, algorithm: str, nbytes: int, pairs: int) -> tuple[str, np.ndarray]:
    """(algorithm that ran, [pairs, 2] seconds of the slowest rank: without the guard, and with it)"""
    buffer = transport.allocate(nbytes // 4, np.float32)
    plain, watched = (
        make_allreduce(transport, buffer, algorithm, add, tag=tag, guard=g) for tag, g in ((0, None), (1, guard))
    )
    repeats = max(1, min(SAMPLE_BYTES // nbytes, MOST))
    samples = np.zeros((pairs, 2))
    for pair in range(-3, pairs):
        for which in (0, 1) if pair % 2 else (1, 0):
            seconds = sampled(transport, (plain, watched)[which], buffer, repeats)
            if pair >= 0:
                samples[pair, which] = seconds
    return plain.algorithm, np.max([np.array(own) for own in transport.gather_json(samples.tolist())], axis=0)


def interval(ratios: np.ndarray) -> tuple[float, float]:
    """The 95 % confidence interval of their median."""
    drawn = np.random.default_rng(0).integers(0, ratios.size, (RESAMPLES, ratios.size))
    low, high = np.percentile(np.median(ratios[drawn], axis=1), [2.5, 97.5])
    return float(low), float(high)


def rank_main(options) -> int:
    transport = connect()
    guard = Guard(transport)
    over = 0
    if transport.rank == 0:
        print(f"{transport.size} ranks, {cpu_model()}, {transport.describe()}, load {os.getloadavg()[0]:.1f}\n")
        print(f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|", sep="\n", flush=True)
    for algorithm in ALGORITHMS:
        for nbytes in SIZES:
            name, samples = measure(transport, guard, algorithm, nbytes, options.pairs)
            ratios = samples[:, 1] / samples[:, 0]
            (low, high), limit = interval(ratios), 1 + limit_of(nbytes)
            over += low > limit
            without, with_ = np.median(samples, axis=0) * 1e6
            row = [name, f"{nbytes:,}", f"{without:,.1f}", f"{with_:,.1f}"]
            row += [f"{np.median(ratios):.3f}", f"{low:.3f} to {high:.3f}", f"{limit:.2f}"]
            if transport.rank == 0:
                print(f"| {' | '.join(row)} |", flush=True)
    guard.close()
    transport.close()
    return int(over > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        return rank_main(options)
    command = ["mpirun", "--bind-to", "none", "-np", str(options.ranks), sys.executable, __file__, *sys.argv[1:]]
    return subprocess.run([*command, "--as-rank"]).returncode


if __name__ == "__main__":
    sys.exit(main())
