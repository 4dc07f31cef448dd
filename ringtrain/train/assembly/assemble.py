"""Builds the objects of a run from the names in its configuration."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ringtrain.allreduce.tuning_table import Table
from ringtrain.arrays import Array
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.record import ModelConfig, TrainConfig
from ringtrain.data.batches.augment import Augment
from ringtrain.data.batches.batches import Batches
from ringtrain.data.batches.gather import Changes, Gather
from ringtrain.data.batches.mixing import Erasing, Mixing
from ringtrain.data.batches.sampler import EvenParts, Sampler, ShardParts, batch_part, largest_part
from ringtrain.data.batches.transforms import Transform
from ringtrain.data.file.dataset import DataSet
from ringtrain.data.split import Split
from ringtrain.errors import ConfigError
from ringtrain.exchange.base import Exchange, Roles
from ringtrain.exchange.catalogue import make_exchange
from ringtrain.exchange.model_parallel.pipeline import Pipeline
from ringtrain.exchange.replica_check import ReplicaCheck
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.loss_scale import LossScale
from ringtrain.humanize import plural
from ringtrain.memory.arena import Arena
from ringtrain.memory.workspace import Workspace
from ringtrain.monitor.guard import Guard
from ringtrain.monitor.guarded_transport import GuardedTransport
from ringtrain.nn.base import Pass
from ringtrain.nn.freeze import freeze
from ringtrain.nn.graph import Graph
from ringtrain.nn.losses import Loss, check_output, label_form, make_loss
from ringtrain.nn.metrics import Metrics
from ringtrain.nn.spec import ModelSpec, available
from ringtrain.ops.base import Ops
from ringtrain.optim.catalogue import make_optimizer
from ringtrain.optim.lr import LearningRate
from ringtrain.train.assembly import batch_norm
from ringtrain.train.assembly.data import check_images, windows_of
from ringtrain.train.assembly.images import transform_of
from ringtrain.train.assembly.initial_weights import InitialWeights
from ringtrain.train.assembly.memory_check import check_room
from ringtrain.train.assembly.recipe import augment_of, iterations_of, rate_of
from ringtrain.train.evaluate import EVALUATION_BATCH, Evaluator
from ringtrain.train.step.input import DeviceInput
from ringtrain.train.step.loss_sum import LossAllReduce
from ringtrain.train.step.partition import BatchPartition
from ringtrain.train.step.passes import ModelPasses, TimedReduction
from ringtrain.train.step.pipeline import PipelineStage
from ringtrain.train.step.slow_rank import pause_of
from ringtrain.train.step.worker import Worker
from ringtrain.transport.agree import together
from ringtrain.transport.base import Transport
from ringtrain.weights.matching import wanted_of_torch

ALL_TRAINED = "none"  # of --freeze


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of a run. ``graph``: of whole layers, for evaluations. ``grain``: examples that must stay on one
    rank (a ghost batch). ``transport``: under the guard, if there is one."""

    config: TrainConfig
    transport: Transport
    guard: Guard | None
    model: ModelSpec
    data: DataSet
    sampler: Sampler
    graph: Graph
    arena: Arena
    rate: LearningRate
    worker: Worker
    stop_requested: Callable[[], bool]
    evaluator: Evaluator
    augment: Augment | None
    grain: int
    replicas: ReplicaCheck

    def close(self) -> None:
        """Free the messages of the exchange, and end the guard."""
        self.exchange.reducers.close()
        if self.guard is not None:
            self.guard.close()

    @property
    def ops(self) -> Ops:
        return self.worker.ops

    @property
    def exchange(self) -> Exchange:
        return self.worker.exchange

    @property
    def roles(self) -> Roles:
        return self.exchange.facts.roles

    @property
    def metrics(self) -> Metrics:
        """What an evaluation tells beside loss and accuracy."""
        output = self.graph.shapes[self.graph.output]
        return self.worker.passes.loss.metrics(output, label_form(self.data.train))

    @property
    def scale(self) -> LossScale | None:
        return self.worker.passes.scale

    @property
    def iterations(self) -> int:
        return self.rate.total

    @property
    def at_a_time(self) -> int:
        """The most examples that a rank trains on at a time."""
        if self.exchange.facts.shards is not None:
            return -(-self.config.run.batch // self.config.exchange.shards)
        examples = largest_part(self.config.run.batch, len(self.roles.trainers), self.grain)
        return largest_part(examples, self.config.run.accumulate, self.grain)

    @property
    def evaluation_batch(self) -> int:
        """The examples of an evaluation at a time, over all ranks; on a device as many of each rank as in training, so
        that the same memory serves."""
        ranks = len(self.roles.whole(self.transport.size))
        if self.ops.records:
            return ranks * self.at_a_time
        most = EVALUATION_BATCH * ranks
        return most if self.exchange.facts.shards is not None else max(self.sampler.batch, most)

    @property
    def evaluation_grain(self) -> int:
        """Examples of an evaluation that stay together: all of a rank at a time, if results must not depend on the
        number of ranks."""
        return self.evaluation_batch // self.transport.size if self.exchange.facts.shards is not None else 1

    @property
    def division(self) -> EvenParts | ShardParts:
        """The division of batches among the ranks that read them."""
        _, parts = self.roles.reads(self.transport.rank)
        return shards_of(self.config.exchange, self.exchange) or EvenParts(parts, self.grain)

    def batches(
        self, transport: Transport, start: int, stop: int, units: Iterable[tuple[int, int]] | None = None
    ) -> Batches:
        """This rank's part of iterations ``start`` up to ``stop``, or the (iteration, part) of ``units``."""
        options, (part, _) = self.config.data, self.roles.reads(transport.rank)
        # Bad images are replaced in transforms, which training alone has.
        least = Transform() if self.data.train.problems is not None else None
        changes = Changes(
            transform=transform_of(options, self.model) or least,
            augment=self.augment,
            erasing=Erasing(options.random_erasing) if options.random_erasing else None,
            mixing=Mixing(options.mixup, options.cutmix),
        )
        return Batches(
            Gather(self.data.train, self.sampler, self.division, changes, self.config.run.seed),
            ((iteration, part) for iteration in range(start, stop)) if units is None else units,
            allocate=self.ops.pinned if self.ops.records else np.empty,
            valid=2 if self.ops.records else 1,  # a device tells of a loss during the next iteration
        )


def assemble(
    config: TrainConfig,
    model: ModelSpec,
    data: DataSet,
    transport: Transport,
    ops: Ops,
    stop: Callable[[], bool],
    tuning: Table | None = None,
    initial: InitialWeights | None = None,
) -> Assembly:
    """Build all parts of a run, with weights drawn by seed and name. ``stop()``: whether this rank has to stop.
    ``tuning``: the table by which ``--algorithm auto`` chooses. ``initial``: weights in place of drawn ones."""
    run, deadline_s = config.run, config.exchange.deadline_s
    if config.data.bad_images == "skip" and data.train.problems is None:
        raise ConfigError(f"--bad-images skip is for image files, which {data.name!r} does not have: leave it out")
    loss, labels = make_loss(config.model), label_form(data.train)
    graph = _checked_graph(config.model, model, data, loss)
    grain = batch_norm.grain_of(config.model.batch_norm, graph, config.exchange.reproducible)
    sampler = Sampler(data.train.count, run.batch, run.seed, windows=windows_of(config.data.shuffle, data.train))
    rate = rate_of(config, iterations_of(run, sampler), sampler.iterations_per_epoch)
    watched = config.exchange.check_collectives and transport.size > 1
    guard = Guard(transport, deadline_s) if watched else None
    scale = LossScale(ops, config.device.loss_scale) if config.device.precision == "float16" else None
    exchange = make_exchange(
        ExchangeSettings(
            config.exchange,
            transport,
            ops,
            tuning,
            guard,
            partial(batch_part, grain=grain),
            scale=scale,
            model=config.model.model,
            batch=run.batch,
            accumulate=run.accumulate,
            clip_norm=config.optimizer.clip_norm,
            seed=run.seed,
        )
    )
    roles = exchange.facts.roles
    check_batch(config, len(roles.trainers), grain, data.train)
    trained, arena = _bound(config, graph, exchange, transport, ops, initial or InitialWeights())
    if guard is not None:
        transport = GuardedTransport(transport, guard)
    unit = model.output.unit(graph.shapes[graph.output], data.label_moments, loss.accuracy)
    feed = DeviceInput(ops, model.input, data, None, unit)
    pause = pause_of(run.inject_slowdown, transport.rank, roles.trainers)
    own_feed = DeviceInput(ops, model.input, data, pause, unit) if pause else feed
    stage = None
    if isinstance(exchange, Pipeline):
        stage = PipelineStage(config, exchange, transport.rank, ops, own_feed, loss, labels, grain)
    ctx = _context(config, exchange, transport, ops, recorded=stage is None)
    cuts = exchange.ready_points if transport.size > 1 else frozenset[str]()
    output = graph.shapes[graph.output]
    passes = ModelPasses(trained, arena, own_feed, loss, ctx, run.seed, cuts, scale, output)
    worker = _worker(config, exchange, transport, passes, stage, rate, grain, stop)
    space, whole = ctx.space, roles.whole(transport.size)
    evaluator = Evaluator(ops, space, graph, loss.evaluated(), feed, transport, deadline_s, stop, whole)
    crops, check = augment_of(config.data, model), ReplicaCheck(ops, arena, exchange, transport)
    return Assembly(
        config, transport, guard, model, data, sampler, graph, arena, rate, worker, stop, evaluator, crops, grain, check
    )


def _checked_graph(config: ModelConfig, model: ModelSpec, data: DataSet, loss: Loss) -> Graph:
    """The network, whose input and output fit the data and the loss."""
    graph = batch_norm.with_ghost_batches(config.batch_norm, model.graph(), model.name)
    if config.freeze not in (None, ALL_TRAINED):
        names_in_files = {each.name: each.names for each in wanted_of_torch(graph)}
        graph = freeze(graph, [pattern.strip() for pattern in config.freeze.split(",")], names_in_files)
    check_images(model, data.name, data.train.shape)
    check_output(loss, graph, data, available().get(config.model))
    return graph


def _bound(
    config: TrainConfig, graph: Graph, exchange: Exchange, transport: Transport, ops: Ops, initial: InitialWeights
) -> tuple[Graph, Arena]:
    """Set the weights and bind the exchange to them; (the graph to train, the arena)."""
    trained = exchange.prepare(graph)
    together(transport, lambda: check_room(trained.parameters(), ops, transport, trained=True))
    # Ranks of a node share memory of one size: where some have a part of the network, each has its own.
    exchanged = transport.scratch if exchange.facts.roles.parts else transport.allocate
    arena = Arena(transport.scratch, trained.parameters(), ops.dtype, exchanged)
    for bound in (graph, trained):
        bound.bind(arena)
    initial.fill(transport, ops, graph, arena, config.run.seed)
    exchange.bind(arena, make_optimizer(config.optimizer.optimizer, arena.spans, config.optimizer))
    return trained, arena


def _context(config: TrainConfig, exchange: Exchange, transport: Transport, ops: Ops, recorded: bool) -> Pass:
    whole = batch_norm.is_whole(config.model.batch_norm)
    return Pass(
        ops,
        Workspace(ops),
        add_over_ranks=TimedReduction(transport, config.exchange.deadline_s) if whole else None,
        recorded=recorded,
        waits=exchange.wait_points if transport.size > 1 else frozenset(),
        recompute=config.device.recompute,
    )


def _worker(
    config: TrainConfig,
    exchange: Exchange,
    transport: Transport,
    passes: ModelPasses,
    stage: PipelineStage | None,
    rate: LearningRate,
    grain: int,
    stop: Callable[[], bool],
) -> Worker:
    ctx, shards = passes.ctx, shards_of(config.exchange, exchange)
    recordable = (
        exchange.recordable_update() if ctx.ops.records and stage is None and ctx.add_over_ranks is None else None
    )
    window, rows = exchange.facts.max_iteration_lag if recordable is None else 1, shards.count if shards else 1
    losses = LossAllReduce(ctx.ops, transport, stop, window, rows, config.exchange.deadline_s, passes.scale)
    partition = BatchPartition(exchange, transport.rank, grain, config.run.accumulate, shards)
    return Worker(passes, exchange, transport, partition, losses, rate.at, stage, recordable)


def shards_of(config: ExchangeConfig, exchange: Exchange) -> ShardParts | None:
    """This rank's shards of a batch; None if gradients are not of shards."""
    return ShardParts(config.shards, *exchange.facts.shards) if exchange.facts.shards is not None else None


# ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────
def check_batch(config: TrainConfig, ranks: int, grain: int, train: Split) -> None:
    """Raise ConfigError unless every rank has a part of the batch."""
    batch = config.run.batch
    if batch > train.count and not config.data.synthetic:
        raise ConfigError(f"--batch {batch} is more than the {train.count} training examples; use at most that many")
    if config.exchange.reproducible and batch < config.exchange.shards:
        raise ConfigError(
            f"--batch {batch} is smaller than the {config.exchange.shards} --shards that --reproducible cuts it into: "
            "use a larger batch, or fewer shards"
        )
    if batch < ranks:
        raise ConfigError(f"--batch {batch} is smaller than the {ranks} ranks it is divided among; use a larger one")
    ghosts = -(-batch // grain)
    if ghosts < ranks:
        raise ConfigError(
            f"--batch {batch} is {plural(ghosts, 'ghost batch', 'ghost batches')} of {grain}, fewer than the {ranks} "
            f"ranks: give --batch-norm ghost:{batch // ranks}, or a batch of at least {grain * (ranks - 1) + 1}"
        )


def broadcast_array(transport: Transport, ops: Ops, flat: Array) -> None:
    """Broadcast rank 0's values of a flat array, of the host or of a device."""
    host = ops.to_host(flat)
    transport.broadcast(host)
    ops.upload(np.ascontiguousarray(host), flat)
