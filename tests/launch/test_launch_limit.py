"""A check that does not end."""

import threading

from ringtrain.launch.limit import Limit


def test_what_is_waited_for_is_told():
    told, ended = [], threading.Event()

    def give_up(words):
        told.append(words)
        ended.set()

    with Limit(give_up, 0.01)("run_folder"):
        assert ended.wait(30)
    assert told[0].startswith("the check of run folder has not ended after 0.01 s, in ")
    assert "(threading.py:" in told[0]  # where this thread waits: in no check


def test_a_check_that_ends_is_left_alone(monkeypatch):
    timers = []

    class Timer:
        def __init__(self, seconds, action):
            self.seconds = seconds
            self.state = []
            timers.append(self)

        def start(self):
            self.state.append("started")

        def cancel(self):
            self.state.append("cancelled")

    monkeypatch.setattr("ringtrain.launch.limit.threading.Timer", Timer)
    limit = Limit(lambda words: None, 5.0)
    for name in ("links", "mpi_cuda"):
        with limit(name):
            pass
    assert [timer.seconds for timer in timers] == [5.0, 240.0]
    assert [timer.state for timer in timers] == [["started", "cancelled"]] * 2
