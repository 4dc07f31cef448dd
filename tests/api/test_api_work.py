"""Operations in flight: their order, their errors, their callbacks, messages beside collectives, and the thread."""

import os
import signal
import threading

import numpy as np
import pytest

from ringtrain import Communicator
from ringtrain.api import progress
from ringtrain.api.work import MessageWork, Work
from ringtrain.errors import StalledError, TransportError, UsageError
from ringtrain.transport.loopback import Loopback
from ringtrain.transport.waiting import ALONE
from tests.api.communicators import on_ranks, together
from tests.fakes.clock import until
from tests.loopback.world import LoopbackWorld
from tests.new_process import in_new_process
from tests.says import says

PATIENCE_S = 20.0  # only a failure waits for it


def progress_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("progress of rank")]


# ── order ─────────────────────────────────────────────────────────────────────────────────────────────────
@on_ranks(3)
def test_prepared_reductions_and_memory_come_behind_operations_in_flight(communicator):
    works = [communicator.allreduce(np.ones(3), async_op=True) for _ in range(5)]
    ours = communicator.empty(4)
    ours[:] = 1
    reduction = communicator.prepare(ours)
    works.append(communicator.barrier(async_op=True))
    reduction.start()
    assert all(work.test() for work in works)
    assert reduction.wait().tolist() == [3] * 4


@on_ranks(2)
def test_the_array_of_a_work_is_written_when_it_is_done(communicator):
    strided = np.zeros((4, 2))
    work = communicator.allreduce(np.ones(4), out=strided[:, 1], async_op=True)
    assert work.wait(PATIENCE_S)[0] == 2 and strided.tolist() == [[0, 2]] * 4
    assert work.source is None


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────
@on_ranks(2)
def test_a_send_never_waits_for_a_collective_nor_for_another_message(communicator):
    """Rank 1 joins the barrier when it has all messages; the first that was sent is received last."""
    if communicator.rank == 0:
        barrier = communicator.barrier(async_op=True)
        sends = [communicator.send(np.full(3, tag), 1, tag, async_op=True) for tag in range(3)]
        for send in reversed(sends):
            assert send.wait() is None
        barrier.wait()
    else:
        for tag in (2, 1, 0):
            assert communicator.recv(np.zeros(3, int), 0, tag).tolist() == [tag] * 3
        communicator.barrier()


@on_ranks(2)
def test_collective_calls_do_not_wait_for_messages_in_flight(communicator):
    peer = 1 - communicator.rank
    work = communicator.recv(np.zeros(2), peer, async_op=True)
    with communicator.group([1, 0]) as group:
        group.barrier()
    assert communicator.prepare(communicator.empty(2)).wait().tolist() == [0, 0]
    communicator.send(np.ones(2), peer, async_op=True)
    assert work.wait().tolist() == [1, 1]


@on_ranks(2)
def test_the_thread_ends_messages_that_nobody_waits_for(communicator):
    seen = threading.Event()
    if communicator.rank:
        array = np.zeros(2, "c8").T
        work = communicator.recv(array, async_op=True)
        work.add_done_callback(lambda work: seen.set())
        assert seen.wait(PATIENCE_S) and work.source == 0 and array[1] == 2j
    else:
        communicator.send(np.array([1, 2j], "c8"), 1)


@on_ranks(4)
def test_any_source_is_told(communicator):
    if communicator.rank:
        communicator.send(np.array([communicator.rank]), 0, 7)
        return
    works = [communicator.recv(np.zeros(1, int), tag=7, async_op=True) for _ in range(3)]
    assert sorted(work.wait()[0] for work in works) == [1, 2, 3]
    assert all(work.source == work.wait()[0] for work in works)


@on_ranks(2)
def test_messages_keep_their_order_and_strides(communicator):
    grid = np.zeros((3, 2), "i2")
    if communicator.rank == 0:
        for turn in range(3):
            communicator.send(np.full((3, 2), turn, "i2")[:, 0], 1)
    else:
        for turn in range(3):
            assert (communicator.recv(grid[:, 1], 0) == turn).all() and not grid[:, 0].any()


@on_ranks(2)
def test_a_message_of_another_length_is_told_to_the_receiver(communicator):
    if communicator.rank == 0:
        communicator.send(np.ones(3), 1)
        return
    with pytest.raises(TransportError) as caught:
        communicator.recv(np.ones(2), 0)
    assert str(caught.value) == says(0, 24, 1, 16, "expects", "tag")


def test_a_message_that_does_not_come_names_its_peer():
    def body(communicator):
        communicator.set_deadline(0.1)
        if communicator.rank:
            return
        for peer, name in ((1, "rank 1"), (None, says("any", "rank"))):
            awaited = says(name, "send", 4)
            text = says("0.1", awaited)
            with pytest.raises(StalledError, match=text):
                communicator.recv(np.ones(2), peer, 4)
            with pytest.raises(StalledError, match=text):
                communicator.recv(np.ones(2), peer, 4, async_op=True).wait()
        communicator._progress.stop()  # instead of close(), which would wait for the last

    def alone(transport):
        body(Communicator(transport))

    LoopbackWorld(2).run(alone)


@on_ranks(2)
def test_peers_tags_and_groups_that_cannot_be(communicator):
    rank, other = communicator.rank, 1 - communicator.rank
    for peer, tag, text in (
        (rank, 0, says(rank, 1)),
        (2, 0, says(2, "peer", "without")),
        (other, -1, says(-1, 32767, "tag", "since")),
        (other, 32768, says(32768, "tag", "since")),
    ):
        for call in (communicator.send, communicator.recv):
            with pytest.raises(UsageError, match=text):
                call(np.ones(1), peer, tag)
    for ranks in ([], [0, 0], [0, 2], [-1]):
        with pytest.raises(UsageError, match=says(1, ranks)):
            communicator.group(ranks)


def test_a_thread_that_is_idle_ends_and_the_next_operation_starts_another(monkeypatch):
    monkeypatch.setattr(progress, "IDLE_S", 0.01)

    def body(communicator):
        for _ in range(3):
            assert communicator.allreduce(np.ones(3), async_op=True).wait().tolist() == [2, 2, 2]
            until(lambda: communicator._progress._thread is None)

    together(2, body)


# ── errors and callbacks ──────────────────────────────────────────────────────────────────────────────────
@on_ranks(2)
def test_an_error_is_raised_by_wait_or_by_the_next_call(communicator):
    work = communicator.gather(np.ones(2), communicator.rank, async_op=True)
    with pytest.raises(UsageError, match=says("different", "calls")):
        work.wait()
    communicator.barrier()
    ended = threading.Event()
    communicator.gather(np.ones(2), communicator.rank, async_op=True).add_done_callback(lambda work: ended.set())
    assert ended.wait(PATIENCE_S)
    with pytest.raises(UsageError, match=says("different", "calls")):
        communicator.barrier()
    communicator.barrier()  # told once


def test_after_a_stall_the_operations_behind_fail_too():
    def body(communicator):
        communicator.set_deadline(0.1)
        if communicator.rank:
            return
        works = [communicator.barrier(async_op=True) for _ in range(3)]
        for work in works:
            with pytest.raises(StalledError, match="rank 1 to join the barrier"):
                work.wait(PATIENCE_S)
        communicator._progress.stop()

    LoopbackWorld(2).run(lambda transport: body(Communicator(transport)))


def test_callbacks_run_once_and_at_once_if_it_is_done(monkeypatch):
    calls, printed = [], []
    monkeypatch.setattr(threading, "excepthook", lambda hooked: printed.append(hooked.exc_type))
    work = Work("a call")
    work.add_done_callback(lambda work: 1 / 0)
    work.add_done_callback(calls.append)
    assert not work.test() and not calls
    work.end(5)
    work.add_done_callback(calls.append)
    assert calls == [work, work] and work.wait() == 5 and printed == [ZeroDivisionError]


def test_a_callback_cannot_call_the_communicator():
    refused = []

    def body(communicator):
        array = np.ones(100)
        for _ in range(3):
            communicator.allreduce(array, out=array)  # the next takes the short way

        def again(work):
            for call in (communicator.barrier, lambda: communicator.empty(3), communicator.close):
                with pytest.raises(UsageError, match=says("function", "outside")):
                    call()
            with pytest.raises(UsageError, match=says("function", "outside")):
                communicator.allreduce(array, out=array)
            refused.append(communicator.rank)

        gate = threading.Event()
        first = communicator._progress.perform("a gate", lambda: gate.wait(PATIENCE_S), async_op=True)
        work = communicator.barrier(async_op=True)
        work.add_done_callback(again)
        gate.set()
        first.wait()
        work.wait()

    together(2, body)
    assert sorted(refused) == [0, 1]


def test_a_callback_in_the_wait_of_a_collective_cannot_call_the_communicator():
    """Whichever thread sees the message arrive: rank 1 sends it, and joins the barrier when the callback has run."""
    refused, ended, in_polls = [], threading.Event(), (ALONE, PATIENCE_S, lambda: None)

    def body(communicator):
        def again(work):
            try:
                communicator.barrier()
            except UsageError as error:
                refused.append(str(error))
            ended.set()

        if communicator.rank == 0:
            work = MessageWork("a receive", communicator._messages.receive(np.empty(3), 1, 0), lambda: None, *in_polls)
            work.add_done_callback(again)
            communicator._progress._messages.append(work)  # the thread sleeps: the wait of the barrier tests it
        else:
            communicator.send(np.ones(3), 0)
            assert ended.wait(PATIENCE_S)
        communicator.barrier()

    together(2, body)
    assert refused == [says("function", "outside")]


def test_a_wait_ends_after_its_time_and_by_a_signal():
    work = Work("a call")
    with pytest.raises(StalledError, match=says("a call", "0.01")):
        work.wait(0.01)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sender = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            sender.start()
            work.wait(PATIENCE_S)
    finally:
        sender.join()
        signal.signal(signal.SIGINT, before)


# ── the thread ────────────────────────────────────────────────────────────────────────────────────────────
def test_the_thread_starts_with_the_first_operation_and_ends_with_the_communicator(alone):
    alone.allreduce(np.ones(3))
    before = progress_threads()
    alone.barrier(async_op=True).wait()
    (thread,) = set(progress_threads()) - set(before)
    alone.close()
    assert not thread.is_alive()
    with pytest.raises(UsageError, match=says("communicator", "closed")):
        alone.barrier(async_op=True)


def test_close_waits_for_all_that_is_in_flight():
    arrived = [np.zeros(3), np.zeros(3)]

    def body(communicator):
        peer = 1 - communicator.rank
        communicator.recv(arrived[peer], peer, async_op=True)
        communicator.barrier(async_op=True)
        communicator.send(np.full(3, 1.0 + communicator.rank), peer, async_op=True)

    together(2, body)
    assert arrived[0].tolist() == [1] * 3 and arrived[1].tolist() == [2] * 3


def test_one_thread_alone_is_said(monkeypatch):
    transport = Loopback()
    transport.why_one_thread = says("single")
    communicator = Communicator(transport)
    for call in (communicator.barrier, lambda async_op: communicator.allreduce(np.ones(2), async_op=async_op)):
        with pytest.raises(UsageError, match=says(transport.why_one_thread)):
            call(async_op=True)
    communicator.barrier()


def test_a_program_ends_with_operations_in_flight():
    """Nobody comes to its barrier, and it is not closed."""
    program = (
        "import numpy as np\n"
        "from ringtrain import Communicator\n"
        "from tests.loopback.world import LoopbackWorld\n"
        "from threading import Thread\n"
        "world, made = LoopbackWorld(2), [None, None]\n"
        "def make(rank): made[rank] = Communicator(world.transport(rank))\n"
        "threads = [Thread(target=make, args=(rank,)) for rank in range(2)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "made[0].barrier(async_op=True)\n"
        "made[0].recv(np.ones(3), 1, async_op=True)\n"
        "print('the end')\n"
    )
    done = in_new_process(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")


# ── groups ────────────────────────────────────────────────────────────────────────────────────────────────
@on_ranks(4)
def test_a_group_names_the_ranks_of_the_world(communicator):
    group = communicator.group([3, 1])
    if communicator.rank == 3:
        group.set_deadline(0.1)
        with pytest.raises(StalledError, match="rank 1 to join the barrier"):
            group.barrier()
        with pytest.raises(StalledError, match="rank 1 to send"):
            group.recv(np.ones(2), 1)


def test_an_error_of_a_rank_ends_those_in_groups():
    def body(communicator):
        group = communicator.group([0, 1])
        if communicator.rank == 2:
            raise ZeroDivisionError
        if communicator.rank == 0:
            with pytest.raises(TransportError):
                group.barrier()
                group.barrier()  # rank 1 does not come: it has ended, or waits for this one
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        together(3, body)
