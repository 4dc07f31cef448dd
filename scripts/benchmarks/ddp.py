"""PyTorch's DistributedDataParallel and all_reduce over ringtrain (`python -m ringtrain.torch`) beside gloo.

docs/benchmarks/torch-backend.md says what is timed and how. Before a net is timed one iteration of both sides is
compared: gradients that differ by more than 1e-6 of their norm end the program with 1.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
from page import add_options, changed, circumstances, command_line, numbers, ready_torch, table, write, write_page
from side import Processes, Side, interleaved, ratio_text, ratios

from ringtrain.bench.measure.timing import busy_processes
from ringtrain.humanize import format_bytes

SIDES = RINGTRAIN, GLOO = "ringtrain", "gloo"
NETS = {"resnet18": "32 images of 32 x 32", "mlp": "32 rows of 1,024", "gpt": "4 sequences of 128"}
SIZES = [4 << shift for shift in range(0, 25, 2)]  # 4 B ... 64 MiB
TOLERANCE = 1e-6


# ── the sides ─────────────────────────────────────────────────────────────────────────────────────────────────
def commands(options, side: str) -> list[list[str]]:
    python, program = [options.torch, "-W", "ignore"], str(Path(__file__).with_name("ddp_side.py"))
    if side == GLOO:
        return [[*python, program]] * options.ranks
    return [["mpirun", "-np", str(options.ranks), "--bind-to", "none", *python, "-m", "ringtrain.torch", program]]


def opened(options, side: str, folder: str) -> Processes:
    about = {name: getattr(options, name) for name in ("ranks", "threads", "workers")}
    return Processes(commands(options, side), {"side": side, "folder": folder, **about}, options.ranks)


def prove(name: str, folder: str) -> float:
    """Return how much the gradients of both sides differ. Ends the program if it is more than rounding explains."""
    ours, gloo = (np.load(Path(folder) / f"{side}.npy") for side in SIDES)
    difference = float(np.linalg.norm(ours - gloo) / np.linalg.norm(gloo))
    if not difference <= TOLERANCE:  # a NaN is none
        raise SystemExit(f"{name}: gradients of {RINGTRAIN} and {GLOO} differ by {difference:.1e}: nothing is timed")
    return difference


def measure(options) -> list[dict]:
    """Return a row for each net, and for each size of an all-reduce."""
    rows = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-ddp-"))
        sides = {side: stack.enter_context(opened(options, side, folder)) for side in SIDES}
        stack.enter_context(busy_processes(options.beside))
        for name in options.nets:
            for processes in sides.values():
                processes.ask("make", name=name)
                processes.ask("work", name=name)
            row = {"what": name, "difference": prove(name, folder)}
            turns = [Side(side, processes, {"name": name}) for side, processes in sides.items()]
            rows.append(finished(options, row, interleaved(turns, options.seconds)))
        for nbytes in () if options.no_sizes else SIZES:
            row = {"what": f"all_reduce {format_bytes(nbytes)}", "nbytes": nbytes}
            turns = [Side(side, processes, {"nbytes": nbytes}, "reduce") for side, processes in sides.items()]
            rows.append(finished(options, row, interleaved(turns, options.seconds / 4)))
    return rows


def finished(options, row: dict, samples: dict[str, list[float]]) -> dict:
    pairs = ratios(samples, GLOO)
    row |= {"ranks": options.ranks, "ratio": median(pairs), "least": min(pairs), "most": max(pairs)}
    row |= {"seconds": {side: median(each) for side, each in samples.items()}, "samples_s": samples}
    print(" ".join(cells(row)), flush=True)
    return row


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────
def cells(row: dict) -> list[str]:
    unit, name = (1e-3, "ms") if "nbytes" not in row else (1e-6, "µs")
    times = [f"{row['seconds'][side] / unit:,.1f} {name}" for side in SIDES]
    pairs = ratios(row["samples_s"], GLOO)
    what = f"{row['what']}, {NETS[row['what']]}" if row["what"] in NETS else row["what"]
    return [what, str(row["ranks"]), *times, ratio_text(pairs), str(len(pairs))]


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", help=f"[{', '.join(NETS)}]")
    parser.add_argument("--ranks", type=numbers, default="2", help="one number, or several: 2,3 [2]")
    parser.add_argument("--workers", type=int, default=0, help="of a DataLoader of each rank [0: a batch lies ready]")
    parser.add_argument("--beside", type=int, default=0, help="busy processes beside the ranks [0]")
    parser.add_argument("--no-sizes", action="store_true", help="no all-reduces of one tensor, of --seconds / 4 a size")
    add_options(parser)
    options = parser.parse_args(words)
    options.nets = options.nets or list(NETS)
    if unknown := set(options.nets) - set(NETS):
        parser.error(f"there is no net {', '.join(sorted(unknown))}: wanted {', '.join(NETS)}")
    return options


def main() -> None:
    options, rows, load_before = parse(), [], os.getloadavg()[0]
    torch = ready_torch(options)
    for ranks in options.ranks:
        rows += measure(changed(options, ranks=ranks))
        write(options.json, json.dumps(rows, indent=1))
    how = circumstances(command_line(sys.argv[1:], "ddp"), load_before)
    threads = f"{options.threads} thread{'s' * (options.threads > 1)} a rank"
    heads = ["what, batch of a rank", "ranks", *SIDES, "ratio (least, most)", "pairs"]
    text = "\n".join([f"{how}; {torch}, {threads}.", "", *table(heads, list(map(cells, rows))), ""])
    write_page(options.page, text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
