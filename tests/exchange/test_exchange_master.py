"""What a master does to gradients, batches and outputs, on small whole numbers."""

import numpy as np
import pytest
from exchange_support import all_alike, bound, run

from ringtrain.errors import StalledError
from ringtrain.exchange.base import Roles
from ringtrain.ops.reference import ReferenceOps
from tests.fakes.strategies import AllReduce, Master
from tests.fakes.transports import delaying
from tests.loopback.world import LoopbackWorld
from tests.says import says

CUTS = {1: [(0, 2), (2, 3)], 2: [], 0: [(3, 5), (5, 8)]}  # rank 2 has nothing, rank 1 less than rank 0


@pytest.mark.parametrize(
    ("size", "options"), [(1, {}), (2, {"clip_norm": 5.0}), (3, {"optimizer": "adamw", "segment_bytes": 64}), (5, {})]
)
def test_weights_are_those_of_all_reduce_and_the_state_is_on_rank_0(size, options):
    (want, kept, _), *_ = run(AllReduce, size, algorithm="star", bucket_bytes=600, **options)
    state_size = sum(slot.size for name, slot in kept.items() if name != "step")
    ranks = run(Master, size, bucket_bytes=600, wrap=lambda t: delaying(t, seed=5), **options)
    all_alike(ranks, want)
    all_alike(ranks[:1], want, kept)
    for rank, (_, state, exchange) in enumerate(ranks):
        assert state["step"] == 4
        assert sum(slot.size for slot in exchange._update.slots.values()) == (0 if rank else state_size)


def test_the_master_reads_for_all_and_has_the_last_part():
    exchange = Master(LoopbackWorld(4).transport(0), ReferenceOps("float64"))
    assert exchange.facts.roles == Roles(trainers=(1, 2, 3, 0), loader=0)
    assert [exchange.facts.roles.reads(rank) for rank in range(4)] == [(0, 1), (None, 1), (None, 1), (None, 1)]
    assert Roles(trainers=(2, 0)).reads(0) == (1, 2) and Roles(trainers=(2, 0)).reads(1) == (None, 2)


def batch(count):
    examples = np.arange(count)
    return {"images": np.stack([examples, 10 * examples], 1).astype(np.uint8), "labels": (2 * examples).astype("i4")}


def test_each_rank_gets_its_examples_and_again_from_another_batch():
    """The second batch is larger than the first."""

    def body(t):
        exchange, _ = bound(Master, t)
        parts = []
        for cuts in ({1: [(0, 1)], 2: [(1, 2)], 0: [(2, 3)]}, CUTS):
            part = exchange.batches.scatter(batch(8 if t.rank == 0 else 0), cuts)
            parts.append((part["images"][:, 1].tolist(), part["labels"].tolist(), part["images"].dtype))
        return parts

    eight = np.dtype(np.uint8)
    assert LoopbackWorld(3).run(body) == [
        [([20], [4], eight), ([30, 40, 50, 60, 70], [6, 8, 10, 12, 14], eight)],
        [([0], [0], eight), ([0, 10, 20], [0, 2, 4], eight)],
        [([10], [2], eight), ([], [], eight)],
    ]


@pytest.mark.parametrize("late", [False, True])
def test_the_loss_of_all_is_computed_once_on_rank_0(late):
    """Outputs are numbers of examples; what comes of one is itself, a thousand times its label added."""

    def body(t):
        exchange, _ = bound(Master, delaying(t, seed=1) if late else t)
        labels = exchange.batches.scatter(batch(8 if t.rank == 0 else 0), CUTS)["labels"]
        calls = []

        def loss(outputs, labels):
            calls.append(labels.tolist())
            return outputs + 1000 * labels[:, None]

        start, gradients = CUTS[t.rank][0][0] if CUTS[t.rank] else 0, []
        for micro, (a, b) in enumerate(CUTS[t.rank]):
            outputs, part = np.arange(a, b, dtype="f8")[:, None], labels[a - start : b - start]
            gradients += exchange.batches.loss_gradient(micro, outputs, part, loss)[:, 0].tolist()
        return gradients, calls

    at_root, *others = LoopbackWorld(3).run(body)
    assert at_root == ([2001.0 * i for i in (3, 4, 5, 6, 7)], [[0, 2, 6, 8], [4, 10, 12, 14]])
    assert others == [([2001.0 * i for i in (0, 1, 2)], []), ([], [])]


def test_a_rank_that_does_not_come_is_named():
    def body(t):
        exchange, _ = bound(Master, t, deadline_s=0.05)
        if t.rank == 0:
            with pytest.raises(StalledError, match=says("rank 1 to receive")):
                exchange.batches.scatter(batch(2), {1: [(0, 1)], 0: [(1, 2)]})

    LoopbackWorld(2).run(body)
