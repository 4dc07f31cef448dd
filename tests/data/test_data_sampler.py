"""Order, shares and positions: who sees which example when."""

import itertools

import numpy as np
import pytest
from data_makers import indices

from ringtrain.data.batches.sampler import EvenParts, Sampler, ShardParts, batch_part, largest_part, shard
from ringtrain.errors import DataError
from tests.says import says

COUNTS_AND_BATCHES = [(1, 1), (7, 3), (12, 4), (10, 16), (100, 7), (5, 5)]
SIZES_AND_GRAINS = list(itertools.product([1, 2, 3, 4, 5, 8], [1, 2, 3, 32]))


def epoch_of(sampler, epoch):
    first = epoch * sampler.iterations_per_epoch
    return [indices(sampler, first + i) for i in range(sampler.iterations_per_epoch)]


@pytest.mark.parametrize("count, batch", COUNTS_AND_BATCHES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_visits_each_example_once_and_positions_in_examples_are_iterations(count, batch, shuffle):
    sampler, seen = Sampler(count, batch, seed=3, shuffle=shuffle), 0
    for epoch in range(3):
        batches = epoch_of(sampler, epoch)
        assert sorted(np.concatenate(batches).tolist()) == list(range(count))
        assert [b.size for b in batches[:-1]] == [batch] * (len(batches) - 1)
        assert 0 < batches[-1].size <= batch
        for iteration, examples in enumerate(batches, epoch * len(batches)):
            assert (sampler.examples_seen(iteration), sampler.iteration_at(seen)) == (seen, iteration)
            assert sampler.epoch_of(iteration) == epoch
            seen += examples.size


def test_order_depends_on_seed_and_epoch_alone_and_never_changes():
    orders = {tuple(Sampler(50, 7, seed).order(epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    for batch in (1, 7, 50):
        assert (np.concatenate(epoch_of(Sampler(50, batch, 1), 2)) == Sampler(50, 7, 1).order(2)).all()
    assert Sampler(10, 7, 0).order(0).tolist() == [3, 1, 9, 6, 2, 4, 7, 8, 0, 5]
    assert Sampler(10, 7, 0).order(1).tolist() == [5, 9, 1, 7, 0, 4, 3, 6, 2, 8]
    assert Sampler(40_000, 7, shuffle=False).order(3, np.empty(40_000, np.int64)).tolist() == list(range(40_000))
    # Where example 0 stands, over 2000 epochs: the mean of 2000 uniform draws of 0 … 99 has deviation 0.65.
    positions = [int(np.flatnonzero(Sampler(100, 7, 9).order(epoch) == 0)[0]) for epoch in range(2000)]
    assert abs(np.mean(positions) - 49.5) < 2.6
    assert len(set(positions)) == 100


@pytest.mark.parametrize("size, grain", SIZES_AND_GRAINS)
def test_shares_are_the_batch_in_order_in_whole_grains_as_even_as_can_be(size, grain):
    for count in range(1, 140):
        parts = [batch_part(count, rank, size, grain) for rank in range(size)]
        assert parts[0][0] == 0 and parts[-1][1] == count
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
        assert all(start % grain == 0 or start == count for start, _ in parts)
        sizes = [stop - start for start, stop in parts]
        assert min(sizes) >= 0 and max(sizes) - min(sizes) <= grain
        # Also of larger batches, of which this is a tail.
        assert all(max(sizes) <= largest_part(batch, size, grain) for batch in range(count, 140))


@pytest.mark.parametrize("ranks", range(1, 9))
def test_shards_are_the_same_whoever_has_them(ranks):
    """Of full batches and of tails, whose shards may be empty."""
    parts = [ShardParts(8, rank * 8 // ranks, (rank + 1) * 8 // ranks) for rank in range(ranks)]
    for count in (1, 5, 8, 57, 128):
        spans = []
        for part in parts:
            start, stop = part.cut(count, 0)
            assert stop - start <= part.largest(count)
            spans += [(start + a, start + b) for a, b in part.within(count)]
        assert spans == [shard(count, number, 8) for number in range(8)]
        assert [example for a, b in spans for example in range(a, b)] == list(range(count))


def test_parts_of_small_batches_and_a_position_between_no_two_or_nothing_to_sample_is_refused():
    shards = [shard(5, number, 8) for number in range(8)]
    assert shards == [(0, 0), (0, 1), (1, 1), (1, 2), (2, 3), (3, 3), (3, 4), (4, 5)]
    assert [batch_part(2, rank, 3) for rank in range(3)] == [(0, 0), (0, 1), (1, 2)]
    assert [EvenParts(3, 2).cut(11, part) for part in range(3)] == [batch_part(11, part, 3, 2) for part in range(3)]
    assert EvenParts(3, 2).largest(11) == largest_part(11, 3, 2) == 4
    for seen in (1, 5, 13, -1, -10):
        with pytest.raises(DataError, match=says("--batch", seen, 4)):
            Sampler(10, 4).iteration_at(seen)
    for count, batch, *words in ((0, 4, 0, "sample", "needed"), (4, 0, 0, "must"), (4, -1, -1, "must")):
        with pytest.raises(DataError, match=says(*words)):
            Sampler(count, batch)
