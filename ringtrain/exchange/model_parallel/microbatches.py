"""The micro-batches of an iteration, which all ranks compute together: the examples of each rank."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from ringtrain.arrays import Array
from ringtrain.exchange.base import Roles
from ringtrain.exchange.model_parallel.activation_collectives import ActivationCollectives
from ringtrain.exchange.model_parallel.layouts import GatheredColumns, GatheredRows, LocalRows
from ringtrain.exchange.settings import ExchangeSettings


class MicrobatchLayout:
    """The examples of one micro-batch, by rank: ``counts``; ``local`` of ``total`` are this rank's. Its collectives are
    prepared at their first use, and kept.

    ``examples``: the data-set index of each, after :meth:`gather_examples`.
    """

    def __init__(self, collectives: ActivationCollectives, counts: Sequence[int]):
        self._collectives = collectives
        self._prepared: dict[str, GatheredRows | GatheredColumns | LocalRows] = {}
        self.rows = [0, *accumulate(counts)]
        self.total, self.local = self.rows[-1], counts[collectives.rank]
        self.examples: Array | None = None

    def gather_examples(self, own_n: Array) -> None:
        """Shapes: int64 [n] of this rank; ``examples`` is then [total], of all"""
        rows = self._once(
            "examples", lambda: GatheredRows(self._collectives, "random numbers", self.rows, 1, own_n.dtype)
        )
        self.examples = rows.gather(own_n).reshape((self.total,))

    def all_rows(self, name: str, D: int) -> GatheredRows:
        return self._once(name, lambda: GatheredRows(self._collectives, name, self.rows, D))

    def all_columns(self, name: str, columns: Sequence[int]) -> GatheredColumns:
        return self._once(name, lambda: GatheredColumns(self._collectives, name, self.total, columns))

    def own_rows(self, name: str, columns: Sequence[int]) -> LocalRows:
        return self._once(name, lambda: LocalRows(self._collectives, name, self.rows, columns))

    def _once(self, name: str, make: Callable):
        if name not in self._prepared:
            self._prepared[name] = make()
        return self._prepared[name]


class MicrobatchLayouts:
    """The layouts of an iteration's micro-batches. Before the first iteration there are rehearsals, in which a rank is
    alone. ``roles``: which rank trains on which part of a batch; the others have no examples."""

    def __init__(self, settings: ExchangeSettings, roles: Roles):
        self._settings, self._roles, self._parts = settings, roles, settings.accumulate
        self.collectives = ActivationCollectives(settings)
        self._layouts: dict[tuple[int, tuple[int, ...]], MicrobatchLayout] = {}
        self._slot = 0
        self._counts: list[tuple[int, ...]] = []  # of each micro-batch of this iteration
        self._next = 0
        self._current: MicrobatchLayout | None = None

    @property
    def rank(self) -> int:
        return self.collectives.rank

    @property
    def ranks(self) -> int:
        """The number of ranks that divide columns."""
        return self.collectives.size

    @property
    def current(self) -> MicrobatchLayout:
        """The layout of the micro-batch that has begun."""
        assert self._current is not None
        return self._current

    def iterate(self, total: int, slot: int = 0) -> None:
        """Begin an iteration of ``total`` examples. Layouts of two slots have memory of their own: a pass of one may
        begin before the other's backward."""
        self._slot = slot
        counts = [self._examples_of(rank, total) for rank in range(self.collectives.size)]
        self._counts = [tuple(self._share(count, part, self._parts) for count in counts) for part in range(self._parts)]
        self._next = 0

    def _examples_of(self, rank: int, total: int) -> int:
        part = self._roles.part(rank)
        return 0 if part is None else self._share(total, part, len(self._roles.trainers))

    def _share(self, count: int, part: int, parts: int) -> int:
        assert self._settings.share is not None  # the assembly gives it
        start, stop = self._settings.share(count, part, parts)
        return stop - start

    def begin(self, local: int) -> MicrobatchLayout:
        """Return the layout of the next micro-batch, of which this rank has ``local`` examples. The first follows the
        last: a loss that is not finite is examined by computing all of them once more."""
        if not self._counts:
            alone = [local if rank == self.collectives.rank else 0 for rank in range(self.collectives.size)]
            self._current = MicrobatchLayout(ActivationCollectives(self._settings, live=False), alone)
            return self._current
        counts = self._counts[self._next % self._parts]
        self._next += 1
        key = self._slot, counts
        if key not in self._layouts:
            self._layouts[key] = MicrobatchLayout(self.collectives, counts)
        self._current = self._layouts[key]
        return self._current
