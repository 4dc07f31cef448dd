"""Predictions of ``ringtrain plan`` beside measured runs, of one machine in one session.

Layers, all-reduces and the runs of every strategy are measured in turns, so that all meet the same load. A run's figure
is from the time stamps of one epoch of random images; a prediction is made from layers and all-reduces alone.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from ringtrain.nn import spec
from ringtrain.plan.exchange_times import ExchangeTimes
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.prediction import PlanSettings, predict
from ringtrain.plan.strategies import STRATEGIES
from ringtrain.tables import text_lines

MODELS = {"mlp": (128, 100), "resnet20": (128, 15), "alexnet": (32, 9)}  # batch, iterations
WARM_UP = 3  # iterations that are not looked at
AVERAGE_EVERY = 2
NEAR = 0.15
ALGORITHMS = "ring,star,sliced,butterfly,mapped,stream"
BETWEEN_HOSTS = "ring,star,sliced,butterfly,hierarchical"
SIZES = ("-b", "16K", "-e", "64M", "-f", "4", "-n", "7", "-w", "2", "--budget-s", "2")
NEVER = str(10**9)
ROOT = Path(__file__).resolve().parents[2]


class Machine:
    """Where commands run: here, or on hosts of scripts/cluster with a limited rate."""

    def __init__(self, folder: Path, hosts: int, rate: str | None):
        self.folder, self.hosts, self.rate = folder, hosts, rate

    def run(self, ranks: int, *arguments) -> None:
        """Run a command of ringtrain on so many ranks; an error ends the benchmark."""
        command = [*self._launcher(ranks), sys.executable, "-m", "ringtrain", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def _launcher(self, ranks: int) -> list[str]:
        if self.rate is None or ranks == 1:
            return ["mpirun", "-np", str(ranks)]
        cluster = [str(ROOT / "scripts" / "cluster"), "run", "-n", str(self.hosts)]
        return [*cluster, "--ranks", str(ranks // self.hosts), "--rate", self.rate, "--"]

    def per_node(self, ranks: int) -> int:
        return ranks if self.rate is None or ranks == 1 else ranks // self.hosts


def make_data(machine: Machine, model: str) -> Path:
    """Return an epoch of random images."""
    path, (batch, iterations) = machine.folder / f"{model}.npz", MODELS[model]
    if not path.exists():
        random, graph = np.random.default_rng(0), spec.load_model(model).graph()
        count, classes = batch * (iterations + 1), graph.shapes[graph.output][-1]
        images = random.integers(0, 256, (count, *graph.input_shape), dtype=np.uint8)
        labels = np.arange(count) % classes
        labels[-1] = classes - 1  # so many classes has the set
        np.savez(path, x=images, y=labels)
    return path


def measure_run(machine: Machine, model: str, ranks: int, strategy: str) -> list[float]:
    """Return the seconds of an iteration, each of them; of averaging the means of its periods."""
    batch, iterations = MODELS[model]
    out = Path(tempfile.mkdtemp(dir=machine.folder)) / "run"
    given = ["--model", model, "--data", make_data(machine, model), "--batch", batch, "--iterations", iterations]
    given += ["--sync", strategy, "--out", out, "--checkpoint-every", NEVER, "--evaluate-every", NEVER]
    given += ["--average-every", AVERAGE_EVERY] if strategy == "averaging" else []
    machine.run(ranks, "train", *given)
    records = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    stamps = [found["seconds"] for found in records if found["event"] == "iteration"][WARM_UP - 1 :]
    each = AVERAGE_EVERY if strategy == "averaging" else 1  # a whole period
    return [(stamps[i] - stamps[i - each]) / each for i in range(each, len(stamps), each)]


def measure(machine: Machine, models: list[str], counts: list[int], rounds: int) -> dict:
    """Return the seconds of each run by (model, ranks, strategy), of all rounds; and write the files of a prediction,
    by (model, ranks) and round."""
    found: dict[tuple, list[float]] = {}
    for number in range(rounds):
        for ranks in counts:
            if ranks > 1:
                names = ALGORITHMS if machine.rate is None else BETWEEN_HOSTS
                sweep = machine.folder / f"sweep-{ranks}-{number}.json"
                machine.run(ranks, "bench-allreduce", *SIZES, "--algorithm", names, "--json", sweep)
            for model in models:
                layers = machine.folder / f"{model}-{ranks}-{number}.json"
                machine.run(ranks, "time", model, "-b", MODELS[model][0], "-w", 2, "--json", layers)
                for strategy in STRATEGIES if ranks > 1 else ["allreduce"]:
                    key = model, ranks, strategy
                    found.setdefault(key, []).extend(measure_run(machine, model, ranks, strategy))
                    print(f"# round {number + 1}: {key} {1e3 * statistics.median(found[key]):.2f} ms", flush=True)
    return found


def predicted(machine: Machine, model: str, ranks: int, rounds: int, most: int) -> dict[str, float]:
    """Return the median over rounds of the step by strategy, with the algorithms that training takes."""
    steps: dict[str, list[float]] = {}
    for number in range(rounds):
        layers = LayerTimes([str(machine.folder / f"{model}-{ranks}-{number}.json")])
        exchanges = ExchangeTimes(str(machine.folder / f"sweep-{ranks if ranks > 1 else most}-{number}.json"))
        settings = PlanSettings(MODELS[model][0], per_node=machine.per_node(ranks), average_every=AVERAGE_EVERY)
        for row in predict(layers, exchanges, [ranks], list(STRATEGIES), [], settings):
            steps.setdefault(row.strategy, []).append(row.step_s)
    return {strategy: statistics.median(found) for strategy, found in steps.items()}


def table(machine: Machine, found: dict, rounds: int) -> list[str]:
    most, rows, errors, winners = max(ranks for _, ranks, _ in found), [], [], []
    for model, ranks in dict.fromkeys((model, ranks) for model, ranks, _ in found):
        steps = predicted(machine, model, ranks, rounds, most)
        measured = {}
        for strategy in STRATEGIES:
            own = found.get((model, ranks, strategy))
            if own is None:
                continue
            measured[strategy] = statistics.median(own)
            error = steps[strategy] / measured[strategy] - 1
            errors.append(error)
            cells = f"{1e3 * steps[strategy]:.2f}", f"{1e3 * measured[strategy]:.2f}", f"{100 * error:+.0f} %"
            rows.append((model, str(ranks), strategy, *cells))
        if ranks > 1:
            winners.append(min(measured, key=measured.get) == min(steps, key=steps.get))
    near = sum(abs(error) <= NEAR for error in errors)
    return [
        *text_lines([("model", "ranks", "strategy", "predicted ms", "measured ms", "error"), *rows], "lrlrrr"),
        f"within {100 * NEAR:.0f} %: {near} of {len(errors)}; worst {100 * max(errors, key=abs):+.0f} %",
        f"the fastest strategy is named in {sum(winners)} of {len(winners)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench plan", description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help="[%(default)s]")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=2, help="with --rate: hosts of scripts/cluster [%(default)s]")
    parser.add_argument("--rate", help="of each host's link: 1gbit, 10gbit [no hosts: this machine]")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for all files [a temporary one]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.keep or Path(scratch)).resolve()
        folder.mkdir(exist_ok=True)
        machine = Machine(folder, options.hosts, options.rate)
        found = measure(machine, options.models, [int(n) for n in options.ranks.split(",")], options.rounds)
        print("\n".join(table(machine, found, options.rounds)))


if __name__ == "__main__":
    main()
