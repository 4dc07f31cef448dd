"""ringtrain's side of a comparison with PyTorch: a rank that trains a net, and the results of its training pass."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from same_work import EXAMPLES, LOSS_SCALE, Work, save
from side import options_and_rank, proportional_set_size, serve, timed

from ringtrain.allreduce.tuning_file import find_tuning
from ringtrain.config.resolve import recipe_layer, resolve
from ringtrain.errors import RingtrainError
from ringtrain.nn import spec
from ringtrain.nn.base import Fill
from ringtrain.nn.graph import in_memory
from ringtrain.nn.initial import initial, uniforms
from ringtrain.ops.keys import additive_key, name_key
from ringtrain.optim.optimizers import Optimizer
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
    flags |= {"augment": False, "decay_bias_norm": True, "device": options.device}
    if options.device == "cpu":
        flags |= {"threads": options.threads, "dtype": options.precision}
    else:
        flags |= {"precision": options.precision}
        flags |= {"loss_scale": LOSS_SCALE} if options.precision == "float16" else {}
    if model.recipe.get("optimizer") != "nesterov":
        flags["optimizer"] = "sgd"
    if any(type(node.layer).__name__ == "BatchNorm" for node in model.graph().nodes):
        flags["batch_norm"] = f"ghost:{options.batch}"
    return model, resolve(recipe_layer(model.name, model.recipe), ("flags", flags))


def assembled(options, name: str):
    """(the run, its one batch) of a model on this rank, with weights that switch nothing off. The learning rate is 0:
    all iterations compute the same."""
    model, config = config_of(options, name)
    opened = open_device(config, connect())
    data, tuning = open_data(config, model, opened.transport), find_tuning(opened.transport, None).table
    run = assemble(config, model, data, opened.transport, opened.ops, lambda: False, tuning)
    run.worker.rate = lambda iteration: 0.0
    draw(run.arena, opened.ops)
    with run.batches(run.transport, 0, 1) as batches:
        batch = next(batches)
    return run, batch


def draw(arena, ops) -> None:
    """Weights in place of the first ones of training, which hide layers: a scale of 0 ends a residual block, biases
    are 0, and some nets begin so small that their logits are all the same."""
    for span in arena.spans:
        values = drawn(span)
        if values is not None:
            ops.upload(values.reshape(span.shape).astype(ops.dtype), arena.weight(span))


def drawn(span) -> np.ndarray | None:
    """None: as it is. Scales of normalisations are between 0.5 and 1.5. Their shifts are around 3 and -3: half of the
    channels are on and half are off in nearly all places, so that rounding flips few of the signs that ReLU cuts at,
    which is most of what the gradients of two right nets differ by. Weights keep the size of activations."""
    if span.parameter.role == "statistic":
        return None
    if span.parameter.name == "gamma":
        return 0.5 + uniforms(additive_key(0, name_key(span.name)), 0, span.count)
    deviation = 0.1 if len(span.shape) == 1 else math.sqrt(2 / math.prod(span.shape[:-1]))
    values = initial(replace(span.parameter, fill=Fill("gaussian", deviation)), span.name, seed=0)
    return values + AWAY * np.sign(values) if len(span.shape) == 1 and span.parameter.role == "norm" else values


def work(run, batch) -> Work:
    """Return the work of a timed iteration: on a device, of a replayed one; outputs are those of a pass by itself."""
    worker, count = run.worker, RECORDED if run.worker.ops.records else 1
    outputs = outputs_of(worker.passes, batch)
    losses = [worker.iterate(batch) for _ in range(count)] + worker.drain()
    loss = [each for each in losses if each is not None][-1]
    spans = (span for span in run.arena.spans if span.parameter.role != "statistic")
    gradients = {span.name: _host(worker.ops, run.arena.grad(span)) for span in spans}
    return Work(outputs, loss.loss_sum / loss.valid, gradients)


def outputs_of(passes, batch) -> dict[str, np.ndarray]:
    """Return each layer's output for the first examples, of a training pass without its backward."""
    passes.begin(batch.iteration)
    passes.load(batch, 0, len(batch.labels))
    ctx = replace(passes.ctx, recorded=False)
    _, tapes = passes.graph.forward(ctx, passes.micro_batch.x)
    seen = ((node.last, in_memory(ctx, tapes.outputs[node.name])) for node in passes.graph.plan)
    return {name: _host(ctx.ops, output[:EXAMPLES]) for name, output in seen}


def dropout_masks(run, batch) -> dict[str, np.ndarray]:
    """Return the mask of each Dropout in this iteration."""
    ops, count = run.worker.ops, len(batch.labels)
    key = ops.from_host(np.array([additive_key(run.config.run.seed, batch.iteration)], np.uint64))
    examples = ops.from_host(np.ascontiguousarray(batch.examples))
    masks = {}
    for node in run.graph.nodes:
        if type(node.layer).__name__ == "Dropout":
            shape = (count, *run.graph.shapes[node.name])
            ones, mask = ops.from_host(np.ones(shape, ops.active)), ops.empty(shape, ops.active)
            ops.dropout(ones, mask, examples, key, name_key(node.name), node.layer.rate)
            masks[node.name] = _host(ops, mask)
    return masks


def described(run) -> dict:
    """Return the net and its optimizer in plain words, from which :mod:`peer_side` makes the same."""
    optimizer, nodes = run.config.optimizer, []
    for node in run.graph.nodes:
        plain = {key: value if isinstance(value, _PLAIN) else True for key, value in vars(node.layer).items()}
        node_facts = {"name": node.name, "kind": type(node.layer).__name__, "inputs": node.inputs, "settings": plain}
        nodes.append(node_facts | {"shape": run.graph.shapes[node.inputs[0]]})
    momentum = Optimizer.usual_momentum if optimizer.momentum is None else optimizer.momentum
    sgd = {"momentum": momentum, "weight_decay": optimizer.weight_decay}
    sgd["nesterov"] = optimizer.optimizer == "nesterov"
    return {"nodes": nodes, "sgd": sgd, "label_smoothing": run.config.model.label_smoothing}


_PLAIN = (type(None), int, float, str)


def export(run, batch, folder: Path, rank: int) -> None:
    """Write down the net, its weights, and this rank's batch and masks."""
    worker = run.worker
    if rank == 0:
        (folder / "net.json").write_text(json.dumps(described(run)))
        weights = {span.name: _host(worker.ops, run.arena.weight(span)) for span in run.arena.spans}
        np.savez(folder / "weights.npz", **weights)
    x, labels, _ = worker.passes.feed.load(worker.space, batch, 0, len(batch.labels))
    np.savez(folder / f"batch-{rank}.npz", x=_host(worker.ops, x), labels=worker.ops.to_host(labels))
    np.savez(folder / f"masks-{rank}.npz", **dropout_masks(run, batch))


def _host(ops, array) -> np.ndarray:
    """Return a host array; 16 bits become float32, which every library of the host knows."""
    host = ops.to_host(array)
    return host.astype(np.float32) if host.dtype.itemsize == 2 else host.copy()


def handlers(options, rank: int) -> dict:
    """Return what :func:`side.serve` does here. ``options``: model, ranks, batch (of a rank), folder, and those of
    :mod:`pytorch`."""
    run, batch = assembled(options, options.model)
    worker, folder, ops = run.worker, Path(options.folder), run.worker.ops
    return {
        "export": lambda: export(run, batch, folder, rank),
        "work": lambda: save(folder / f"own-{rank}.npz", work(run, batch)),
        "about": lambda: {"device": ops.describe(), "left_out": "; ".join(ops.notes())},
        "block": lambda iterations: timed(lambda: worker.iterate(batch), iterations, ops.synchronize),
        "memory": proportional_set_size,
    }


if __name__ == "__main__":
    options, rank = options_and_rank()
    try:
        done = handlers(options, rank)
    except RingtrainError as error:
        raise SystemExit(f"bench pytorch: {error}") from None
    serve(done)
