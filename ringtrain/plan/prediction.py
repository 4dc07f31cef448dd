"""A table of predictions: numbers of ranks, strategies and algorithms."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ringtrain.collectives.topology import Topology
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import UsageError
from ringtrain.plan.exchange_times import ExchangeTimes, placed
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.strategies import PlannedRank, algorithms_of, iteration_of, of_strategy

DEFAULTS = ExchangeConfig()
MEASURE_ALL = "`bench-allreduce --algorithm all --json FILE` measures all"
ENOUGH = 0.5  # of a rank's own rate: a rank that adds less does not pay


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What is planned. weak: ``batch`` is of a rank, not of all; per_node: ranks of a node"""

    batch: int
    weak: bool = False
    per_node: int = 1
    overlap: str = DEFAULTS.overlap
    bucket_bytes: int = DEFAULTS.bucket_bytes

    @property
    def batch_text(self) -> str:
        return f"batch {self.batch:,} {'of each rank' if self.weak else 'over all ranks'}"


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One prediction. strategy: as typed behind ``--sync``; ``…_s``: seconds of an iteration; efficiency: examples/s of
    a rank, over one rank alone; memory_bytes: of a rank"""

    ranks: int
    nodes: int
    strategy: str
    algorithm: str
    batch: int
    step_s: float
    compute_s: float
    update_s: float
    exposed_s: float
    images_per_s: float
    efficiency: float
    memory_bytes: int
    node_hours_per_million: float


def predict(
    layers: LayerTimes,
    exchanges: ExchangeTimes,
    counts: Sequence[int],
    strategies: Sequence[ExchangeConfig],
    algorithms: Sequence[str],
    settings: PlanSettings,
) -> list[PlanRow]:
    """Return a row for each number of ranks, strategy, and algorithm with which it works; without ``algorithms`` for
    the fastest alone. A strategy that works by none of them, or of the sweep's, on some number of ranks has no row,
    and a note among the layers'. Raises UsageError if that leaves none."""
    alone = _rows(layers, exchanges, 1, strategies[0], [], settings)[0].images_per_s
    measured = [
        each
        for each in strategies
        if all(
            _algorithms(layers.carried_out(each, n), exchanges, placed(n, settings.per_node), algorithms)
            for n in counts
        )
    ]
    left_out = ", ".join(of_strategy(each) for each in strategies if each not in measured)
    if left_out:
        known = ", ".join(algorithms or exchanges.algorithms)
        note = f"left out: {left_out}, which work by none of {known}; {MEASURE_ALL}"
        if not measured:
            raise UsageError(note)
        layers.notes[note] = None
    rows = []
    for ranks in counts:
        for config in measured:
            predicted = _rows(layers, exchanges, ranks, config, algorithms, settings, alone)
            rows += predicted if algorithms else [min(predicted, key=lambda row: row.step_s)]
    return rows


def _rows(layers, exchanges, ranks, config, algorithms, settings, alone=None) -> list[PlanRow]:
    """Return the rows of one number of ranks. ``alone``: examples/s of a rank by itself; None: these are its rows"""
    topology = placed(ranks, settings.per_node)
    batch = settings.batch * ranks if settings.weak else settings.batch
    trainers = ranks - config.servers if config.dedicated and ranks > 1 else ranks
    if trainers < 1:
        raise UsageError(f"{of_strategy(config)}: of {ranks} ranks none trains: plan more ranks, or fewer servers")
    times = layers.of_rank(batch / trainers, max(topology.counts))
    planned_config = replace(layers.carried_out(config, ranks), overlap=settings.overlap)
    buckets = layers.buckets(planned_config, settings.bucket_bytes)
    planned = [
        PlannedRank(
            layers=layers,
            times=times,
            buckets=buckets,
            topology=topology,
            exchanges=exchanges,
            algorithm=name,
            config=planned_config,
            examples=batch / ranks,
        )
        for name in _algorithms(planned_config, exchanges, topology, algorithms)
    ]
    return [_row(layers, rank, of_strategy(config), batch, alone) for rank in planned]


def _algorithms(config: ExchangeConfig, exchanges: ExchangeTimes, topology: Topology, asked: Sequence[str]) -> Sequence:
    """Return the algorithms to predict; none where the sweep lacks what the strategy sends."""
    if topology.size == 1:
        return [""]
    suiting = algorithms_of(config, exchanges.suiting(topology))
    if suiting == [""]:
        return suiting if exchanges.has_messages else []
    return [name for name in asked if name in suiting] if asked else suiting


def _row(layers: LayerTimes, rank: PlannedRank, strategy: str, batch: int, alone: float | None) -> PlanRow:
    share, ranks, nodes = iteration_of(rank), rank.topology.size, len(rank.topology.nodes)
    rate = batch / share.seconds
    return PlanRow(
        ranks=ranks,
        nodes=nodes,
        strategy=strategy,
        algorithm=rank.algorithm,
        batch=batch,
        step_s=share.seconds,
        compute_s=share.compute_s,
        update_s=share.update_s,
        exposed_s=share.exposed_s,
        images_per_s=rate,
        efficiency=rate / ranks / (alone or rate),
        memory_bytes=round(share.state_share * layers.first.held_bytes + layers.other_bytes(batch / ranks)),
        node_hours_per_million=1e6 / rate / 3600 * nodes,
    )


def winner(rows: Sequence[PlanRow], ranks: int) -> PlanRow:
    return min((row for row in rows if row.ranks == ranks), key=lambda row: row.step_s)


def last_that_pays(rows: Sequence[PlanRow]) -> int | None:
    """Return the largest number of ranks up to which each further rank adds half the examples/s of one rank alone, by
    the fastest at each number; None if that holds up to the largest."""
    alone = rows[0].images_per_s / rows[0].efficiency / rows[0].ranks
    best = {1: alone} | {count: winner(rows, count).images_per_s for count in sorted({row.ranks for row in rows})}
    for (before, rate), (after, larger) in pairwise(best.items()):
        if (larger - rate) / (after - before) < ENOUGH * alone:
            return before
    return None
