"""Tells a split which blocks are read next and which are done, in step with the batches.

window w        read in batches, in random order, from what lies near
window w + 1    brought nearer, block by block, as w is used up
window w - 2    given up; w - 1 may still be read by slower ranks of the node
"""

from collections.abc import Callable

from ringtrain.data.batches.order import EpochWindows, Span
from ringtrain.data.split import Split


class ReadAhead:
    """``windows(epoch)`` gives an epoch's windows. Call :meth:`at` with the places of each batch before it is read."""

    def __init__(self, split: Split, windows: Callable[[int], EpochWindows]):
        self._split, self._windows = split, windows
        self._near: dict[tuple[int, int], int] = {}  # (epoch, window): how many of its blocks were brought nearer
        self._entered: list[tuple[int, int]] = []

    def at(self, epoch: int, start: int, stop: int) -> None:
        """Bring nearer what places ``start:stop`` of an epoch need, and a part of the window that follows them."""
        windows = self._windows(epoch)
        first, last = windows.window_of(start), windows.window_of(stop - 1)
        for window in range(first, last + 1):
            self._bring((epoch, window), 1.0)
            self._enter((epoch, window))
        begin, end = int(windows.starts[last]), int(windows.starts[last + 1])
        self._bring(self._after(epoch, last), (stop - begin) / (end - begin))

    def _after(self, epoch: int, window: int) -> tuple[int, int]:
        whole = window + 1 < len(self._windows(epoch).starts) - 1
        return (epoch, window + 1) if whole else (epoch + 1, 0)

    def _bring(self, which: tuple[int, int], part: float) -> None:
        """Bring this part of a window's blocks nearer, unless they are."""
        near, spans = self._near.get(which, 0), self._spans(which)
        wanted = min(len(spans), int(part * len(spans)))
        if wanted > near:
            self._split.ahead(spans[near:wanted])
            self._near[which] = wanted

    def _enter(self, which: tuple[int, int]) -> None:
        if which in self._entered:
            return
        self._entered.append(which)
        while len(self._entered) > 2:
            done = self._entered.pop(0)
            self._near.pop(done, None)
            again = {span for other in self._near for span in self._spans(other)}  # of the next epoch, or a small set
            self._split.behind([span for span in self._spans(done) if span not in again])

    def _spans(self, which: tuple[int, int]) -> list[Span]:
        epoch, window = which
        return self._windows(epoch).spans(window)
