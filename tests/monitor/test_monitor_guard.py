"""The guard: what every rank does goes on unchanged, and who differs or does not come is named."""

import re
import socket
import threading
from collections import Counter
from functools import partial

import numpy as np
import pytest

from ringtrain.allreduce.catalogue import ALGORITHMS, NativeAllReduce, make_allreduce
from ringtrain.errors import MismatchError, StalledError, TransportError
from ringtrain.monitor import diagnosis, watchdog
from ringtrain.monitor.flight_recorder import FlightRecorder, RankRecord, RecordedCollective
from ringtrain.monitor.guard import SILENCE_TURNS, Guard
from ringtrain.monitor.guarded_transport import GuardedTransport
from ringtrain.monitor.watchdog import EVERY_S, PAUSED_S, Watchdog
from ringtrain.transport.native_call import BROADCAST, NativeCall
from tests.fakes.clock import STEP_S, Clock, until
from tests.loopback.world import LoopbackWorld
from tests.says import says

pytestmark = pytest.mark.timing

HOST = socket.gethostname()
TURN_S = 1.0  # longer than `stall` lets time pass too far


def prepared(t, guard, algorithm, count=40, op="sum"):
    """An all-reduce of ones under the guard, and its buffer."""
    buffer = t.allocate(count, "f8")
    buffer[:] = 1
    return make_allreduce(t, buffer, algorithm, np.add, op=op, guard=guard), buffer


def run(reduction, deadline_s=20):
    reduction.start()
    reduction.wait(deadline_s)


def world(size, body, deadline_s=20.0, nodes=1, end=None, **more):
    """``body(transport, guard)`` on every rank. The guard's thread ends with it."""

    def guarded(t):
        guard = Guard(t, deadline_s, **{"turn_s": 0.0, "end": end, **more})
        try:
            return body(t, guard)
        finally:
            guard.close()

    return LoopbackWorld(size, nodes=nodes).run(guarded)


@pytest.fixture
def clock(monkeypatch):
    """By which guards count. Their threads look often: they wait for the clock, and not for the machine's."""
    monkeypatch.setattr(watchdog, "EVERY_S", 0.005)
    return Clock()


def stall(clock, guard, deadline_s):
    """Let time pass until nobody has got on for so long, as all ranks see it: they do within a step of one another."""
    clock.pass_until(lambda: guard.watchdog.still_s() > deadline_s + 2 * STEP_S)


def waiting_in_vain(clock, deadline_s, prepare):
    """A body for :func:`world`: rank 0 calls ``prepare(transport, guard)``, and rank 1 comes too late."""
    ended = threading.Event()

    def body(t, guard):
        call = prepare(t, guard)
        if t.rank == 0:
            try:
                call()
            finally:
                ended.set()
        else:
            until(lambda: 1 in guard.recorder.read()[0].entries)
            stall(clock, guard, deadline_s)
            assert ended.wait(60)

    return body


def all_reduce(count, algorithm):
    return says("all-reduce", f"{count:,}", "float64", algorithm, "sum")


def got(call):
    return says(f"rank 1 ({HOST})", call)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_sum_is_the_same_and_every_row_is_written(algorithm, size):
    def body(t, guard):
        reduction, buffer = prepared(t, guard, algorithm)
        assert reduction.test()  # never started
        for _ in range(3):
            run(reduction)
            assert reduction.test()
        t.barrier()
        entries = [[(e.number, e.text, e.done) for e in row.entries.values()] for row in guard.recorder.read()]
        return buffer, entries, (reduction.algorithm, reduction.transport, reduction.moved)

    for buffer, entries, (name, carrier, moved) in world(size, body):
        assert (buffer == size**3).all()
        runs = "mapped" if algorithm == "routed" else algorithm  # on one node there is nothing between
        assert entries == [[(n, all_reduce(buffer.size, runs), True) for n in (1, 2, 3)]] * size
        over = {"mpi": "mpi", "mapped": "mapped", "stream": "streamed"}
        assert name == runs and carrier == over.get(runs, "messages") and moved >= 0


def test_several_in_flight_may_end_in_any_order():
    def body(t, guard):
        first, second = (make_allreduce(t, np.ones(30), "ring", np.add, tag=tag, guard=guard) for tag in (0, 1))
        first.start()
        second.start()
        second.wait(20)
        while not first.test():
            pass
        return guard.recorder.inside()

    assert world(3, body) == [[], [], []]


def test_collectives_of_the_mpis_own_are_numbered():
    def body(t, guard):
        GuardedTransport(t, guard).native_start(NativeCall(BROADCAST)).wait(10)
        (entry,) = guard.recorder.read()[t.rank].entries.values()
        return entry.text, entry.done

    assert world(2, body) == [(says(BROADCAST, 0), True)] * 2


# ── not the same on all ranks ─────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("good", "algorithm", "call", "text"),
    [
        (2, "ring", {"count": 20}, "all-reduce of 20 float64 by ring (sum)"),
        (1, "ring", {"op": "max"}, "all-reduce of 40 float64 by ring (max)"),  # nothing fails in the transport
        (1, "mpi", {"op": "max"}, "all-reduce of 40 float64 by mpi (max)"),
        (0, "ring", None, "barrier"),
    ],
)
def test_another_call_is_named_rank_by_rank(clock, good, algorithm, call, text):
    """After so many good ones. The clock stands still: the rank that reports has time to see that all have begun."""

    def body(t, guard):
        usual, _ = prepared(t, guard, algorithm)
        other, _ = prepared(t, guard, algorithm, **call or {})
        for _ in range(good):
            run(usual)
        if t.rank != 1 or call:
            run(other if t.rank == 1 else usual)
        else:
            GuardedTransport(t, guard).barrier()

    with pytest.raises(MismatchError) as raised:
        world(3, body, end=_no_end, clock=clock)
    message = says(good + 1, "ranks 0, 2", all_reduce(40, algorithm), got(text))
    assert str(raised.value) == message and raised.value.exit_code == 1


def _no_end(error):
    """Of the thread: the main threads tell it themselves, or are told."""


def test_a_call_into_the_mpi_that_differs_is_not_made():
    """The second to come sees what the first has begun."""
    calls, begun, ended = [], threading.Event(), threading.Event()

    class Recorder:
        def native_allreduce(self, span, op):
            calls.append(op)

    def dance():
        begun.set()
        ended.wait(20)

    def body(t, guard):
        if t.rank == 0:
            return guard.run("a dance", dance)
        assert begun.wait(20)
        try:
            guard.watch(NativeAllReduce(Recorder(), np.ones(4), "sum"), "sum", "float64", 4).start()
        finally:
            ended.set()

    small = all_reduce(4, "mpi")
    with pytest.raises(MismatchError, match=says("rank 0", "a dance", got(small))):
        world(2, body, end=_no_end)
    assert calls == []


def test_an_error_of_the_transport_that_is_no_mismatch_stays_what_it_is():
    error = TransportError("the cable is out")

    class Failing:
        algorithm, why, transport, bytes_sent, moved, blocks = "ring", "", "messages", 0, 0, False

        def __init__(self, starts, waits):
            self.starts, self.waits = starts, waits

        def start(self):
            if not self.starts:
                raise error

        def test(self):
            raise error

        def wait(self, deadline_s):
            self.waits -= 1
            raise StalledError("not yet") if self.waits >= 0 else error

    def body(t, guard):
        for reduction in (Failing(False, 0), Failing(True, 0), Failing(True, 3)):
            with pytest.raises(TransportError, match=r"^the cable is out$"):
                run(guard.watch(reduction, "sum", "float64", 40))
        watched = guard.watch(Failing(True, 0), "sum", "float64", 40)
        watched.start()
        start = Failing(False, 0).start
        for call in (
            watched.test,
            lambda: guard.run("barrier", start),
            lambda: guard.started("all-reduce", start),
        ):
            with pytest.raises(TransportError, match=r"^the cable is out$"):
                call()

    world(1, body)


# ── who does not come ─────────────────────────────────────────────────────────────────────────────────────────
RING = all_reduce(40, "ring")


def waits(guards, number, *ranks):
    """Whether these ranks have moved in the collective, and their main threads wait in it: these report, not the
    watchdogs."""
    rows = guards[1].recorder.read()
    moved = [number in rows[rank].entries and rows[rank].entries[number].moved for rank in ranks]
    return all(moved) and all(guards[rank].waiting for rank in ranks)


def test_an_absent_rank_is_named_with_the_last_collectives_of_all(clock):
    """Rank 1 does well twice, and then nothing until the others have given up."""
    guards, given_up = {}, threading.Event()

    def body(t, guard):
        guards[t.rank] = guard
        reduction, _ = prepared(t, guard, "ring")
        for _ in range(2):
            run(reduction)
        guard.iterate(5)
        t.barrier()
        if t.rank == 1:
            until(lambda: waits(guards, 3, 0, 2))
            stall(clock, guard, 2.0)
            assert given_up.wait(60)
            return
        try:
            run(reduction)
        finally:
            given_up.set()

    with pytest.raises(StalledError) as raised:
        world(3, body, 2.0, clock=clock)
    stalled, _, *done, under_way = str(raised.value).splitlines()
    late = f"rank 1 ({HOST}) has not joined"
    assert stalled == says("2 s", "collective 3", RING, "iteration 5", late, "collective 2, done", "ranks 0, 2 wait")
    assert done == [says(number, RING, "done on ranks 0, 1, 2") for number in (1, 2)]
    assert under_way == says(3, RING, "under way on ranks 0, 2", "not begun on rank 1")
    assert re.search(r"\([1-9]\d*, [1-9]\d* ", under_way)
    assert raised.value.exit_code == 4


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (lambda t, guard: partial(run, prepared(t, guard, "mpi")[0]), all_reduce(40, "mpi")),
        (lambda t, guard: GuardedTransport(t, guard).barrier, says("barrier")),
    ],
)
def test_the_thread_ends_a_run_whose_main_thread_is_stuck_in_a_call(clock, capsys, prepare, text):
    """In the loopback's own, which no deadline ends. Without another way to end it writes the error and aborts."""
    with pytest.raises(SystemExit) as raised:
        world(2, waiting_in_vain(clock, 2.0, prepare), 2.0, clock=clock)
    assert raised.value.code == 4
    late = f"rank 1 ({HOST}) has not joined"
    assert capsys.readouterr().err == says("ringtrain: rank 0", "2 s", "collective 1", text, late)


def test_the_thread_tells_a_mismatch_that_the_main_thread_is_stuck_in(clock):
    errors, ended = [], threading.Event()

    def end(error):
        errors.append(error)
        ended.set()

    def body(t, guard):
        reduction, _ = prepared(t, guard, "mpi")
        if t.rank == 1:  # another call, in which nobody is met
            guard.run("a dance", lambda: ended.wait(60))
            raise TransportError("the end of the others")
        until(lambda: 1 in guard.recorder.read()[1].entries)  # else rank 1 sees the difference, and does not dance
        run(reduction)

    with pytest.raises(TransportError):
        world(2, body, 2.0, end=end, clock=clock)
    assert str(errors[0]) == says("rank 0", got("a dance"))


def test_the_thread_leaves_an_error_to_a_main_thread_that_reports_during_its_look(clock, monkeypatch):
    """The main thread takes the report, and no longer waits, after the thread has begun to look."""

    def body(t, guard):
        guard.watchdog.end()  # the test looks
        guard.recorder.begin(guard.recorder.describe("a dance"))
        guard.waiting = True

        def report():
            guard.reports, guard.waiting = True, False
            return 0

        monkeypatch.setattr(guard.recorder, "first_difference", report)
        guard.watchdog.note()
        for _ in range(2):  # past the deadline, within the patience with a main thread that waits
            clock.now += 1.2
            guard.watchdog.note()
        return guard._look()

    assert world(1, body, 2.0, clock=clock) == [False]


def test_a_shorter_deadline_of_the_wait_holds(clock):
    def prepare(t, guard):
        return partial(run, prepared(t, guard, "ring")[0], 0.3)

    with pytest.raises(StalledError, match=says("0.3 s", "collective 1,")):
        world(2, waiting_in_vain(clock, 0.3, prepare), clock=clock)


def test_a_rank_that_others_get_on_without_is_waited_for(clock):
    """Rank 0 waits far longer than the deadline for rank 1, which gets on with collectives of a world of its own: the
    board says so."""

    def body(t, guard):
        reduction, buffer = prepared(t, guard, "ring")
        if t.rank == 1:
            until(lambda: 1 in guard.recorder.read()[0].entries)
            for iteration in range(1, 9):
                guard.iterate(iteration)
                clock.pass_until(lambda then=clock.now: clock.now > then + 1.0)
        run(reduction)
        return buffer[0]

    assert world(2, body, deadline_s=2.0, clock=clock) == [2, 2]


def test_of_those_that_wait_the_lowest_tells_first(clock):
    """The other hears that it has begun to, and waits for its own end: far longer than its turn."""
    order, guards, threads = [], {}, {}

    def body(t, guard):
        guards[t.rank], threads[t.rank] = guard, threading.current_thread()
        reduction, _ = prepared(t, guard, "ring")
        if t.rank == 1:
            until(lambda: waits(guards, 1, 0, 2))
            stall(clock, guard, 2.0)
            until(lambda: order and guards[2].reports)
            clock.wait_for_questions([threads[2]], 4)  # it has heard
            clock.now += 4 * TURN_S
            clock.wait_for_questions([threads[2]], 4)
            assert order == [0]
            clock.now += SILENCE_TURNS * TURN_S
            until(lambda: len(order) == 2)
        else:
            with pytest.raises(StalledError):
                run(reduction)
            order.append(t.rank)

    world(3, body, 2.0, turn_s=TURN_S, clock=clock)
    assert order == [0, 2]


# ── what the thread sees ──────────────────────────────────────────────────────────────────────────────────────
def test_progress_is_what_counts():
    board, other = LoopbackWorld(2).run(FlightRecorder)
    clock = Clock()
    dog = Watchdog(board, 8.0, lambda: False, clock)
    assert dog.every_s == EVERY_S and Watchdog(board, 0.4, lambda: False, clock).every_s == 0.1
    for step in range(1, 5):
        clock.now += 1.0
        other.beat()  # alive, and no progress
        dog.note()
        assert (dog.still_s(), dog.quiet_s(0), dog.quiet_s(1)) == (step, step, 0)
    other.begin(7)
    clock.now += 1.0
    dog.note()
    assert (dog.still_s(), dog.quiet_s(1)) == (0, 1)


def test_the_watchdogs_of_a_rank_look_in_one_thread_until_the_last_has_ended(monkeypatch):
    monkeypatch.setattr(watchdog, "EVERY_S", 0.002)
    raised = []
    monkeypatch.setattr(threading, "excepthook", lambda hooked: raised.append(hooked.exc_type))
    board, _ = LoopbackWorld(2).run(FlightRecorder)
    board.world_rank = 71  # no other test's
    looks, watchdogs = Counter(), {}

    def looking(name):
        def look():
            looks[name] += 1
            if name == "exits":
                raise SystemExit
            if name == "is ended":
                watchdogs[name].end()
            return name == "ends" if name != "fails" else 1 / 0

        dog = watchdogs[name] = Watchdog(board, 8.0, look)
        dog.start()
        return dog

    def threads():
        return [each.name for each in threading.enumerate()].count("watchdog of rank 71")

    once = ["ends", "fails", "is ended", "exits"]
    first, second, *_ = map(looking, ["first", "second", *once])
    until(lambda: min(looks["first"], looks["second"]) > 3)
    assert threads() == 1 and [looks[name] for name in once] == [1] * 4 and raised == [ZeroDivisionError, SystemExit]
    first.end()
    seen = looks.copy()
    until(lambda: looks["second"] > seen["second"] + 3)
    assert looks["first"] == seen["first"]
    second.end()
    until(lambda: not threads())


def test_a_process_that_was_itself_stopped_blames_nobody_and_one_that_hardly_runs_sees_time_pass():
    board, _ = LoopbackWorld(2).run(FlightRecorder)
    clock = Clock()
    stopped = Watchdog(board, 300.0, lambda: False, clock)
    for seconds in (1.0, PAUSED_S + EVERY_S + 1000.0):
        clock.now += seconds
        stopped.note()
    assert (stopped.still_s(), stopped.quiet_s(1)) == (1, 1)
    slow = Watchdog(board, 300.0, lambda: False, clock)
    for step in range(4):
        clock.now += 5.0
        slow.note()
        assert slow.still_s() == 5.0 * step


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────────────────
def row(rank, *entries, iteration=0, left=False, silent_s=None):
    """Entries are (number, text, done, moved)."""
    return RankRecord(
        rank, {each[0]: RecordedCollective(*each) for each in entries}, iteration, left, silent_s=silent_s
    )


def test_what_most_do_is_expected_or_what_the_lowest_of_as_many_does():
    rows = [row(0), row(1, (1, "b", False, 0)), row(2, (1, "a", False, 0))]
    expected = says("collective 1", "expected, as on rank 1: b", "got, on rank 2: a", "not begun on rank 0")
    assert diagnosis.mismatch(rows, 1) == expected and diagnosis.mismatch(rows, 2) is None
    rows = [row(0, (1, "b", False, 0)), row(1, (1, "a", False, 0)), row(2, (1, "a", False, 0))]
    assert diagnosis.mismatch(rows, 1) == says("collective 1", "expected, as on ranks 1, 2: a", "got, on rank 0: b")


def stalled(*rows, gap=""):
    return diagnosis.stall(rows, 0, gap).splitlines()


def test_a_stall_names_who_is_late_and_why():
    assert stalled(row(0, (1, "a", True, 0)), row(1)) == [says("collective", "under")]
    late = row(1, (1, "a", False, 2), iteration=4, silent_s=12.5)
    first, _, *lines = stalled(row(0, (1, "a", True, 0), (2, "a", False, 3)), late)
    late = ("rank 1 has not been seen", "collective 1, not done", "iteration 4", "12.5 s")
    assert first == says("collective 2, a, iteration 4", *late, "rank 0 waits")
    done, under_way = says("done on rank 0", "under way on rank 1 (2 moves)"), "under way on rank 0 (3 moves)"
    assert lines == [says(1, "a", done), says(2, "a", under_way, "not seen on rank 1")]
    first, *_ = stalled(row(0, (1, "a", False, 3)), row(1, (1, "a", False, 2), silent_s=12.5))
    assert first == says("collective 1, a", "rank 1 is in it", "12.5 s", "rank 0 waits")
    first, *_ = stalled(row(0, (1, "a", False, 0)), row(1), row(2, left=True, silent_s=9.0))
    late, ended = "rank 1 has not joined it (it has begun none)", "rank 2 has not been seen in it"
    assert first == says("collective 1, a", late, ended, "it has ended")
    first, *_ = stalled(row(0, (1, "a", False, 9)), row(1, (1, "a", False, 4)), row(2, (1, "a", True, 9)))
    assert first == says("collective 1, a", "rank 1 is the furthest behind", "4 moves", "ranks 0, 1 wait")
    first, *_ = stalled(row(0, (1, "a", True, 9), (2, "b", False, 0)), row(1, (1, "a", False, 4)))
    assert first == says("collective 1, a", "rank 1 is the furthest behind")  # it waits in that, perhaps
    first, *_ = stalled(row(0, (1, "a", False, 2), (2, "b", False, 0)), row(1, (1, "a", False, 9)))
    assert first == says(
        "collective 2, b", "rank 1 has not joined it", "rank 0 waits"
    )  # rank 0 did not wait for the first
    first, *_, last = stalled(row(0, (1, "a", False, 9)), row(1), gap="ranks of other nodes: no threads")
    assert "rank 1" not in first and last == says(0, "ranks of other nodes: no threads")
