"""Ranks of a loopback world that run one at a time, in an order that a seed decides: what asynchronous ranks see of one
another is then the same each time, on any machine."""

import threading
import time
from random import Random
from types import SimpleNamespace

from ringtrain.collectives.execution import mapped, streamed
from ringtrain.ops.cpu.library import open_library
from ringtrain.transport import waiting
from tests.loopback import world as threads
from tests.loopback.world import LocalCounters, LoopbackWorld


class Turns:
    """Who has the turn keeps it until it waits for something, or takes a ticket; then any rank may be next."""

    def __init__(self, size: int, seed: int):
        self._size, self._random, self._condition = size, Random(seed), threading.Condition()
        self._ranks: dict[threading.Thread, int] = {}
        self._next: int | None = None

    def begin(self, rank: int) -> None:
        with self._condition:
            self._ranks[threading.current_thread()] = rank
            if len(self._ranks) == self._size:
                self._choose()
            self._wait(rank)

    def give(self, seconds: float = 0.0) -> None:
        """In the place of a sleep. Threads that are no rank's sleep."""
        rank = self._ranks.get(threading.current_thread())
        if rank is None:
            time.sleep(seconds)
            return
        with self._condition:
            self._choose()
            self._wait(rank)

    def end(self) -> None:
        with self._condition:
            del self._ranks[threading.current_thread()]
            if self._ranks:
                self._choose()

    def _choose(self) -> None:
        self._next = self._random.choice(sorted(self._ranks.values()))
        self._condition.notify_all()

    def _wait(self, rank: int) -> None:
        self._condition.wait_for(lambda: self._next == rank)


class Gate:
    """A barrier at which those that have come give their turns to the others."""

    def __init__(self, size: int, turns: Turns):
        self._size, self._turns = size, turns
        self._come = self._passed = 0
        self._broken = False

    def wait(self, timeout: float) -> None:
        passed, self._come = self._passed, self._come + 1
        if self._come == self._size:
            self._come, self._passed = 0, passed + 1
        while self._passed == passed:
            if self._broken:
                raise threading.BrokenBarrierError
            self._turns.give()

    def abort(self) -> None:
        self._broken = True


class OneAtATime(LoopbackWorld):
    """By ``monkeypatch`` the waits of all worlds are its own."""

    def __init__(self, size: int, monkeypatch, seed: int = 0):
        super().__init__(size)
        self._turns = turns = Turns(size, seed)
        for each in (self.everyone, *self.neighbours):
            each.barrier = Gate(each.barrier.parties, turns)
        take = LocalCounters.take

        def take_in_turn(tally, index, amount):
            turns.give()
            return take(tally, index, amount)

        monkeypatch.setattr(LocalCounters, "take", take_in_turn)
        monkeypatch.setattr(threads, "time", SimpleNamespace(sleep=turns.give))
        monkeypatch.setattr(waiting, "time", SimpleNamespace(perf_counter=time.perf_counter, sleep=turns.give))
        library, _ = open_library()
        for module, name in ((mapped, "mapped"), (streamed, "streamed")):  # their waits would sleep and keep the turn
            monkeypatch.setattr(library, f"{name}_rest", getattr(library, f"{name}_test"))
            monkeypatch.setattr(module, "wait_for", lambda *asked, sleeps: waiting.wait_for(*asked))

    def run(self, function) -> list:
        def in_turn(transport):
            self._turns.begin(transport.rank)
            try:
                return function(transport)
            finally:
                self._turns.end()

        return super().run(in_turn)
