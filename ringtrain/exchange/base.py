"""The interface of every synchronisation strategy. The training loop knows this and no strategy by name.

The exchange applies the optimizer, on flat spans of the arena: that is what makes all-reduce (everyone
updates everything), sharded (each updates its slice), server (the server updates) and averaging (update, then
average) the same shape. *An all-reduce sums; means are made by the loss's denominator.*
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


class Exchange(ABC):
    name: str
    terms: str = ""  # what else the run header says of it
    exact: bool  # once bound: whether an iteration equals serial SGD on the global batch
    owned_state: State  # once bound
    reducers: Reducers  # once bound
    notes: Sequence[str] = ()  # once bound: what is otherwise than was asked for, or was chosen
    state_is_local: bool  # whether rank 0 holds the whole state, and can save it alone
    survives_rank_loss: bool = (
        False  # whether every rank holds it, of the last finished iteration, also when another one died
    )
    state_bytes: int | None = None  # once bound: kept by this rank besides weights and gradients
    window: int = 0  # how many iterations ranks may be apart; 0: all begin each one together
    late: bool = False  # after finish(): whether some of its updates are left to need(), or settle()
    dynamic_batches: bool = False  # parts of batches go to whoever is free, and ranks are apart as they like
    all_reduces: bool = True  # whether --algorithm says how
    within_passes: bool = False  # ranks exchange within them: each makes as many as all others, with no examples too
    # Once made: this rank's shards start:stop of the batch, where gradients of shards are added in one fixed order.
    shards: tuple[int, int] | None = None

    def roles(self, size: int) -> Roles:
        return Roles(trainers=tuple(range(size)))

    def prepare(self, graph):
        """The graph to train: hybrid strategies swap layers here."""
        return graph

    @abstractmethod
    def bind(self, arena, optimizer) -> None:
        """Once, before the first iteration: form buckets, prepare plans."""

    def rehearse(self) -> None:  # noqa: B027
        """Run every operation of an iteration once, on no elements: kernels compile before the first
        iteration."""

    def denominator(self, local: float, total: float) -> float:
        """What a mean over the batch divides by, the loss's among them: the total, over all ranks, where gradients are
        summed; this rank's own where weights are averaged. Asked after :meth:`before`."""
        return total

    def scatter(self, arrays: dict, cuts: dict[int, list[Cut]]) -> dict:
        """This rank's part of arrays that the loader has of a whole batch, and the others with no examples. ``cuts``:
        trainer → its micro-batches, one after another. Asked where :meth:`roles` names a loader; collective."""
        return arrays

    def loss_gradient(self, micro: int, logits, labels, loss: Callable):
        """d(loss)/d(logits) of micro-batch ``micro``, by ``loss(logits, labels)``, which counts totals besides. Where
        one rank has the loss of all, that rank alone calls it."""
        return loss(logits, labels)

    def before(self, iteration: int, examples: int, total: int) -> None:  # noqa: B027 (most have nothing to do here)
        """The iteration is about to read weights. It has ``examples`` of its ``total`` on this rank."""

    def before_read(self, span) -> None:  # noqa: B027
        """Forward is about to read this span's weights."""

    def shard_grad_ready(self, span) -> None:  # noqa: B027
        """The gradient of this span, of the shard that was computed last, is in the arena (overwritten, not
        accumulated). Called where ``shards`` is not None: shards come in order, and of each every span once; after the
        last of them comes :meth:`grad_ready` besides."""

    @abstractmethod
    def grad_ready(self, span) -> None:
        """This span's gradient is final on this rank: its exchange may start."""

    @abstractmethod
    def finish(self, iteration: int, lr: float) -> None:
        """Complete the communication of this iteration and apply the update."""

    def cuts(self) -> frozenset[str]:
        """Once bound: names of the spans whose :meth:`grad_ready` sets something off. A device that computes many
        layers at a time says ready of all of them after it, and stops there."""
        return frozenset()

    def waits(self) -> frozenset[str]:
        """Once bound: names of the spans whose :meth:`before_read` may have to wait. The same device asks before it
        begins what it computes at a time, and begins there."""
        return frozenset()

    def poll(self) -> None:  # noqa: B027
        """Do what others want of this rank, without waiting. Called while it waits for them elsewhere."""

    def drain_peers(self) -> None:  # noqa: B027
        """All ranks have been told to make the same iterations, and this one has made them: return when no other rank
        wants anything of it to end its own. Before ranks that are apart wait for all."""

    @abstractmethod
    def synchronize(self) -> None:
        """Weights current on every rank: before an evaluation, a checkpoint, the end."""

    def lag(self) -> Lag | None:
        """How far ranks have been apart; None where they were not, or this rank does not see it. Rank 0 sees it."""
        return None

    def serve(self, meanwhile: Callable[[], None]) -> None:  # noqa: B027
        """What a rank that does not train runs between two meetings (evaluation, checkpoint, the end) where parts are
        handed out: returns when no trainer wants anything more of it, which they say by :meth:`synchronize`. Calls
        ``meanwhile`` often."""
