"""The interface of every synchronisation strategy. The training loop uses this interface and knows no strategy by name.

The exchange applies the optimizer, on flat spans of the arena, so that all-reduce (every rank updates everything),
sharded (each rank updates its slice), server (the server updates) and averaging (update, then average) have one
interface. *An all-reduce sums; means are made by the loss's denominator.*
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from ringtrain.exchange.buckets.reducers import Reducers
from ringtrain.exchange.update.owned_update import OwnedArray

Cut = tuple[int, int]  # examples start:stop of a batch


@dataclass(frozen=True, slots=True)
class Roles:
    """Which ranks train (the sampler divides the batch among them, in this order) and which serve. ``loader``: the rank
    that reads whole batches, of which the others get their parts by :meth:`Exchange.scatter`; None where each reads its
    own."""

    trainers: tuple[int, ...]
    servers: tuple[int, ...] = ()
    loader: int | None = None

    def part(self, rank: int) -> int | None:
        """The part of a batch that is this rank's; None where it does not train."""
        return self.trainers.index(rank) if rank in self.trainers else None

    def reads(self, rank: int) -> tuple[int | None, int]:
        """(part, parts): what of a batch this rank reads; nothing where the part is None."""
        if self.loader is None:
            return self.part(rank), len(self.trainers)
        return (0 if rank == self.loader else None), 1


def all_train(size: int) -> Roles:
    return Roles(trainers=tuple(range(size)))


@dataclass(frozen=True, slots=True)
class Lag:
    """How far ranks have been apart, as a server saw it. How often one that went on was so many updates ahead of the
    slowest; how often so many updates of others lay between the weights that one took and the update that it gave; and
    the updates of each rank."""

    clocks: dict[int, int]
    versions: dict[int, int]
    updates: dict[int, int]

    @property
    def largest(self) -> int:
        """The most updates that any rank was ahead of the slowest."""
        return max(self.clocks, default=0)


class State(Protocol):
    """The optimizer's state: see :class:`ringtrain.exchange.update.owned_state.OwnedState`."""

    def state(self) -> dict: ...

    def arrays(self) -> list[OwnedArray]: ...

    def check_names(self, names: Collection[str]) -> None: ...

    def restore(self, state: dict) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFacts:
    """Facts about a strategy. ``exact``, ``notes`` and ``state_bytes`` are final once the strategy is bound.

    name:               of the strategy
    header:             what the run header adds to the name
    roles:              which ranks train, and which serve
    exact:              whether an iteration equals serial SGD on the global batch
    state_is_local:     whether rank 0 holds the whole state, and can save it alone
    survives_rank_loss: whether every rank holds the state of the last finished iteration, also when another rank dies
    max_iteration_lag:  iterations that ranks may be apart; 0: all begin each one together
    dynamic_batches:    whether any free rank takes the next part of a batch
    all_reduces:        whether ``--algorithm`` has a meaning
    within_passes:      whether ranks exchange within passes: each makes as many as all others, without examples too
    shards:             this rank's shards start:stop of the batch, where gradients of shards are added in one fixed
                        order; else None
    notes:              lines for the user: choices, and options that act otherwise
    state_bytes:        memory of this rank besides weights and gradients
    """

    name: str
    header: str = ""
    roles: Roles
    exact: bool
    state_is_local: bool
    survives_rank_loss: bool = False
    max_iteration_lag: int = 0
    dynamic_batches: bool = False
    all_reduces: bool = True
    within_passes: bool = False
    shards: tuple[int, int] | None = None
    notes: Sequence[str] = ()
    state_bytes: int | None = None


class BatchSource:
    """Each rank reads its own examples, and computes the loss of these."""

    def scatter(self, arrays: dict, cuts: dict[int, list[Cut]]) -> dict:
        """This rank's part of the arrays that the loader has of a whole batch; the other ranks give arrays without
        examples. ``cuts``: trainer → its micro-batches, one after another. Called if the roles name a loader;
        collective."""
        return arrays

    def loss_gradient(self, micro: int, logits, labels, loss: Callable):
        """d(loss)/d(logits) of micro-batch ``micro``, by ``loss(logits, labels)``, which counts totals besides. If one
        rank computes the loss of all, that rank alone calls it."""
        return loss(logits, labels)


class Serving:
    """Ranks that make their iterations together, and want nothing of one another between them."""

    def poll(self) -> None:
        """Serve the requests of other ranks, without waiting. Called while this rank waits for them elsewhere."""

    def drain_peers(self) -> None:
        """Serve the other ranks until all have finished the same iterations. Called before a barrier."""

    def serve(self, meanwhile: Callable[[], None]) -> None:
        """Serve until no trainer makes a request any more, on a rank that does not train; call ``meanwhile`` often."""

    def lag(self) -> Lag | None:
        """How far ranks have been apart; None if they were not, or if this rank does not see it. Rank 0 sees it."""
        return None


class Exchange(ABC):
    """One strategy of synchronisation: the calls of an iteration, in their order.

    The other members: ``facts``; ``batches`` and ``serving``, which most strategies leave as they are; and, once bound,
    ``owned_state``, ``reducers``, ``ready_points`` and ``wait_points``.

    ready_points: names of the spans whose :meth:`grad_ready` starts a message. A device that computes many layers at a
                  time stops there.
    wait_points:  names of the spans whose :meth:`before_read` may wait. The same device begins there.
    """

    facts: ExchangeFacts
    batches: BatchSource = BatchSource()
    serving: Serving = Serving()
    owned_state: State
    reducers: Reducers
    ready_points: frozenset[str] = frozenset()
    wait_points: frozenset[str] = frozenset()

    def prepare(self, graph):
        """The graph to train; ``--fc hybrid`` replaces layers."""
        return graph

    @abstractmethod
    def bind(self, arena, optimizer) -> None:
        """Form buckets and prepare the messages; once, before the first iteration. Collective."""

    @abstractmethod
    def rehearse(self) -> None:
        """Run every operation of an iteration once, on no elements: kernels compile before the first iteration."""

    def denominator(self, local: float, total: float) -> float:
        """The divisor of the loss's mean: the total over all ranks if gradients are summed; this rank's own number if
        weights are averaged. Called after :meth:`before`."""
        return total

    def before(self, iteration: int, examples: int, total: int) -> None:  # noqa: B027
        """Begin an iteration, which has ``examples`` of its ``total`` on this rank."""

    def before_read(self, span) -> None:  # noqa: B027
        """Wait until this span's weights are current: forward is about to read them."""

    def shard_grad_ready(self, span) -> None:  # noqa: B027
        """Add this span's gradient of the last shard, which lies in the arena. Called if ``facts.shards`` is not None:
        shards come in order, each with every span once; :meth:`grad_ready` follows the last shard."""

    @abstractmethod
    def grad_ready(self, span) -> None:
        """Start the exchange of this span's gradient, which is final on this rank."""

    @abstractmethod
    def finish(self, iteration: int, lr: float) -> None:
        """Complete the communication of this iteration and apply the update."""

    @abstractmethod
    def synchronize(self) -> None:
        """Make the weights current on every rank: before an evaluation, a checkpoint, the end."""
