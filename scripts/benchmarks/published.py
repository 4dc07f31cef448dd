"""Published scaling results, recomputed by ``ringtrain plan`` from published inputs.

Nothing runs, and nothing is fitted to the results. docs/benchmarks/published.md says what is made of which figures, has
their sources, and the tables that this prints.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from page import table

from ringtrain.bench.measure.rows import OK
from ringtrain.bench.model.fit import FittedModel, Regime
from ringtrain.collectives.inspect.cost import Fabric
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.memory.arena import lay_out
from ringtrain.nn import spec, subgraphs
from ringtrain.nn.graph import Graph
from ringtrain.nn.shapes import element_count
from ringtrain.plan.exchange_times import ExchangeTimes, placed, work_on
from ringtrain.plan.layer_times import UPDATE, LayerTimes
from ringtrain.plan.prediction import PlanRow, PlanSettings, predict

ITEM_BYTES = 4
GIGABIT, MICROSECOND = 1e9 / 8, 1e-6
PAYLOAD = 1024 / (1024 + 82)  # of RoCE v2: bytes of a packet, and of its headers and the gap behind it
MEMORY_BYTES_PER_S = 732e9  # of a P100
UPDATE_MOVES = 5  # of an element: weight and momentum are read and written, the gradient is read
ADD_MOVES = 3
HOSTS = ["n1", "n2"]  # of the sweep that is written: two ranks, as no plan here has
SWEPT_BYTES = 1 << 20
PER_GRADIENT = 1  # bucket_bytes: no two gradients in one


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a prediction is made of. rates: images/s of one GPU by its batch; link: of a server, in one direction;
    local: of a GPU to another of its server; bucket_bytes: gradients that are exchanged together"""

    model: str
    rates: dict[int, float]
    per_server: int
    algorithm: str
    link_bytes_per_s: float
    latency_s: float
    local_bytes_per_s: float
    local_latency_s: float
    bucket_bytes: int


@dataclass(frozen=True, slots=True)
class Case:
    """A published result. fast: all that was not published at its fast end; slow: what changes towards the slow end, by
    its name; results: published efficiency by GPUs; over: the GPUs with an efficiency of 1"""

    name: str
    images: int
    fast: Inputs
    slow: dict[str, dict]
    results: dict[int, float]
    over: int = 1

    @property
    def slowest(self) -> Inputs:
        return replace(self.fast, **{name: value for changes in self.slow.values() for name, value in changes.items()})

    def efficiencies(self, inputs: Inputs) -> dict[int, tuple[PlanRow, float]]:
        """Return the prediction and its efficiency by GPUs."""
        plans = planned(inputs, sorted({self.over, *self.results}), self.images)
        return {gpus: (plans[gpus], plans[gpus].efficiency / plans[self.over].efficiency) for gpus in self.results}


IMAGENET, EPOCHS = 1_281_167, 90
GOYAL_RATE = EPOCHS * IMAGENET / (29 * 3600) / 8  # images/s of a GPU: 29 hours on 8
GOYAL = Case(
    name="ResNet-50, over 8 GPUs (Goyal et al.)",
    images=32,
    fast=Inputs(
        model="resnet50",
        rates={32: GOYAL_RATE},
        per_server=8,
        algorithm="hierarchical:ring:butterfly",
        link_bytes_per_s=50 * GIGABIT,
        latency_s=2.7 * MICROSECOND,
        local_bytes_per_s=80e9,
        local_latency_s=0.47 * MICROSECOND,
        bucket_bytes=4 << 20,
    ),
    slow={
        "a GPU of 195 images/s, not 138": {"rates": {32: 195.0}},
        "headers of packets; NVLink at 20 GB/s, 3.4 µs": {
            "link_bytes_per_s": PAYLOAD * 50 * GIGABIT,
            "local_bytes_per_s": 20e9,
            "local_latency_s": 3.4 * MICROSECOND,
        },
        "each gradient by itself, 50 µs a round": {"bucket_bytes": PER_GRADIENT, "latency_s": 50 * MICROSECOND},
    },
    results={256: 0.90},
    over=8,
)
HOROVOD = Case(
    name="VGG-16 (Horovod)",
    images=64,
    fast=Inputs(
        model=str(Path(__file__).with_name("vgg16.toml")),
        rates={64: 154.0},
        per_server=4,
        algorithm="ring",
        link_bytes_per_s=25 * GIGABIT,
        latency_s=2.7 * MICROSECOND,
        local_bytes_per_s=math.inf,  # hidden: a ring uses these links while messages pass between servers
        local_latency_s=0.0,
        bucket_bytes=64 << 20,
    ),
    slow={
        "9.6 µs a round, not 2.7": {"latency_s": 9.6 * MICROSECOND},
        "headers of packets": {"link_bytes_per_s": PAYLOAD * 25 * GIGABIT},
        "PCIe after the network, 15.75 GB/s": {"local_bytes_per_s": 15.75e9},
    },
    results={128: 0.79, 512: 0.68},
)
P100_RATES = {32: 195.0, 64: 219.0}  # ResNet-50
BATCH = 1024
SHARES = (64, 32, 16, 8, 4, 2, 1)
FC_NODES, CONV_NODES, CAFFE_BATCH = 1, 19, 256


# ── the files of ringtrain plan ───────────────────────────────────────────────────────────────────────────────
def write_layers(inputs: Inputs, images: int, path: Path) -> str:
    """Write one GPU's layers with a batch of ``images``, as `ringtrain time --json` does. The update moves memory; the
    rest of the iteration is divided by arithmetic, a third of a layer's forward."""
    graph = spec.load_model(inputs.model).graph()
    nbytes = ITEM_BYTES * lay_out(graph.parameters())[-1].stop
    flops = {row.layer: row.flops for row in graph.describe()}
    iteration_s, update_s = images / inputs.rates[images], UPDATE_MOVES * nbytes / MEMORY_BYTES_PER_S
    rows = [{"layer": UPDATE, "kind": "", "forward_s": None, "backward_s": update_s}]
    for node in graph.plan:
        part = sum(flops[name] for name in (node.name, *node.folded)) / sum(flops.values())
        forward_s = part * (iteration_s - update_s) / 3
        rows.append({"layer": node.name, "kind": "layer", "forward_s": forward_s, "backward_s": 2 * forward_s})
    header = {"model": inputs.model, "batch": images, "dtype": "float32", "ranks": 1, "host_by_rank": HOSTS[:1]}
    header |= {"host_cores": inputs.per_server, "held_bytes": 3 * nbytes, "peak_bytes": 3 * nbytes}
    header |= {"records": True}  # exchanges go beside backward
    path.write_text(json.dumps({"header": header, "rows": rows, "totals": {"iteration_s": iteration_s}}))
    return str(path)


def write_sweep(inputs: Inputs, path: Path) -> str:
    """Write the fabric, as `ringtrain bench-allreduce --json` does."""
    fabric = Fabric(
        alpha_s=inputs.latency_s,
        beta_s=1 / inputs.link_bytes_per_s,
        local_alpha_s=inputs.local_latency_s,
        local_beta_s=1 / inputs.local_bytes_per_s,
        gamma_s=ADD_MOVES / MEMORY_BYTES_PER_S,
        o_s=0.0,
    )
    model = FittedModel(work_on(inputs.algorithm, placed(len(HOSTS), 1)), (Regime(0.0, fabric),))
    seconds = model.predict_s(SWEPT_BYTES)
    kind = {"dtype": "float32", "wire_dtype": "float32", "op": "sum", "placement": "in"}
    row = {"algorithm": inputs.algorithm, "bytes": SWEPT_BYTES, "ranks": len(HOSTS), "nodes": len(HOSTS)}
    row |= kind | {"status": OK, "median_s": seconds, "samples_s": [seconds]}
    fits = [kind | {"models": {inputs.algorithm: asdict(model)}}]
    path.write_text(json.dumps({"header": {"host_by_rank": HOSTS, "finished": True, "fits": fits}, "rows": [row]}))
    return str(path)


def planned(inputs: Inputs, counts: Sequence[int], batch: int, weak: bool = True) -> dict[int, PlanRow]:
    """Return the predictions by the number of GPUs. weak: ``batch`` is of a GPU, not of all"""
    with tempfile.TemporaryDirectory() as folder:
        layers = LayerTimes([write_layers(inputs, images, Path(folder) / f"{images}.json") for images in inputs.rates])
        exchanges = ExchangeTimes(write_sweep(inputs, Path(folder) / "sweep.json"))
    settings = PlanSettings(batch, weak, inputs.per_server, bucket_bytes=inputs.bucket_bytes)
    return {
        row.ranks: row for row in predict(layers, exchanges, counts, [ExchangeConfig()], [inputs.algorithm], settings)
    }


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────
def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def points(predicted: float, published: float) -> str:
    """Return an error in percentage points."""
    return f"{round(100 * (predicted - published)):+d}"


def overview() -> list[str]:
    """Return the table of both ends of all results."""
    rows = []
    for case in (GOYAL, HOROVOD):
        slow, fast = case.efficiencies(case.slowest), case.efficiencies(case.fast)
        for gpus, published in case.results.items():
            ends = [end[gpus][1] for end in (slow, fast)]
            errors = " to ".join(points(end, published) for end in ends)
            rows.append((case.name, str(gpus), percent(published), " to ".join(map(percent, ends)), errors))
    return table(("efficiency of", "GPUs", "published", "predicted, slow to fast end", "error, points"), rows)


def steps(case: Case) -> list[str]:
    """Return the table of iterations: at the fast end, with each slow input by itself, and with all of these."""
    one_by_one = {name: replace(case.fast, **changes) for name, changes in case.slow.items()}
    rows = []
    for name, inputs in {"fast end": case.fast, **one_by_one, "slow end: all of these": case.slowest}.items():
        for gpus, (row, efficiency) in case.efficiencies(inputs).items():
            times = (f"{1e3 * row.step_s:.0f}", f"{1e3 * row.exposed_s:.1f}")
            rows.append((name, str(gpus), *times, percent(efficiency), points(efficiency, case.results[gpus])))
    return table(("inputs", "GPUs", "step, ms", "exposed, ms", "efficiency", "error, points"), rows)


def fc_traffic() -> list[str]:
    """Return the table of the bytes of an iteration, of all nodes: an all-reduce or a server over 20, and 1 FC + 19
    conv."""
    whole, conv, features = bytes_of(spec.load_model("alexnet").graph())
    exchanged, kept = 2 * (FC_NODES + CONV_NODES - 1) * whole, 2 * (CONV_NODES - 1) * conv
    rows = []
    for batch in (0, CAFFE_BATCH, *(CONV_NODES * images for images in (64, 128, 256))):
        sent = kept + 2 * batch * features
        share = f"{round(batch / CONV_NODES, 1):g}" if batch else "parameters alone"
        rows.append((share, f"{batch:,}" * (batch > 0), f"{sent / 1e6:,.1f}", f"{100 * (1 - sent / exchanged):.1f} %"))
    return table(("images of a conv node", "batch", "MB", f"less than {exchanged / 1e6:,.1f} MB of 20 nodes"), rows)


def bytes_of(graph: Graph) -> tuple[int, int, int]:
    """Return the bytes of all gradients, of those before the fully connected layers, and of what an image sends on to
    these."""
    start = subgraphs.fc_starts(graph)[0]
    before = {node.name for node in graph.plan[:start]}
    nbytes = {row.layer: row.gradient_bytes for row in graph.describe()}
    features = element_count(graph.shapes[graph.plan[start].inputs[0]])
    return sum(nbytes.values()), sum(nbytes[name] for name in before), ITEM_BYTES * features


def shares() -> list[str]:
    """Return the table of a batch of 1,024 on more and more GPUs; in per cent, of what each does alone with 64."""
    nbytes, _, _ = bytes_of(spec.load_model(GOYAL.fast.model).graph())
    counts = [BATCH // share for share in SHARES]
    slow, fast = (
        planned(replace(inputs, rates=P100_RATES), counts, BATCH, weak=False) for inputs in (GOYAL.slowest, GOYAL.fast)
    )
    full = P100_RATES[SHARES[0]]
    rows = []
    for gpus, share in zip(counts, SHARES, strict=True):
        sent = 2 * (gpus - 1) / gpus * nbytes / share
        rates = [end[gpus].images_per_s for end in (slow, fast)]
        cells = [f"{rate:,.0f} ({percent(rate / gpus / full)})" for rate in rates]
        rows.append((f"{gpus:,} x {share}", f"{sent / 1e6:,.1f}", *cells))
    return table(("GPUs x images", "MB sent for an image", "images/s, slow end", "images/s, fast end"), rows)


def tables() -> dict[str, list[str]]:
    """Return every table of the page by the result that it is about."""
    return {
        "Published and predicted": overview(),
        "ResNet-50 on 256 GPUs": steps(GOYAL),
        "VGG-16 on 128 and 512 GPUs": steps(HOROVOD),
        "A batch of 1,024": shares(),
        "Fully connected layers on one node of 20": fc_traffic(),
    }


def main() -> None:
    argparse.ArgumentParser(prog="scripts/bench published", description=__doc__.split("\n")[0]).parse_args()
    print("\n\n".join("\n".join([f"## {title}", "", *lines]) for title, lines in tables().items()))


if __name__ == "__main__":
    main()
