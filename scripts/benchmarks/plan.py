"""Predictions of ``ringtrain plan`` beside measured runs, of one machine in one session.

Layers, all-reduces and the runs of every strategy are measured in turns, so that all meet the same load. A run's figure
is from the time stamps of one epoch of random images, with the algorithm that the first prediction names as the fastest
of its strategy; a prediction is made from layers and all-reduces alone.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ringtrain.nn import spec
from ringtrain.plan.exchange_times import ExchangeTimes
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.prediction import PlanRow, PlanSettings, predict
from ringtrain.plan.strategies import STRATEGIES
from ringtrain.show.tables import text_lines

MODELS = {"mlp": (128, 100), "resnet20": (128, 15), "alexnet": (32, 9)}  # batch, iterations
WARM_UP = 3  # iterations that are not looked at
AVERAGE_EVERY = 2
NEAR = 0.15
ALGORITHMS = "ring,star,sliced,butterfly,mapped,stream"
BETWEEN_HOSTS = "ring,star,sliced,butterfly,hierarchical"
SIZES = ("-b", "16K", "-e", "64M", "-f", "4", "-n", "7", "-w", "2", "--budget-s", "2")
NEVER = str(10**9)
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Measured:
    """The iterations of a strategy's runs, with one algorithm."""

    algorithm: str
    seconds: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


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

    def layers(self, model: str, ranks: int, number: int) -> Path:
        return self.folder / f"{model}-{ranks}-{number}.json"

    def sweep(self, ranks: int, number: int) -> Path:
        """Return the sweep of a round; for one rank, which exchanges nothing, any."""
        own = self.folder / f"sweep-{ranks}-{number}.json"
        return own if ranks > 1 else min(self.folder.glob(f"sweep-*-{number}.json"), default=own)

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


def measure_run(machine: Machine, model: str, ranks: int, strategy: str, algorithm: str) -> list[float]:
    """Return the seconds of an iteration, each of them; of averaging the means of its periods."""
    batch, iterations = MODELS[model]
    out = Path(tempfile.mkdtemp(dir=machine.folder)) / "run"
    given = ["--model", model, "--data", make_data(machine, model), "--batch", batch, "--iterations", iterations]
    given += ["--sync", strategy, "--out", out, "--checkpoint-every", NEVER, "--evaluate-every", NEVER]
    given += ["--average-every", AVERAGE_EVERY] if strategy == "averaging" else []
    given += ["--algorithm", algorithm] if algorithm and strategy != "server" else []
    machine.run(ranks, "train", *given)
    records = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    stamps = [found["seconds"] for found in records if found["event"] == "iteration"][WARM_UP - 1 :]
    each = AVERAGE_EVERY if strategy == "averaging" else 1  # a whole period
    return [(stamps[i] - stamps[i - each]) / each for i in range(each, len(stamps), each)]


def measure(machine: Machine, models: list[str], counts: list[int], rounds: int) -> dict[tuple, Measured]:
    """Return the runs by (model, ranks, strategy), and write the files of their predictions."""
    found: dict[tuple, Measured] = {}
    for number in range(rounds):
        for ranks in counts:
            if ranks > 1:
                names = ALGORITHMS if machine.rate is None else BETWEEN_HOSTS
                machine.run(
                    ranks, "bench-allreduce", *SIZES, "--algorithm", names, "--json", machine.sweep(ranks, number)
                )
            for model in models:
                layers = machine.layers(model, ranks, number)
                batch, iterations = MODELS[model]  # as many as of a run: ten of mlp's are a tenth of a second
                machine.run(ranks, "time", model, "-b", batch, "-n", iterations, "-w", 2, "--json", layers)
                for strategy in STRATEGIES if ranks > 1 else ["allreduce"]:
                    key = model, ranks, strategy
                    own = found.setdefault(key, Measured(predicted(machine, *key, number).algorithm))
                    own.seconds += measure_run(machine, *key, own.algorithm)
                    print(f"# round {number + 1}: {key} {own.algorithm} {1e3 * own.median_s:.2f} ms", flush=True)
    return found


def predicted(machine: Machine, model: str, ranks: int, strategy: str, number: int, algorithm: str = "") -> PlanRow:
    """Return the prediction of a round, with the fastest algorithm if none is given."""
    layers = LayerTimes([str(machine.layers(model, ranks, number))])
    exchanges = ExchangeTimes(str(machine.sweep(ranks, number)))
    settings = PlanSettings(MODELS[model][0], per_node=machine.per_node(ranks), average_every=AVERAGE_EVERY)
    (row,) = predict(layers, exchanges, [ranks], [strategy], [algorithm] if algorithm else [], settings)
    return row


def table(machine: Machine, found: dict[tuple, Measured], rounds: int) -> list[str]:
    rows, errors, steps = [], [], {}
    for (model, ranks, strategy), own in found.items():
        step_s = statistics.median(
            predicted(machine, model, ranks, strategy, number, own.algorithm).step_s for number in range(rounds)
        )
        steps.setdefault((model, ranks), {})[strategy] = step_s, own.median_s
        errors.append(step_s / own.median_s - 1)
        cells = f"{1e3 * step_s:.2f}", f"{1e3 * own.median_s:.2f}", f"{100 * errors[-1]:+.0f} %"
        rows.append((model, str(ranks), strategy, own.algorithm, *cells))
    several = [own.values() for own in steps.values() if len(own) > 1]
    slower = [min(own)[1] / min(measured for _, measured in own) - 1 for own in several]  # the one that is named
    near = sum(abs(error) <= NEAR for error in errors)
    head = "model", "ranks", "strategy", "algorithm", "predicted ms", "measured ms", "error"
    return [
        *text_lines([head, *rows], "lrllrrr"),
        f"within {100 * NEAR:.0f} %: {near} of {len(errors)}; worst {100 * max(errors, key=abs):+.0f} %",
        f"the strategy that is named as the fastest is it in {slower.count(0)} of {len(slower)} cases; "
        f"at worst another one was faster by {100 * max(slower, default=0):.0f} %",
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
        counts = sorted(map(int, options.ranks.split(",")), reverse=True)  # one rank takes the sweep of several
        found = measure(machine, options.models, counts, options.rounds)
        print("\n".join(table(machine, found, options.rounds)))


if __name__ == "__main__":
    main()
