"""PyTorch's DistributedDataParallel and all_reduce over ringtrain (`python -m ringtrain.torch`) beside gloo.

An iteration is forward, backward with the exchange of gradients, and the update; float32. Before a net is timed one
iteration of both sides is compared: gradients that differ by more than 1e-6 of their norm end the program with 1. An
all-reduce checks its sums itself.

Each side runs in processes of its own, so that threads, memory and replaced functions of one are no burden of the
other; both run the same program. Blocks are timed in turn, ringtrain, gloo, ringtrain, gloo ...; while one side works
the other waits for its turn in a read. A ratio is the median over these pairs, and above 1 if ringtrain is faster.
torch is installed into the environment of scripts/bench, unless it is there.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from page import FIGURES, circumstances, command_line, numbers, table, torch_version, write, write_page
from pytorch import ready_torch
from side import Processes, Side, interleaved, ratio

from ringtrain.bench.measure.timing import busy_processes
from ringtrain.humanize import format_bytes

RINGTRAIN, GLOO = "ringtrain", "gloo"
NETS = {"resnet18": "32 images of 32 x 32", "mlp": "32 rows of 1,024", "gpt": "4 sequences of 128"}
SIZES = [4 << shift for shift in range(0, 25, 2)]  # 4 B ... 64 MiB
TOLERANCE = 1e-6
HERE = Path(__file__).parent


# ── the sides ─────────────────────────────────────────────────────────────────────────────────────────────────
def commands(options, side: str) -> list[list[str]]:
    program = [options.torch, "-W", "ignore"]
    if side == GLOO:
        return [[*program, str(HERE / "ddp_side.py")]] * options.ranks
    launcher = ["mpirun", "-np", str(options.ranks), "--bind-to", "none"]
    return [[*launcher, *program, "-m", "ringtrain.torch", str(HERE / "ddp_side.py")]]


def opened(options, side: str, folder: str) -> Processes:
    told = {"side": side, "folder": folder}
    told |= {name: getattr(options, name) for name in ("ranks", "threads", "workers")}
    return Processes(commands(options, side), told, options.ranks)


@dataclass(frozen=True, slots=True)
class Reductions(Side):
    """A side whose blocks are all-reduces of ``way["nbytes"]``."""

    def block(self, iterations: int) -> float:
        return max(self.processes.ask("reduce", iterations=iterations, **self.way))


def prove(name: str, folder: str) -> float:
    """Return how much the gradients of both sides differ. Ends the program if it is more than rounding explains."""
    own, gloo = (np.load(Path(folder) / f"{side}.npy") for side in (RINGTRAIN, GLOO))
    difference = float(np.linalg.norm(own - gloo) / np.linalg.norm(gloo))
    if not difference <= TOLERANCE:  # a NaN is none
        raise SystemExit(f"{name}: gradients of {RINGTRAIN} and {GLOO} differ by {difference:.1e}: nothing is timed")
    return difference


def measure(options) -> list[dict]:
    """Return a row for each net, and for each size of an all-reduce."""
    rows = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-ddp-"))
        sides = {side: stack.enter_context(opened(options, side, folder)) for side in (RINGTRAIN, GLOO)}
        stack.enter_context(busy_processes(options.beside))
        for name in options.nets:
            for processes in sides.values():
                processes.ask("make", name=name)
                processes.ask("work", name=name)
            row = {"what": name, "difference": prove(name, folder)}
            turns = [Side(side, processes, {"name": name}) for side, processes in sides.items()]
            rows.append(finished(options, row, interleaved(turns, options.seconds)))
        for nbytes in options.sizes:
            turns = [Reductions(side, processes, {"nbytes": nbytes}) for side, processes in sides.items()]
            samples = interleaved(turns, options.seconds / 4)
            rows.append(finished(options, {"what": f"all_reduce {format_bytes(nbytes)}", "nbytes": nbytes}, samples))
    return rows


def finished(options, row: dict, samples: dict[str, list[float]]) -> dict:
    pairs = [there / here for there, here in zip(samples[GLOO], samples[RINGTRAIN], strict=True)]
    row |= {"ranks": options.ranks, "ratio": ratio(samples, GLOO, RINGTRAIN), "least": min(pairs), "most": max(pairs)}
    row |= {"seconds": {side: median(each) for side, each in samples.items()}, "samples_s": samples}
    print(" ".join(cells(row)), flush=True)
    return row


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────
def cells(row: dict) -> list[str]:
    unit, name = (1e-3, "ms") if "nbytes" not in row else (1e-6, "µs")
    times = [f"{row['seconds'][side] / unit:,.1f} {name}" for side in (RINGTRAIN, GLOO)]
    rounds = len(row["samples_s"][GLOO])
    ratios = f"**{row['ratio']:.2f}** ({row['least']:.2f}, {row['most']:.2f})"
    what = f"{row['what']}, {NETS[row['what']]}" if row["what"] in NETS else row["what"]
    return [what, str(row["ranks"]), *times, ratios, str(rounds)]


def markdown(options, rows: list[dict], load_before: float) -> str:
    """Return the table, with the machine, the date and the versions."""
    how = circumstances(command_line(sys.argv[1:], "ddp"), load_before)
    threads = f"{options.threads} thread{'s' * (options.threads > 1)} a rank"
    heads = ["what, batch of a rank", "ranks", "ringtrain", "gloo", "ratio (least, most)", "pairs"]
    about = f"{how}; {torch_version(options.torch) or platform.python_version()}, {threads}."
    return "\n".join([about, "", *table(heads, list(map(cells, rows))), ""])


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", help=f"[{', '.join(NETS)}]")
    parser.add_argument("--ranks", type=numbers, default="2", help="one number, or several: 2,3 [2]")
    parser.add_argument("--threads", type=int, default=1, help="of a rank [1]")
    parser.add_argument("--workers", type=int, default=0, help="of a DataLoader of each rank [0: a batch lies ready]")
    parser.add_argument("--beside", type=int, default=0, help="busy processes beside the ranks [0]")
    parser.add_argument("--seconds", type=float, default=15, help="of the blocks of a net; of a size a quarter [15]")
    parser.add_argument("--no-sizes", action="store_true", help="no all-reduces of one tensor")
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="a Python with torch and ringtrain")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--page", help=f"write the table to this file, after its heading {FIGURES.strip()}")
    options = parser.parse_args(words)
    options.nets, options.sizes = options.nets or list(NETS), [] if options.no_sizes else SIZES
    if unknown := set(options.nets) - set(NETS):
        parser.error(f"there is no net {', '.join(sorted(unknown))}: wanted {', '.join(NETS)}")
    options.device = "cpu"
    return options


def main() -> int:
    options, rows, load_before = parse(), [], os.getloadavg()[0]
    ready_torch(options)
    for ranks in options.ranks:
        rows += measure(argparse.Namespace(**{**vars(options), "ranks": ranks}))
        write(options.json, json.dumps(rows, indent=1))
    text = markdown(options, rows, load_before)
    if options.page:
        write_page(options.page, text)
    print(f"\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
