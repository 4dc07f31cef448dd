"""The iteration of each strategy, from its six parts: layers, update, and the exchanges that nothing hides.

What travels and how it is coded say the bytes, with whom the messages, when how often they travel and what hides them,
what is done with the result the arrays that are moved in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

from ringtrain.collectives.catalogue import HALVES
from ringtrain.collectives.schedule import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from ringtrain.collectives.topology import Topology
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.option import typed
from ringtrain.exchange.compression.error_feedback import METHODS
from ringtrain.exchange.parts import ALL, CHANGE, EXACT, OUTER_STEP, OWNERS, PARTNER, ROOT, Parts, parts_of
from ringtrain.memory.buckets import Bucket
from ringtrain.plan.exchange_times import ExchangeTime, ExchangeTimes
from ringtrain.plan.iteration import MOST_ROUNDS, BackwardTimes, backward_of, exposed_s, whole_iterations
from ringtrain.plan.layer_times import LayerTimes, RankTimes

# Arrays, each as long as the weights, that are read or written beside the messages.
UPDATE_MOVES = 3  # weights and gradients for an update, beside two of each array of the optimizer's state
AVERAGE_MOVES = 6  # a copy, a multiplication and a copy for each array that is averaged
PAIR_MOVES = 5  # an addition and a multiplication
PENDING_MOVES = 2  # a copy of gradients that wait
PUSH_MOVES = 9  # a worker's change since its last pull
OUTER_MOVES = 16  # a copy of weights, their change, Nesterov's step
CHANGE_MOVES = 7  # what changes that travel take more
CODING_MOVES = {"top-k": 9, "powersgd": 14, "quantise": 30, "sign": 16}  # measured, in moves of an addition
WIRE_MOVES = 5  # rounding what is sent and adding what arrives: measured likewise
WIRE_BYTES = 2  # of an element of a wire format


@dataclass(frozen=True, slots=True)
class IterationShare:
    """Seconds of an iteration: layers, the update, exchanges that nothing hides. state_share: of the bytes of weights,
    gradients and the optimizer's state, those that a rank holds"""

    compute_s: float
    update_s: float
    exposed_s: float
    state_share: float = 1.0

    @property
    def seconds(self) -> float:
        return self.compute_s + self.update_s + self.exposed_s


@dataclass(frozen=True)
class PlannedRank:
    """A rank among others."""

    layers: LayerTimes
    times: RankTimes
    buckets: Sequence[Bucket]
    topology: Topology
    exchanges: ExchangeTimes
    algorithm: str
    config: ExchangeConfig
    examples: float  # of this rank, an iteration

    @cached_property
    def parts(self) -> Parts:
        return parts_of(self.config)

    @property
    def streams(self) -> bool:
        """Whether exchanges need no core."""
        return self.layers.first.records

    @property
    def overlaps(self) -> bool:
        """Whether exchanges begin during backward."""
        return self.config.overlap != "none"

    @property
    def move_s(self) -> float:
        """Seconds in which an array as long as the weights is read or written."""
        if self.layers.first.move_s is not None:
            return self.layers.first.move_s
        return self.times.update_s / (UPDATE_MOVES + 2 * self.layers.state_arrays)

    def nbytes(self, bucket: Bucket) -> float:
        """The bytes of a bucket whose exact all-reduce sends as many as what travels in its place."""
        how, size = self.parts.how, self.topology.size
        if how not in METHODS:
            return bucket.nbytes * (1 if how == EXACT else WIRE_BYTES / self.layers.itemsize)
        method, numbers = METHODS[how](self.config), (self.layers.itemsize, size)
        coded = [span for span in bucket.spans if method.compresses(span)]
        rest = bucket.nbytes - self.layers.itemsize * sum(span.stop - span.start for span in coded)
        return rest + sum(method.least_bytes(span, *numbers) for span in coded) * size / (2 * (size - 1))

    def times_of(self, goal: str = ALL_REDUCE, share: float = 1.0, whole: bool = False) -> list[ExchangeTime]:
        """Return the exchanges of the buckets, of a share of each; ``whole``: of arrays that are sent as they are."""
        sizes = [share * (bucket.nbytes if whole else self.nbytes(bucket)) for bucket in self.buckets]
        return [self.exchanges.time(self.algorithm, self.topology, nbytes, goal) for nbytes in sizes]

    def exposed_s(self, exchanges: Sequence[ExchangeTime], window: BackwardTimes | None = None) -> float:
        """Return the seconds by which exchanges lengthen an iteration; ``window``: what they travel beside"""
        moments = window or backward_of(self.times, self.buckets)
        return exposed_s(moments, exchanges, window is not None, self.streams)

    def there_and_back_s(
        self, directions: tuple[str, str], share: float = 1.0, most_rounds: int = MOST_ROUNDS
    ) -> float:
        """Seconds by which sums at owners and the weights that these send back lengthen an iteration, each in a
        direction of the link."""
        sums, weights = (
            [replace(each, rounds=min(each.rounds, most_rounds)) for each in self.times_of(goal, share)]
            for goal in (REDUCE_SCATTER, ALL_GATHER)
        )
        backward = backward_of(self.times, self.buckets)
        return exposed_s(backward, sums, self.overlaps, self.streams, weights, directions)

    def message(self, times: float = 1.0) -> ExchangeTime:
        """Return a message of so many times all that travels to another rank, and one from there."""
        return self.exchanges.message(self.topology, times * sum(map(self.nbytes, self.buckets)))


def iteration_of(rank: PlannedRank) -> IterationShare:
    """Return the iteration of the rank's strategy, a mean over those of a period."""
    parts, size, update_s = rank.parts, rank.topology.size, rank.times.update_s
    if size == 1:
        return IterationShare(rank.times.compute_s, update_s, 0.0)
    owners = size if parts.in_halves else parts.owners
    if parts.together and owners:
        update_s /= owners
    exposed = EXCHANGES[parts.partners](rank) + rank.move_s * moves_of(parts, rank.layers.state_arrays) / parts.every
    return IterationShare(rank.times.compute_s, update_s, exposed, _state_share(rank))


# ── with whom ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def _with_all(rank: PlannedRank) -> float:
    """Sums of gradients during backward, or while as many iterations compute as they are late, those of each fragment
    beside iterations of its own; or, once a period, of weights or changes, and of the optimizer's state, which nothing
    hides."""
    parts, sums = rank.parts, rank.times_of()
    window = backward_of(rank.times, rank.buckets) if parts.sums_gradients and rank.overlaps else None
    if parts.delay:
        window = whole_iterations(rank.times, len(rank.buckets), parts.delay * parts.fragments)
    state = rank.layers.state_arrays * rank.exposed_s(rank.times_of(whole=True)) if parts.averages_state else 0.0
    return (rank.exposed_s(sums, window) + state) / parts.every


def _with_owners(rank: PlannedRank) -> float:
    """Sums scattered over ranks, and weights gathered: both use both directions of a link. Or sums at servers, into
    their links, and weights out of them: all messages of a bucket leave at once."""
    parts = rank.parts
    if parts.in_halves:
        return rank.there_and_back_s(("", ""))
    if not parts.together:
        return _apart(rank)
    return rank.there_and_back_s(("in", "out"), _server_share(rank), most_rounds=1)


def _with_root(rank: PlannedRank) -> float:
    """As one server; and examples, outputs and gradients of these, which nothing hides."""
    inputs, outputs = (rank.examples * each for each in rank.layers.example_bytes)
    others = rank.topology.size - 1
    messages = [rank.exchanges.message(rank.topology, others * each).seconds for each in (inputs, outputs, outputs)]
    return rank.there_and_back_s(("in", "out"), most_rounds=1) + sum(messages)


def _with_partner(rank: PlannedRank) -> float:
    """Messages in each direction, as many as partners, beside the whole iteration; with an outer step after it."""
    beside = None if rank.parts.then == OUTER_STEP else whole_iterations(rank.times, 1)
    return rank.exposed_s([rank.message(rank.parts.partner_count)], beside) / rank.parts.every


def _apart(rank: PlannedRank) -> float:
    """The mean of ranks that wait for no other: a rank's change goes to the servers, and weights come back, after its
    update; no faster than a server's link passes those of all."""
    every, alone_s = rank.parts.every, rank.times.compute_s + rank.times.update_s
    link_s = rank.message((rank.topology.size - 1) * _server_share(rank)).seconds
    return max(2 * rank.message().seconds / every, link_s / every - alone_s)


def _server_share(rank: PlannedRank) -> float:
    """Of the messages of all other ranks to one server, those to the one of several that has most; between nodes, to
    all of a node, which share its link."""
    shares, others = rank.layers.server_shares(rank.config), rank.topology.size - 1
    most = max(sum(shares[number] for number in node if number < len(shares)) for node in rank.topology.nodes)
    if len(rank.topology.nodes) == 1:
        most = max(shares)
    return (others + 1 - len(shares) if rank.config.dedicated else others) / others * most


EXCHANGES: dict[str, Callable[[PlannedRank], float]] = {
    ALL: _with_all,
    OWNERS: _with_owners,
    ROOT: _with_root,
    PARTNER: _with_partner,
}


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def moves_of(parts: Parts, state_arrays: int) -> float:
    """Return the arrays that are read or written for an exchange, beside its additions."""
    coding = 0 if parts.how == EXACT else CODING_MOVES.get(parts.how, WIRE_MOVES)
    if parts.partners == PARTNER:
        return coding + PAIR_MOVES + OUTER_MOVES * (parts.then == OUTER_STEP)
    if not parts.together:
        return coding + PUSH_MOVES
    changes = parts.averages and parts.travels == CHANGE
    means = (parts.averages and not changes) + parts.averages_state * state_arrays
    outer = OUTER_MOVES * (changes or parts.then == OUTER_STEP) + CHANGE_MOVES * changes
    return coding + AVERAGE_MOVES * means + outer + PENDING_MOVES * bool(parts.delay)


def _state_share(rank: PlannedRank) -> float:
    """Return the share of weights, gradients and state that a rank holds, with further arrays of the strategy."""
    parts, arrays = rank.parts, rank.layers.state_arrays
    if parts.in_halves:
        return (2 + arrays / rank.topology.size) / (2 + arrays)
    more = (
        bool(parts.delay)
        + parts.partner_count * (parts.partners == PARTNER)
        + (not parts.together and parts.partners == OWNERS)
    )
    more += (parts.how in METHODS) + 2 * (parts.then == OUTER_STEP or (parts.averages and parts.travels == CHANGE))
    return 1 + more / (2 + arrays)


# ── names and algorithms ──────────────────────────────────────────────────────────────────────────────────────────────
STAR = "star"  # messages to one rank, and from it
# Options that make the strategy of a row, beside its name.
OPTIONS = [
    each
    for each in fields(ExchangeConfig)
    if each.metadata["planned"]
    and (each.metadata["section"] == "Strategy" or each.name.startswith(("wire", "compress")))
    and not each.name.endswith(("sync", "_from", "_max_lag"))
]


def of_strategy(config: ExchangeConfig) -> str:
    """Return the strategy of a configuration as typed behind ``--sync``: its name, and the options that change its
    speed."""
    values = {each.name: getattr(config, each.name) for each in OPTIONS if getattr(config, each.name) != each.default}
    return " ".join([config.strategy, *(typed(name, value) for name, value in values.items())])


def algorithms_of(config: ExchangeConfig, suiting: Sequence[str]) -> list[str]:
    """Return the algorithms with which the strategy works; none is named where a rank sends to one partner."""
    parts = parts_of(config)
    if parts.partners == PARTNER:
        return [""]
    if parts.has_servers or parts.partners == ROOT:
        return [name for name in suiting if name == STAR]
    return [name for name in suiting if name in HALVES] if parts.in_halves else list(suiting)
