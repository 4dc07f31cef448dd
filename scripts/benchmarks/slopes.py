"""Star and ring: the time of one all-reduce against the number of ranks, beside 2(K-1)n/b and 2(1-1/K)n/b.

`ringtrain bench-allreduce` measures times, and b in two ways: of one pair of ranks alone, and of all links busy. Writes
slopes.png to --out and prints a Markdown table.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

FACTORS = {"star": lambda ranks: 2 * (ranks - 1), "ring": lambda ranks: 2 * (1 - 1 / ranks)}
FORMULAS = {"star": "2(K-1)·n/b", "ring": "2(1-1/K)·n/b"}
COLOURS = {"star": "tab:red", "ring": "tab:blue"}
RATES = {"pair_bytes_per_s": ("--", "b of one pair"), "busy_bytes_per_s": (":", "b of links busy")}


def sweep(options, ranks: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path, size = f"{folder}/sweep.json", str(int(options.mib * 2**20))
        command = [*shlex.split(options.launch.format(ranks=ranks)), sys.executable, "-m", "ringtrain"]
        command += ["bench-allreduce", "--algorithm", "star,ring", "-b", size, "-e", size, "--json", path]
        subprocess.run([*command, *(["--segment-bytes", size] if options.whole else [])], check=True)
        return json.loads(Path(path).read_text())


def milliseconds(found: dict[int, dict]) -> dict[str, dict[int, float]]:
    """Curves by label: what was measured, and each formula with each b."""
    curves: dict[str, dict[int, float]] = {}
    for ranks, one in found.items():
        (link,) = one["header"]["calibration"]["links"].values()  # all inside a node, or all between nodes
        for row in one["rows"]:
            name = row["algorithm"]
            curves.setdefault(f"{name}, ms", {})[ranks] = 1e3 * row["median_s"]
            for rate, (_, words) in RATES.items():
                least_s = FACTORS[name](ranks) * row["bytes"] / link[rate]
                curves.setdefault(f"{FORMULAS[name]}, {words}", {})[ranks] = 1e3 * least_s
    return curves


def draw(curves: dict[str, dict[int, float]], path: Path) -> None:
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(7, 4.5), layout="constrained")).add_subplot()
    styles = {f"{name}, ms": (name, "o") for name in FORMULAS}
    styles |= {f"{FORMULAS[name]}, {words}": (name, style) for name in FORMULAS for style, words in RATES.values()}
    for label, points in curves.items():
        name, style = styles[label]
        axes.plot(list(points), list(points.values()), style, color=COLOURS[name], label=label)
    axes.set(xlabel="ranks K", ylabel="time of one all-reduce (ms)", ylim=(0, None))
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=16, help="MiB of the buffer")
    parser.add_argument("--ranks", type=int, default=8, help="the largest number of ranks")
    parser.add_argument("--whole", action="store_true", help="send messages whole, as the formulas assume")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of slopes.png")
    parser.add_argument("--launch", default="mpirun -np {ranks}", help="how ranks are started")
    options = parser.parse_args()
    curves = milliseconds({ranks: sweep(options, ranks) for ranks in range(2, options.ranks + 1)})
    options.out.mkdir(parents=True, exist_ok=True)
    draw(curves, options.out / "slopes.png")
    rows = [["K", *map(str, next(iter(curves.values())))]]
    rows += [["---"] * len(rows[0]), *([label, *(f"{ms:.3g}" for ms in own.values())] for label, own in curves.items())]
    print("\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
