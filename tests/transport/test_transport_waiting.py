import threading
from types import SimpleNamespace

import pytest

from ringtrain.errors import StalledError
from ringtrain.transport import waiting
from ringtrain.transport.waiting import peers, wait_for
from tests.fakes.clock import Clock
from tests.says import says

pytestmark = pytest.mark.timing


@pytest.fixture
def clock(monkeypatch):
    """A millisecond passes in each pause."""
    clock = Clock(0.0)

    def sleep(seconds):
        clock.now += 1e-3

    monkeypatch.setattr(waiting, "time", SimpleNamespace(perf_counter=clock, sleep=sleep))
    monkeypatch.setattr(waiting, "YIELD_S", -1.0)
    return clock


def test_a_wait_ends_when_the_test_says_so_and_what_is_done_is_not_waited_for():
    wait_for(lambda: True, 0.0, lambda: "nobody")
    answers = iter([False] * 50 + [True])
    wait_for(lambda: next(answers), 10.0, lambda: "nobody")
    assert not list(answers)


def test_no_progress_ends_the_wait_and_names_who_is_awaited(clock):
    with pytest.raises(StalledError, match=says("0.02", "rank 3 to send")):
        wait_for(lambda: False, 0.02, lambda: "rank 3 to send")
    assert 0.02 <= clock.now <= 0.022


def test_progress_renews_the_deadline(clock):
    asked = 0

    def test():
        nonlocal asked
        asked += 1
        return clock.now > 0.1

    wait_for(test, 0.02, lambda: "nobody", progress=lambda: asked // 15)


def test_the_main_thread_serves_others_while_it_waits(clock, monkeypatch):
    """Another thread does not: what serves is of the main one."""
    served = []
    monkeypatch.setattr(waiting, "SERVICES", [lambda: served.append(clock.now)])
    other = threading.Thread(target=lambda: wait_for(lambda: clock.now > 0.01, 1.0, lambda: "nobody"))
    other.start()
    other.join()
    assert clock.now > 0.01 and not served
    wait_for(lambda: len(served) == 3, 1.0, lambda: "nobody")


def test_peers_are_named_and_abridged():
    assert peers([3]) == "rank 3"
    assert peers([2, 0, 2]) == "ranks 0, 2"
    assert peers(range(10)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_a_test_that_sleeps_itself_is_called_again_at_once(clock):
    """Each takes a millisecond."""
    looks = []

    def look():
        looks.append(clock.now)
        clock.now += 1e-3
        return len(looks) > 9

    wait_for(look, 1.0, lambda: "nobody", sleeps=True)
    assert looks == pytest.approx([number * 1e-3 for number in range(10)])
    with pytest.raises(StalledError):
        wait_for(lambda: look() and False, 0.02, lambda: "rank 3 to send", sleeps=True)
