"""Predicted times to a target (`ringtrain plan --curves`) beside measured ones, over several links.

Curves are trained on this machine without links, as they do not depend on them; layers are measured on it, and
all-reduces between hosts over the fastest link. Steps are then measured over each link, with the algorithm that the
plan has named: what is measured is the iterations of the curve times such a step.
"""

import argparse
import json
import re
import tempfile
from pathlib import Path
from statistics import median

from plan import BETWEEN_HOSTS, MODELS, NEAR, SIZES, Machine, measure_run

from ringtrain.cli.variants import variants_of
from ringtrain.show.tables import text_lines

STRATEGIES = (
    "allreduce,sharded,delayed,gossip --gossip-max-lag 1,averaging --average-every 8,"
    "averaging --average-every 8 --compress top-k"
)


def predict(folder: Path, options: argparse.Namespace) -> list[dict]:
    """Train the curves, measure layers and all-reduces, and return the rows of the plan."""
    local, model, ranks = Machine(folder, None), options.model, options.ranks
    hosts = Machine(folder, options.rates.split(",")[-1], ranks)
    flags = ["--model", model, "--data", options.data, "--batch", options.batch, "--iterations", options.iterations]
    flags += ["--evaluate-every", options.evaluate_every]
    curves = folder / "curves"
    if not curves.exists():
        many = ["--sync", options.sync, "--seeds", options.seeds, "--out", curves]
        local.run(ranks, "compare", *many, "--", *flags)
    layers, sweep, rows = folder / "layers.json", folder / "sweep.json", folder / "target.json"
    hosts.run(ranks, "time", model, "-b", options.batch, "-n", options.steps, "-w", 2, "--json", layers)
    hosts.run(ranks, "bench-allreduce", *SIZES, "--algorithm", BETWEEN_HOSTS, "--json", sweep)
    files = ["--layers", layers, "--fabric", sweep, "--curves", curves, "--json", rows]
    local.run(1, "plan", model, *files, "--target", options.target, "--rates", options.rates, "--per-node", 1)
    content = json.loads(rows.read_text())
    print("\n".join(f"# {note}" for note in content["notes"]), flush=True)
    return content["rows"]


def measure(folder: Path, options: argparse.Namespace, rows: list[dict]) -> None:
    """Add ``measured_s``, the measured step, to each row: a median over rounds of those of a round."""
    MODELS[options.model] = options.batch, options.steps
    texts = {re.sub(r"[^A-Za-z0-9_.]+", "-", each.name): each.name for each in variants_of((), (options.sync,), ())}
    steps: dict[int, list[float]] = {}
    for number in range(options.rounds):
        for index, row in enumerate(rows):
            strategy = texts[re.sub(r"-seed-\d+$", "", row["strategy"])]
            machine = Machine(folder, row["link"], options.ranks)
            seconds = measure_run(machine, options.model, options.ranks, strategy, row["algorithm"], options.data)
            steps.setdefault(index, []).append(median(seconds))
            row["measured_s"] = median(steps[index])
            step = f"{1e3 * row['step_s']:.1f} ms predicted, {1e3 * row['measured_s']:.1f} measured"
            print(f"# round {number + 1}: {row['link']} {strategy}: {step}", flush=True)


def table(rows: list[dict]) -> list[str]:
    lines = [("link", "strategy", "iterations", "predicted s", "measured s", "error")]
    errors, right, links = [], 0, list(dict.fromkeys(row["link"] for row in rows))
    for row in rows:
        errors.append(row["step_s"] / row["measured_s"] - 1)
        iterations = row["iterations"]
        cells = [f"{iterations * row[name]:,.1f}" if iterations else "never" for name in ("step_s", "measured_s")]
        first = row["strategy"] + " *" * row["is_first"]
        lines.append((row["link"], first, f"{iterations or 0:,.0f}", *cells, f"{100 * errors[-1]:+.0f} %"))
    for link in links:
        reaching = [row for row in rows if row["link"] == link and row["iterations"]]
        best = min(reaching, key=lambda row: row["iterations"] * row["measured_s"])
        right += best["is_first"]
        if not best["is_first"]:
            lines.append((link, f"{best['strategy']} was the first", "", "", "", ""))
    near = sum(abs(error) <= NEAR for error in errors)
    return [
        *text_lines(lines, "llrrrr"),
        f"within {100 * NEAR:.0f} %: {near} of {len(errors)}; worst {100 * max(errors, key=abs):+.0f} %",
        f"the first that is named is the first over {right} of {len(links)} links",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench target", description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--data", required=True, help="of the curves: a file of `ringtrain data make`")
    parser.add_argument("--target", required=True, help='"loss 1.8"')
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--iterations", type=int, default=400, help="of a curve [%(default)s]")
    parser.add_argument("--evaluate-every", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sync", default=STRATEGIES, help="[%(default)s]")
    parser.add_argument("--rates", default="100mbit,300mbit,1gbit", help="the fastest last [%(default)s]")
    parser.add_argument("--ranks", type=int, default=4, help="each on a host of its own [%(default)s]")
    parser.add_argument("--steps", type=int, default=20, help="of a measured step [%(default)s]")
    parser.add_argument("--rounds", type=int, default=2, help="of measured steps [%(default)s]")
    parser.add_argument("--keep", type=Path, help="folder of the curves, which are not trained again if they are there")
    options = parser.parse_args()
    options.data = str(Path(options.data).resolve())
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep.resolve() if options.keep else Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = predict(folder, options)
        measure(folder, options, rows)
        print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
