"""Time that a test owns: it passes when the test says so, and in steps that every watchdog sees."""

import threading
from collections import Counter

STEP_S = 0.1  # shorter than any limit of a guard
PATIENCE_S = 60.0  # real seconds: only a failure waits for them


class Clock:
    """What is given in the place of ``time.monotonic``."""

    def __init__(self, now: float = 100.0):
        self.now = now
        self._asked, self._condition = Counter(), threading.Condition()

    def __call__(self) -> float:
        with self._condition:
            self._asked[threading.current_thread()] += 1
            self._condition.notify_all()
        return self.now

    def wait_for_questions(self, threads, count: int) -> None:
        """Until each of these threads has asked so many times more, or has ended."""
        with self._condition:
            due = {thread: self._asked[thread] + count for thread in threads}
            for _ in range(int(PATIENCE_S / 0.05)):
                if all(self._asked[thread] >= asked or not thread.is_alive() for thread, asked in due.items()):
                    return
                self._condition.wait(0.05)  # a thread that ends tells nobody
        raise AssertionError(f"{[thread.name for thread in due]} do not look at the clock")

    def pass_until(self, holds) -> None:
        """Let time pass until ``holds()``. In each step every watchdog looks twice, and has ended one of the two."""
        for _ in range(10_000):
            if holds():
                return
            self.now += STEP_S
            self.wait_for_questions([each for each in threading.enumerate() if each.name.startswith("watchdog")], 2)
        raise AssertionError("it does not hold, whatever time passes")


def until(holds) -> None:
    """Wait for other threads, which need no time but what they compute in."""
    for _ in range(int(PATIENCE_S / 0.001)):
        if holds():
            return
        threading.Event().wait(0.001)
    raise AssertionError("what other threads do has not been done")
