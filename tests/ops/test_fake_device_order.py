"""The fake device's order: segments, marks, what is beside, and pinned memory."""

import numpy as np
import pytest

from tests.fakes.device import DeviceRefusal, FakeDeviceOps


@pytest.fixture
def ops():
    return FakeDeviceOps("float32")


def ones(ops, count=4):
    return ops.from_host(np.ones(count, np.float32))


def test_a_segment_is_run_recorded_compared_and_then_done_without_it(ops):
    x, ran = ones(ops), []

    def run():
        ran.append(len(ran))
        ops.scale(x, 2)
        return len(ran)

    values = [ops.segment("double", run) for _ in range(6)]
    assert (ops.to_host(x).tolist(), ops.replays) == ([64] * 4, 3)
    assert (values, ran) == ([1, 2, 2, 2, 2, 2], [0, 1, 2])


@pytest.mark.parametrize("calls", [2, 3])
def test_a_segment_that_issues_something_else_under_the_same_key_is_refused(ops, calls):
    x = ones(ops)
    for _ in range(calls - 1):
        ops.segment("same", lambda: ops.scale(x, 2))
    for other in (lambda: ops.scale(x, 3), lambda: ops.scale(x[:2], 2), lambda: None):
        with pytest.raises(DeviceRefusal, match=r"segment same issues .*: the key must tell them apart"):
            FakeDeviceOps.segment(ops, "same", other)
        ops._segments["same"].calls -= 1


def test_what_cannot_be_recorded(ops):
    x, pinned, host = ones(ops), ops.pinned((4,), "float32"), np.ones(4, np.float32)
    refused = {
        "an allocation": lambda: ops.empty((3,)),
        "an upload": lambda: ops.upload(host, x),
        "a fetch": lambda: ops.fetch(x, pinned),
        "a synchronisation": lambda: ops.to_host(x),
        "a mark": lambda: ops.mark(),
        "a wait": lambda: ops.after(None),
        "a stream": lambda: ops.beside(),
        "a segment": lambda: ops.segment("inner", lambda: None),
    }
    for what, run in refused.items():
        ops.segment(what, lambda: None)
        with pytest.raises(DeviceRefusal, match=f"segment {what}: {what} cannot be recorded"):
            ops.segment(what, run)
    ops.scale(x, 2)
    assert ops.to_host(x).tolist() == [2] * 4  # recording has ended


def test_a_mark_is_done_when_what_is_before_it_is(ops):
    x = ones(ops)
    mark = ops.mark()
    ops.scale(x, 2)
    assert not mark.done()
    mark.wait()
    assert mark.done()
    assert x._memory.tolist() == [1] * 4
    ops.synchronize()
    assert ops.mark().done()


@pytest.mark.parametrize("early", [False, True])
def test_nothing_but_marks_orders_what_is_beside(early):
    ops = FakeDeviceOps("float32", early=early)
    side, x = ops.beside(), ones(ops)
    ops.synchronize()
    ops.fill(x, 2)
    side.scale(x, 10)
    ops.synchronize()
    side.synchronize()
    assert ops.to_host(x).tolist() == ([2] * 4 if early else [20] * 4)  # either way round
    side.after(ops.mark())
    ops.fill(x, 3)
    filled = ops.mark()
    side.after(filled)
    side.scale(x, 10)
    ops.after(side.mark())
    ops.add(x, x, x)
    assert ops.to_host(x).tolist() == [60] * 4


def test_pinned_memory_is_read_late_and_written_late(ops):
    pinned, x = ops.pinned((2, 4), "float32"), ops.empty((4,))
    assert np.isnan(pinned).all()
    pinned[0] = 1
    ops.upload(pinned[0], x)
    pinned[0] = 2  # in flight
    ops.fetch(x, pinned[1])
    assert np.isnan(pinned[1]).all()
    ops.mark().wait()
    assert pinned[1].tolist() == [2] * 4
    with pytest.raises(DeviceRefusal, match="fetch to memory that is not pinned"):
        ops.fetch(x, np.empty(4, np.float32))
