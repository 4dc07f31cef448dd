"""Training iterations beside PyTorch: the same net, weights, batch, precision and thread count, one rank.

Blocks of iterations are timed in turn, ringtrain, PyTorch, ringtrain, PyTorch ..., on one batch that stays the same,
and medians are compared: a ratio above 1 says that ringtrain is faster. Before that both are shown to compute the same
thing: the losses of the first weights. Installs torch, which nothing else of ringtrain needs to run, into the
environment of scripts/bench, unless it is there.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

TORCH = "torch==2.13.0"
MODELS = ("lenet", "cifar10_full", "resnet20")


@dataclass(frozen=True, slots=True)
class Side:
    """One of those that are compared. ``iterate`` issues an iteration, ``finish`` waits for all that were issued."""

    name: str
    iterate: Callable[[], None]
    finish: Callable[[], None]


# ── ringtrain ─────────────────────────────────────────────────────────────────────────────────────────────────────
def assembled(options, name: str):
    """(the run, its one batch) of a model on this one rank."""
    from ringtrain.nn import spec
    from ringtrain.resolve import recipe_layer, resolve
    from ringtrain.train.assemble import assemble, open_data
    from ringtrain.train.device import open_device
    from ringtrain.transport.world import connect

    model = spec.load(name)
    flags = {"model": name, "synthetic": True, "batch": options.batch, "iterations": 1, "augment": False}
    flags |= {"guard": False, **device_flags(options)}
    config = resolve(recipe_layer(model.name, model.recipe), ("flags", flags))
    opened = open_device(config, connect())
    data = open_data(config, model, opened.transport)
    run = assemble(config, model, data, opened.transport, opened.ops, lambda: False)
    with run.batches(opened.transport, 0, 1) as batches:
        batch = next(batches)
    return run, batch


def device_flags(options) -> dict:
    return {} if options.device == "cpu" else {"device": options.device, "precision": options.precision}


def own_side(run, batch) -> Side:
    return Side("ringtrain", lambda: run.worker.iterate(batch), run.worker.ops.synchronize)


def own_loss(run, batch) -> float:
    """Of the first weights, as in an evaluation: what is random in training is left out."""
    from ringtrain.nn.base import Pass
    from ringtrain.nn.loss import SoftmaxCrossEntropy

    run.worker.rehearse(batch)
    x, labels, _ = run.worker.feed.load(run.worker.space, batch, 0, len(batch.labels))
    totals = run.worker.ops.zeros((3,), "float64")
    ctx = Pass(run.worker.ops, run.worker.space, training=False)
    logits, _ = run.graph.forward(ctx, x)
    SoftmaxCrossEntropy().backward(ctx, logits, labels, totals, 1.0)
    loss, _, valid = run.worker.ops.to_host(totals)
    return float(loss / valid)


# ── PyTorch ───────────────────────────────────────────────────────────────────────────────────────────────────────
class Peer:
    """The net in PyTorch, and one iteration of it: channels last, SGD with the recipe's momentum and decay, fused."""

    def __init__(self, options, run, batch):
        import torch
        from peer_net import PeerNet, take_weights

        self._torch, self._cuda = torch, options.device == "cuda"
        torch.set_num_threads(options.threads)
        allow = options.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allow
        torch.backends.cudnn.benchmark = True
        self.net = PeerNet(run.graph)
        take_weights(self.net, run.arena, run.worker.ops)
        self.net.to(options.device, memory_format=torch.channels_last)
        x, labels, _ = run.worker.feed.load(run.worker.space, batch, 0, len(batch.labels))
        images = run.worker.ops.to_host(x).astype("float32")
        self._x = torch.from_numpy(images).permute(0, 3, 1, 2).to(options.device, memory_format=torch.channels_last)
        self._labels = torch.from_numpy(run.worker.ops.to_host(labels)).long().to(options.device)
        config = run.config
        self._optimizer = torch.optim.SGD(
            self.net.parameters(), 1e-9, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
        )
        self._half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(options.precision)
        self._scaler = torch.amp.GradScaler(options.device, enabled=self._half is torch.float16)
        self._loss = torch.nn.functional.cross_entropy

    def forward(self, net):
        device = "cuda" if self._cuda else "cpu"
        with self._torch.autocast(device, dtype=self._half, enabled=self._half is not None):
            return self._loss(net(self._x).float(), self._labels)

    def loss(self) -> float:
        self.net.eval()
        with self._torch.no_grad():
            found = float(self.forward(self.net))
        self.net.train()
        return found

    def side(self, name: str, net) -> Side:
        def iterate() -> None:
            self._optimizer.zero_grad(set_to_none=True)
            self._scaler.scale(self.forward(net)).backward()
            self._scaler.step(self._optimizer)
            self._scaler.update()

        return Side(name, iterate, self._torch.cuda.synchronize if self._cuda else lambda: None)


# ── comparing ─────────────────────────────────────────────────────────────────────────────────────────────────────
def block(side: Side, iterations: int) -> float:
    """Seconds of an iteration."""
    began = time.perf_counter()
    for _ in range(iterations):
        side.iterate()
    side.finish()
    return (time.perf_counter() - began) / iterations


def interleaved(sides: list[Side], options) -> dict[str, float]:
    """Median seconds of an iteration by side."""
    for side in sides:
        block(side, options.warm_up)
    samples = {side.name: [] for side in sides}
    for _ in range(options.blocks):
        for side in sides:
            samples[side.name].append(block(side, options.iterations))
    return {name: statistics.median(found) for name, found in samples.items()}


def measure(options, name: str) -> dict:
    import torch

    run, batch = assembled(options, name)
    own = own_loss(run, batch)
    peer = Peer(options, run, batch)
    theirs = peer.loss()
    if abs(own - theirs) > options.tolerance * max(1.0, abs(theirs)):
        raise SystemExit(f"{name}: ringtrain's loss is {own}, PyTorch's is {theirs}: these are not the same net")
    sides = [own_side(run, batch), peer.side("eager", peer.net)]
    if options.compile:
        sides.append(peer.side("compile", torch.compile(peer.net)))
    seconds = interleaved(sides, options)
    images = {side: options.batch / each for side, each in seconds.items()}
    ratios = {side: seconds[side] / seconds["ringtrain"] for side in seconds if side != "ringtrain"}
    row = {"model": name, "batch": options.batch, "precision": options.precision, "loss": own, "loss_of_torch": theirs}
    return row | {"images_per_s": images, "ratio": ratios, "device": run.worker.ops.describe()}


def told(row: dict) -> str:
    rates = ", ".join(f"{side} {rate:,.0f}" for side, rate in row["images_per_s"].items())
    ratios = ", ".join(f"{ratio:.2f} of {side}" for side, ratio in row["ratio"].items())
    return f"{row['model']:14} batch {row['batch']:<5} {row['precision']:9} images/s: {rates}: {ratios}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=10, help="of a block")
    parser.add_argument("--blocks", type=int, default=7, help="of each side; medians are over them")
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="torch.compile as a third side")
    parser.add_argument("--tolerance", type=float, default=None, help="between losses [1e-4; 2e-2 of 16 bits]")
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    options.tolerance = options.tolerance or (1e-4 if options.precision == "float32" else 2e-2)
    if importlib.util.find_spec("torch") is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", TORCH], check=True)
    rows = []
    for name in options.models:
        rows.append(measure(options, name))
        print(told(rows[-1]), flush=True)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(rows, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
