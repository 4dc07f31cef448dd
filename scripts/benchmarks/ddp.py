"""PyTorch's DistributedDataParallel and all_reduce over ringtrain (`python -m ringtrain.torch`) beside gloo.

docs/benchmarks/torch-backend.md says what is timed and how. Before a net is timed one iteration of both sides is
compared: gradients that differ by more than 1e-6 of their norm end the program with 1. Ranks are on this machine, or,
as in `--ranks 2x2:1gbit`, on hosts of scripts/cluster.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from page import ROOT, add_options, changed, circumstances, command_line, ready_torch, table, write, write_page
from side import Processes, Side, interleaved, ratio_text, ratios

from ringtrain.bench.measure.timing import busy_processes
from ringtrain.humanize import format_bytes

SIDES = RINGTRAIN, GLOO = "ringtrain", "gloo"
NETS = {"resnet18": "32 images of 32 x 32", "mlp": "32 rows of 1,024", "gpt": "4 sequences of 128"}
SIZES = [4 << shift for shift in range(0, 25, 2)]  # 4 B ... 64 MiB
TOLERANCE = 1e-6
ALONE = 5  # iterations without an exchange


# ── the sides ─────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Place:
    """Where ranks are. each: ranks on a host; rate: of a host's link, as scripts/cluster takes it"""

    each: int
    hosts: int = 1
    rate: str = ""

    @property
    def ranks(self) -> int:
        return self.each * self.hosts

    def __str__(self) -> str:
        return f"{self.hosts} x {self.each}, {self.rate}" if self.hosts > 1 else str(self.each)


def places(text: str) -> list[Place]:
    """Parse places such as 2,4,2x2:1gbit: the type of an option. Raises ArgumentTypeError."""
    matches = [re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)(?::([\w.]+))?", each) for each in text.split(",")]
    parts = [match.groups() for match in matches if match]
    if len(parts) < len(matches) or any(bool(rate) != (int(hosts or 1) > 1) for hosts, _, rate in parts):
        raise argparse.ArgumentTypeError(f"{text}: give numbers such as 1,2, or hosts x ranks:rate, as 2x2:1gbit")
    return [Place(int(each), int(hosts or 1), rate or "") for hosts, each, rate in parts]


def commands(options, side: str) -> list[list[str]]:
    place, program = options.place, str(Path(__file__).with_name("ddp_side.py"))
    python = [options.torch, "-W", "ignore"]
    ringtrain = ["-m", "ringtrain.torch"] if side == RINGTRAIN else []
    if place.hosts > 1:
        hosts = [str(ROOT / "scripts/cluster"), "run", "-n", str(place.hosts), "--ranks", str(place.each)]
        return [[*hosts, "--rate", place.rate, "--", *python, *ringtrain, program]]
    if side == GLOO:
        return [[*python, program]] * place.ranks
    launcher = ["mpirun", "-np", str(place.ranks), "--bind-to", "none", "--oversubscribe"]
    return [[*launcher, *python, *ringtrain, program]]


def opened(options, side: str, folder: str) -> Processes:
    about = {name: getattr(options, name) for name in ("threads", "workers")}
    about |= {"ranks": options.place.ranks, "hosts": options.place.hosts}
    return Processes(commands(options, side), {"side": side, "folder": folder, **about}, options.place.ranks)


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
            alone = [max(processes.ask("alone", name=name, iterations=ALONE)) for processes in sides.values()]
            for processes in sides.values():
                processes.ask("make", name=name)
                processes.ask("work", name=name)
            row = {"what": name, "difference": prove(name, folder), "alone_s": min(alone)}
            turns = [Side(side, processes, {"name": name}) for side, processes in sides.items()]
            rows.append(finished(options, row, interleaved(turns, options.seconds)))
        for nbytes in () if options.no_sizes else SIZES:
            row = {"what": f"all_reduce {format_bytes(nbytes)}", "nbytes": nbytes}
            turns = [Side(side, processes, {"nbytes": nbytes}, "reduce") for side, processes in sides.items()]
            rows.append(finished(options, row, interleaved(turns, options.seconds / 4)))
    return rows


def finished(options, row: dict, samples: dict[str, list[float]]) -> dict:
    pairs = ratios(samples, GLOO)
    row |= {"ranks": options.place.ranks, "place": str(options.place)}
    row |= {"ratio": median(pairs), "least": min(pairs), "most": max(pairs)}
    row |= {"seconds": {side: median(each) for side, each in samples.items()}, "samples_s": samples}
    print(" ".join(cells(row)), flush=True)
    return row


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────
NET_HEADS = ["net, batch of a rank", "ranks"]
NET_HEADS += [f"{what}, {side}" for what in ("examples/s", "ms exposed") for side in SIDES]
SIZE_HEADS = ["what", "ranks", *(f"µs, {side}" for side in SIDES)]
LAST_HEADS = ["ratio (least, most)", "pairs"]


def cells(row: dict) -> list[str]:
    """Return the cells of a row: of a net, or of an all-reduce."""
    pairs, seconds = ratios(row["samples_s"], GLOO), [row["seconds"][side] for side in SIDES]
    last = [ratio_text(pairs), str(len(pairs))]
    if "nbytes" in row:
        return [row["what"], row["place"], *(f"{1e6 * each:,.1f}" for each in seconds), *last]
    rates = [f"{examples(row) / each:,.1f}" for each in seconds]
    exposed = [f"{1e3 * (each - row['alone_s']):,.1f}" for each in seconds]
    return [f"{row['what']}, {NETS[row['what']]}", row["place"], *rates, *exposed, *last]


def examples(row: dict) -> int:
    """Return the examples of an iteration of all ranks."""
    return int(NETS[row["what"]].split()[0]) * row["ranks"]


def picture(rows: Sequence[dict], path: str) -> None:
    """Draw for each net and place the milliseconds of an iteration by side: computing, and the exchange beyond it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["what"] for row in rows))
    figure = Figure((4.6 * len(names), 0.6 + 0.55 * len(rows) / len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        mine = [row for row in rows if row["what"] == name]
        for offset, (side, colour) in zip((-0.2, 0.2), zip(SIDES, ("#4477aa", "#cc8844"), strict=True), strict=True):
            at = [number + offset for number in range(len(mine))]
            alone = [1e3 * row["alone_s"] for row in mine]
            exposed = [max(0.0, 1e3 * row["seconds"][side] - each) for row, each in zip(mine, alone, strict=True)]
            axes.barh(at, alone, 0.36, color=colour, alpha=0.45)
            axes.barh(at, exposed, 0.36, left=alone, color=colour, label=f"{side}: exposed")
        for number, row in enumerate(mine):
            end = 1e3 * max(row["seconds"].values())
            axes.annotate(f" {row['ratio']:.2f} ×", (end, number), va="center", fontsize=8)
        axes.set(xlabel="ms an iteration", title=name)
        axes.set_yticks(range(len(mine)), [row["place"] for row in mine])
        axes.invert_yaxis()
        axes.margins(x=0.18)
    figure.axes[0].set_ylabel("ranks")
    figure.axes[-1].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", help=f"[{', '.join(NETS)}]")
    parser.add_argument(
        "--ranks", type=places, default="2", help="2,4,2x2:1gbit: here, or on hosts of scripts/cluster [2]"
    )
    parser.add_argument("--workers", type=int, default=0, help="of a DataLoader of each rank [0: a batch lies ready]")
    parser.add_argument("--beside", type=int, default=0, help="busy processes beside the ranks [0]")
    parser.add_argument("--no-sizes", action="store_true", help="no all-reduces of one tensor, of --seconds / 4 a size")
    parser.add_argument("--plot", help="draw the nets into this file")
    add_options(parser)
    options = parser.parse_args(words)
    options.nets = options.nets or list(NETS)
    if unknown := set(options.nets) - set(NETS):
        parser.error(f"there is no net {', '.join(sorted(unknown))}: wanted {', '.join(NETS)}")
    return options


def main() -> None:
    options, rows, load_before = parse(), [], os.getloadavg()[0]
    torch = ready_torch(options)
    for place in options.ranks:
        rows += measure(changed(options, place=place))
        write(options.json, json.dumps(rows, indent=1))
    how = circumstances(command_line(sys.argv[1:], "ddp"), load_before)
    threads = f"{options.threads} thread{'s' * (options.threads > 1)} a rank"
    nets, sizes = ([row for row in rows if ("nbytes" in row) == is_size] for is_size in (False, True))
    text = f"{how}; {torch}, {threads}.\n"
    for heads, some in ((NET_HEADS, nets), (SIZE_HEADS, sizes)):
        text += "\n".join(["", *table([*heads, *LAST_HEADS], list(map(cells, some))), ""]) if some else ""
    write_page(options.page, text)
    print(f"\n{text}")
    if options.plot:
        picture(nets, options.plot)


if __name__ == "__main__":
    main()
