"""The one-shot all-reduce at work: on threads, which share all of their memory; and by a worker that takes its time."""

import itertools

import numpy as np
import pytest

from ringtrain.collectives.one_shot import OneShot
from ringtrain.collectives.shots import SLOTS, one_shot
from ringtrain.errors import StalledError, TransportError
from ringtrain.exchange.reductions import prepare
from ringtrain.exchange.shared import Unavailable
from ringtrain.transport.loopback import LoopbackWorld


def add(a, b, y):
    np.add(a, b, out=y)


def made(transport, buffer, combine=add, room=32, tag=0):
    mails = transport.twins(transport.allocate(SLOTS * room, buffer.dtype))
    return OneShot(one_shot(transport.size), transport, buffer, mails, transport.lane(tag), combine)


def share(rank, count, dtype):
    return np.random.default_rng([rank, count]).standard_normal(count).astype(dtype)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_sum_in_rank_order_on_all_ranks(size, dtype):
    """Every length of interest, in one round or several, several in flight, again and again; the buffers are nobody
    else's."""
    counts = sorted({0, 1, 31, 32, 33, 101, 1009})

    def body(t):
        buffers = [np.zeros(count, dtype) for count in counts]
        runs = [made(t, buffer, tag=tag) for tag, buffer in enumerate(buffers)]
        for turn in range(5):
            for buffer in buffers:
                buffer[:] = share(t.rank + turn, buffer.size, dtype)
            for run in runs:
                run.start()
            for run in runs:
                run.wait(20.0)
            for buffer in buffers:
                want = share(turn, buffer.size, dtype)
                for rank in range(1, size):
                    want = want + share(rank + turn, buffer.size, dtype)
                assert buffer.tobytes() == want.tobytes()
        return runs[-1].bytes_sent

    assert LoopbackWorld(size).run(body) == [(size - 1) * 1009 * np.dtype(dtype).itemsize] * size


def test_it_shares_a_lane_with_others():
    """Which slot it is goes by the lane's count, so that another all-reduce of the same tag may come between."""

    def body(t):
        buffer = t.allocate(100, "f8")
        runs = [prepare(t, buffer, name, add) for name in ("one-shot", "mapped", "one-shot")]
        for turn in range(4):
            for run in itertools.islice(itertools.cycle(runs), turn, turn + 5):
                buffer[:] = t.rank + turn
                run.start()
                run.wait(20.0)
                assert (buffer == 3 + 3 * turn).all()

    LoopbackWorld(3).run(body)


def test_another_operation():
    def body(t):
        buffer = t.allocate(50, "i8")
        run = made(t, buffer, lambda a, b, y: np.maximum(a, b, out=y))
        buffer[:] = np.arange(50) * (1 if t.rank == 1 else -1)
        run.start()
        run.wait(20.0)
        return buffer.tolist()

    assert LoopbackWorld(3).run(body) == [list(range(50))] * 3


def test_its_mail_is_short_however_long_the_buffer(monkeypatch):
    """And none at all is made for another's: what there is of shared memory is not used up."""
    asked = []

    def body(t):
        buffer, allocate = t.allocate(1 << 18, "f4"), t.allocate
        t.allocate = lambda count, dtype: asked.append(count) or allocate(count, dtype)
        run = prepare(t, buffer, "one-shot", add)
        prepare(t, buffer[:3], "one-shot", add, tag=1)
        buffer[:] = 1
        run.start()
        run.wait(20.0)
        assert (buffer == 2).all()

    LoopbackWorld(2).run(body)
    assert sorted(asked) == [6, 6, 2 << 16, 2 << 16]  # slots of 256 KiB


def test_rounds_take_their_slots_in_turn():
    def body(t):
        buffer, mail = np.zeros(6), t.allocate(SLOTS * 2, "f8")
        run = OneShot(one_shot(2), t, buffer, t.twins(mail), t.lane(0), add)
        for turn in range(2):  # three rounds each, of two elements
            buffer[:] = np.arange(6) + 10 * turn
            run.start()
            run.wait(20.0)
        return mail.tolist()

    assert LoopbackWorld(2).run(body) == [[12, 13, 14, 15]] * 2


class Handed:
    """Operations of a device that are done when ``go`` is called."""

    def __init__(self):
        self.queue, self.log = [], []

    def copy(self, x, y):
        self.queue.append(lambda: np.copyto(y, x))
        self.log.append("copy")

    def add(self, a, b, y):
        self.queue.append(lambda: np.add(a, b, out=y))
        self.log.append("add")

    def mark(self):
        return Marked(self, len(self.log))

    def go(self):
        for work in self.queue:
            work()
        self.queue.clear()


class Marked:
    def __init__(self, ops, at):
        self.ops, self.at = ops, at

    def done(self):
        return len(self.ops.log) - len(self.ops.queue) >= self.at


def test_nobody_says_that_it_has_come_before_its_device_has_put():
    """By hand, rank by rank, in one thread."""
    ends = LoopbackWorld(2).run(lambda t: (t, t.allocate(SLOTS * 4, "f4")))
    block, ops = np.zeros(1 << 14, np.uint8), [Handed(), Handed()]
    runs, buffers = [], [np.full(4, 1, "f4"), np.full(4, 2, "f4")]
    for (t, mail), own, buffer in zip(ends, ops, buffers, strict=True):
        t._lanes._window = lambda nbytes: block
        runs.append(OneShot(one_shot(2), t, buffer, t.twins(mail), t.lane(0), own.add, own))
    first, second = runs
    for run in runs:
        run.start()
    assert not first.test() and first.moved == 1 and not second.test()
    assert ops[0].log == ["copy"]
    with pytest.raises(StalledError, match="waiting for its device in a one-shot all-reduce"):
        first.wait(0.01)
    ops[0].go()
    assert not first.test() and first.moved == 2  # it has come; the other's device has not
    with pytest.raises(StalledError, match="waiting for rank 1 to come to a one-shot all-reduce, rank 0"):
        first.wait(0.01)
    with pytest.raises(TransportError, match="a one-shot all-reduce was started again before it was done"):
        first.start()
    ops[1].go()
    assert not second.test() and ops[1].log == ["copy", "add"] and second.moved == 7
    assert not first.test() and buffers[0].tolist() == [1] * 4
    ops[0].go()
    assert first.test() and buffers[0].tolist() == [3] * 4 and not second.test()
    ops[1].go()
    assert second.test() and buffers[1].tolist() == [3] * 4


def test_it_is_refused_where_memory_is_not_shared():
    def body(t):
        own = t.allocate(8, "f4")
        with pytest.raises(Unavailable, match="one-shot cannot run here: ranks are on 2 nodes"):
            prepare(t, own, "one-shot", add)

    LoopbackWorld(4, 2).run(body)

    def private(t):
        with pytest.raises(Unavailable, match="one-shot cannot run here: the buffer does not lie in memory that the"):
            prepare(t, np.zeros(8), "one-shot", add)

    LoopbackWorld(2).run(private)

    def full(t):
        own = t.allocate(8, "f4")
        t.allocate = np.zeros
        with pytest.raises(Unavailable, match="one-shot cannot run here: memory that the ranks share has no room"):
            prepare(t, own, "one-shot", add)

    LoopbackWorld(2).run(full)
