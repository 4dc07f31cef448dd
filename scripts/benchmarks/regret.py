"""What `--algorithm auto` loses against the best: t_auto / t_best on repetitions and sizes that tuning did not see.

Tunes in a run of its own, then times auto and all candidates interleaved in another, at the tuned sizes and at those
half-way between. Prints a Markdown table. Exits with 1 where the mean or the worst is above its limit.

A choice is made for memory as it is: what the MPI would take in other memory than the gradients' is no candidate.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from ringtrain.bench.regret import regrets, summary
from ringtrain.bench.sizes import parse_bytes, swept
from ringtrain.bench.sweep import Sweep, sweep
from ringtrain.bench.timing import Protocol
from ringtrain.exchange.machine import cpu_model
from ringtrain.exchange.reductions import AUTO, consider
from ringtrain.exchange.tuning_file import find_tuning
from ringtrain.humanize import format_bytes
from ringtrain.transport.world import connect

SEED = 1  # another order than that of tuning, whose seed is 0


def rank_main(options) -> int:
    transport = connect()
    candidates = consider(transport, transport.allocate(1, np.float32), "float32").candidates
    asked = Sweep(
        sizes=judged_sizes(options),
        algorithms=(AUTO, *candidates),
        protocol=Protocol(repeats=options.iterations, seed=SEED),
        checked=False,
        memories={},
    )
    result = sweep(transport, replace(asked, tuning=find_tuning(transport, options.tuning).table))
    if transport.rank == 0:
        print(json.dumps(regrets(result.rows)))
    transport.close()
    return 0


def tuned_sizes(options) -> list[int]:
    return swept(parse_bytes(options.begin), parse_bytes(options.end), options.factor)


def judged_sizes(options) -> list[int]:
    return swept(parse_bytes(options.begin), parse_bytes(options.end), options.factor**0.5)


def launch(options, arguments: list[str]) -> str:
    command = ["mpirun", "-np", str(options.ranks), sys.executable, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def tell(found: list[dict], tuned: list[int], ranks: int) -> None:
    day, load = time.strftime("%Y-%m-%d"), os.getloadavg()[0]
    print(f"{ranks} ranks on {socket.gethostname()}, {cpu_model()}, {day}, load {load:.1f}\n")
    print("| size | tuned | chosen | best | t_auto/t_best | by halves | why |\n|---|---|---|---|---|---|---|")
    for row in found:
        cells = [format_bytes(row["bytes"]), "yes" if row["bytes"] in tuned else "no", row["chosen"], row["best"]]
        cells += [f"{row['regret']:.3f}", f"{row['regret_by_halves']:.3f}", row["why"]]
        print(f"| {' | '.join(cells)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("-b", "--begin", default="64K", help="smallest buffer")
    parser.add_argument("-e", "--end", default="64M", help="largest buffer")
    parser.add_argument("-f", "--factor", type=float, default=4.0, help="of tuning; judged are twice as many")
    parser.add_argument("-n", "--iterations", type=int, default=40, help="repetitions of judging")
    parser.add_argument("--mean", type=float, default=1.05, help="limit of the mean")
    parser.add_argument("--worst", type=float, default=1.15, help="limit of the worst")
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--tuning", help="judge by this file, and do not tune")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        return rank_main(options)
    with tempfile.TemporaryDirectory() as folder:
        path = options.tuning or f"{folder}/tuning.json"
        sizes = ["-b", options.begin, "-e", options.end, "-f", str(options.factor)]
        if not options.tuning:
            print(launch(options, ["-m", "ringtrain", "tune", *sizes, "--tuning", path]))
        judge = [__file__, "--as-rank", *sizes, "-n", str(options.iterations), "--tuning", path]
        found = json.loads(launch(options, judge).splitlines()[-1])
    tell(found, tuned_sizes(options), options.ranks)
    total = summary(found)
    for name in ("mean", "worst"):
        figures = (f"{total[kind][name]:.3f}" for kind in ("regret", "regret_by_halves"))
        print(f"| {name} |  |  |  | {' | '.join(figures)} |  |")
    if options.json:
        options.json.write_text(json.dumps({"summary": total, "sizes": found}, indent=1) + "\n")
    held = total["regret"]["mean"] <= options.mean and total["regret"]["worst"] <= options.worst
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
