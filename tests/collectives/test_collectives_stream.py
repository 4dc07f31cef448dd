"""Streamed all-reduces: the proof of their program, and the compiled call among threads."""

import gc
import re
import weakref
from functools import reduce
from itertools import product

import numpy as np
import pytest

from ringtrain.allreduce.dtypes import TYPES
from ringtrain.collectives.execution import streamed
from ringtrain.collectives.stream import cannot_stream, make_streamed, prepare_streamed, stream_window
from ringtrain.errors import MismatchError, ScheduleError, TransportError, UsageError
from ringtrain.monitor.guard import Guard
from ringtrain.ops.cpu.streamed import ADDING, COLLECTIVES, IN_PIECES
from ringtrain.transport.loopback import Loopback
from tests.collectives.executions import any_bits, stalled
from tests.collectives.stream_program import DONE, ONCE, PUBLISHED, SLICED, SUMMED, WHOLE
from tests.collectives.stream_proof import StreamCall, verify_order, verify_stream
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import thorough

MIXED = [(WHOLE, 1), (SLICED, 3), (ONCE, 3), (WHOLE, 9), (SLICED, 1), (ONCE, 1), (ONCE, 2), (SLICED, 9), (WHOLE, 2)]


# ── the proof ─────────────────────────────────────────────────────────────────────────────────────────────────
FEW_ORDERS, MANY_ORDERS = (
    product((1, 2, 3, 4, 6), (1, 2, 4), (50,)),
    product((2, 3, 4, 5, 6, 8), (1, 2, 3, 4, 16), (150,)),
)


@pytest.mark.parametrize(("size", "slots", "orders"), [*FEW_ORDERS, *thorough(*MANY_ORDERS)])
def test_the_programs_need_no_more_waits(size, slots, orders):
    verify_stream([StreamCall(*each) for each in MIXED], size, slots, orders)


@pytest.mark.parametrize(
    ("calls", "slots", "orders"),
    [([(WHOLE, 2)], 2, 960), ([(WHOLE, 3)], 1, 64), ([(SLICED, 2)], 1, 64), ([(WHOLE, 1), (SLICED, 1)], 2, 640)],
)
def test_two_ranks_need_no_more_waits_in_all_orders(calls, slots, orders):
    """One order after the other, as a counter whose digits are what is picked."""
    digits, walked = [], 0
    while True:
        at = 0

        def pick(possible):
            nonlocal at
            if at == len(digits):
                digits.append([0, len(possible)])
            at += 1
            return possible[digits[at - 1][0]]

        verify_order([StreamCall(*each) for each in calls], 2, slots, pick)
        walked += 1
        while digits and digits[-1][0] + 1 == digits[-1][1]:
            digits.pop()
        if not digits:
            break
        digits[-1][0] += 1
    assert walked == orders


STUCK, RACE, WRONG_CHUNK, WRONG_SUM = "no rank goes on", "hazard: rank", r"rank \d reads .* wants", r"rank \d ends with"


def changed(program, name, **fields):
    return tuple(action._replace(**fields) if action.name == name else action for action in program)


@pytest.mark.parametrize(
    ("program", "slots", "error"),
    [
        (WHOLE, 0, STUCK),
        (changed(WHOLE, "sum", advances=SUMMED), 4, STUCK),  # slots are never free again
        (changed(WHOLE, "publish", awaits=DONE), 4, STUCK),
        (changed(changed(WHOLE, "publish", advances=DONE), "sum", awaits=DONE, advances=SUMMED), 4, RACE),
        (changed(SLICED, "copy others", awaits=PUBLISHED), 4, WRONG_CHUNK),
        (changed(SLICED, "sum own", awaits=DONE), 4, STUCK),
        (changed(SLICED, "sum own", advances=DONE), 4, STUCK),
        ((*changed(SLICED, "sum own", advances=DONE)[:2], SLICED[2]._replace(awaits=DONE)), 4, RACE),
        ((WHOLE[0]._replace(name="publish others"), WHOLE[1]), 4, WRONG_CHUNK),
        (SLICED[:2], 4, STUCK),
        (changed(ONCE, "copy arrays", awaits=DONE), 4, STUCK),
        ((ONCE[0], changed(ONCE, "copy arrays", advances=DONE)[1]), 4, RACE),  # it returns before all have read
        ((SLICED[0], SLICED[1]._replace(advances=DONE)), 4, WRONG_SUM),
    ],
)
def test_a_program_that_is_wrong_is_refused(program, slots, error):
    with pytest.raises(ScheduleError, match=error):
        verify_stream([StreamCall(program, 9)], 3, slots)


# ── the other collectives ─────────────────────────────────────────────────────────────────────────────────────
def expected(collective, sources, rank, root):
    """What a rank's target has then; None where nothing comes."""
    rows = [source.reshape(len(sources), -1) for source in sources] if sources[0].size % len(sources) == 0 else []
    total = reduce(np.add, sources)
    return {
        "reduce": lambda: total if rank == root else None,
        "reduce-scatter": lambda: total.reshape(len(sources), -1)[rank],
        "broadcast": lambda: sources[root],
        "all-gather": lambda: np.concatenate(sources),
        "gather": lambda: np.concatenate(sources) if rank == root else None,
        "scatter": lambda: rows[root][rank],
        "all-to-all": lambda: np.concatenate([row[rank] for row in rows]),
    }[collective]()


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if "all-reduce" not in name])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("once", [False, True], ids=["slots", "once"])
def test_every_collective_gives_what_numpy_does(small_chunks, monkeypatch, once, size, collective):
    """Rows of one chunk and of many, each root, both ways, and more than once: a later call may find slots in use."""
    monkeypatch.setattr(streamed, "ONCE_BYTES", 1024 if once else 1 << 40)
    cases = [(row, root) for row in (0, 1, 33, 1300, 20_011) for root in {0, size - 1}]
    adds, has_rows = collective in ADDING, collective in IN_PIECES

    def source(rank, row):
        count = row * size if has_rows else row
        return np.random.default_rng([rank, row]).integers(-99, 99, count).astype("f4" if adds else "i1")

    def body(t):
        for row, root in [case for case in cases for _ in range(4)]:
            sources = [source(rank, row) for rank in range(size)]
            wanted, array = expected(collective, sources, t.rank, root), sources[t.rank].copy()
            target = array if collective == "broadcast" else np.zeros(0 if wanted is None else wanted.size, array.dtype)
            what = {"call": f"{collective} {row} {root}", "collective": collective, "root": root}
            run = make_streamed(t, "sum", "float32", row, array.itemsize, **what)
            run.bind(array, target)
            run.run(20.0)
            assert wanted is None or target.tolist() == wanted.tolist()
            assert collective == "broadcast" or array.tolist() == sources[t.rank].tolist()

    LoopbackWorld(size).run(body)


def test_what_the_kernel_copies_once():
    """What one other rank reads; not what many do, nor long broadcasts, in which the root helps by its copies."""
    long, longer = streamed.ONCE_BYTES, 2 * streamed.ONCE_BROADCAST_BYTES
    cases = [(name, size, nbytes) for name in COLLECTIVES for size in (2, 3) for nbytes in (long - 1, long, longer)]
    once = [(name, size, nbytes) for name, size, nbytes in cases if streamed.is_copied_once(name, size, nbytes)]
    always = [
        (name, size, nbytes)
        for name in ("gather", "scatter", "all-to-all")
        for size in (2, 3)
        for nbytes in (long, longer)
    ]
    all_gathers = [("all-gather", 2, long), ("all-gather", 2, longer)]
    assert sorted(once) == sorted([*always, *all_gathers, ("broadcast", 2, long), ("broadcast", 3, long)])


def test_where_the_kernel_does_not_read_another_rank_slots_are_used_and_a_later_refusal_is_told(monkeypatch):
    def body(t, wanted, processes=None):
        window = stream_window(t)
        assert (window.processes is None) == wanted
        if processes is not None:
            window.processes = np.array(processes)
        array = np.full(1 << 20, t.rank, "u1")
        run = make_streamed(t, "sum", "uint8", 1 << 20, 1, call="broadcast", collective="broadcast")
        run.bind(array, array)
        run.run(20.0)
        return int(array.sum())

    assert LoopbackWorld(2).run(lambda t: body(t, False)) == [0, 0]
    with pytest.raises(TransportError, match=says("kernel", "memory", "broadcast", "process")):
        LoopbackWorld(2).run(lambda t: body(t, False, [1 << 30] * 2))
    monkeypatch.setattr(streamed, "read_process", lambda *_: None)
    assert LoopbackWorld(2).run(lambda t: body(t, True)) == [0, 0]


# ── the bits ──────────────────────────────────────────────────────────────────────────────────────────────────
def one_by_one(shares, numbers, op):
    """By NumPy, in the order of ranks; a mean of 16-bit numbers in float32, divided first."""
    if op == "mean" and numbers.itemsize == 2:
        with np.errstate(all="ignore"):
            return numbers.encode(reduce(np.add, [numbers.shares(share, len(shares)) for share in shares]))
    total = shares[0].copy()
    with np.errstate(all="ignore"):
        for share in shares[1:]:
            numbers.combine(op)(total, share, total)
        if op == "mean":
            numbers.divide(total, len(shares))
    return total


def told(total, op):
    """The bits; of the sum of two NaNs a compiler chooses them, where the processor adds such numbers itself."""
    total = total.copy()
    if (op in ("sum", "mean") and total.dtype in ("f4", "f8")) or (op == "mean" and total.dtype == "f2"):
        total[np.isnan(total)] = np.nan
    return total.tobytes()


@pytest.fixture
def small_chunks(monkeypatch):
    """Several chunks in a slot's turn, slices of short arrays, and both ways of writing them, in turns at first."""
    monkeypatch.setattr(streamed, "SLOT_BYTES", 2048)
    monkeypatch.setattr(streamed, "SLICED_BYTES", 1024)
    monkeypatch.setattr(streamed, "LEARNING_BYTES", 0)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_type_and_operation_has_the_bits_of_numpy_in_the_order_of_ranks(small_chunks, size, name):
    """In both ways, of arrays of one chunk and of many, in place and into another array."""
    numbers, counts = TYPES[name], (0, 1, 7, 129, 20_011)
    operations = [op for op in ("sum", "mean", "max", "min") if op != "mean" or not numbers.integral]
    asked = [(op, count) for op in operations for count in counts for _ in range(2)]

    def body(t):
        bits = []
        for op, count in asked:
            run = make_streamed(t, op, name, count, numbers.itemsize)
            array, other = any_bits(t.rank, count, numbers), np.zeros(count, numbers.storage)
            run.bind(array, other)
            run.run(20.0)
            assert array.tobytes() == any_bits(t.rank, count, numbers).tobytes()
            run.bind(array, array)
            run.start()
            run.wait(20.0)
            assert told(array, op) == told(other, op) and run.test() and not run.moved
            bits.append(told(array, op))
        return bits

    totals = [(one_by_one([any_bits(r, count, numbers) for r in range(size)], numbers, op), op) for op, count in asked]
    assert LoopbackWorld(size).run(body) == [[told(*each) for each in totals]] * size


def test_ranks_may_write_their_slots_in_different_ways():
    """Each learns by itself: no bit hangs on it. Its first calls are in both ways in turns, by the number of calls."""

    def body(t):
        buffer = np.full(100_003, t.rank + 0.1, "f4")
        stream_window(t).costs("all-reduce", buffer.nbytes).view(np.int64)[8] = t.rank
        prepare_streamed(t, buffer, "sum", "float32").run(20.0)
        return buffer.tobytes()

    wanted = one_by_one([np.full(100_003, rank + 0.1, "f4") for rank in range(3)], TYPES["float32"], "sum")
    assert LoopbackWorld(3).run(body) == [wanted.tobytes()] * 3


@pytest.mark.parametrize("size", [2, 3])
def test_both_ways_are_tried(size):
    """Three times each for arrays of a size, of which shorter ones than 4 KiB are written plainly."""

    def body(t):
        for count in (100, 50_000):
            run = prepare_streamed(t, np.ones(count, "f4"), "sum", "float32")
            for _ in range(8):
                run.run(20.0)
        small, large = (stream_window(t).costs("all-reduce", 4 * count) for count in (100, 50_000))
        assert not small.any()
        return [int(samples) for samples in large.view(np.int64)[1:8:2]], int(large.view(np.int64)[8])

    for samples, calls in LoopbackWorld(size).run(body):
        assert calls == sum(samples[:2]) == 8 and min(samples) >= 3


# ── several in flight ─────────────────────────────────────────────────────────────────────────────────────────
def test_reductions_in_flight_run_in_the_order_of_their_starts(small_chunks):
    """By hand, rank by rank, in one thread: whichever is tested, those before it go on first."""

    def body(t):
        buffers = [np.full(count, t.rank + 1.0) for count in (3000, 5, 700)]
        return t, buffers, [prepare_streamed(t, each, "sum", "float64") for each in buffers]

    ranks = LoopbackWorld(2).run(body)
    (one, first, mine), (_, second, theirs) = ranks
    for run in mine:
        run.start()
    assert [run.test() for run in mine] == [False] * 3 and mine[0].moved and not mine[1].moved
    assert (first[1] == 1).all() and stream_window(one).running[0] is mine[0]
    with pytest.raises(TransportError, match=says("streamed", "all-reduce")):
        mine[1].start()
    with pytest.raises(TransportError, match=says("streamed", "all-reduce")):
        mine[1].bind(first[0], first[0])
    for run in theirs:
        run.start()
    while not all([mine[2].test(), theirs[2].test()]):
        pass
    assert [run.test() for run in (*mine, *theirs)] == [True] * 6
    assert all((each == 3).all() for each in (*first, *second)) and not stream_window(one).running


def test_a_rank_publishes_as_far_ahead_as_it_has_slots_while_the_other_does_not_come(small_chunks):
    """By hand, rank by rank, in one thread."""

    def body(t):
        buffer = np.full(20_011, t.rank + 1.0)
        return buffer, prepare_streamed(t, buffer, "sum", "float64"), stream_window(t)

    (first, one, window), (second, other, _) = LoopbackWorld(2).run(body)
    slots, chunks = window.slots, -(-first.nbytes // window.slot_bytes)
    assert 4 < slots < chunks
    one.start()
    assert not one.test() and one.moved == 1 + slots
    other.start()
    assert other.moved == 1 + 2 * slots  # it publishes as many, and adds them
    while not all([one.test(), other.test()]):
        pass
    assert (first == 3).all() and (second == 3).all()


def test_an_array_is_kept_while_it_is_in_flight_and_no_longer():
    """By hand, rank by rank, in one thread."""

    def body(t):
        return make_streamed(t, "sum", "float64", 900, 8)

    runs = LoopbackWorld(2).run(body)
    arrays = [np.ones(900) for _ in runs]
    references = [weakref.ref(array) for array in arrays]
    for run, array, reference in zip(runs, arrays, references, strict=True):
        run.bind(array, array, reference)
    del array
    runs[0].start()
    arrays.clear()
    assert references[0]() is not None and references[1]() is None
    other = np.ones(900)
    runs[1].bind(other, other)
    runs[1].start()
    assert runs[0].test() and runs[1].test() and (other == 2).all()
    assert references[0]() is None


def test_a_run_behind_others_ends_after_them():
    def body(t):
        buffers = [np.full(70_000, t.rank + 1.0), np.full(3, t.rank + 1.0)]
        before, last = [prepare_streamed(t, each, "sum", "float64") for each in buffers]
        before.start()
        last.run(20.0)
        assert before.test()
        return [float(each.sum()) for each in buffers]

    assert LoopbackWorld(3).run(body) == [[420_000.0, 18.0]] * 3


class Interrupted(Exception):
    pass


def test_a_call_that_the_user_interrupts_ends_before_the_next(monkeypatch):
    """Ctrl-C comes when the compiled call returns. The others have seen the chunks of the interrupted call."""

    def body(t):
        buffers = [np.full(200_000, t.rank + 1.0), np.full(200_000, t.rank + 5.0)]
        first, second = [prepare_streamed(t, each, "sum", "float64") for each in buffers]
        if t.rank == 0:
            wait = first._call.wait

            def interrupted():
                wait()
                raise Interrupted

            first._call.wait = interrupted
            with pytest.raises(Interrupted):
                first.run(20.0)
            first._call.wait = wait
            t.barrier()
            with pytest.raises(TransportError, match=says("streamed", "all-reduce")):
                first.run(20.0)
        else:
            t.barrier()
            first.run(20.0)
        second.run(20.0)
        assert not first.started and not stream_window(t).running
        return [float(each[0]) for each in buffers]

    assert LoopbackWorld(2).run(body) == [[3.0, 11.0]] * 2


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("guarded", [False, True])
def test_different_calls_are_named_on_all_ranks(guarded):
    calls = [("sum", 10), ("max", 11)]

    def body(t):
        op, count = calls[t.rank]
        run = prepare_streamed(t, np.ones(count, "f4"), op, "float32")
        if guarded:
            run = Guard(t, deadline_s=20.0, turn_s=0.0).watch(run, op, "float32", count)
        with pytest.raises(MismatchError) as error:
            run.run(20.0)
        return str(error.value)

    words = says(*(word for call in calls for word in (*call, streamed.SLOT_BYTES)))
    for error in LoopbackWorld(2).run(body):
        if guarded:
            assert all(op in error for op, _ in calls) and not error.startswith("ranks make different")
        else:
            assert error == words + says("different", "float32", "rank 0", "rank 1")


@pytest.mark.timing
def test_a_late_rank_is_named_by_the_world():
    def body(t):
        group = t.group([3, 1, 2])
        if group is None:
            t.barrier()
            t.barrier()
            return None
        assert stream_window(group).memory is not None
        run = prepare_streamed(group, np.ones(200_000), "sum", "float64")
        return stalled(t, run, says("streamed", "all-reduce"))

    _, _, second, third = LoopbackWorld(4).run(body)
    for rank, error in ((2, second), (3, third)):
        assert error == says("rank 1", 1, 7, "streamed", "all-reduce", rank)


@pytest.mark.parametrize("sliced_bytes", [1 << 30, 0], ids=["slots", "sums"])
def test_a_rank_that_stops_after_it_has_published_ahead_is_the_late_one(small_chunks, monkeypatch, sliced_bytes):
    """By hand, rank by rank, in one thread: the others go on until they need its slots, or its sums."""
    monkeypatch.setattr(streamed, "SLICED_BYTES", sliced_bytes)

    def body(t):
        return prepare_streamed(t, np.ones(20_011), "sum", "float64")

    first, stopped, last = LoopbackWorld(3).run(body)
    for run in (stopped, first, last):
        run.start()
    for run in (first, last) * 100:
        assert not run.test()
    assert [run.awaited().partition(" for ")[0] for run in (first, last)] == ["rank 1", "rank 1"]


def test_what_cannot_be_streamed_is_told():
    def body(t):
        return cannot_stream(t, np.ones(3, "f4"), "float32")

    assert set(LoopbackWorld(2).run(body)) == {None}
    assert all(why == says("2 nodes") for why in LoopbackWorld(2, nodes=2).run(body))
    without = LoopbackWorld(2, shares=False)
    (why,) = set(without.run(body))
    assert re.match(says("they", "share"), why)
    t = Loopback()
    assert re.match(says("uint8"), cannot_stream(t, np.ones(3, "u1"), "uint8"))
    assert cannot_stream(t, object(), "float32") == says("buffer", "host")
    with pytest.raises(UsageError, match=says("stream")):
        without.run(lambda t: prepare_streamed(t, np.ones(3, "f4"), "sum", "float32"))


def test_a_window_goes_with_its_transport():
    t = Loopback()
    prepare_streamed(t, np.ones(3), "sum", "float64").run(1.0)
    window, reference = stream_window(t), weakref.ref(t)
    assert stream_window(t) is window
    del t, window
    gc.collect()
    assert reference() is None
