"""ringtrain's side of a comparison with PyTorch: a rank that trains a net, and the results of its training pass."""

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from same_work import EXAMPLES, LOSS_SCALE, Work, save
from side import proportional_set_size, serve, timed

from ringtrain.allreduce.tuning_file import find_tuning
from ringtrain.config.resolve import recipe_layer, resolve
from ringtrain.errors import RingtrainError
from ringtrain.nn import spec
from ringtrain.nn.graph import in_memory
from ringtrain.nn.initial import normal_blocks, uniforms
from ringtrain.ops.keys import additive_key, name_key
from ringtrain.train.assembly.assemble import assemble
from ringtrain.train.assembly.data import open_data
from ringtrain.train.assembly.device import open_device
from ringtrain.transport.world import connect

ENDLESS = 1_000_000  # longer than any warm-up
AWAY = 3  # standard deviations, about
RECORDED = 3  # iterations until a device replays its recorded graph


def config_of(options, name: str):
    """(the model, the configuration): one ghost batch, as PyTorch normalises by the whole batch; SGD that decays every
    parameter, as one fused call of PyTorch's does. The batch is of all ranks, and each normalises by its own part."""
    model = spec.load_model(name)
    batch = options.batch * options.ranks
    flags = {"model": name, "synthetic": True, "batch": batch, "iterations": ENDLESS, "accumulate": 1}
    flags |= {"augment": False, "decay_bias_norm": True, **_of_device(options)}
    if model.recipe.get("optimizer") != "nesterov":
        flags["optimizer"] = "sgd"
    if any(type(node.layer).__name__ == "BatchNorm" for node in model.graph().nodes):
        flags["batch_norm"] = f"ghost:{options.batch}"
    return model, resolve(recipe_layer(model.name, model.recipe), ("flags", flags))


def _of_device(options) -> dict:
    if options.device == "cpu":
        return {"threads": options.threads, "dtype": options.precision}
    scale = {"loss_scale": LOSS_SCALE} if options.precision == "float16" else {}
    return {"device": options.device, "precision": options.precision, **scale}


def assembled(options, name: str):
    """(the run, its one batch) of a model on this rank, with weights that switch nothing off. The learning rate is 0:
    all iterations compute the same."""
    model, config = config_of(options, name)
    opened = open_device(config, connect())
    data = open_data(config, model, opened.transport)
    tuning = find_tuning(opened.transport, None).table
    run = assemble(config, model, data, opened.transport, opened.ops, lambda: False, tuning)
    run.worker.rate = lambda iteration: 0.0
    draw(run.arena, opened.ops)
    with run.batches(run.transport, 0, 1) as batches:
        batch = next(batches)
    return run, batch


def draw(arena, ops, seed: int = 0) -> None:
    """Weights in place of the first ones of training, which hide layers: a scale of 0 ends a residual block, biases
    are 0, and some nets begin so small that their logits are all the same."""
    for span in arena.spans:
        values = drawn(span, additive_key(seed, name_key(span.name)))
        if values is not None:
            ops.upload(values.reshape(span.shape).astype(ops.dtype), arena.weight(span))


def normals(key: int, count: int) -> np.ndarray:
    """Standard normal numbers."""
    found = np.empty(count)
    for start, values in normal_blocks(key, count):
        found[start : start + values.size] = values
    return found


def drawn(span, key: int) -> np.ndarray | None:
    """None: as it is. Scales of normalisations are between 0.5 and 1.5. Their shifts are around 3 and -3: half of the
    channels are on and half are off in nearly all places, so that rounding flips few of the signs that ReLU cuts at,
    which is most of what the gradients of two right nets differ by. Weights keep the size of activations."""
    if span.parameter.role == "statistic":
        return None
    if span.parameter.name == "gamma":
        return 0.5 + uniforms(key, 0, span.count)
    if len(span.shape) == 1:
        small = 0.1 * normals(key, span.count)
        return small + AWAY * np.sign(small) if span.parameter.role == "norm" else small
    return math.sqrt(2 / math.prod(span.shape[:-1])) * normals(key, span.count)


def work(run, batch) -> Work:
    """Return the work of a timed iteration: on a device, of a replayed one; outputs are those of a pass by itself."""
    worker, count = run.worker, RECORDED if run.worker.ops.records else 1
    outputs = outputs_of(worker.passes, batch)
    losses = [worker.iterate(batch) for _ in range(count)] + worker.drain()
    loss = [each for each in losses if each is not None][-1]
    gradients = {
        span.name: _host(worker.ops, run.arena.grad(span))
        for span in run.arena.spans
        if span.parameter.role != "statistic"
    }
    return Work(outputs, loss.loss_sum / loss.valid, gradients)


def outputs_of(passes, batch) -> dict[str, np.ndarray]:
    """Return each layer's output for the first examples, of a training pass without its backward."""
    passes.begin(batch.iteration)
    passes.load(batch, 0, len(batch.labels))
    ctx = replace(passes.ctx, recorded=False)
    _, tapes = passes.graph.forward(ctx, passes.micro_batch.x)
    seen = ((node.last, in_memory(ctx, tapes.outputs[node.name])) for node in passes.graph.plan)
    return {name: _host(ctx.ops, output[:EXAMPLES]) for name, output in seen}


def masks(run, batch) -> dict[str, np.ndarray]:
    """Return the mask of each Dropout in this iteration."""
    ops, count = run.worker.ops, len(batch.labels)
    key = ops.from_host(np.array([additive_key(run.config.run.seed, batch.iteration)], np.uint64))
    examples = ops.from_host(np.ascontiguousarray(batch.examples))
    found = {}
    for node in run.graph.nodes:
        if type(node.layer).__name__ == "Dropout":
            shape = (count, *run.graph.shapes[node.name])
            ones, mask = ops.from_host(np.ones(shape, ops.active)), ops.empty(shape, ops.active)
            ops.dropout(ones, mask, examples, key, name_key(node.name), node.layer.rate)
            found[node.name] = _host(ops, mask)
    return found


def described(run) -> dict:
    """Return the net and its optimizer in plain words, from which :mod:`peer_side` makes the same."""
    config, shapes = run.config, run.graph.shapes
    nodes = [
        {
            "name": node.name,
            "kind": type(node.layer).__name__,
            "inputs": node.inputs,
            "settings": {key: value if _plain(value) else True for key, value in vars(node.layer).items()},
            "shape": shapes[node.inputs[0]],
        }
        for node in run.graph.nodes
    ]
    sgd = {
        "momentum": config.optimizer.momentum,
        "nesterov": config.optimizer.optimizer == "nesterov",
        "weight_decay": config.optimizer.weight_decay,
    }
    return {
        "nodes": nodes,
        "sgd": sgd,
        "label_smoothing": config.model.label_smoothing,
        "classes": len(run.data.classes),
    }


def _plain(value) -> bool:
    return value is None or isinstance(value, (int, float, str))


def export(run, batch, folder: Path, rank: int) -> None:
    """Write down the net, its weights, and this rank's batch and masks."""
    worker = run.worker
    if rank == 0:
        (folder / "net.json").write_text(json.dumps(described(run)))
        np.savez(
            folder / "weights.npz", **{span.name: _host(worker.ops, run.arena.weight(span)) for span in run.arena.spans}
        )
    x, labels, _ = worker.passes.feed.load(worker.space, batch, 0, len(batch.labels))
    np.savez(folder / f"batch-{rank}.npz", x=_host(worker.ops, x), labels=worker.ops.to_host(labels))
    np.savez(folder / f"masks-{rank}.npz", **masks(run, batch))


def _host(ops, array) -> np.ndarray:
    """Return a host array; 16 bits become float32, which every library of the host knows."""
    host = ops.to_host(array)
    return host.astype(np.float32) if host.dtype.itemsize == 2 else host.copy()


def handlers(options) -> dict:
    """Return what :func:`side.serve` does here. ``options``: model, ranks, batch (of a rank), folder, and those of
    :mod:`pytorch`."""
    run, batch = assembled(options, options.model)
    worker, folder, rank = run.worker, Path(options.folder), run.transport.rank

    def write_work() -> None:
        save(folder / f"own-{rank}.npz", work(run, batch))

    def about() -> dict:
        return {"device": worker.ops.describe(), "left_out": "; ".join(worker.ops.notes())}

    return {
        "export": lambda: export(run, batch, folder, rank),
        "work": write_work,
        "about": about,
        "block": lambda iterations: timed(lambda: worker.iterate(batch), worker.ops.synchronize, iterations),
        "memory": proportional_set_size,
    }


def main() -> None:
    told = json.loads(sys.argv[1])
    try:
        done = handlers(SimpleNamespace(**told))
    except RingtrainError as error:
        raise SystemExit(f"bench pytorch: {error}") from None
    rank = os.environ["OMPI_COMM_WORLD_RANK"] if told["ranks"] > 1 else os.environ["RANK"]
    serve(told, int(rank), done)


if __name__ == "__main__":
    main()
