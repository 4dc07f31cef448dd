"""Batches: the right examples, in the right parts, with the same draws whoever has them, and no new
arrays."""

import threading
import tracemalloc

import numpy as np
import pytest
from data_makers import indices, make_batches, split

from ringtrain.data.batches.augment import Augment
from ringtrain.data.batches.batches import evaluation_batches
from ringtrain.data.batches.sampler import Sampler
from ringtrain.data.split import ArraySplit
from ringtrain.errors import DataError
from tests.fakes.clock import until
from tests.says import says

AUGMENT = Augment(pad=2, flip=True, height=4, width=3)
FIELDS = ("examples", "images", "labels", "top", "left", "flip")


def kept(batch):
    """A copy of a batch: its arrays are used again."""
    return {field: getattr(batch, field).copy() for field in FIELDS}


def joined(parts):
    return {field: np.concatenate([part[field] for part in parts]) for field in FIELDS}


def run(examples, batch, iterations, rank=0, size=1, grain=1, augment=AUGMENT, start=0, seed=5):
    sampler = Sampler(examples.count, batch, seed)
    stop = start + iterations
    with make_batches(examples, sampler, rank, size, grain, augment, seed, start, stop=stop) as batches:
        return [kept(b) for b in batches]


def same(a, b):
    return all((a[field] == b[field]).all() and a[field].dtype == b[field].dtype for field in FIELDS)


def test_a_batch_holds_what_the_sampler_names_in_memory_of_ones_own():
    examples, sampler, arrays = split(23), Sampler(23, 5, 1), []

    def allocate(shape, dtype):
        arrays.append(np.empty(shape, dtype))
        return arrays[-1]

    with make_batches(examples, sampler, stop=12, allocate=allocate) as batches:
        for iteration, batch in enumerate(batches):
            chosen = indices(sampler, iteration)
            assert (batch.iteration, batch.epoch, batch.total) == (iteration, iteration // 5, chosen.size)
            assert (batch.examples == chosen).all()
            assert (batch.images == examples.images[chosen]).all()
            assert (batch.labels == examples.labels[chosen]).all()
            assert not (batch.top.any() or batch.left.any() or batch.flip.any())
            assert any(np.may_share_memory(batch.images, array) for array in arrays)
    assert iteration == 11 and len(arrays) == 3 * len(FIELDS)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("grain", [1, 2, 3])
def test_the_parts_of_all_ranks_are_the_global_batch_in_order(size, grain):
    examples = split(23)
    alone = run(examples, 9, 7)
    ranks = [run(examples, 9, 7, rank, size, grain) for rank in range(size)]
    assert all(same(whole, joined(parts)) for whole, parts in zip(alone, zip(*ranks, strict=True), strict=True))


def test_a_rank_without_examples_has_arrays_of_none():
    first, _, tail = run(split(10), 4, 3, rank=0, size=3)
    assert first["images"].shape == (1, 4, 5, 3) and tail["images"].shape == (0, 4, 5, 3)
    assert all(tail[field].shape[0] == 0 for field in FIELDS)


@pytest.mark.parametrize("start", [1, 2, 3, 5, 11])
def test_resuming_anywhere_continues_the_same(start):
    examples = split(23)
    unbroken = run(examples, 9, 14)
    resumed = run(examples, 9, 14 - start, start=start)
    assert all(same(a, b) for a, b in zip(unbroken[start:], resumed, strict=True))


def test_draws_depend_on_seed_epoch_and_example_alone():
    examples = split(23)
    per_epoch = []
    for batch in (1, 5, 9, 23):
        whole = joined(run(examples, batch, -(-23 // batch)))
        by_example = np.argsort(whole["examples"])
        per_epoch.append(np.stack([whole[f][by_example] for f in ("top", "left", "flip")]))
    assert all((draws == per_epoch[0]).all() for draws in per_epoch)
    later = joined(run(examples, 23, 1, start=1))
    other_seed = joined(run(examples, 23, 1, seed=6))
    for other in (later, other_seed):
        assert (other["top"][np.argsort(other["examples"])] != per_epoch[0][0]).any()
    drawn = run(split(8), 8, 1)[0]  # these values never change
    top, left, flip = (drawn[field][np.argsort(drawn["examples"])].tolist() for field in ("top", "left", "flip"))
    assert (top, left) == ([2, 0, -2, -2, -1, -2, 1, 1], [-2, 2, -1, -2, -2, 3, 0, 2])
    assert flip == [0, 0, 0, 0, 1, 1, 1, 1]


def test_crops_cover_their_range_evenly_and_half_are_mirrored():
    drawn = run(split(6000, (4, 5, 1)), 6000, 1)[0]
    # 4 high + 2·2 padding - 4 + 1 = 5 choices; 5 wide + 2·2 - 3 + 1 = 7.
    tops, lefts = np.unique(drawn["top"], return_counts=True), np.unique(drawn["left"], return_counts=True)
    assert tops[0].tolist() == [-2, -1, 0, 1, 2] and lefts[0].tolist() == [-2, -1, 0, 1, 2, 3, 4]
    assert abs(tops[1] - 1200).max() < 150 and abs(lefts[1] - 6000 / 7).max() < 130
    assert abs(drawn["flip"].mean() - 0.5) < 0.03 and set(drawn["flip"]) == {0, 1}
    assert abs(np.corrcoef(np.stack([drawn["top"], drawn["left"], drawn["flip"]])) - np.eye(3)).max() < 0.06
    assert not run(split(50), 50, 1, augment=Augment(2, False, 4, 5))[0]["flip"].any()


@pytest.mark.parametrize("pad, height, width", [(0, 5, 5), (1, 4, 8), (-1, 2, 2)])
def test_a_crop_that_does_not_fit_is_refused(pad, height, width):
    with pytest.raises(DataError, match=says("4x5", f"crop of {height}x{width}", f"padded by {pad}")):
        make_batches(split(4), Sampler(4, 2), augment=Augment(pad, True, height, width))


def test_labels_of_minus_one_are_counted_over_all_ranks():
    labelled = split(10)
    labels = labelled.labels.copy()
    labels[[2, 3, 7]] = -1
    examples = ArraySplit(labelled.images, labels, "")
    sampler = Sampler(10, 4, 1)
    with make_batches(examples, sampler, rank=1, size=3, stop=3) as batches:
        counts = [(b.total, b.valid_total) for b in batches]
    assert [total for total, _ in counts] == [4, 4, 2]
    assert [valid for _, valid in counts] == [(labels[indices(sampler, i)] >= 0).sum() for i in range(3)]
    assert sum(valid for _, valid in counts) == 7


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("batch", [1, 4, 100])
def test_evaluation_covers_each_example_once_in_order(size, batch):
    seen = []
    for rank in range(size):
        with evaluation_batches(split(23), batch, rank, size, crop=(2, 3)) as batches:
            parts = [kept(b) for b in batches]
        assert all((p["top"] == 1).all() and (p["left"] == 1).all() and not p["flip"].any() for p in parts)
        seen.append(parts)
    ordered = [joined(parts)["examples"] for parts in zip(*seen, strict=True)]
    assert np.concatenate(ordered).tolist() == list(range(23))


def test_memory_is_used_again_and_none_is_allocated():
    with make_batches(split(400, (16, 16, 3)), Sampler(400, 64, 2), augment=Augment(2, True, 16, 16)) as batches:
        addresses = {next(batches).images.ctypes.data for _ in range(20)}
        assert len(addresses) <= 3
        tracemalloc.start()
        for _ in range(5):
            next(batches)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        # 30 iterations cross 4 epochs: orders are sorted in place too.
        for _ in range(30):
            next(batches)
        grown = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
    # A label array of one batch has 256 bytes, its images 49,152; views and queue entries are all there is.
    assert grown < 16_000


def test_an_exception_of_the_thread_reaches_the_caller_each_time():
    class Broken(Sampler):
        def place(self, iteration):
            if iteration == 3:
                raise ZeroDivisionError("made for this test")
            return super().place(iteration)

    with make_batches(split(10), Broken(10, 2)) as batches:
        for _ in range(3):
            next(batches)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="made for this test"):
                next(batches)


def test_close_ends_the_thread_after_the_last_batch_there_is_none_and_a_sampler_fits_its_split():
    before = threading.active_count()
    batches = make_batches(split(10), Sampler(10, 2))
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    batches.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        next(batches)
    with make_batches(split(4), Sampler(4, 4), stop=1) as batches:
        assert len(list(batches)) == 1 and list(batches) == []
    with pytest.raises(ValueError, match="a sampler of 9 examples for a split of 10"):
        make_batches(split(10), Sampler(9, 2))


@pytest.mark.timing
def test_a_batch_lasts_until_the_next_one_and_a_peek_is_what_next_gives():
    with make_batches(split(40), Sampler(40, 4, 2)) as batches:
        for _ in range(25):
            batch = next(batches)
            before = kept(batch)
            # The thread has every chance to run ahead here: it must not touch what was handed out.
            until(lambda: batches._ready.qsize() >= 2)
            assert same(before, kept(batch))
    sampler = Sampler(23, 5, 1)
    with make_batches(split(23), sampler, stop=6) as batches:
        following = None
        for iteration in range(6):
            batch = next(batches)
            assert following is None or batch is following
            if iteration < 5:
                until(lambda: batches.peek() is not None)
            following = batches.peek()
            assert (batch.examples == indices(sampler, iteration)).all()
            assert iteration == 5 or (following.examples == indices(sampler, iteration + 1)).all()
        with pytest.raises(StopIteration):
            next(batches)
        assert batches.peek() is None
