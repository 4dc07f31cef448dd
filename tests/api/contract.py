"""What a communicator does on any transport: over threads (test_api_contract.py), and over an MPI
(tests/mpi/programs/collects.py). Each check is called by all ranks."""

from functools import partial

import numpy as np
import pytest

from ringtrain.allreduce.catalogue import ALGORITHMS
from ringtrain.collectives.catalogue import HALVES
from ringtrain.errors import UsageError

BY_RANK = (None, "mpi", "ring", "circulant", "sliced")  # each rank has a row then
TYPES_MOVED = ("?", "u1", "c16", ">i2", "M8[s]", "V3", "f2", "f4")
NUMPY = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
REDUCED = [("f2", "sum"), (">f4", "sum"), ("f4", "max"), ("f8", "mean"), ("i4", "max"), ("i8", "min"), ("i8", "sum")]


def rows_of(size, count, dtype="f8"):
    """A row for each rank."""
    numbers = np.arange(size)[:, None] + np.arange(count) % (2 if dtype == "?" else 50)
    return numbers.astype("u1").repeat(3, axis=1).view(dtype) if dtype == "V3" else numbers.astype(dtype)


def finished(result, async_op):
    return result.wait() if async_op else result


def has_type(algorithm, dtype):
    return algorithm != "mpi" or dtype != "f2"  # not every MPI has it


def all_reduce(communicator, counts, async_op):
    """Of the last count alone: kinds of calls are many."""
    rank, shares = communicator.rank, [np.arange(counts[-1]) % 17 + each for each in range(communicator.size)]
    for algorithm in ALGORITHMS:
        for dtype in ("f2", "f4", "f8", "i4", "i8"):
            for op in ("sum", "max", "min") if has_type(algorithm, dtype) else ():
                array = shares[rank].astype(dtype)
                got = finished(communicator.allreduce(array, op, algorithm=algorithm, async_op=async_op), async_op)
                assert got.dtype == dtype and (got == NUMPY[op](shares, 0)).all(), (algorithm, dtype, op)
                assert (array == shares[rank]).all()


def broadcast(communicator, counts, async_op):
    for count in counts:
        for root in {0, communicator.size - 1}:
            for algorithm in (None, "mpi", *HALVES):
                rows = rows_of(communicator.size, count, "f4")
                array = rows[communicator.rank].copy()
                result = communicator.broadcast(array, root, algorithm=algorithm, async_op=async_op)
                assert finished(result, async_op) is array and (array == rows[root]).all(), (algorithm, root, count)


def all_gather(communicator, counts, async_op):
    for count in counts:
        rows = rows_of(communicator.size, count, "u2")
        for algorithm in BY_RANK:
            got = communicator.all_gather(rows[communicator.rank], algorithm=algorithm, async_op=async_op)
            assert finished(got, async_op).tolist() == rows.tolist(), (algorithm, count)


def reduce_scatter(communicator, counts, async_op):
    rank, size = communicator.rank, communicator.size
    for count in counts:
        for dtype, op in REDUCED:
            rows = rows_of(size, count, dtype)
            mine, wanted = (rows + rank).astype(dtype), NUMPY[op]([rows[rank] + other for other in range(size)], 0)
            for algorithm in (each for each in BY_RANK if has_type(each, dtype)):
                result = communicator.reduce_scatter(mine, op, algorithm=algorithm, async_op=async_op)
                got = finished(result, async_op)
                assert got.dtype == dtype and got.tolist() == wanted.tolist(), (algorithm, dtype, op, count)


def gather_scatter_and_all_to_all(communicator, counts, async_op):
    rank, last = communicator.rank, communicator.size - 1
    for count in counts:
        for dtype in TYPES_MOVED:
            rows = rows_of(communicator.size, count, dtype)
            every = finished(communicator.gather(rows[rank], last, async_op=async_op), async_op)
            assert every is None if rank < last else every.tolist() == rows.tolist()
            out = np.empty(count, dtype)
            row = communicator.scatter(rows if rank == 0 else None, out=out, async_op=async_op)
            assert finished(row, async_op) is out and out.tolist() == rows[rank].tolist()
            every = finished(communicator.all_to_all(rows, async_op=async_op), async_op)
            assert every.dtype == dtype and every.tolist() == [rows[rank].tolist()] * communicator.size


def uneven_parts(communicator, counts, async_op):
    rank, size = communicator.rank, communicator.size
    counts = [(rank + other) % 3 for other in range(size)]  # the same there and back
    rows = np.repeat(np.arange(size), counts)[:, None] * [1, 10] + 100 * rank
    options = {"send_counts": counts, "recv_counts": counts, "async_op": async_op}
    got = finished(communicator.all_to_all(rows, **options), async_op)
    assert got.tolist() == (np.repeat(np.arange(size), counts)[:, None] * 100 + [rank, 10 * rank]).tolist()


def order_of_calls(communicator, counts, async_op):
    """Operations in flight end in it, and a blocking call comes behind them."""
    ended, size = [], communicator.size
    works = [communicator.allreduce(np.full(each + 1, 1.0), async_op=True) for each in range(20)]
    works += [communicator.broadcast(np.ones(2), async_op=True) for _ in range(20)]
    for number, work in enumerate(works):
        work.add_done_callback(lambda work, number=number: ended.append(number))
    assert communicator.all_gather(np.ones(2)).shape == (size, 2)
    assert all(work.test() for work in works)
    assert [work.wait().tolist() for work in works[:20]] == [[size] * (each + 1) for each in range(20)]
    finished(communicator.barrier(async_op=async_op), async_op)
    assert sorted(ended) == list(range(40))


def groups(communicator, counts, async_op):
    """They overlap, and are in any order."""
    rank, size = communicator.rank, communicator.size
    half, ends = [each for each in range(size) if each % 2 == rank % 2][::-1], [size - 1, 0] if size > 1 else [0]
    for ranks in (half, ends, [*range(size)], [rank], ends):
        group = communicator.group(ranks)
        assert (group is None) == (rank not in ranks)
        if group is None:
            continue
        with group:
            assert (group.rank, group.size) == (ranks.index(rank), len(ranks))
            assert finished(group.all_gather(np.array(rank), async_op=async_op), async_op).tolist() == ranks
            assert group.broadcast(np.array([rank]), len(ranks) - 1).tolist() == [ranks[-1]]
            assert group.allreduce(np.array([rank]), async_op=True).wait().tolist() == [sum(ranks)]
            with group.group(range(len(ranks))[::-1]) as inner:
                assert inner.all_gather(np.array(rank)).tolist() == ranks[::-1]
    assert communicator.allreduce(np.ones(1)).tolist() == [size]


def prepared(communicator, counts, async_op):
    """Again and again, beside other calls, in memory of the communicator and elsewhere."""
    rank, size = communicator.rank, communicator.size
    ours, theirs = communicator.empty((100, 100)), np.zeros(70_001)
    reductions = [communicator.prepare(ours, "mean"), communicator.prepare(theirs, "max")]
    assert all(reduction.test() for reduction in reductions)
    for turn in range(3):
        ours[:], theirs[:] = 2 * rank + turn, rank * turn
        for reduction in reductions:
            reduction.start()
        if not async_op:
            communicator.allreduce(np.ones(10))
        while async_op and not reductions[0].test():
            pass
        assert reductions[1].wait() is theirs and reductions[0].wait() is ours
        assert (ours == size - 1 + turn).all() and (theirs == (size - 1) * turn).all()


def differences(communicator, counts, async_op):
    """Where no guard ends the run they are named on all ranks, and all go on. Streams cannot."""
    sliced = partial(communicator.allreduce, algorithm="sliced")
    for call, text in ((sliced, "allreduce, sum"), (communicator.all_gather, "all_gather")):
        if communicator.size > 1:
            with pytest.raises(UsageError, match=rf"rank 0: {text} of float64 \[3\]"):
                finished(call(np.ones(3 + communicator.rank), async_op=async_op), async_op)
        assert finished(call(np.ones(3), async_op=async_op), async_op).sum() == 3 * communicator.size


CHECKS = (
    all_reduce,
    broadcast,
    all_gather,
    reduce_scatter,
    gather_scatter_and_all_to_all,
    uneven_parts,
    order_of_calls,
    groups,
    prepared,
)
