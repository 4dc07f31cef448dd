"""Means of 16-bit numbers: finite where they can be, in every way; means of wider numbers keep their bits."""

import numpy as np
import pytest

from ringtrain.allreduce.catalogue import ALGORITHMS
from ringtrain.allreduce.dtypes import TYPES
from ringtrain.collectives.catalogue import HALVES
from tests.api.communicators import on_ranks, together
from tests.fakes.arrays import halves

LARGE = {"float16": 30000.0, "bfloat16": 2e38}
RANKS = 4


@pytest.fixture(params=LARGE)
def means(request, monkeypatch):
    """(array of large numbers of 16 bits, of a shape; whether an array has them still, up to rounding)"""
    numbers, large = TYPES[request.param], np.float32(LARGE[request.param])
    make, bits = np.float16, np.asarray
    if request.param == "bfloat16":
        make, bits = halves(monkeypatch), lambda array: np.asarray(array.bits)

    def right(array):
        return np.allclose(numbers.decode(bits(array)), large, rtol=2 * numbers.roundoff, atol=0)

    return lambda *shape: make(np.full(shape, large)), right


@pytest.mark.parametrize("nodes", [1, 2])
def test_all_reduces(means, nodes):
    make, right = means

    def body(communicator):
        ways = [way for way in ALGORITHMS if nodes == 1 or not way.startswith(("stream", "mapped"))]
        for way in ["auto", *ways]:
            array = make(5)
            assert right(communicator.allreduce(array, "mean", algorithm=way)) and right(array), way
            reduction = communicator.prepare(array, "mean", algorithm=way)
            reduction.start()
            assert right(reduction.wait()), way
        array = make(5)
        for _ in range(4):
            communicator.allreduce(array, "mean", out=array)
        assert right(array) and right(communicator.allreduce(array, "mean", async_op=True).wait())

    together(RANKS, body, nodes=nodes)


@on_ranks(RANKS)
def test_other_reductions(communicator, means):
    make, right = means
    rows = make(RANKS, 6)
    for way in ["auto", "mpi", *(half for half in HALVES if half not in ("tree", "double-tree", "star"))]:
        assert right(communicator.reduce_scatter(rows, "mean", algorithm=way)), way
    assert right(communicator.allreduce(rows, "mean", reproducible=True))


@on_ranks(RANKS)
def test_means_in_own_memory(communicator):
    ours = communicator.empty(7, np.float16)
    for way in ("auto", "mapped", "ring"):
        ours[:] = 30000
        assert communicator.allreduce(ours, "mean", out=ours, algorithm=way) is ours and (ours == 30000).all()


@pytest.mark.parametrize("way", ["auto", "ring", "mpi"])
def test_they_are_rounded_once(way):
    """The nearest of the mean in float32, of small numbers, too; of the smallest there is nothing left of a share."""
    shares = np.random.default_rng(7).normal(size=(3, 500)).astype(np.float16)
    shares[:, :3] = np.float16(2.0**-24)

    def body(communicator):
        return communicator.allreduce(shares[communicator.rank], "mean", algorithm=way)

    exact = np.mean(shares.astype(np.float64), 0)
    for got in together(3, body):
        assert (np.abs(got - exact) <= np.spacing(np.abs(exact).astype(np.float16)) * 0.502).all()
        assert (got[:3] == np.float16(2.0**-24)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wider_means_keep_their_bits(dtype):
    """The sum in the order of ranks, and then one division."""
    shares = np.random.default_rng(8).normal(size=(3, 1000)).astype(dtype)

    def body(communicator):
        return communicator.allreduce(shares[communicator.rank], "mean")

    wanted = (shares[0] + shares[1] + shares[2]) / np.asarray(3, dtype)
    assert all(got.tobytes() == wanted.tobytes() for got in together(3, body))
