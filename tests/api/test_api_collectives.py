"""The collectives of the communicator on a loopback world: results, arrays and refusals."""

import threading

import numpy as np
import pytest

from ringtrain import Communicator
from ringtrain.allreduce.dtypes import TYPES
from ringtrain.api.collective_runs import choose_algorithm
from ringtrain.errors import MismatchError, StalledError, UsageError
from tests.api import contract
from tests.api.communicators import on_ranks, together
from tests.fakes.arrays import halves
from tests.loopback.world import LoopbackWorld
from tests.says import says

COUNTS = (0, 1, 7, 301)  # of which the last is in pieces


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("check", [*contract.CHECKS, contract.differences], ids=lambda check: check.__name__)
def test_the_contract(small_pieces, check, size, async_op):
    together(size, lambda communicator: check(communicator, COUNTS, async_op))


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_barrier(size, async_op):
    came = []

    def body(communicator):
        came.append(communicator.rank)
        assert contract.finished(communicator.barrier(async_op=async_op), async_op) is None
        assert len(came) == size

    together(size, body)


@on_ranks(3)
def test_strides_overlaps_and_out(communicator):
    rank = communicator.rank
    square = np.arange(12.0).reshape(3, 4) + 100 * rank
    communicator.broadcast(square[:, 1::2], 1)
    assert square[:, 1::2].tolist() == (np.arange(12.0).reshape(3, 4)[:, 1::2] + 100).tolist()
    assert square[0, 0] == 100 * rank
    every = np.zeros((4, 3)).T  # with strides
    assert communicator.all_gather(square[0, :].copy(), out=every) is every and every[1, 1] == square[0, 1]
    square = np.arange(9.0).reshape(3, 3) * (rank + 1)
    communicator.all_gather(square[rank], out=square)  # the row lies in the result
    assert square.tolist() == (np.arange(9.0).reshape(3, 3) * [[1], [2], [3]]).tolist()
    table = np.arange(6.0).reshape(3, 2)
    assert communicator.reduce_scatter(table, out=table[0]).tolist() == [6 * rank, 6 * rank + 3]


def test_bfloat16_is_moved_and_added(monkeypatch):
    make = halves(monkeypatch)

    def body(communicator):
        array = make([communicator.rank + 1.0, 2.0])
        every = communicator.all_gather(array)
        assert every.bits.tolist() == [[0x3F80, 0x4000], [0x4000, 0x4000]]
        assert communicator.reduce_scatter(array).bits.item() == [0x4040, 0x4080][communicator.rank]

    together(2, body)


def test_auto_streams_where_that_works():
    for kind in ("broadcast", "all_gather", "reduce_scatter", "reduce", "gather", "scatter", "all_to_all"):
        assert choose_algorithm(None, kind, "float32", streams=True) == "stream"
        assert choose_algorithm("auto", kind, "float32", streams=False) == "mpi"
    assert choose_algorithm(None, "reduce_scatter", "bfloat16", streams=False) == "sliced"  # no MPI reduces it
    assert choose_algorithm(None, "reduce", "float16", streams=False) == "tree"
    assert choose_algorithm("ring", "all_gather", "float32", streams=True) == "ring"


@on_ranks(1)
def test_one_rank_streams_nothing(communicator):
    with pytest.raises(UsageError, match=says("stream", "one rank")):
        communicator.broadcast(np.ones(3), algorithm="stream")
    assert communicator.algorithm_of("broadcast") == communicator.algorithm_of("barrier") == "mpi"


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_a_reduction_comes_to_the_root_alone(nodes, dtype):
    def body(communicator):
        rank, array = communicator.rank, np.arange(7, dtype=dtype) + communicator.rank
        for root in range(3):
            total = communicator.reduce(array, root)
            assert (total is None) == (rank != root) and (
                total is None or total.tolist() == [3 * i + 3 for i in range(7)]
            )
        out = np.zeros((7, 2), dtype)[:, 0] if rank == 1 else None
        assert communicator.reduce(array, 1, "max", out=out) is out
        assert rank != 1 or out.tolist() == [i + 2 for i in range(7)]
        if dtype != "int64":
            mean = communicator.reduce(array, 2, "mean", async_op=True).wait()
            assert rank != 2 or mean.tolist() == [i + 1 for i in range(7)]

    together(3, body, nodes=nodes)


@on_ranks(3)
def test_the_same_arrays_come_again_without_checks(communicator):
    """And what has changed since is checked: another array, operation, root, a type that was set."""
    rank = communicator.rank
    source, every, table, row = np.zeros(5), np.zeros((3, 5)), np.zeros((3, 5)), np.zeros(5)
    for turn in range(6):
        root = turn // 4
        source[:] = 10 * turn + rank
        assert communicator.broadcast(source, root) is source and source[0] == 10 * turn + root
        source[:] = 10 * turn + rank
        assert communicator.all_gather(source, out=every) is every
        assert every.tolist() == [[10 * turn + r] * 5 for r in range(3)]
        table[:] = [[rank + turn], [2], [3]]
        op, total = ("max", [2 + turn, 2, 3]) if turn > 3 else ("sum", [3 + 3 * turn, 6, 9])
        assert communicator.reduce_scatter(table, op, out=row) is row and row.tolist() == [total[rank]] * 5
    assert communicator._same.find(source, ("all_gather",), every) is not None
    assert communicator._same.find(source, ("all_gather",), every.copy()) is None
    every.shape = (15,)
    with pytest.raises(UsageError, match=says("out", "15")):
        communicator.all_gather(source, out=every)


# ── reproducible sums ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("dtype", [name for name in TYPES if name != "bfloat16"])
def test_shards_add_up_to_the_same_bits_on_any_ranks(small_pieces, dtype):
    shards = (np.random.default_rng(3).standard_normal((12, 5, 41)) * 50).astype(dtype)

    def total(size, nodes, op):
        def body(transport):
            with Communicator(transport, deadline_s=20.0) as communicator:
                rows = shards[transport.rank * 12 // size : (transport.rank + 1) * 12 // size]
                out = np.empty((5, 41), dtype)
                assert communicator.allreduce(rows, op, out=out, reproducible=True) is out
                again = communicator.allreduce(rows, op, reproducible=True, async_op=True).wait()
                assert again.tobytes() == out.tobytes()
                return out.tobytes()

        (bits,) = set(LoopbackWorld(size, nodes).run(body))
        return bits

    for op in ("sum", "max") if TYPES[dtype].integral else ("sum", "mean", "max"):
        assert len({total(size, nodes, op) for size, nodes in ((1, 1), (2, 1), (2, 2), (3, 1), (4, 2), (6, 1))}) == 1
    if dtype == "float64":
        assert np.frombuffer(total(3, 1, "mean")).reshape(5, 41) == pytest.approx(shards.mean(0))


def test_reproducible_sums_that_cannot_be(alone):
    ones = np.ones((2, 3))
    for text, array, options in (
        (says([]), np.float64(1), {}),
        (says([0, 3]), np.ones((0, 3)), {}),
        (says("'ring'", "'none'"), ones, {"algorithm": "ring"}),
        (says("'auto'", "'float16'"), np.ones((2, 3), "f4"), {"wire": "float16"}),
        (says([3]), ones, {"out": ones}),
    ):
        with pytest.raises(UsageError, match=text):
            alone.allreduce(array, reproducible=True, **options)


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────
def test_what_no_rank_could_ask_for(alone):
    ones = np.ones((1, 2))
    read_only = np.ones(3)
    read_only.flags.writeable = False
    for text, call in (
        (says(1, 0, "root", "are"), lambda: alone.broadcast(ones, 1)),
        (says("object"), lambda: alone.all_gather(np.array([{}]))),
        (says("'rign'"), lambda: alone.broadcast(ones, algorithm="rign")),
        (says(1, [2, 1]), lambda: alone.reduce_scatter(ones.T)),
        (says(1, [2, 1]), lambda: alone.scatter(ones.T)),
        (says("bool"), lambda: alone.reduce_scatter(ones > 0)),
        (says("int64"), lambda: alone.reduce_scatter(ones.astype(int), "mean")),
        (says(0, "scatter", "tells"), alone.scatter),
        (says("neither", "told"), lambda: alone.all_to_all(ones, send_counts=[1])),
        (says("send_counts"), lambda: alone.all_to_all(ones, send_counts=[2], recv_counts=[1])),
        (says("all_to_all"), lambda: alone.all_to_all(np.float64(1))),
        (says([1, 1, 2]), lambda: alone.all_gather(ones, out=ones)),
        (says("out"), lambda: alone.gather(np.float64(1), out=read_only[:1])),
    ):
        with pytest.raises(UsageError, match=text):
            call()


def test_a_read_only_array_is_broadcast_by_its_root_alone_and_rows_are_equal_parts():
    def body(communicator):
        array = np.full(3, communicator.rank + 1.0)
        array.flags.writeable = communicator.rank == 1
        return communicator.broadcast(array, 0).tolist()

    assert together(2, body) == [[1, 1, 1]] * 2
    with pytest.raises(UsageError, match=says("the array")):
        together(2, lambda communicator: communicator.broadcast(np.broadcast_to(1.0, 3), 0))
    with pytest.raises(UsageError, match=says(3, 2, "equal", "multiple")):
        together(2, lambda communicator: communicator.all_to_all(np.ones(3)))


def test_under_a_guard_counts_that_differ_are_refused_on_all_ranks():
    def body(communicator):
        counts = [1, 2] if communicator.rank else [1, 1]
        with pytest.raises(UsageError) as caught:
            communicator.all_to_all(np.ones(2), send_counts=[1, 1], recv_counts=counts)
        communicator.all_to_all(np.ones(2), send_counts=[1, 1], recv_counts=[1, 1])
        return str(caught.value)

    output = together(2, body, check_collectives=True)
    assert output == [says(1, 8, 16, "sends", "wants")] * 2


def test_calls_that_differ_are_refused_on_all_ranks():
    def body(communicator):
        with pytest.raises(UsageError, match=says("different", "calls")) as caught:
            communicator.gather(np.ones(3), communicator.rank)
        assert communicator.gather(np.ones(3)) is None or communicator.rank == 0
        return str(caught.value)

    (output,) = set(together(2, body))
    assert "rank 0: gather of float64 [3], root 0 by stream; rank 1: gather of float64 [3], root 1" in output


RECORDS = ([("a", "i4"), ("b", "f4")], [("a", "f4"), ("b", "i4")])


@pytest.mark.parametrize("types", [(">f4", "<f4"), RECORDS])
@on_ranks(2)
def test_other_orders_of_bytes_and_fields_are_other_types(communicator, types):
    array = np.ones((2, 2), types[communicator.rank])
    for call in (
        lambda: communicator.broadcast(array, algorithm="mpi"),
        lambda: communicator.all_gather(array),
        lambda: communicator.gather(array),
        lambda: communicator.scatter(*((array,) if communicator.rank == 0 else ()), out=array[0]),
        lambda: communicator.all_to_all(array),
    ):
        with pytest.raises(UsageError, match="ranks make different calls"):
            call()
    with pytest.raises(UsageError, match=says([2, 2, 2])):
        communicator.all_gather(array, out=np.ones((2, 2, 2), types[1 - communicator.rank]))


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kind", ["broadcast", "allreduce"])
def test_known_calls_of_the_mpi_that_differ_are_refused_on_all_ranks(kind, nodes):
    """On one node in shared memory; between nodes by the MPI, and then all go on."""

    def body(transport):
        connected = Communicator(transport, deadline_s=20.0)
        calls = [lambda n=n: getattr(connected, kind)(np.ones(n), algorithm="mpi") for n in (3, 4)]
        for call in calls:
            call()
        with pytest.raises(MismatchError if nodes == 1 else UsageError) as error:
            calls[transport.rank]()
        assert "[3]" in str(error.value) and "[4]" in str(error.value)
        if nodes == 2:
            calls[0]()
        connected.close()

    LoopbackWorld(2, nodes).run(body)


def test_a_rank_that_does_not_come_is_awaited_by_name():
    """At a barrier, at a call that is new, and in a schedule."""

    def barrier(communicator):
        communicator.barrier()

    def broadcast(communicator):
        communicator.broadcast(np.ones(3), 1, algorithm="tree")

    for call, known, text in (
        (barrier, False, "rank 1 to join the barrier"),
        (broadcast, False, "rank 1 to join the broadcast"),
        (broadcast, True, "rank 1 to send"),
    ):

        def body(communicator, call=call, known=known):
            if known:
                call(communicator)
            communicator.set_deadline(0.2)
            if communicator.rank != 1:
                call(communicator)

        with pytest.raises(StalledError, match=rf"0\.2 s\b.*{text}"):
            together(3, body)


@pytest.mark.usefixtures("timeless")
def test_under_a_guard_those_that_differ_are_named_by_the_ranks_of_the_world():

    def body(transport):
        whole = Communicator(transport, check_collectives=True, deadline_s=10.0)
        group = whole.group([3, 1, 2])
        output = ""
        if group is not None:
            for root in (0, 1):
                group.gather(np.ones(3), root)
            try:
                group.gather(np.ones(3), 1 if transport.rank == 3 else 0)
            except MismatchError as error:
                output = str(error)
            group._guard.close()
        whole._guard.close()
        return output

    _, _, *output = LoopbackWorld(4).run(body)  # rank 1 compares with rank 2 alone, unless it has to wait
    for each in output:
        assert "as on ranks 1, 2: gather of float64 [3], root 0 by stream; got, on rank 3 (" in each


def test_under_a_guard_a_rank_that_does_not_come_is_named(timeless):
    waiting, output = threading.Event(), []

    def body(transport):
        whole = Communicator(transport, check_collectives=True, deadline_s=0.4)
        group = whole.group([2, 1])
        if transport.rank == 1:
            group.barrier()
            waiting.wait(20)
            timeless.pass_until(lambda: output)
        elif transport.rank == 2:
            group.barrier()
            waiting.set()
            try:
                group.barrier()
            except StalledError as error:
                output.append(str(error))
        for each in filter(None, (group, whole)):
            each._guard.close()

    LoopbackWorld(3).run(body)
    assert "barrier: rank 1 (" in output[0] and "rank 2 waits in it" in output[0]
