"""The training loader alone: what it must deliver for a GPU, what it does on this host, and what that costs.

    loader.py make FOLDER [--images 1200]       writes a set like ImageNet in all forms: about 0.6 MB an image
    loader.py measure FOLDER [--torch PYTHON]   measures the loader on each form

docs/benchmarks/loader.md says what is measured, and how. Sides are first shown to make the same images of the same
boxes, or nothing is timed.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import h5py
import numpy as np
from loader_set import FORMS, LARGE_SIDE, SIDE, make
from page import changed, circumstances, numbers, table
from side import Processes, ratios

GOAL = 4000  # images/s of a GPU
OWN, PEER, BEFORE = "ringtrain", "PyTorch", "before"
PEER_FORMS = {
    "JPEG files 500 x 375": None,
    "uint8 256 x 256 in HDF5, cropped": ("256.h5", LARGE_SIDE, True),
    "uint8 224 x 224 in .npy, whole": ("224.npy", SIDE, False),
}
TINY = "JPEG 8 x 8"
COMPARED, MOST, MEAN = 64, 3, 0.3  # images, and their differences at most, in 255
HERE = Path(__file__).parent


# ── the sides ─────────────────────────────────────────────────────────────────────────────────────────────────
def open_sides(options, stack: ExitStack) -> dict[str, Processes]:
    about = {"folder": str(options.folder), "batch": options.batch, "threads": 1}
    command = [sys.executable, str(HERE / "loader_side.py")]
    sides = {OWN: Processes([command], about, 1)}
    if options.beside:
        sides[BEFORE] = Processes([["env", f"PYTHONPATH={options.beside}", *command]], about, 1)
    if options.torch:
        forms = {name: _rows(options.folder, *rows) if rows else None for name, rows in PEER_FORMS.items()}
        words = ["env", "PILLOW_BLOCKS_MAX=16", options.torch, "-W", "ignore", str(HERE / "loader_peer.py")]
        sides[PEER] = Processes([words], about | {"forms": forms}, 1)
    for side in sides.values():
        stack.enter_context(side)
    return sides


def _rows(folder: Path, file: str, side: int, crop: bool) -> dict:
    """Where the rows of an array lie in its file."""
    path, count = folder / file, np.load(folder / "labels.npy").size
    if path.suffix == ".h5":
        with h5py.File(path) as opened:
            offset = opened["images"].id.get_offset()
    else:
        offset = path.stat().st_size - count * side * side * 3
    return {"path": str(path), "offset": offset, "side": side, "count": count, "crop": crop}


def prove(sides: dict[str, Processes]) -> dict[str, dict]:
    """Return how far images of both sides are apart. Ends the program if they are not the same work."""
    apart_by_form = {}
    for name in PEER_FORMS if PEER in sides else ():
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = f"{folder}/own.npz", f"{folder}/peer.npz"
            sides[OWN].ask("work", name=name, out=ours, count=COMPARED)
            sides[PEER].ask("work", name=name, chosen=ours, out=theirs)
            with np.load(ours) as one, np.load(theirs) as other:
                apart = np.abs(one["images"].astype(int) - other["images"])
        apart_by_form[name] = {"most": int(apart.max()), "mean": float(apart.mean())}
        if apart.max() > MOST or apart.mean() > MEAN:
            why = f"ringtrain and PyTorch do not make the same images: {apart_by_form[name]}"
            raise SystemExit(f"loader: {name}: {why}")
        print(f"{name}: {COMPARED} images of both sides differ by {apart.mean():.3f} in 255, {apart.max()} at most")
    return apart_by_form


# ── the figures ───────────────────────────────────────────────────────────────────────────────────────────────
def warm(options, sides: dict[str, Processes], name: str) -> list[dict]:
    """Return a row for each number of cores: images/s and CPU seconds an image, by side, one a round."""
    rows = []
    for cores in options.cores:
        blocks = {side: [] for side in sides if side != PEER or name in PEER_FORMS}
        for turn in range(-1, options.rounds):
            for side, kept in blocks.items():
                seconds = options.seconds if turn >= 0 else 0.2
                block = sides[side].ask("warm", name=name, cores=cores, seconds=seconds)
                kept += block if turn >= 0 else []
        seconds = {side: [each["seconds"] / each["images"] for each in kept] for side, kept in blocks.items()}
        cpu = {side: median(each["cpu_s"] / each["images"] for each in kept) for side, kept in blocks.items()}
        rows.append({"form": name, "cores": cores, "seconds": seconds, "cpu_s": cpu})
        rates = ", ".join(f"{side} {_rate(rows[-1], side):,.0f}" for side in blocks)
        cpus = ", ".join(f"{side} {1e6 * each:,.0f}" for side, each in cpu.items())
        print(f"{name}, cores {cores}: images/s: {rates}; CPU, us an image: {cpus}", flush=True)
    return rows


def _rate(row: dict, side: str) -> float:
    """Return images/s."""
    return 1 / median(row["seconds"][side])


def traffic(facts: dict, form: str) -> float:
    """Return the bytes of an image through the host's memory, if no cache holds any: a copy from the page cache, pixels
    written decoded and read again, the batch written and read by the device."""
    decoded = 4 * 500 * 375 if "500" in form else 4 * 341 * 256 if "JPEG" in form else 0
    cropped = facts["file"] if form.endswith("HDF5, cropped") else 0
    return 2 * facts["file"] + (facts["file"] if decoded else cropped) + 2 * decoded + 2 * facts["upload"]


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────
def needs_table(figures: dict) -> list[str]:
    """For GOAL images/s of a GPU: bytes, and cores by the CPU time on one core."""
    rows = []
    for name, facts in figures["facts"].items():
        gigabytes = [GOAL * each / 1e9 for each in (facts["file"], facts["upload"], traffic(facts, name))]
        cores = GOAL * _cpu(figures, name)
        rows.append([name, f"{facts['file'] / 1e3:,.0f}", *(f"{each:.2f}" for each in (*gigabytes, cores))])
    return table(["form", "KB an image", "read, GB/s", "upload, GB/s", "host memory, GB/s", "cores"], rows)


def _cpu(figures: dict, form: str) -> float:
    """Return the CPU seconds of an image on the least cores."""
    return next(row["cpu_s"][OWN] for row in figures["warm"] if row["form"] == form)


def rates_table(figures: dict) -> list[str]:
    others = [side for side in (BEFORE, PEER) if any(side in row["cpu_s"] for row in figures["warm"])]
    rows = []
    for row in figures["warm"]:
        cells = [row["form"], str(row["cores"]), *_cells(_rate(row, OWN), row["cpu_s"][OWN], figures, row["form"])]
        for side in others:
            figures_of_side = [""] * 3
            if side in row["cpu_s"]:
                cpu, times = f"{1e6 * row['cpu_s'][side]:,.0f}", f"**{median(ratios(row['seconds'], side)):.2f}**"
                figures_of_side = [f"{_rate(row, side):,.0f}", cpu, times]
            cells += figures_of_side
        rows.append(cells)
    heads = [head for side in others for head in (f"{side}, images/s", f"{side}, CPU µs", "ratio")]
    return table(["form", "cores", *RATE_HEADS, *heads], rows)


RATE_HEADS = ("images/s", "MB/s", "CPU, µs an image")


def _cells(rate: float, cpu_s: float, figures: dict, form: str) -> list[str]:
    """Return the cells of RATE_HEADS."""
    return [f"{each:,.0f}" for each in (rate, rate * figures["facts"][form]["file"] / 1e6, 1e6 * cpu_s)]


def stages_table(figures: dict) -> list[str]:
    names, rows = ["read", "decode", "crop and resize"], []
    for form, stages in figures["stages"].items():
        whole = _cpu(figures, form)
        cells = [f"{1e6 * stages[name]:,.0f}" if stages[name] else "" for name in names]
        rows.append([form, *cells, f"{1e6 * (whole - sum(stages.values())):,.0f}", f"{1e6 * whole:,.0f}"])
    return table(["form", *names, "rest", "all, µs an image"], rows)


def cold_table(figures: dict) -> list[str]:
    rows = []
    for form, blocks in figures["cold"].items():
        rate = median(each["images"] / each["seconds"] for each in blocks)
        rows.append([form, *_cells(rate, median(each["cpu_s"] / each["images"] for each in blocks), figures, form)])
    return table(["form, not in memory before", *RATE_HEADS], rows)


def page(options, figures: dict) -> str:
    tiny = 1e6 * figures["tiny"]["cpu_s"][OWN]
    command = f"scripts/bench loader measure FOLDER --seconds {options.seconds:g} --rounds {options.rounds}"
    about = f"{circumstances(command, *figures['load'])}; {', '.join(figures['versions'])}."
    limit = f"An image of 8 x 8 takes {tiny:.0f} µs: a process makes at most {1e6 / tiny:,.0f} images/s, however many "
    limit += "threads it has, if the interpreter is held all of that time."
    tables = (make(figures) for make in (needs_table, rates_table, stages_table, cold_table))
    return "\n\n".join([about, *("\n".join(lines) for lines in tables), limit])


# ── the program ───────────────────────────────────────────────────────────────────────────────────────────────
def measure(options) -> None:
    figures = {"load": [os.getloadavg()[0]], "warm": [], "facts": {}, "stages": {}, "cold": {}}
    with ExitStack() as stack:
        sides = open_sides(options, stack)
        ours = sides[OWN]
        figures["versions"] = versions(sides)
        figures["apart"] = prove(sides)
        for name, form in FORMS.items():
            figures["facts"][name] = ours.ask("facts", name=name)[0]
            figures["warm"] += warm(options, sides, name)
            if form.crop:
                figures["stages"][name] = ours.ask("stages", name=name)[0]
        figures["tiny"] = warm(changed(options, cores=[1]), {OWN: ours}, TINY)[0]
        for name in (name for name, form in FORMS.items() if form.stream == "yes"):
            asked = {"name": name, "cores": max(options.cores)}
            figures["cold"][name] = [ours.ask("cold", **asked)[0] for _ in range(options.rounds)]
    figures["load"].append(os.getloadavg()[0])
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    print(f"\n{page(options, figures)}")


def versions(sides: dict[str, Processes]) -> list[str]:
    from PIL import __version__, features

    pillow = [f"Pillow {__version__}", f"libjpeg-turbo {features.version_feature('libjpeg_turbo')}"]
    peer = [sides[PEER].ask("about")[0]] if PEER in sides else []
    return [f"Python {sys.version.split()[0]}", *pillow, *peer]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("make")
    one.add_argument("folder", type=Path)
    one.add_argument("--images", type=int, default=1200, help="[1200]")
    one.set_defaults(call=lambda options: make(options.folder, options.images))
    one = commands.add_parser("measure")
    one.add_argument("folder", type=Path)
    one.add_argument("--batch", type=int, default=256, help="of a rank [256]")
    one.add_argument("--cores", type=numbers, default="1,2", help="of a rank [1,2]")
    one.add_argument("--seconds", type=float, default=3, help="of a block [3]")
    one.add_argument("--rounds", type=int, default=5, help="blocks of each side [5]")
    one.add_argument("--torch", metavar="PYTHON", help="a Python that has torch and Pillow")
    one.add_argument("--beside", metavar="CHECKOUT", help="another version of ringtrain, compiled")
    one.add_argument("--json", type=Path)
    one.set_defaults(call=measure)
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
