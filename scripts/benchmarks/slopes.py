"""Star and ring: the time of one all-reduce against the number of ranks, beside 2(K-1)n/b and 2(1-1/K)n/b.

Writes slopes.json and slopes.png to --out, and a Markdown table to the terminal.
"""

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

from ringtrain.bench.slopes import FORMULAS, draw, formula_s, measure
from ringtrain.exchange.machine import cpu_model
from ringtrain.ops.catalogue import make_ops
from ringtrain.transport.world import connect

ALGORITHMS = ("star", "ring")


def rank_main(options) -> int:
    transport = connect()
    nbytes, segment = int(options.mib * 2**20), int(options.segment_kib * 2**10)
    rows = measure(transport, make_ops("cpu", "float32"), ALGORITHMS, nbytes, options.repeats, segment or nbytes)
    if transport.rank == 0:
        print(json.dumps(rows))
    transport.close()
    return 0


def run_ranks(options, ranks: int) -> list[dict]:
    command = [*shlex.split(options.launch.format(ranks=ranks)), sys.executable, __file__, "--as-rank"]
    for name in ("mib", "repeats", "segment_kib"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> dict:
    return {"host": socket.gethostname(), "cpu": cpu_model(), "at": time.strftime("%Y-%m-%d"), "load": os.getloadavg()}


def markdown(rows: list[dict]) -> str:
    """Times in ms, and below those of each schedule what its formula says with b of one pair, and of all links busy."""
    counts = sorted({row["ranks"] for row in rows})
    lines = [["K", *map(str, counts)], ["---"] * (len(counts) + 1)]
    for name in ALGORITHMS:
        own = sorted((row for row in rows if row["algorithm"] == name), key=lambda row: row["ranks"])
        lines.append([f"{name}, ms", *(f"{1e3 * row['median_s']:.3g}" for row in own)])
        for link in ("pair", "busy"):
            formula = (f"{1e3 * formula_s(row, row[f'{link}_bytes_per_s']):.3g}" for row in own)
            lines.append([f"{FORMULAS[name]}, b of {'one pair' if link == 'pair' else 'links busy'}", *formula])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def tell(row: dict) -> None:
    pair, busy = (1e3 * formula_s(row, row[f"{link}_bytes_per_s"]) for link in ("pair", "busy"))
    print(
        f"{row['algorithm']:5} K={row['ranks']}  {1e3 * row['median_s']:8.2f} ms  formula: {pair:8.2f} ms by one pair, "
        f"{busy:8.2f} ms by {row['ranks']} busy links{'   more ranks than cores' if row['oversubscribed'] else ''}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=16, help="MiB of the buffer")
    parser.add_argument("--ranks", type=int, default=8, help="up to so many")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--segment-kib", type=float, default=256, help="of a message; 0: moves are not cut")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for slopes.json and slopes.png")
    parser.add_argument("--launch", default="mpirun -np {ranks}", help="how ranks are started; {ranks} is their number")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        return rank_main(options)
    rows = []
    for ranks in range(2, options.ranks + 1):
        rows += run_ranks(options, ranks)
        for row in rows[-len(ALGORITHMS) :]:
            tell(row)
    options.out.mkdir(parents=True, exist_ok=True)
    header = {"mib": options.mib, "command": shlex.join(sys.argv[1:]), **machine()}
    (options.out / "slopes.json").write_text(json.dumps({"header": header, "rows": rows}, indent=1))
    draw(rows, options.out / "slopes.png", f"{header['host']}, {header['cpu']}, {header['at']}")
    print("\n" + markdown(rows))
    print(f"drawn in {options.out / 'slopes.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
