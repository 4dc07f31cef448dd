"""Training iterations beside PyTorch: the same net, weights, batch a rank, precision and thread count, on one rank and
on several, which are beside DDP over gloo.

Before anything is timed both are shown to do the same work: each layer's output, the loss in training mode and the
gradient of every parameter, summed over ranks, are compared, on weights that switch nothing off. A net that differs is
refused, with the layer's name, and the exit code is 1. Batch normalisation is by a rank's batch on both sides.

docs/benchmarks/pytorch.md says what is timed and how. On a GPU PyTorch runs channels last with fused SGD, also as one
CUDA graph. A start is the time from `ringtrain train` to the line of its first iteration; from PyTorch's side, of a
program that imports torch, makes the net and runs one iteration.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from statistics import mean, median

from page import ROOT, add_options, changed, circumstances, command_line, numbers, ready_torch, table, write, write_page
from same_work import TOLERANCES, load, refusal, summary, summary_text
from side import Processes, Side, first_iteration, forget, interleaved, ratio_text, ratios

BATCHES = {"mlp": 64, "lenet": 64, "cifar10_quick": 100, "resnet20": 128, "resnet18": 32, "alexnet": 32}  # of a rank
OTHER_BATCH = 64
CPU_PRECISIONS = ("float32", "float64")
OWN, EAGER, GRAPH, COMPILE, APART = "ringtrain", "eager", "graph", "compile", "apart"
BEST_OF_GPU = "channels last, fused SGD"
HERE = Path(__file__).parent


# ── the sides of one net ──────────────────────────────────────────────────────────────────────────────────────
def launcher(ranks: int) -> list[str]:
    return [*(["mpirun", "-np", str(ranks), "--bind-to", "none"] if ranks > 1 else []), sys.executable]


def peer_words(options, *first: str) -> list[list[str]]:
    return [[options.torch, "-W", "ignore", str(HERE / "peer_side.py"), *first]] * options.ranks


def open_own(options, worlds: int = 1) -> Processes:
    words = [*launcher(options.ranks), str(HERE / "own_side.py")]
    return Processes([words] * worlds, vars(options), worlds * options.ranks)


def open_peer(options, variant: str) -> Processes:
    device = options.peer_device or options.device
    about = {**vars(options), "variant": variant, "meeting": time.monotonic_ns(), "device": device}
    return Processes(peer_words(options), about, options.ranks)


def fastest(options) -> str:
    if options.device == "cuda" or options.check:
        return BEST_OF_GPU
    with open_peer(changed(options, ranks=1), "search") as peer:
        return peer.ask("fastest")[0]


def prove(options, own_side: Processes, peer: Processes) -> dict:
    """Return the figures of two sides that do the same work. Ends the program if they do not."""
    folder, precision, figures = Path(options.folder), options.precision, {}
    own_side.ask("work")
    peer.ask("work", precision=precision)
    for rank in range(options.ranks):
        ours, theirs = load(folder / f"own-{rank}.npz"), load(folder / f"peer-{rank}.npz")
        why = refusal(ours, theirs, precision)
        if why and precision != "float64":
            print(f"{options.model}: {why}: held against PyTorch in float64 now", flush=True)
            peer.ask("work", precision="float64")
            why = refusal(ours, theirs, precision, load(folder / f"peer-{rank}.npz"))
            peer.ask("work", precision=precision)
        if why:
            name = options.model
            raise SystemExit(f"{name}: ringtrain and PyTorch do not compute the same, so nothing is timed: {why}")
        figures = figures or summary(ours, theirs)
    print(f"{options.model:14} {summary_text(figures)}", flush=True)
    return figures


def measure(options, keep) -> dict:
    """Return the row of a net. ``keep(row)``: called with the figures so far, since the rest may take too long."""
    with ExitStack() as stack:
        options.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-pytorch-"))
        own_side = stack.enter_context(open_own(options))
        ready_torch(options)
        own_side.ask("export")
        options.variant = options.variant or fastest(options)
        peer = stack.enter_context(open_peer(options, options.variant))
        row = {name: getattr(options, name) for name in ("model", "ranks", "batch", "variant", "precision", "threads")}
        row |= prove(options, own_side, peer) | own_side.ask("about")[0]
        if options.check:
            return row
        sides = [Side(OWN, own_side)]
        sides += [Side(way, peer, {"way": way}) for way in (EAGER, GRAPH) if all(peer.ask("prepare", way=way))]
        if options.ranks > 1:  # as many worlds of one rank exchange nothing
            sides.append(Side(APART, stack.enter_context(open_own(changed(options, ranks=1), options.ranks))))
        row |= _rates(options, interleaved(sides, options.seconds))
        row["memory"] = {OWN: mean(own_side.ask("memory")), EAGER: mean(peer.ask("memory"))}
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
    rates = {side: images / median(seconds) for side, seconds in samples.items()}
    pairs = {side: median(ratios(samples, side)) for side in samples if side != OWN}
    return {"images_per_s": rates, "ratio": pairs, "samples_s": samples}


def starts(options) -> dict[str, dict[str, float]]:
    """Return the seconds from command to first iteration by side: the median of warm ones, and a cold one."""
    flags = ["--model", options.model, "--synthetic", "--batch", options.batch * options.ranks, "--iterations", 1]
    ringtrain = [*launcher(options.ranks), "-m", "ringtrain", "train", *map(str, flags)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "net.json").write_bytes((Path(options.folder) / "net.json").read_bytes())
        text = json.dumps({**vars(options), "meeting": "first", "folder": folder})
        commands = {OWN: [ringtrain], EAGER: [[*each, text] for each in peer_words(options, "first")]}

        def start(side: str, **more: str) -> float:
            (Path(folder) / "meet-first").unlink(missing_ok=True)
            return first_iteration(commands[side], folder, more)

        def warm_and_cold(side: str) -> dict[str, float]:
            start(side)
            warm = median(start(side) for _ in range(options.starts))
            forget([*environments(options), str(ROOT / "ringtrain")])
            return {"warm": warm, "cold": start(side, XDG_CACHE_HOME=f"{folder}/caches-{side}")}

        return {side: warm_and_cold(side) for side in commands}


def environments(options) -> list[str]:
    """Return the folders of packages of both sides."""
    paths = "{sysconfig.get_path(name) for name in ('purelib', 'platlib', 'stdlib')}"
    words = ["-c", f"import sysconfig; print(*{paths}, sep='\\n')"]
    sides = [subprocess.run([each, *words], capture_output=True, text=True) for each in (sys.executable, options.torch)]
    return sorted({line for side in sides for line in side.stdout.splitlines()})


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────
def line(row: dict) -> str:
    rates = ", ".join(f"{side} {rate:,.0f}" for side, rate in row["images_per_s"].items())
    pairs = ", ".join(f"{ratio:.2f} of {side}" for side, ratio in row["ratio"].items())
    about = f"{row['model']:14} ranks {row['ranks']} batch {row['batch']:<4} {row['precision']:9}"
    return f"{about} images/s: {rates}: {pairs} ({row['variant']})"


def markdown(options, rows: list[dict], load_before: float) -> str:
    """Return the tables, with the machine, the date and the versions."""
    versions = [f"Python {platform.python_version()}"]
    versions += [f"{name} {metadata.version(name)}" for name in ("numpy", "mpi4py")]
    how = circumstances(command_line(sys.argv[1:], "pytorch"), load_before)
    head = f"{how}; {', '.join(versions)}, {rows[0]['device']}; PyTorch's side {ready_torch(options)}."
    heads = ["net, batch a rank", "ranks", "ringtrain, images/s", "PyTorch, images/s", "ratio (least, most)"]
    speeds = table([*heads, "PyTorch's way", "ranks together / apart"], list(map(_speed_cells, rows)))
    memory = "memory of a rank, ringtrain / PyTorch, MiB"
    heads = ["net", "ranks", memory, "ratio", "first iteration, warm, s", "cold, s"]
    return "\n".join([head, "", *speeds, "", *table(heads, list(map(_memory_cells, rows))), ""])


def _speed_cells(row: dict) -> list[str]:
    rates = [f"{row['images_per_s'][side]:,.0f}" for side in (OWN, EAGER)]
    apart = f"{row['ratio'][APART]:.3f}" if APART in row["ratio"] else ""
    pairs = ratio_text(ratios(row["samples_s"], EAGER))
    return [f"{row['model']}, {row['batch']}", str(row["ranks"]), *rates, pairs, row["variant"], apart]


def _memory_cells(row: dict) -> list[str]:
    ours, theirs = (row["memory"][side] / 2**20 for side in (OWN, EAGER))
    begun = row.get("start_s")
    seconds = [f"{begun[OWN][how]:.2f} / {begun[EAGER][how]:.2f}" if begun else "" for how in ("warm", "cold")]
    return [row["model"], str(row["ranks"]), f"{ours:,.0f} / {theirs:,.0f}", f"{ours / theirs:.2f}", *seconds]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(BATCHES), help=f"[{', '.join(BATCHES)}]")
    parser.add_argument("--ranks", type=numbers, default="1", help="one number, or several: 1,2 [1]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peer-device", choices=("cpu", "cuda"), help="PyTorch's, where it is another: in a rehearsal")
    parser.add_argument("--precision", choices=tuple(TOLERANCES), default="float32", help="float64: of the CPU")
    batches = ", ".join(f"{name} {batch}" for name, batch in BATCHES.items())
    parser.add_argument("--batch", type=int, help=f"of a rank [{batches}, others {OTHER_BATCH}]")
    parser.add_argument("--starts", type=int, default=0, help="starts to the first iteration, warm, and one cold [0]")
    parser.add_argument("--compile", action="store_true", help="torch.compile as a further side, timed last")
    parser.add_argument("--check", action="store_true", help="compare what is computed, and time nothing")
    add_options(parser)
    options = parser.parse_args()
    if (options.precision in CPU_PRECISIONS) is not (options.device == "cpu") and options.precision != "float32":
        parser.error(f"--precision {options.precision} is not of --device {options.device}")
    if max(options.ranks) > 1 and options.device == "cuda":
        parser.error("--ranks above 1 are of --device cpu")
    return options


def main() -> None:
    options, rows, load_before = parse(), [], os.getloadavg()[0]
    for name in options.models:
        variant = None
        for at, ranks in enumerate(options.ranks):
            batch, first = options.batch or BATCHES.get(name, OTHER_BATCH), options.starts * (at == 0)
            asked = changed(options, model=name, ranks=ranks, batch=batch, variant=variant, starts=first)
            rows.append(measure(asked, lambda row: write(options.json, json.dumps([*rows, row], indent=1))))
            variant = rows[-1]["variant"]
            write(options.json, json.dumps(rows, indent=1))
            if not options.check:
                print(line(rows[-1]), flush=True)
                text = markdown(options, rows, load_before)
                write_page(options.page, text)
    if not options.check:
        print(f"\n{text}")


if __name__ == "__main__":
    main()
