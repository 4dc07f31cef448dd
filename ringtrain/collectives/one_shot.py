"""Running the one-shot all-reduce: put, wait, add, a round for each piece of the buffer."""

from collections.abc import Callable, Sequence

import numpy as np

from ringtrain.collectives.host import HOST
from ringtrain.collectives.mapped import on_host, pieces, summed
from ringtrain.collectives.reduction import Reduction
from ringtrain.collectives.shots import ADD, PUT, Shots
from ringtrain.errors import TransportError
from ringtrain.transport.base import Transport
from ringtrain.transport.mapped import Lane
from ringtrain.transport.waiting import peers, wait_for

IDLE, PUTTING, COMING, ADDING = range(4)  # what is waited for: nothing; the own put; all others; the own additions


class OneShot(Reduction):
    """One buffer, in whatever memory this rank has it. Collective over the node.

    mails:   by place in the node, memory of its ranks that all of them see: SLOTS pieces long, of the buffer's type
    lane:    counters that nobody else uses at the time; by its count all ranks know which slot it is
    combine: combine(a, b, y): y = a op b
    device:  what computes, as for :class:`ringtrain.collectives.mapped.Mapped`
    """

    algorithm, transport = "one-shot", "mapped"

    def __init__(
        self,
        shots: Shots,
        transport: Transport,
        buffer,
        mails: Sequence,
        lane: Lane,
        combine: Callable,
        device=HOST,
    ):
        place = transport.neighbours.index(transport.rank)
        room = mails[place].size // len(shots.phases[place])
        parts = [buffer[a:b] for a, b in pieces(0, buffer.size, max(room, 1))]
        self._rounds = [
            [_round(acts, part, mails, room, combine, device) for acts in shots.phases[place]] for part in parts
        ]
        self.bytes_sent = (
            (len(mails) - 1) * buffer.size * buffer.dtype.itemsize
        )  # all others' contributions are fetched
        self._lane, self._device, self._patience = lane, device, transport.patience
        self._neighbours, self._rank = transport.neighbours, transport.rank
        self._state, self._at = IDLE, 0

    def start(self) -> None:
        if self._state != IDLE:
            raise TransportError("a one-shot all-reduce was started again before it was done")
        self._at = 0
        if self._rounds:
            self._put()
            self.test()

    def _put(self) -> None:
        phases = self._rounds[self._at]
        puts, self._adds = phases[self._lane.count % len(phases)]
        for function, arguments in puts:
            function(*arguments)
        self._mark, self._state = self._device.mark(), PUTTING

    def test(self) -> bool:
        if self._state == PUTTING and self._mark.done():
            self._lane.advance()
            self._state = COMING
        if self._state == COMING and self._lane.reached():
            self._add()
        if self._state == ADDING and self._mark.done():
            self._state = IDLE
        return self._state == IDLE

    def _add(self) -> None:
        """A device puts the next piece after it has added this one: only the last addition is waited for."""
        for function, arguments in self._adds:
            function(*arguments)
        self._at += 1
        if self._at < len(self._rounds):
            self._put()
        else:
            self._mark, self._state = self._device.mark(), ADDING

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, self._awaited, lambda: self.moved, self._patience)

    @property
    def moved(self) -> int:
        return self._at * (ADDING + 1) + self._state

    def _awaited(self) -> str:
        late = peers([self._neighbours[place] for place in self._lane.late()])
        whom = f"{late} to come to" if self._state == COMING else "its device in"
        return f"{whom} a one-shot all-reduce, rank {self._rank}"


def _round(acts, part, mails: Sequence, room: int, combine: Callable, device) -> tuple[list, list]:
    """What a rank does for one piece in one phase, before the wait and after it: functions with their arguments."""

    def slot(act):
        return mails[act.owner][act.slot * room : act.slot * room + part.size]

    puts = [(device.copy, (part, slot(act))) for act in acts if act.kind == PUT]
    sources = [slot(act) for act in acts if act.kind == ADD]
    return puts, added(sources, part, combine) if on_host(mails) else summed(device, sources, [part])


def added(sources: Sequence, target, combine: Callable) -> list[tuple[Callable, tuple]]:
    """target = the sum of the sources, in their order, on a host; the target is none of them."""
    first, *others = sources
    if not others:
        return [(np.copyto, (target, first))]
    sums = [first] + [target] * (len(others) - 1)
    return [(combine, (a, b, target)) for a, b in zip(sums, others, strict=True)]
