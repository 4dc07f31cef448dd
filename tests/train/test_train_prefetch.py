"""Batches on their way to a device: beside what is computed, each into its own place, read when they are there."""

from dataclasses import replace

import numpy as np
import pytest

from ringtrain.data.batches.gather import Batch
from ringtrain.train.step.prefetch import PACKED_BYTES, RAW, Prefetcher
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.host_cuda import HostRuntime


def batch_of(ops, value, count=4):
    """A batch in pinned memory, full of one value."""
    shapes = {"images": (count, 2, 2, 1), **dict.fromkeys(("labels", "examples", "top", "left", "flip"), (count,))}
    types = {"images": "uint8", "labels": "int32", "examples": "int64", "top": "int32", "left": "int32", "flip": "u1"}
    arrays = {name: ops.pinned(shape, types[name]) for name, shape in shapes.items()}
    for array in arrays.values():
        array[...] = value
    return Batch(
        iteration=value, epoch=0, total=count, valid_total=count, erase=np.zeros((count, 4), np.int32), **arrays
    )


def read(ops, staging, batch, start=0, stop=4):
    """What a load of it would see, copied to an array of its own."""
    staging.wait(batch)
    seen = {}
    for name, array in staging.arrays(batch, start, stop).items():
        seen[name] = ops.empty(array.shape, array.dtype)
        ops.copy(array, seen[name])
    staging.release(batch)
    return seen


@pytest.mark.parametrize("early", [False, True])
def test_each_load_reads_its_own_batch_however_early_or_late_uploads_are(early):
    ops = FakeGpuOps(HostRuntime(early))
    staging = Prefetcher(ops)
    batches = [batch_of(ops, value) for value in range(6)]
    seen = []
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        seen.append(read(ops, staging, batch))
        if following is not None:
            staging.bring(following)
    ops.synchronize()
    for value, arrays in enumerate(seen):
        assert all((ops.to_host(arrays[name]) == value).all() for name in RAW), value


def test_a_batch_is_uploaded_once_in_two_copies_and_cut_into_micro_batches():
    """Its images, and all that is small."""
    ops = FakeGpuOps()
    staging, batch = Prefetcher(ops), batch_of(ops, 3)
    batch.labels[:] = np.arange(4)
    staging.bring(batch)
    staging.bring(batch)
    uploads = [work.name for work in ops.runtime.waiting() if work.name == "upload"]
    parts = [ops.to_host(read(ops, staging, batch, *cut)["labels"]).tolist() for cut in ((0, 3), (3, 4))]
    assert (parts, len(uploads)) == ([[0, 1, 2], [3]], 2)


def test_memory_may_be_used_again_when_it_has_arrived():
    ops = FakeGpuOps()
    staging, batch, following = Prefetcher(ops), batch_of(ops, 1), batch_of(ops, 2)
    staging.arrive(batch)  # it is not on its way
    staging.bring(batch)
    staging.bring(following)
    staging.arrive(batch)
    assert [work.name for work in ops.runtime.waiting()].count("upload") == 2  # the other's are not waited for
    batch.images[...] = 9
    assert (ops.to_host(read(ops, staging, batch)["images"]) == 1).all()


def test_new_memory_is_not_written_before_what_was_there_is_done_with():
    ops = FakeGpuOps(HostRuntime(hasty=True))
    staging, x = Prefetcher(ops), ops.zeros((4,))
    left = []
    for value in (1, 2, 3):  # the third where the first was
        ops.fill(x, value)
        staging.bring(batch_of(ops, value))
        names = [work.name for work in ops.runtime.waiting()]
        left.append((names.count("fill"), names.count("upload")))
    assert left == [(0, 0), (0, 0), (1, 0)]


def test_a_batch_without_an_array_that_others_have_has_another_key():
    """A recording that reads boxes is not replayed where there are none, however large they are."""
    ops = FakeGpuOps()
    staging = Prefetcher(ops)
    with_boxes, without = (batch_of(ops, value, PACKED_BYTES // 16 + 1) for value in (1, 2))
    with_boxes.erase[0] = 1
    keys = [staging.wait(batch) for batch in (with_boxes, without)]
    assert len({key[1:] for key in keys}) == 2


def test_a_smaller_batch_and_one_without_examples():
    ops = FakeGpuOps()
    staging = Prefetcher(ops)
    for value, count in ((1, 4), (2, 4), (3, 2), (4, 0), (5, 4)):
        batch = batch_of(ops, value, count)
        assert ops.to_host(read(ops, staging, batch, 0, count)["labels"]).tolist() == [value] * count
    with pytest.raises(StopIteration):
        staging.release(replace(batch))  # another object is another batch
