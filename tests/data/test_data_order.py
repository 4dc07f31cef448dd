"""The order by blocks: a permutation of each epoch, a pure function of the place, the same for any number of ranks."""

import numpy as np
import pytest

from ringtrain.data.batches.order import BLOCK_BYTES, WINDOW_BYTES, EpochWindows, Windows
from ringtrain.data.batches.sampler import Sampler
from tests.data.data_makers import make_batches, split

DIVISIONS = [(10, 3, 2), (10, 10, 1), (1, 4, 3), (97, 4, 5), (97, 1, 10), (96, 4, 24), (96, 4, 5), (1000, 7, 3)]


@pytest.mark.parametrize("count, block, group", DIVISIONS)
def test_an_epoch_has_each_example_once_and_a_place_needs_its_blocks_alone(count, block, group):
    windows = Windows(count, block, group)
    orders = [EpochWindows(windows, (5, epoch)).examples(0, count) for epoch in range(3)]
    assert all(sorted(order.tolist()) == list(range(count)) for order in orders)
    assert count < 50 or len({order.tobytes() for order in orders}) == 3
    assert EpochWindows(windows, None).examples(0, count).tolist() == list(range(count))
    epoch = EpochWindows(windows, (3, 0))
    for window in range(len(epoch.starts) - 1):
        inside = [example for span in epoch.spans(window) for example in range(*span)]
        assert sorted(epoch.examples(*epoch.starts[window : window + 2])) == sorted(inside)
    for start in range(0, count, 1 + count // 9):
        stop = min(count, start + 1 + count // 4)
        assert (EpochWindows(windows, (5, 2)).examples(start, stop) == orders[2][start:stop]).all()


def test_these_values_never_change():
    """They decide the examples of runs: a resumed run must find the same ones."""
    assert EpochWindows(Windows(10, 3, 2), (0, 0)).examples(0, 10).tolist() == [4, 3, 5, 0, 2, 1, 8, 6, 7, 9]
    assert EpochWindows(Windows(10, 3, 2), (0, 1)).examples(0, 10).tolist() == [4, 3, 8, 7, 5, 6, 9, 1, 2, 0]
    # The division follows from the size of a row alone.
    assert Windows.of(6_000_000, 3072) == Windows(6_000_000, BLOCK_BYTES // 3072, WINDOW_BYTES // (341 * 3072))
    assert Windows.of(50, 3 * BLOCK_BYTES).block == 1 and Windows.of(50, 3 * WINDOW_BYTES).group == 1


@pytest.mark.parametrize("start", [0, 7])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_batches_by_blocks_are_the_same_at_any_number_of_ranks(size, start):
    examples = split(97)
    sampler = Sampler(97, 10, 4, windows=Windows(97, 4, 5))
    wanted = np.concatenate([sampler.order(epoch) for epoch in range(2)])
    parts = []
    for rank in range(size):
        with make_batches(examples, sampler, rank, size, start=start, stop=20) as batches:
            parts.append([(b.examples.copy(), b.images.copy()) for b in batches])
    columns = [np.concatenate(kind) for each in zip(*parts, strict=True) for kind in zip(*each, strict=True)]
    assert np.concatenate(columns[::2]).tolist() == wanted[10 * start :].tolist()
    assert (np.concatenate(columns[1::2]) == examples.images[wanted[10 * start :]]).all()


class NotedSplit:
    """A split that notes what it is told of its blocks."""

    def __init__(self, split):
        self.split, self.near, self.most, self.given_up = split, set(), 0, []

    def __getattr__(self, name):
        return getattr(self.split, name)

    def advise(self, spans, needed):
        self.near = self.near | set(spans) if needed else self.near - set(spans)
        self.most = max(self.most, len(self.near))
        self.given_up += [] if needed else spans

    def read(self, examples, images, labels):
        assert all(any(start <= example < stop for start, stop in self.near) for example in examples)
        self.split.read(examples, images, labels)


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_is_read_was_brought_nearer_and_is_given_up(shuffle):
    noted = NotedSplit(split(960))
    sampler = Sampler(960, 10, 4, shuffle=shuffle, windows=Windows(960, 4, 12))
    with make_batches(noted, sampler, start=3, stop=200) as batches:
        for _ in batches:
            pass
    assert noted.most <= 4 * 12 and len(noted.given_up) > 300
