"""Keys and values that ranks share: what each request does, in one rank and between several."""

import threading

import pytest

from ringtrain.errors import StalledError
from ringtrain.transport.key_value import KeyTable, KeyValueStore
from tests.loopback.world import LoopbackWorld
from tests.says import says

PATIENCE_S = 60.0
BYTES = bytes(range(256))


def test_what_each_request_does():
    table = KeyTable()
    assert table.act("get", ["a"]) is None and table.act("wait", ["a", "b"]) is None
    assert table.act("set", ["a", "b"], [BYTES, b""]) == []
    assert table.act("get", ["b", "a"]) == [b"", BYTES] and table.act("wait", ["a", "b"]) == []
    assert table.act("check", ["a", "b"]) == [True] and table.act("check", ["a", "c"]) == [False]
    assert table.act("add", ["n"], [b"3"]) == [3] and table.act("add", ["n"], [b"-5"]) == [-2]
    assert table.act("get", ["n"]) == [b"-2"]
    assert table.act("append", ["b"], [b"x"]) == [] == table.act("append", ["b"], [b"y"])
    assert table.act("get", ["b"]) == [b"xy"]
    assert table.act("count", []) == [3]
    assert table.act("delete", ["n"]) == [True] and table.act("delete", ["n"]) == [False]
    # As torch's own stores do it.
    assert table.act("compare_set", ["k"], [b"old", b"new"]) == [b"old"]
    assert table.act("compare_set", ["k"], [b"", b"new"]) == [b"new"]
    for value, now in ((b"old", b"new"), (b"other", b"other")):
        table.act("set", ["k"], [value])
        assert table.act("compare_set", ["k"], [b"old", b"new"]) == [now]


@pytest.mark.parametrize("size", [1, 3])
def test_every_rank_reads_what_any_has_set(size):
    def body(transport):
        store = KeyValueStore(transport)
        store.request("set", [f"of {transport.rank}"], [BYTES + bytes([transport.rank])])
        for rank in range(size):
            assert store.request("get", [f"of {rank}"], timeout_s=PATIENCE_S) == [BYTES + bytes([rank])]
        store.request("add", ["arrived"], [b"1"])
        if store.request("add", ["arrived"], [b"0"]) == [size]:
            store.request("set", ["all"], [b"1"])
        store.request("wait", ["all", "of 0"], timeout_s=PATIENCE_S)
        assert store.request("get", ["arrived"]) == [str(size).encode()]
        store.close()

    LoopbackWorld(size).run(body)


def test_a_key_that_nobody_sets_is_named():
    def body(transport):
        store = KeyValueStore(transport)
        with pytest.raises(StalledError, match=says("'here', 'lost'", "0.01")):
            store.request("wait", ["here", "lost"], timeout_s=0.01)
        store.close()

    LoopbackWorld(2).run(body)


def test_a_thread_that_waits_keeps_no_other_from_setting():
    def body(transport):
        store, values = KeyValueStore(transport), []
        waits = threading.Thread(target=lambda: values.extend(store.request("get", ["late"], timeout_s=PATIENCE_S)))
        waits.start()
        if transport.rank == 1:
            store.request("set", ["late"], [b"come"])
        waits.join()
        assert values == [b"come"]
        store.close()

    LoopbackWorld(2).run(body)
