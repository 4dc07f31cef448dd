"""Means of 16-bit numbers: finite where they can be, in every way; those of wider numbers keep their bits."""

import numpy as np
import pytest

from ringtrain.allreduce.catalogue import ALGORITHMS
from ringtrain.allreduce.dtypes import TYPES
from ringtrain.collectives.catalogue import HALVES
from tests.api.communicators import together
from tests.fakes.arrays import halves

LARGE = {"float16": 30000.0, "bfloat16": 2e38}
RANKS = 4


@pytest.fixture(params=LARGE)
def make(request, monkeypatch):
    """make(numbers) → an array of 16 bits, and decode(array) → float32"""
    numbers = TYPES[request.param]
    if request.param == "float16":
        return request.param, np.float16, lambda array: array.astype(np.float32)
    made = halves(monkeypatch)
    return request.param, made, lambda array: numbers.decode(np.asarray(array.bits))


def near(got, wanted, numbers):
    return np.allclose(got, wanted, rtol=2 * numbers.roundoff, atol=0)


@pytest.mark.parametrize("nodes", [1, 2])
def test_all_reduces(make, nodes):
    name, array, decode = make
    numbers, large = TYPES[name], np.full(5, LARGE[name], np.float32)

    def body(communicator):
        ways = [way for way in ALGORITHMS if nodes == 1 or not way.startswith(("stream", "mapped"))]
        for way in ["auto", *ways]:
            given = array(large)
            assert near(decode(communicator.allreduce(given, "mean", algorithm=way)), large, numbers), way
            assert near(decode(given), large, numbers)
            reduction = communicator.prepare(given, "mean", algorithm=way)
            reduction.start()
            assert near(decode(reduction.wait()), large, numbers), way
        given = array(large)
        for _ in range(4):
            communicator.allreduce(given, "mean", out=given)
        assert near(decode(given), large, numbers)
        assert near(decode(communicator.allreduce(given, "mean", async_op=True).wait()), large, numbers)

    together(RANKS, body, nodes=nodes)


def test_other_reductions(make):
    name, array, decode = make
    numbers, large = TYPES[name], LARGE[name]

    def body(communicator):
        rows = array(np.full((RANKS, 6), large, np.float32))
        for way in ["auto", "mpi", *(half for half in HALVES if half not in ("tree", "double-tree", "star"))]:
            assert near(decode(communicator.reduce_scatter(rows, "mean", algorithm=way)), large, numbers), way
        assert near(decode(communicator.allreduce(rows, "mean", reproducible=True)), large, numbers)

    together(RANKS, body)


def test_means_in_own_memory():
    def body(communicator):
        ours = communicator.empty(7, np.float16)
        for way in ("auto", "mapped", "ring"):
            ours[:] = 30000
            assert communicator.allreduce(ours, "mean", out=ours, algorithm=way) is ours and (ours == 30000).all()

    together(RANKS, body)


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
