"""Predictions of ``ringtrain plan`` beside measured runs, of one machine in one session.

Layers, all-reduces and the runs of every strategy are measured in turns, so that all meet the same load. A run's figure
is from the time stamps of one epoch of random images, with the algorithm that the first prediction names as the fastest
of its strategy; a prediction is made from layers and all-reduces alone. For torch-mlp and its like, which are nets
of torch_nets.py, a profile on as many ranks is in place of the layers.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from page import ROOT, numbers
from worlds import records

from ringtrain.cli.variants import variants_of
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.resolve import FLAGS, resolve
from ringtrain.exchange.parts import parts_of
from ringtrain.nn import spec
from ringtrain.plan.exchange_times import ExchangeTimes
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.prediction import PlanRow, PlanSettings, predict
from ringtrain.show.tables import text_lines
from ringtrain.train.start.script_profile import PROFILE

MODELS = {"mlp": (128, 100), "resnet20": (128, 15), "alexnet": (32, 9)}  # batch, iterations
SCRIPT = "torch-"
SCRIPTS = {"torch-mlp": (128, 40), "torch-conv": (32, 40), "torch-gpt": (16, 40), "torch-paced": (4, 40)}
WARM_UP = 3  # iterations that are not looked at
STRATEGIES = "allreduce,sharded,server,averaging --average-every 2"
NEAR = 0.15
ALGORITHMS = "ring,star,sliced,butterfly,mapped,stream"
BETWEEN_HOSTS = "ring,star,sliced,butterfly,hierarchical"
SIZES = ("-b", "16K", "-e", "64M", "-f", "4", "-n", "7", "-w", "2", "--budget-s", "2")
NEVER = str(10**9)
HOSTS = 2  # of scripts/cluster, with --rate


def size_of(model: str) -> tuple[int, int]:
    """Return the batch over all ranks, and the iterations of a run."""
    return (MODELS | SCRIPTS)[model]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where commands run: this machine, or hosts of scripts/cluster with a limited rate."""

    folder: Path
    rate: str | None
    hosts: int = HOSTS

    def run(self, ranks: int, *arguments, module: str = "ringtrain") -> None:
        """Run a command of ringtrain, or of another module, on so many ranks; an error ends the benchmark."""
        launcher = ["mpirun", "-np", str(ranks)]
        if self.rate is not None and ranks > 1:
            cluster = [str(ROOT / "scripts" / "cluster"), "run", "-n", str(self.hosts)]
            launcher = [*cluster, "--ranks", str(self.per_node(ranks)), "--rate", self.rate, "--"]
        command = [*launcher, sys.executable, "-m", module, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def layers(self, model: str, ranks: int, number: int) -> Path:
        name = f"{model}-{ranks}-{number}"
        return self.folder / name / PROFILE if model in SCRIPTS else self.folder / f"{name}.json"

    def run_script(self, model: str, ranks: int, out: Path, *options) -> None:
        batch, iterations = size_of(model)
        script = ROOT / "scripts" / "benchmarks" / "torch_nets.py", model.removeprefix(SCRIPT)
        words = *options, "--out", out, *script, "--batch", batch // ranks, "--steps", iterations
        self.run(ranks, *words, module="ringtrain.torch")

    def measure_layers(self, model: str, ranks: int, number: int) -> None:
        path, (batch, iterations) = self.layers(model, ranks, number), size_of(model)
        if model in SCRIPTS:
            self.run_script(model, ranks, path.parent, "--profile")
        else:  # as many iterations as of a run: ten of mlp's are a tenth of a second
            self.run(ranks, "time", model, "-b", batch, "-n", iterations, "-w", 2, "--json", path)

    def sweep(self, ranks: int, number: int) -> Path:
        """Return the sweep of a round; for one rank, which exchanges nothing, any."""
        path = self.folder / f"sweep-{ranks}-{number}.json"
        return path if ranks > 1 else min(self.folder.glob(f"sweep-*-{number}.json"), default=path)

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


def config_of(strategy: str) -> ExchangeConfig:
    """Return the options of a strategy as typed behind ``--sync``."""
    return resolve((FLAGS, variants_of((), (strategy,), ())[0].flags)).exchange


def measure_run(
    machine: Machine, model: str, ranks: int, strategy: str, algorithm: str, data: str | None = None
) -> list[float]:
    """Return the seconds of an iteration, each of them; of averaging the means of its periods. Of gossip with
    --gossip-max-lag 1: with more lag records of several iterations come at once."""
    batch, iterations = size_of(model)
    out, each = Path(tempfile.mkdtemp(dir=machine.folder)) / "run", parts_of(config_of(strategy)).every
    options = ["--sync", *shlex.split(strategy)]
    options += ["--algorithm", algorithm] if algorithm and algorithm != "star" else []
    if model in SCRIPTS:
        machine.run_script(model, ranks, out, *options)
    else:
        flags = ["--model", model, "--data", data or make_data(machine, model), "--batch", batch]
        flags += ["--iterations", max(iterations, WARM_UP + 3 * each), *options]
        machine.run(ranks, "train", *flags, "--out", out, "--checkpoint-every", NEVER, "--evaluate-every", NEVER)
    stamps = [record["seconds"] for record in records(out) if record["event"] == "iteration"][WARM_UP - 1 :]
    return [(stamps[i] - stamps[i - each]) / each for i in range(each, len(stamps), each)]


def measure(machine: Machine, models: list[str], counts: list[int], strategies: list[str], rounds: int) -> dict:
    """Return (algorithm, seconds of iterations) by (model, ranks, strategy), and write the files of predictions."""
    runs: dict[tuple, tuple[str, list[float]]] = {}
    for number in range(rounds):
        for ranks in counts:
            if ranks > 1:
                flags = *SIZES, "--algorithm", ALGORITHMS if machine.rate is None else BETWEEN_HOSTS
                machine.run(ranks, "bench-allreduce", *flags, "--json", machine.sweep(ranks, number))
            for model in models:
                machine.measure_layers(model, ranks, number)
                for strategy in strategies if ranks > 1 else ["allreduce"]:
                    key = model, ranks, strategy
                    algorithm, seconds = runs.setdefault(key, (predicted(machine, *key, number).algorithm, []))
                    seconds += measure_run(machine, *key, algorithm)
                    print(f"# round {number + 1}: {key} {algorithm} {1e3 * median(seconds):.2f} ms", flush=True)
    return runs


def predicted(machine: Machine, model: str, ranks: int, strategy: str, number: int, algorithm: str = "") -> PlanRow:
    """Return the prediction of a round, with the fastest algorithm unless one is named."""
    layers = LayerTimes([str(machine.layers(model, ranks, number))])
    exchanges = ExchangeTimes(str(machine.sweep(ranks, number)))
    settings = PlanSettings(size_of(model)[0], per_node=machine.per_node(ranks))
    (row,) = predict(layers, exchanges, [ranks], [config_of(strategy)], [algorithm] if algorithm else [], settings)
    return row


def table(machine: Machine, runs: dict[tuple, tuple], rounds: int) -> list[str]:
    rows, errors, steps = [], [], {}
    for (model, ranks, strategy), (algorithm, seconds) in runs.items():
        plans = [predicted(machine, model, ranks, strategy, number, algorithm) for number in range(rounds)]
        step_s, measured_s = median(plan.step_s for plan in plans), median(seconds)
        steps.setdefault((model, ranks), []).append((step_s, measured_s))
        errors.append(step_s / measured_s - 1)
        cells = f"{1e3 * step_s:.2f}", f"{1e3 * measured_s:.2f}", f"{100 * errors[-1]:+.0f} %"
        rows.append((model, str(ranks), strategy, algorithm, *cells))
    several = [pairs for pairs in steps.values() if len(pairs) > 1]
    slower = [min(pairs)[1] / min(measured for _, measured in pairs) - 1 for pairs in several]  # the one that is named
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
    parser.add_argument("--ranks", type=numbers, default="1,2,4", help="numbers of ranks [%(default)s]")
    parser.add_argument("--sync", default=STRATEGIES, help="strategies, as of ringtrain plan [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=HOSTS, help="with --rate [%(default)s]")
    parser.add_argument("--rate", help="of each host's link: 1gbit, 10gbit [no hosts: this machine]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), options.rate, options.hosts)
        counts = sorted(options.ranks, reverse=True)  # one rank takes the sweep of several
        strategies = [variant.name for variant in variants_of((), (options.sync,), ())]
        runs = measure(machine, options.models, counts, strategies, options.rounds)
        print("\n".join(table(machine, runs, options.rounds)))


if __name__ == "__main__":
    main()
