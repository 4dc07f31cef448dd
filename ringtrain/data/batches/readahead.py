"""The order of epochs in windows, and in step with it what the split brings nearer: which blocks are read next, and
which are done.

window w        read in batches, in random order, from what lies near
window w + 1    brought nearer, block by block, as w is used up
window w - 2    given up; w - 1 may still be read by slower ranks of the node
"""

import numpy as np

from ringtrain.data.batches.order import EpochWindows, Span
from ringtrain.data.batches.sampler import Sampler
from ringtrain.data.split import Split


class WindowOrder:
    """The windows of this epoch and the next, of a sampler that has windows."""

    def __init__(self, split: Split, sampler: Sampler):
        self._split, self._sampler = split, sampler
        self._epochs: dict[int, EpochWindows] = {}
        self._near: dict[tuple[int, int], int] = {}  # (epoch, window): how many of its blocks were brought nearer
        self._entered: list[tuple[int, int]] = []

    def examples(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Return the examples at places ``start:stop`` of an epoch, which are read now: they are brought nearer, and a
        part of the window that follows them."""
        windows = self._windows(epoch)
        first, last = windows.window_of(start), windows.window_of(stop - 1)
        for window in range(first, last + 1):
            self._bring((epoch, window), 1.0)
            self._enter((epoch, window))
        begin, end = int(windows.starts[last]), int(windows.starts[last + 1])
        following = (epoch, last + 1) if last + 1 < len(windows.starts) - 1 else (epoch + 1, 0)
        self._bring(following, (stop - begin) / (end - begin))
        return windows.examples(start, stop)

    def _windows(self, epoch: int) -> EpochWindows:
        if epoch not in self._epochs:
            self._epochs = {known: windows for known, windows in self._epochs.items() if known >= epoch - 1}
            self._epochs[epoch] = self._sampler.epoch_windows(epoch)
        return self._epochs[epoch]

    def _bring(self, which: tuple[int, int], part: float) -> None:
        """Bring this part of a window's blocks nearer, unless they are."""
        near, spans = self._near.get(which, 0), self._spans(which)
        wanted = min(len(spans), int(part * len(spans)))
        if wanted > near:
            self._split.advise(spans[near:wanted], needed=True)
            self._near[which] = wanted

    def _enter(self, which: tuple[int, int]) -> None:
        if which in self._entered:
            return
        self._entered.append(which)
        while len(self._entered) > 2:
            done = self._entered.pop(0)
            self._near.pop(done, None)
            again = {span for other in self._near for span in self._spans(other)}  # of the next epoch, or a small set
            self._split.advise([span for span in self._spans(done) if span not in again], needed=False)

    def _spans(self, which: tuple[int, int]) -> list[Span]:
        epoch, window = which
        return self._windows(epoch).spans(window)
