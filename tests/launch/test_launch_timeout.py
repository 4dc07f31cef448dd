"""A check that does not end."""

import sys
import threading
from types import SimpleNamespace

import pytest

from ringtrain.launch.doctor.timeout import Limit
from ringtrain.transport import deadline
from tests.fakes.clock import until
from tests.says import says

pytestmark = pytest.mark.timing


def test_what_is_waited_for_is_told(monkeypatch):
    told, entered, ended, here = [], [], threading.Event(), threading.get_ident()

    class Timer(threading.Thread):
        """Its time is up when the thread of the test waits."""

        def __init__(self, seconds, action):
            super().__init__(target=self.act)
            self.action = action

        def act(self):
            until(lambda: entered and sys._current_frames()[here].f_code.co_filename == threading.__file__)
            self.action()

        def cancel(self):
            self.join()

    monkeypatch.setattr(deadline, "threading", SimpleNamespace(**{**vars(threading), "Timer": Timer}))

    def give_up(words):
        told.append(words)
        ended.set()

    with Limit(give_up, 0.01)("run_folder"):
        entered.append(True)
        assert ended.wait(60)
    assert told[0] == says("run folder", "0.01 s")
    assert "(threading.py:" in told[0]  # where this thread waits: in no check


def test_a_check_that_ends_is_left_alone(monkeypatch):
    calls = []

    class Noted(deadline.Deadline):
        def start(self):
            calls.append(("start", self._seconds, self._code))

        def stop(self):
            calls.append("stop")

    monkeypatch.setattr("ringtrain.launch.doctor.timeout.Deadline", Noted)
    limited = Limit(lambda words: None, 5.0)
    for name in ("disk", "mpi_cuda"):
        with limited(name):
            pass
    assert calls == [("start", 5.0, 4), "stop", ("start", 240.0, 4), "stop"]
