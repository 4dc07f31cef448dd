"""Loads a trained model from a checkpoint on every rank, for evaluate, predict and ``ringtrain.load``."""

from dataclasses import dataclass, fields

import numpy as np

from ringtrain import plugin
from ringtrain.config.record import TrainConfig
from ringtrain.config.resolve import FLAGS, for_continuation, parse_run_file, resolve, without_removed
from ringtrain.data.batches.batches import evaluation_batches
from ringtrain.data.content import IGNORE
from ringtrain.data.file.dataset import DataSet
from ringtrain.data.split import ArraySplit, Split
from ringtrain.errors import DataError, ModelError, everywhere
from ringtrain.memory.arena import Arena
from ringtrain.memory.workspace import Workspace
from ringtrain.nn import spec
from ringtrain.nn.base import Pass
from ringtrain.nn.graph import Graph
from ringtrain.nn.losses import Loss, check_output, make_loss
from ringtrain.nn.spec import ModelSpec
from ringtrain.ops.base import Ops
from ringtrain.storage.checkpoint import store
from ringtrain.storage.run_folder import run_folder
from ringtrain.storage.run_folder.run_folder import FoundCheckpoint
from ringtrain.train.assembly.data import check_images, read_data
from ringtrain.train.assembly.device import open_device
from ringtrain.train.assembly.memory_check import check_room
from ringtrain.train.checkpoints import input_facts
from ringtrain.train.checkpoints.input_facts import InputFacts, facts_of
from ringtrain.train.checkpoints.state import common_facts, from_root, parameter_shapes
from ringtrain.train.evaluate import EVALUATION_BATCH, Evaluator, Score, crop_of
from ringtrain.train.step.input import DeviceInput
from ringtrain.transport.agree import agree, keep_on_root, take_turns, together
from ringtrain.transport.base import Transport
from ringtrain.weights.matching import weights_for_use


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model with trained weights. ``path``: of the checkpoint; ``skipped``: a sentence on each newer, damaged one;
    ``facts``: of its training data; ``averaged``: on rank 0, whether the weights are the run's average (``--ema``)."""

    path: str
    skipped: tuple[str, ...]
    iteration: int
    averaged: bool
    config: TrainConfig
    model: ModelSpec
    ops: Ops
    space: Workspace
    graph: Graph
    loss: Loss
    facts: InputFacts

    def feed_of(self, split: Split) -> DeviceInput:
        """Return what brings a split's examples to the device, prepared as examples of the training were."""
        output, data = self.graph.shapes[self.graph.output], self.facts.data_set("", split)
        unit = self.model.output.unit(output, self.facts.label_moments, self.loss.accuracy)
        return DeviceInput(self.ops, self.model.input, data, None, unit)


@dataclass(frozen=True, slots=True)
class TrainedOnData(TrainedModel):
    """A trained model, and a part of a data set to apply it to."""

    data: DataSet
    split: Split
    feed: DeviceInput


def load(transport: Transport, target: str, best: bool, options: dict, split: str, raw: bool = False) -> TrainedOnData:
    """Load the model of a checkpoint's file or a run's folder, and one split of the data set in ``options``, or of the
    run's. ``raw``: the weights of the last update, also of a run with an average of weights. Collective; raises
    RingtrainError on every rank alike."""
    stored, known, config, model = _look_up(transport, target, best, raw, options, split)
    data = read_data(config, model, transport)
    chosen = together(transport, lambda: split_of(data, split, model))
    trained = _load(transport, stored, known, config, model, raw, data)
    parts = {each.name: getattr(trained, each.name) for each in fields(trained)}
    loaded = TrainedOnData(**parts, data=data, split=chosen, feed=trained.feed_of(chosen))
    take_turns(transport, lambda: _rehearse(loaded, chosen, data), compiles=loaded.ops.records)
    return loaded


def load_model(transport: Transport, target: str, best: bool, options: dict, raw: bool = False) -> TrainedModel:
    """Load the model of a checkpoint's file or a run's folder, without data: only a checkpoint of an earlier version
    needs the run's. ``raw``: as in :func:`load`. Collective; raises RingtrainError on every rank alike."""
    stored, known, config, model = _look_up(transport, target, best, raw, options)
    trained = _load(transport, stored, known, config, model, raw)
    one = ArraySplit(np.zeros((1, *trained.facts.shape), np.uint8), np.full(1, IGNORE, np.int32), "")
    take_turns(transport, lambda: _rehearse(trained, one), compiles=trained.ops.records)
    return trained


def _look_up(
    transport: Transport, target: str, best: bool, raw: bool, options: dict, *more: str
) -> tuple[FoundCheckpoint | None, dict, TrainConfig, ModelSpec]:
    """(the checkpoint, on rank 0; its facts; configuration; model)."""
    asked = {"target": target, "best": best, "raw": raw, "split": more, "plug-ins": plugin.facts()}
    agree(transport, {**asked, **options})

    def look() -> tuple[FoundCheckpoint, dict]:
        with transport.activity.holds_gil(f"reading checkpoint {target}"):
            stored = run_folder.find_checkpoint(target, best, ranks=False)
        facts = common_facts(stored.checkpoint) | input_facts.form_of(stored.checkpoint)
        return stored, {**facts, "path": str(stored.path), "skipped": stored.skipped}

    stored, known = keep_on_root(transport, look)
    config = together(transport, lambda: _configured(known["config"], options))
    model = together(
        transport, lambda: spec.parse_model(known["model"], known["model_name"], "the model in the checkpoint")
    )
    return stored, known, config, model


def _load(
    transport: Transport,
    stored: FoundCheckpoint | None,
    known: dict,
    config: TrainConfig,
    model: ModelSpec,
    raw: bool,
    data: DataSet | None = None,
) -> TrainedModel:
    """Load the weights. ``data``: for a checkpoint that does not keep the facts of its training data."""
    facts = input_facts.spread(transport, known, stored.checkpoint if stored else None, model.input)
    if facts is None:
        facts = facts_of(model.input, data or read_data(config, model, transport))
    device = open_device(config, transport)
    transport.activity.deadline_s = config.exchange.deadline_s
    ops, transport = device.ops, device.transport
    graph = model.graph()
    together(transport, lambda: check_room(graph.parameters(), ops, transport, trained=False))
    arena = together(transport, lambda: Arena(transport.scratch, graph.parameters(), ops.dtype))
    graph.bind(arena)

    def check() -> None:
        if stored:
            store.check_parameters(stored.checkpoint, parameter_shapes(arena), str(stored.path))

    together(transport, check)
    weights, averaged = weights_for_use(stored.checkpoint, raw) if stored else (None, False)
    ops.upload(from_root(transport, arena.spans, weights, ops.dtype), arena.weights)
    return TrainedModel(
        path=known["path"],
        skipped=tuple(known["skipped"]),
        iteration=known["iteration"],
        averaged=averaged,
        config=config,
        model=model,
        ops=ops,
        space=Workspace(ops),
        graph=graph,
        loss=together(transport, lambda: make_loss(config.model)).evaluated(),
        facts=facts,
    )


def _configured(stored: str, options: dict) -> TrainConfig:
    """``options`` over the configuration in the checkpoint, as TOML."""
    flags = {**options, "synthetic": False, "test_data": None} if "data" in options else options
    if flags.get("device") == "cpu":  # on any device it was trained on
        flags = {"precision": "float32", "loss_scale": None, "mpi_cuda": "auto", **flags}
    before = without_removed(for_continuation(parse_run_file(stored, "checkpoint")))
    return resolve(("checkpoint", before), (FLAGS, flags))


def score_of(transport: Transport, trained: TrainedOnData, by_class: bool = False) -> Score:
    """Compute the loss and the metrics of the split, ``by_class`` also of each class. Collective. Raises ModelError if
    the output does not fit the labels, DataError without labels."""
    together(transport, lambda: check_output(trained.loss, trained.graph, trained.data))
    loss, deadline_s = trained.loss, trained.config.exchange.deadline_s
    evaluator = Evaluator(trained.ops, trained.space, trained.graph, loss, trained.feed, transport, deadline_s)
    score = evaluator.score(
        trained.split, EVALUATION_BATCH * transport.size, grain=EVALUATION_BATCH, whole=True, by_class=by_class
    )
    if score is None:
        raise everywhere(DataError(f"no example of that part of data set {trained.data.name!r} has a label"))
    return score


def _rehearse(trained: TrainedModel, split: Split, data: DataSet | None = None) -> None:
    """Run every kernel of a prediction, and of an evaluation on ``data``, once, on one example."""
    ctx = Pass(trained.ops, trained.space, training=False)
    with evaluation_batches(split, 1, crop=crop_of(trained.graph)) as batches:
        x, labels, ctx.examples = trained.feed_of(split).load(ctx.space, next(batches), 0, 1)
    outputs, _ = trained.graph.forward(ctx, x)
    trained.loss.predict(ctx, outputs)
    if data is None:
        return
    try:
        check_output(trained.loss, trained.graph, data)
    except ModelError:  # the command that needs the output raises it; features of a layer do not need it
        return
    trained.loss.forward(ctx, outputs, labels, trained.ops.zeros((3,), "float64"))


def split_of(data: DataSet, name: str, model: ModelSpec) -> Split:
    """The part of a data set whose inputs the model takes. Raises DataError"""
    check_images(model, data.name, data.train.shape)
    parts = dict(data.splits())
    if name not in parts:
        raise DataError(f"data set {data.name!r} has no {name} part; it has {', '.join(parts)}: choose with --split")
    return parts[name]
