"""Methods of low communication on a GPT of bytes: loss, bytes, tokens/s by link, and seconds to a loss.

    scripts/bench methods losses --runs F      train each method with each seed: losses do not depend on the link
    scripts/bench methods times --runs F       a hundred iterations of each method on hosts of scripts/cluster
    scripts/bench methods table --runs F       the table and the picture, of the runs that are in F

A run that is in the folder is not made again. Two front ends: `own`, scripts/benchmarks/gpt-small.toml under `ringtrain
train`; `torch`, its twin scripts/benchmarks/gpt_small.py under `python -m ringtrain.torch`. Both read the text of
Python's own help, as `ringtrain data make` divides it.
"""

import argparse
import os
import pydoc_data.topics
import shlex
import shutil
import subprocess
import sys
import time
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev

from page import ROOT, circumstances, table, write_page
from worlds import records

HERE = Path(__file__).parent
RANKS, BATCH, TOKENS, ITERATIONS, EVERY = 4, 32, 128, 1000, 50
BEGIN = ITERATIONS // 10  # iterations of methods that begin as all-reduce
PERIOD = 20  # iterations between averages of every method that has periods
TIMED, WARM_UP = 100, 20  # iterations of a run on hosts, and those that are not looked at
BASE = "allreduce"
METHODS = {
    BASE: "",
    "allreduce 16 bits": "--wire bfloat16",
    "delayed": "--sync delayed",
    "PowerSGD": "--compress powersgd",
    "top-k 1 %": "--compress top-k",
    "4 bits": "--compress quantise --compress-bits 4",
    "sign (1-bit Adam)": "--compress sign --compress-from {begin}",
    "averaging": f"--sync averaging --average-every {PERIOD} --average-momentum keep",
    "post-local": f"--sync post-local --average-every {PERIOD} --average-from {{begin}}",
    "diloco": f"--sync diloco --average-every {PERIOD}",
    "streaming-diloco": f"--sync streaming-diloco --average-every {PERIOD}",
    "sparseloco": f"--sync sparseloco --average-every {PERIOD}",
    "noloco": f"--sync noloco --gossip-every {PERIOD}",
    "easgd": f"--sync easgd --average-every {PERIOD} --centre-rate {0.9 / RANKS}",
    "gossip": "--sync gossip",
    "sgp": "--sync sgp",
}
MESSAGES = ("--algorithm", "ring")  # the one of hosts, so that bytes are those of hosts
FRONTS = {"own": "ringtrain train", "torch": "a script of PyTorch"}


# ── one run ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def text_set(folder: Path) -> Path:
    """Return the data set: the text of Python's help by topic, as windows of bytes."""
    path = folder / "topics.h5"
    if not path.exists():
        topics = pydoc_data.topics.topics
        (folder / "topics.txt").write_text("\n\n".join(topics[name] for name in sorted(topics)))
        ringtrain = [sys.executable, "-m", "ringtrain", "data", "make"]
        subprocess.run([*ringtrain, folder / "topics.txt", "-o", path], check=True, capture_output=True)
    return path


def command(
    front: str, data: Path, out: Path, flags: list[str], seed: int, iterations: int, evaluate: int
) -> list[str]:
    """Return the command of one rank."""
    if front == "own":
        words = ["-m", "ringtrain", "train", "--model", HERE / "gpt-small.toml", "--data", data, "--seed", seed]
        words += ["--iterations", iterations, "--evaluate-every", evaluate, "--checkpoint-every", 10**9, "--out", out]
        return [sys.executable, *map(str, [*words, *flags])]
    script = [HERE / "gpt_small.py", data, "--iterations", iterations, "--evaluate-every", evaluate]
    return [sys.executable, *map(str, ["-m", "ringtrain.torch", "--out", out, "--seed", seed, *flags, *script])]


def run(launcher: list[str], words: list[str], out: Path) -> None:
    """Run it unless its folder says that it is done; of a failure a line says why, and the next method goes on."""
    if is_done(out):
        return
    shutil.rmtree(out, ignore_errors=True)  # of a run that did not end
    began = time.monotonic()
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, *words], capture_output=True, text=True, env=environ)
    ending = "" if done.returncode == 0 else f" exit {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}"
    print(f"{out}: {time.monotonic() - began:.0f} s{ending}", flush=True)


def is_done(out: Path) -> bool:
    return any(each["event"] == "end" and each.get("reason") == "done" for each in records(out))


def flags_of(method: str, begin: int) -> list[str]:
    """Return the flags; ``begin``: the iteration from which methods differ that begin as all-reduce."""
    return [*MESSAGES, *shlex.split(METHODS[method].format(begin=begin))]


def losses(options) -> None:
    data = text_set(options.runs)
    launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(RANKS)]
    for seed in range(options.seeds):
        for front in options.fronts:
            for method in options.methods:
                out = options.runs / "losses" / front / f"{method} {seed}"
                run(launcher, command(front, data, out, flags_of(method, BEGIN), seed, ITERATIONS, EVERY), out)


def times(options) -> None:
    data = text_set(options.runs)
    for number in range(options.seeds):
        for rate in options.rates:
            launcher = [str(ROOT / "scripts" / "cluster"), "run", "-n", str(RANKS), "--rate", rate, "--"]
            for front in options.fronts:
                for method in options.methods:
                    out = options.runs / "times" / front / rate / f"{method} {number}"
                    words = command(front, data, out, flags_of(method, WARM_UP), 0, WARM_UP + TIMED, 10**9)
                    run(launcher, words, out)


# ── what the runs say ─────────────────────────────────────────────────────────────────────────────────────────────────
@cache
def curve(out: Path) -> dict[int, float]:
    """Return the test losses by iteration."""
    return {each["iteration"]: each["test_loss"] for each in records(out) if each["event"] == "evaluation"}


def runs_of(options, kind: str, front: str, method: str) -> list[Path]:
    folders = sorted((options.runs / kind / front).glob(f"{method} [0-9]"))
    return [out for out in folders if is_done(out)]


def bytes_of(out: Path) -> float:
    """Return the bytes that a rank sends in an iteration, of the rank that sends most."""
    (ranks,) = [each for each in records(out) if each["event"] == "ranks"]
    return max(ranks["bytes_sent"]) / max(each["iteration"] for each in records(out) if "iteration" in each)


def step_s(options, front: str, rate: str, method: str) -> float | None:
    """Return the seconds of an iteration: the median over runs of the mean over whole periods."""
    seconds = []
    for out in runs_of(options, f"times/{front}", rate, method):
        stamps = [each["seconds"] for each in records(out) if each["event"] == "iteration"][WARM_UP - 1 :]
        periods = [(b - a) / PERIOD for a, b in zip(stamps[::PERIOD], stamps[PERIOD::PERIOD], strict=False)]
        seconds.append(median(periods))
    return median(seconds) if seconds else None


def reached(losses_by_iteration: dict[int, float], target: float) -> int | None:
    """Return the first iteration whose test loss is the target or less."""
    return next((iteration for iteration, loss in sorted(losses_by_iteration.items()) if loss <= target), None)


def rows(options, front: str) -> tuple[list[list[str]], list[tuple[str, float, float]]]:
    """Return the table's rows, and (method, bytes, loss) for the picture."""
    lines, points = [], []
    base = [curve(out) for out in runs_of(options, "losses", front, BASE)]
    targets = [options.target or each[ITERATIONS * 9 // 10] for each in base]
    for method in options.methods:
        outs = runs_of(options, "losses", front, method)
        if not outs:
            continue
        ends = [curve(out)[ITERATIONS] for out in outs]
        gaps = [end - reference[ITERATIONS] for end, reference in zip(ends, base, strict=False)]
        sent = mean(map(bytes_of, outs))
        arrivals = [reached(curve(out), target) for out, target in zip(outs, targets, strict=False)]
        steps = [step_s(options, front, rate, method) for rate in options.rates]
        known = [each for each in arrivals if each is not None]
        first = median(known) if len(known) == len(arrivals) else None
        lines.append(
            [
                method,
                str(len(outs)),
                spread(ends, "{:.3f}"),
                spread(gaps, "{:+.3f}"),
                f"{sent / 1e3:,.1f}",
                *(f"{BATCH * TOKENS / step:,.0f}" if step else "–" for step in steps),
                f"{first:,.0f}" if first else f"{len(known)} of {len(arrivals)}",
                *(f"{first * step:,.1f}" if first and step else "–" for step in steps),
            ]
        )
        points.append((method, sent, mean(ends)))
    return lines, points


def spread(values: list[float], form: str) -> str:
    middle = form.format(mean(values))
    return f"{middle} ± {stdev(values):.3f}" if len(values) > 1 else middle


def picture(points: dict[str, list[tuple[str, float, float]]], path: Path) -> None:
    """Draw bytes and loss of the methods, with the front of those that no other beats in both."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((6.4 * len(points), 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(points), squeeze=False)[0]
    for axes, (front, each) in zip(panels, points.items(), strict=True):
        best = [p for p in each if not any(q[1] <= p[1] and q[2] <= p[2] and q != p for q in each)]
        axes.plot(*zip(*[p[1:] for p in sorted(best, key=lambda p: p[1])], strict=True), color="#cc4444", zorder=1)
        for point in each:
            axes.scatter(*point[1:], color="#cc4444" if point in best else "#4477aa", s=22, zorder=2)
        axes.set(
            xscale="log", xlabel="bytes that a rank sends in an iteration", ylabel="test loss", title=FRONTS[front]
        )
        axes.margins(x=0.15)
        axes.grid(alpha=0.3)
    figure.canvas.draw()  # places are known from here on
    for axes, each in zip(panels, points.values(), strict=True):
        label(axes, each)
    figure.savefig(path, dpi=110)


def label(axes, points: list[tuple[str, float, float]]) -> None:
    """Write each name beside its point, where none is yet."""
    taken = []
    for name, *place in points:
        for (x, align), y in product(((6, "left"), (-6, "right")), (-3, 7, -13, 17, -23)):
            text = axes.annotate(name, place, (x, y), textcoords="offset points", fontsize=8, ha=align)
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def show(options) -> None:
    heads = ["method", "seeds", "test loss", "against all-reduce", "kB a rank and iteration"]
    heads += [f"tokens/s, {rate}" for rate in options.rates]
    heads += ["iterations to the loss", *(f"seconds to it, {rate}" for rate in options.rates)]
    text, points = [circumstances("scripts/bench methods table", os.getloadavg()[0]), ""], {}
    for front in options.fronts:
        lines, points[front] = rows(options, front)
        text += [f"### {front}", "", *table(heads, lines), ""]
    print("\n".join(text))
    write_page(options.page, "\n".join(text))
    if options.plot:
        picture(points, Path(options.plot))


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench methods", description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("losses", "times", "table"))
    parser.add_argument("--runs", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--seeds", type=int, default=3, help="of losses; of times: rounds [3]")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS), help="[all]")
    parser.add_argument("--fronts", type=lambda text: text.split(","), default=list(FRONTS), help="[own,torch]")
    parser.add_argument("--rates", type=lambda text: text.split(","), default=["100mbit", "1gbit", "10gbit"])
    parser.add_argument("--target", type=float, help="a test loss [that of all-reduce after 90 %% of its iterations]")
    parser.add_argument("--page", help="write the tables into this page")
    parser.add_argument("--plot", help="draw the picture here")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    {"losses": losses, "times": times, "table": show}[options.what](options)


if __name__ == "__main__":
    main()
