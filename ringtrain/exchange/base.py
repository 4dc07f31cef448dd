"""The interface of a synchronisation strategy. The training loop calls it, and names no strategy.

The exchange applies the optimizer, on flat spans of the arena. So all-reduce (every rank updates everything), sharded
(each rank updates its shard), server (the server updates) and averaging (update, then average) have one interface. An
all-reduce sums gradients; :meth:`Exchange.denominator` makes their mean.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ringtrain.arrays import Array
from ringtrain.errors import UsageError
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.update.owned_update import OwnedArray, OwnedUpdate, check_names
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import Optimizer

if TYPE_CHECKING:
    from ringtrain.nn.graph import Graph

Cut = tuple[int, int]  # (start, stop): examples start:stop of a batch


@dataclass(frozen=True, slots=True)
class Roles:
    """The ranks that train, in the order in which the sampler divides the batch among them, and the ranks that serve.
    ``loader``: the rank that reads whole batches and scatters them (:meth:`BatchSource.scatter`); None where each rank
    reads its own part. ``parts``: the ranks whose arena is a part of the network: they do not evaluate."""

    trainers: tuple[int, ...]
    servers: tuple[int, ...] = ()
    loader: int | None = None
    parts: tuple[int, ...] = ()

    def part(self, rank: int) -> int | None:
        """Return the part of a batch that this rank trains on; None if it does not train."""
        return self.trainers.index(rank) if rank in self.trainers else None

    def reads(self, rank: int) -> tuple[int | None, int]:
        """Return (part, parts) of a batch that this rank reads; the part is None if it reads nothing."""
        if self.loader is None:
            return self.part(rank), len(self.trainers)
        return (0 if rank == self.loader else None), 1

    def whole(self, size: int) -> tuple[int, ...]:
        """Return the ranks, among ``size``, that hold the whole network."""
        return tuple(rank for rank in range(size) if rank not in self.parts)


def all_train(size: int) -> Roles:
    """Return the roles of ``size`` ranks, all trainers."""
    return Roles(trainers=tuple(range(size)))


@dataclass(frozen=True, slots=True)
class Lag:
    """How far ranks were apart, as a server saw it."""

    clocks: dict[int, int]  # updates that a rank was ahead of the slowest → how often
    versions: dict[int, int]  # updates of other ranks between a rank's weights and the update from them → how often
    updates: dict[int, int]  # rank → its updates

    @property
    def largest(self) -> int:
        """The most updates that any rank was ahead of the slowest."""
        return max(self.clocks, default=0)


class StatePart(Protocol):
    """State that a strategy keeps in addition to the optimizer's."""

    @property
    def required_names(self) -> Collection[str]:
        """Names of arrays that each state of this strategy has."""

    @property
    def optional_names(self) -> Collection[str]:
        """Names of arrays that a state may have."""

    def state(self) -> dict: ...

    def restore(self, state: dict) -> None: ...


class RankState(ABC):
    """State in which ranks differ, if it ``differs`` now. A checkpoint keeps it for as many ranks of the same strategy,
    beside the state that others begin from: :meth:`take` takes this rank's :meth:`arrays`, from the host.
    """

    differs: bool

    @abstractmethod
    def arrays(self) -> dict[str, Array]: ...

    @abstractmethod
    def take(self, arrays: dict[str, np.ndarray]) -> None: ...


class RankStates(RankState):
    """Several of them as one, whose arrays have unlike names."""

    def __init__(self, states: Sequence[RankState]):
        self._states = states

    @property
    def differs(self) -> bool:  # type: ignore[override]
        return any(state.differs for state in self._states)

    def arrays(self) -> dict[str, Array]:
        return {name: array for state in self._states for name, array in state.arrays().items()}

    def take(self, arrays: dict[str, np.ndarray]) -> None:
        for state in self._states:
            state.take(arrays)


class OwnedState:
    """The optimizer's state and the parts that a strategy adds: gathered for a checkpoint, compared between ranks,
    checked and restored.

    update:      the optimizer on this rank
    synchronize: completes every update; called before the state is gathered
    gather:      returns the optimizer's whole state, on rank 0 at least; None: this rank has it already
    replicated:  whether every rank holds the same state now
    parts:       state in addition to the optimizer's
    arrays:      arrays of the parts, for the comparison of ranks
    rank_state:  None: a part may be one; if none is, no state differs between ranks
    take:        takes this rank's part of the optimizer's state; None: from an array over its arena
    """

    def __init__(
        self,
        update: OwnedUpdate,
        synchronize: Callable[[], None],
        gather: Callable[[], dict] | None = None,
        replicated: Callable[[], bool] = lambda: False,
        parts: Sequence[StatePart] = (),
        arrays: Callable[[], list[OwnedArray]] = list,
        rank_state: RankState | None = None,
        take: Callable[[dict], None] | None = None,
    ):
        self._update, self._synchronize, self._gather = update, synchronize, gather or update.state
        self._replicated, self._parts, self._arrays, self._take = replicated, parts, arrays, take or update.take
        self.rank_state = rank_state or next((part for part in parts if isinstance(part, RankState)), None)

    def state(self) -> dict:
        """Return the state, unsharded and independent of the number of ranks: name → flat array over the arena, plus
        scalars; whole on rank 0 at least. Collective, unless ``state_is_local``."""
        self._synchronize()
        state = self._gather()
        for part in self._parts:
            state |= part.state()
        return state

    def arrays(self) -> list[OwnedArray]:
        """Return the arrays that this rank keeps; call it after ``synchronize``."""
        return [*self._update.arrays(self._replicated()), *self._arrays()]

    def check_names(self, names: Collection[str]) -> None:
        """Raises CheckpointError unless a run can continue from a state of arrays of these names."""
        required = [name for part in self._parts for name in part.required_names]
        optional = [name for part in self._parts for name in part.optional_names]
        check_names(names, (*self._update.slots, *required), optional)

    def restore(self, state: dict) -> None:
        """Take a state that :meth:`state` returned, at any number of ranks. Raises CheckpointError if it is of another
        optimizer or of another arena."""
        self.check_names(state)
        self._take(state)
        for part in self._parts:
            part.restore(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFacts:
    """Facts about a strategy. ``exact``, ``notes`` and ``state_bytes`` are final once the strategy is bound."""

    name: str  # of the strategy
    header: str = ""  # addition to the name in the run's header
    roles: Roles  # the ranks that train and the ranks that serve
    exact: bool  # whether an iteration equals serial SGD on the global batch
    state_is_local: bool  # whether rank 0 holds the whole state, and can save it alone
    survives_rank_loss: bool = False  # whether this rank holds a state to go on from, also when another rank dies
    max_iteration_lag: int = 0  # iterations that ranks may be apart; 0: all begin each one together
    dynamic_batches: bool = False  # whether any free rank takes the next part of a batch
    all_reduces: bool = True  # whether ``--algorithm`` has a meaning
    # whether a script's own step may take the place of the update, once ``complete`` returns
    script_steps: bool = False
    within_passes: bool = False  # whether ranks exchange within passes: all make the same number, also without examples
    # this rank's shards start:stop of the batch, if gradients of shards are added in one fixed order; else None
    shards: tuple[int, int] | None = None
    notes: Sequence[str] = ()  # lines for the user: choices, and options that have another effect
    state_bytes: int | None = None  # memory of this rank in addition to weights and gradients


class Rehearsed(Protocol):
    """A part of a strategy with operations of its own."""

    def rehearse(self) -> None:
        """Run each of them once; weights and state stay as they are."""


class BatchSource:
    """The source of a rank's examples and loss gradients. Here each rank reads its own examples, and computes their
    loss.

    ``bytes_sent``, ``bytes_received`` and ``exposed_s``: of its messages.
    """

    bytes_sent = bytes_received = 0
    exposed_s = 0.0

    def scatter(self, arrays: dict, cuts: dict[int, list[Cut]]) -> dict:
        """Return this rank's part of the arrays of a whole batch, which the loader has; the other ranks give arrays
        without examples. ``cuts``: trainer → its micro-batches, one after another. Called if the roles name a loader;
        collective."""
        return arrays

    def loss_gradient(self, micro: int, logits, labels, loss: Callable):
        """Return d(loss)/d(logits) of micro-batch ``micro``, by ``loss(logits, labels)``, which also counts totals. If
        one rank computes the loss of all, only that rank calls it."""
        return loss(logits, labels)


class Serving:
    """The service of a rank to others outside its own iteration. Here there is none."""

    def poll(self) -> None:
        """Serve the requests of other ranks, without waiting. Called while this rank waits for them elsewhere."""

    def drain_peers(self) -> None:
        """Serve the other ranks until all have finished the same iterations. Called before a barrier."""

    def serve(self, meanwhile: Callable[[], None]) -> None:
        """Serve on a rank that does not train until no trainer makes a request any more; call ``meanwhile`` often."""

    def lag(self) -> Lag | None:
        """Return how far ranks were apart; None if they were not, or if this rank does not see it. Rank 0 sees it."""
        return None


class Exchange(ABC):
    """One strategy of synchronisation: the calls of an iteration, in their order.

    ``owned_state``, ``reducers``, ``rehearsed``, ``ready_points`` and ``wait_points`` are set by :meth:`bind`.

    ready_points: names of the spans whose :meth:`grad_ready` starts a message. A CUDA graph of several layers ends
                  there.
    wait_points:  names of the spans whose :meth:`before_read` may wait. A CUDA graph of several layers begins there.
    """

    facts: ExchangeFacts
    batches: BatchSource = BatchSource()
    serving: Serving = Serving()
    owned_state: OwnedState
    reducers: Reducers
    rehearsed: Sequence[Rehearsed] = ()
    ready_points: frozenset[str] = frozenset()
    wait_points: frozenset[str] = frozenset()

    def prepare(self, graph: "Graph") -> "Graph":
        """Return the graph to train, whose parameters make this rank's arena; ``--fc hybrid`` replaces layers, and
        ``--fc pipeline`` gives some ranks a part."""
        return graph

    @abstractmethod
    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        """Form buckets and prepare the messages; once, before the first iteration. Collective."""

    def recordable_update(self) -> OwnedUpdate | None:
        """Return the update of a world of one rank, if an iteration of this strategy does nothing else: then a device
        may record it with the passes. None: there is more to do."""
        return None

    def rehearse(self) -> None:
        """Run every operation of an iteration once, so that kernels compile before the first iteration. Not collective:
        weights and state stay as they are, and nothing is sent."""
        for each in self.rehearsed:
            each.rehearse()

    def denominator(self, local: float, total: float) -> float:
        """Return the divisor of the loss's mean: the total over all ranks if gradients are summed; this rank's own
        number if weights are averaged. Called after :meth:`before`."""
        return total

    def before(self, iteration: int, examples: int, total: int) -> None:  # noqa: B027
        """Begin an iteration; ``examples`` of its ``total`` are on this rank."""

    def before_read(self, span: Span) -> None:  # noqa: B027
        """Wait until this span's weights are current: forward is about to read them."""

    def shard_grad_ready(self, span: Span) -> None:  # noqa: B027
        """Add the gradient of this span for one shard, which lies in the arena, to the sums. Called if ``facts.shards``
        is not None: shards come in order, each with every span once; :meth:`grad_ready` follows for the last shard."""

    @abstractmethod
    def grad_ready(self, span: Span) -> None:
        """Start the exchange of this span's gradient, which is final on this rank."""

    def complete(self) -> None:
        """Wait for the sums of this iteration's gradients, which are all final: each lies in the arena of the ranks
        that update by it. They may be changed then; :meth:`finish` updates by them. Collective; raises UsageError for
        a strategy whose update is not by these sums."""
        raise UsageError(
            f"--sync {self.facts.name} has no sums before its update, which a script's clipping asks for: leave "
            "clip_grad_norm_ and the like out"
        )

    @abstractmethod
    def finish(self, iteration: int, lr: float) -> None:
        """Complete the communication of this iteration and apply the update."""

    @abstractmethod
    def synchronize(self) -> None:
        """Make the weights current on every rank that holds the whole network: before an evaluation, a checkpoint, the
        end. Where ranks differ, their mean is in the place of the weights until :meth:`before`."""

    @property
    def distance(self) -> float | None:
        """Of the ranks' weights from their mean, while that is in the place of them, over its norm; else None."""
        return None

    def outlive(self) -> None:  # noqa: B027
        """Bring all state that this rank holds to its arena and its ``owned_state``, and send nothing from now on:
        another rank has died. Called where ``facts.survives_rank_loss``."""

    def own_part(self, flat: np.ndarray) -> np.ndarray:
        """Return this rank's part of a flat host array over the arena of the whole network."""
        return flat
