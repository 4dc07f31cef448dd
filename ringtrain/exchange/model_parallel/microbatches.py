"""The passes of an iteration, which all ranks make together: whose are which examples of each."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from ringtrain.exchange.model_parallel.activation_collectives import ActivationCollectives
from ringtrain.exchange.model_parallel.layouts import GatheredColumns, GatheredRows, LocalRows
from ringtrain.exchange.settings import ExchangeSettings


class MicrobatchLayout:
    """The examples of one pass, by rank: ``counts``; ``own`` of ``total`` are this rank's. What crosses is prepared
    when it first does, and kept.

    ``examples``: the data-set index of each, once a pass has said its own.
    """

    def __init__(self, crossings: ActivationCollectives, counts: Sequence[int]):
        self._crossings, self._held = crossings, {}
        self.rows = [0, *accumulate(counts)]
        self.total, self.own = self.rows[-1], counts[crossings.rank]
        self.examples = None

    def gather_examples(self, own_n) -> None:
        """Shapes: int64 [n] of this rank; ``examples`` is then [total], of all"""
        made = self._kept(
            "examples", lambda: GatheredRows(self._crossings, "random numbers", self.rows, 1, own_n.dtype)
        )
        self.examples = made.joined(own_n).reshape((self.total,))

    def all_rows(self, name: str, D: int) -> GatheredRows:
        return self._kept(name, lambda: GatheredRows(self._crossings, name, self.rows, D))

    def all_columns(self, name: str, columns: Sequence[int]) -> GatheredColumns:
        return self._kept(name, lambda: GatheredColumns(self._crossings, name, self.total, columns))

    def own_rows(self, name: str, columns: Sequence[int]) -> LocalRows:
        return self._kept(name, lambda: LocalRows(self._crossings, name, self.rows, columns))

    def _kept(self, name: str, make: Callable):
        if name not in self._held:
            self._held[name] = make()
        return self._held[name]


class MicrobatchLayouts:
    """Divisions of the passes: by iteration, of which each has as many as there are micro-batches.

    Before the first iteration there are rehearsals, in which a rank is alone.
    """

    def __init__(self, settings: ExchangeSettings):
        self._settings, self._parts = settings, settings.config.accumulate
        self.crossings = ActivationCollectives(settings)
        self._divisions: dict[tuple[int, ...], MicrobatchLayout] = {}
        self._counts: list[tuple[int, ...]] = []  # of each pass of this iteration
        self._begun = 0
        self.current: MicrobatchLayout | None = None

    def iterate(self, total: int) -> None:
        """An iteration begins, of ``total`` examples."""
        counts = [
            _length(self._settings.share(total, rank, self.crossings.size)) for rank in range(self.crossings.size)
        ]
        self._counts = [
            tuple(_length(self._settings.share(count, part, self._parts)) for count in counts)
            for part in range(self._parts)
        ]
        self._begun = 0

    def begin(self, own: int) -> MicrobatchLayout:
        """The next pass, in which this rank has ``own`` examples. A loss that is not finite is looked into by making
        all of them again."""
        self.current = self._next() if self._counts else self._rehearsal(own)
        return self.current

    def _next(self) -> MicrobatchLayout:
        counts = self._counts[self._begun % self._parts]
        self._begun += 1
        if counts not in self._divisions:
            self._divisions[counts] = MicrobatchLayout(self.crossings, counts)
        return self._divisions[counts]

    def _rehearsal(self, own: int) -> MicrobatchLayout:
        counts = [own if rank == self.crossings.rank else 0 for rank in range(self.crossings.size)]
        return MicrobatchLayout(ActivationCollectives(self._settings, live=False), counts)


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]
