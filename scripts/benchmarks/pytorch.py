"""Training iterations beside PyTorch: the same net, weights, batch a rank, precision and thread count, on one rank and
on several, which are beside DDP over gloo.

Before anything is timed both are shown to do the same work: each layer's output, the loss in training mode and the
gradient of every parameter, summed over ranks, are compared, on weights that switch nothing off. A net that differs is
refused, with the layer's name, and the exit code is 1. Batch normalisation is by a rank's batch on both sides.

Each side runs in processes of its own. Blocks of iterations are timed in turn, ringtrain, PyTorch, ringtrain, PyTorch
..., on one batch that stays the same; a ratio is the median over these pairs, and above 1 if ringtrain is faster. On
the CPU PyTorch takes the fastest of four ways: images last or first, SGD fused or by lists. On a GPU it runs channels
last with fused SGD, also as one CUDA graph. torch is installed into the environment of scripts/bench, unless it is
there or --torch names the Python of another.

A start is the time from `ringtrain train` to the line of its first iteration; from PyTorch's side, of a program that
imports torch, makes the net and runs one iteration. Cold: no file of both environments is in memory, but those that
other programs use, and ringtrain's caches are empty. Memory is the proportional set size of a rank after the blocks.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

from page import FIGURES, circumstances, command_line, numbers, table, torch_version, write, write_page
from same_work import TOLERANCES, load, refusal, summary, told
from side import ROOT, Processes, Side, first_iteration, forget, interleaved, ratio

TORCH = "torch==2.13.0"
BATCHES = {"mlp": 64, "lenet": 64, "cifar10_full": 100, "resnet20": 128, "resnet18": 32, "alexnet": 32}  # of a rank
OTHER_BATCH = 64
OF_CPU = ("float32", "float64")
OWN, EAGER, GRAPH, COMPILE, APART = "ringtrain", "eager", "graph", "compile", "apart"
BEST_OF_GPU = "channels last, fused SGD"
HERE = Path(__file__).parent


# ── the sides of one net ──────────────────────────────────────────────────────────────────────────────────────
def own_words(options) -> list[str]:
    return [*_launcher(options.ranks), sys.executable, str(HERE / "own_side.py")]


def _launcher(ranks: int) -> list[str]:
    return ["mpirun", "-np", str(ranks), "--bind-to", "none"] if ranks > 1 else []


def peer_words(options, *first: str) -> list[list[str]]:
    return [[options.torch, "-W", "ignore", str(HERE / "peer_side.py"), *first]] * options.ranks


def open_own(options) -> Processes:
    return Processes([own_words(options)], vars(options), options.ranks)


def open_apart(options) -> Processes:
    """As many worlds of one rank: ranks that exchange nothing."""
    alone = {**vars(options), "ranks": 1}
    return Processes([own_words(argparse.Namespace(**alone))] * options.ranks, alone, options.ranks)


def open_peer(options, variant: str) -> Processes:
    told = {**vars(options), "variant": variant, "meeting": time.monotonic_ns()}
    told["device"] = options.peer_device or options.device
    return Processes(peer_words(options), told, options.ranks)


def fastest(options) -> str:
    if options.device == "cuda" or options.check:
        return BEST_OF_GPU
    with open_peer(argparse.Namespace(**{**vars(options), "ranks": 1}), "search") as peer:
        return peer.ask("fastest")[0]


def prove(options, own: Processes, peer: Processes) -> dict:
    """Return the figures of two sides that do the same work. Ends the program if they do not."""
    folder, precision, found = Path(options.folder), options.precision, {}
    own.ask("work")
    for rank in range(options.ranks):
        peer.ask("work", precision=precision) if rank == 0 else None
        mine, theirs = load(folder / f"own-{rank}.npz"), load(folder / f"peer-{rank}.npz")
        why = refusal(mine, theirs, precision)
        if why and precision != "float64":
            print(f"{options.model}: {why}: held against PyTorch in float64 now", flush=True)
            peer.ask("work", precision="float64")
            why = refusal(mine, theirs, precision, load(folder / f"peer-{rank}.npz"))
            peer.ask("work", precision=precision)
        if why:
            name = options.model
            raise SystemExit(f"{name}: ringtrain and PyTorch do not compute the same, so nothing is timed: {why}")
        found = found or summary(mine, theirs)
    print(f"{options.model:14} {told(found)}", flush=True)
    return found


def measure(options, keep) -> dict:
    """Return the row of a net. ``keep(row)``: called with the figures so far, since the rest may take too long."""
    with ExitStack() as stack:
        options.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-pytorch-"))
        own = stack.enter_context(open_own(options))
        ready_torch(options)
        own.ask("export")
        options.variant = options.variant or fastest(options)
        peer = stack.enter_context(open_peer(options, options.variant))
        row = {"model": options.model, "ranks": options.ranks, "batch": options.batch, "variant": options.variant}
        row |= {"precision": options.precision, "threads": options.threads}
        row |= prove(options, own, peer) | own.ask("about")[0]
        if options.check:
            return row
        sides = [Side(OWN, own)]
        sides += [Side(way, peer, {"way": way}) for way in (EAGER, GRAPH) if all(peer.ask("prepare", way=way))]
        if options.ranks > 1:
            sides.append(Side(APART, stack.enter_context(open_apart(options))))
        row |= _rates(options, interleaved(sides, options.seconds))
        row["memory"] = {OWN: statistics.mean(own.ask("memory")), EAGER: statistics.mean(peer.ask("memory"))}
        if options.starts:
            row["start_s"] = starts(options)
        keep(row)
        if options.compile:
            peer.ask("prepare", way=COMPILE)
            later = _rates(options, interleaved([sides[0], Side(COMPILE, peer, {"way": COMPILE})], options.seconds))
            row["ratio"] |= later["ratio"]
            row["images_per_s"][COMPILE] = later["images_per_s"][COMPILE]
        return row


def _rates(options, samples: dict[str, list[float]]) -> dict:
    images = options.batch * options.ranks
    rates = {side: images / statistics.median(seconds) for side, seconds in samples.items()}
    return {
        "images_per_s": rates,
        "ratio": {side: ratio(samples, side, OWN) for side in samples if side != OWN},
        "samples_s": samples,
    }


def starts(options) -> dict[str, dict[str, float]]:
    """Return the seconds from command to first iteration by side: the median of warm ones, and a cold one."""
    found = {}
    told = {**vars(options), "meeting": "first"}
    flags = ["--model", options.model, "--synthetic", "--batch", options.batch * options.ranks, "--iterations", 1]
    ringtrain = [*_launcher(options.ranks), sys.executable, "-m", "ringtrain", "train", *map(str, flags)]
    for side in (OWN, EAGER):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "net.json").write_bytes((Path(options.folder) / "net.json").read_bytes())
            text = json.dumps(told | {"folder": folder})
            words = [ringtrain] if side == OWN else [[*each, text] for each in peer_words(options, "first")]

            def start(more: dict[str, str], words=words, folder=folder) -> float:
                (Path(folder) / "meet-first").unlink(missing_ok=True)
                return first_iteration(words, folder, more)

            start({})
            warm = statistics.median(start({}) for _ in range(options.starts))
            forget([*environments(options), str(ROOT / "ringtrain")])
            empty = {"XDG_CACHE_HOME": f"{folder}/caches"}
            found[side] = {"warm": warm, "cold": start(empty)}
    return found


def environments(options) -> list[str]:
    """Return the folders of packages of both sides."""
    paths = "{sysconfig.get_path(name) for name in ('purelib', 'platlib', 'stdlib')}"
    words = ["-c", f"import sysconfig; print(*{paths}, sep='\\n')"]
    sides = [subprocess.run([each, *words], capture_output=True, text=True) for each in (sys.executable, options.torch)]
    return sorted({line for side in sides for line in side.stdout.splitlines()})


def ready_torch(options) -> None:
    there = "import sys, importlib.util; sys.exit(importlib.util.find_spec('torch') is None)"
    if subprocess.run([options.torch, "-c", there]).returncode == 0:
        return
    if options.device == "cuda":
        raise SystemExit("bench pytorch: torch is not installed: install a build for the CUDA of this driver")
    subprocess.run([options.torch, "-m", "pip", "install", "--quiet", TORCH], check=True)


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────
def line(row: dict) -> str:
    rates = ", ".join(f"{side} {rate:,.0f}" for side, rate in row["images_per_s"].items())
    ratios = ", ".join(f"{ratio:.2f} of {side}" for side, ratio in row["ratio"].items())
    about = f"{row['model']:14} ranks {row['ranks']} batch {row['batch']:<4} {row['precision']:9}"
    return f"{about} images/s: {rates}: {ratios} ({row['variant']})"


def markdown(options, rows: list[dict], load_before: float) -> str:
    """Return the tables, with the machine, the date and the versions."""
    versions = [f"Python {platform.python_version()}"]
    versions += [f"{name} {metadata.version(name)}" for name in ("numpy", "mpi4py")]
    how = circumstances(command_line(sys.argv[1:], "pytorch"), load_before)
    peer = torch_version(options.torch)
    head = f"{how}; {', '.join(versions)}, {rows[0]['device']}; PyTorch's side {peer}."
    return "\n".join([head, "", *_speed_table(rows), "", *_rest_table(rows), ""])


def _speed_table(rows: list[dict]) -> list[str]:
    """A row a net and number of ranks."""
    lines = []
    for row in rows:
        own, peer = (row["samples_s"][side] for side in (OWN, EAGER))
        pairs = [there / here for there, here in zip(peer, own, strict=True)]
        ratios = f"**{row['ratio'][EAGER]:.2f}** ({min(pairs):.2f}, {max(pairs):.2f})"
        rates = [f"{row['images_per_s'][side]:,.0f}" for side in (OWN, EAGER)]
        apart = f"{row['ratio'][APART]:.3f}" if APART in row["ratio"] else ""
        net = f"{row['model']}, {row['batch']}"
        lines.append([net, str(row["ranks"]), *rates, ratios, row["variant"], apart])
    heads = ["net, batch a rank", "ranks", "ringtrain, images/s", "PyTorch, images/s", "ratio (least, most)"]
    return table([*heads, "PyTorch's way", "ranks together / apart"], lines)


def _rest_table(rows: list[dict]) -> list[str]:
    lines = []
    for row in rows:
        own, peer = (row["memory"][side] / 2**20 for side in (OWN, EAGER))
        begun = row.get("start_s")
        seconds = [f"{begun[OWN][how]:.2f} / {begun[EAGER][how]:.2f}" if begun else "" for how in ("warm", "cold")]
        lines.append([row["model"], str(row["ranks"]), f"{own:,.0f} / {peer:,.0f}", f"{own / peer:.2f}", *seconds])
    memory = "memory of a rank, ringtrain / PyTorch, MiB"
    return table(["net", "ranks", memory, "ratio", "first iteration, warm, s", "cold, s"], lines)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(BATCHES), help=f"[{', '.join(BATCHES)}]")
    parser.add_argument("--ranks", type=numbers, default="1", help="one number, or several: 1,2 [1]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peer-device", choices=("cpu", "cuda"), help="PyTorch's, where it is another: in a rehearsal")
    parser.add_argument("--precision", choices=tuple(TOLERANCES), default="float32", help="float64: of the CPU")
    batches = ", ".join(f"{name} {batch}" for name, batch in BATCHES.items())
    parser.add_argument("--batch", type=int, help=f"of a rank [{batches}, others {OTHER_BATCH}]")
    parser.add_argument("--threads", type=int, default=1, help="of both, on the CPU [1]")
    parser.add_argument("--seconds", type=float, default=15, help="of the blocks of a net at a number of ranks [15]")
    parser.add_argument("--starts", type=int, default=0, help="starts to the first iteration, warm, and one cold [0]")
    parser.add_argument("--compile", action="store_true", help="torch.compile as a further side, timed last")
    parser.add_argument("--check", action="store_true", help="compare what is computed, and time nothing")
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="a Python that has torch")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--page", help=f"write the tables to this file, after its heading {FIGURES.strip()}")
    options = parser.parse_args()
    if (options.precision in OF_CPU) is not (options.device == "cpu") and options.precision != "float32":
        parser.error(f"--precision {options.precision} is not of --device {options.device}")
    if max(options.ranks) > 1 and options.device == "cuda":
        parser.error("--ranks above 1 are of --device cpu")
    return options


def main() -> int:
    options, rows, load_before = parse(), [], os.getloadavg()[0]
    for name in options.models:
        variant = None
        for at, ranks in enumerate(options.ranks):
            batch = options.batch or BATCHES.get(name, OTHER_BATCH)
            own = {"model": name, "ranks": ranks, "batch": batch, "variant": variant}
            asked = argparse.Namespace(**{**vars(options), **own, "starts": 0 if at else options.starts})
            rows.append(measure(asked, lambda row: write(options.json, json.dumps([*rows, row], indent=1))))
            variant = rows[-1]["variant"]
            if not options.check:
                print(line(rows[-1]), flush=True)
            write(options.json, json.dumps(rows, indent=1))
            if options.page and not options.check:
                write_page(options.page, markdown(options, rows, load_before))
    if not options.check:
        print(f"\n{markdown(options, rows, load_before)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
