"""Running the one-shot all-reduce: put, wait, add, a round for each piece of the buffer."""

from collections.abc import Callable, Sequence

from ringtrain.collectives.mapped import pieces
from ringtrain.collectives.reduction import Reduction
from ringtrain.collectives.shots import ADD, PUT, Shots
from ringtrain.collectives.workers import NOW, Worker
from ringtrain.errors import TransportError
from ringtrain.transport.base import Transport
from ringtrain.transport.mapped import Lane
from ringtrain.transport.waiting import peers, wait_for

IDLE, PUTTING, COMING, ADDING = range(4)  # what is waited for: nothing; the own put; all others; the own additions


class OneShot(Reduction):
    """One buffer, in whatever memory this rank has it. Collective over the node.

    mails:       by place in the node, memory of its ranks that all of them see: SLOTS pieces long, of the buffer's type
    lane:        counters that nobody else uses at the time; by its count all ranks know which slot it is
    worker:      copies and adds
    synchronize: waits for what is still being computed in the buffer, where the worker does not
    """

    algorithm, transport = "one-shot", "mapped"

    def __init__(
        self,
        shots: Shots,
        transport: Transport,
        buffer,
        mails: Sequence,
        lane: Lane,
        worker: Worker,
        synchronize: Callable[[], None],
    ):
        place = transport.neighbours.index(transport.rank)
        room = mails[place].size // len(shots.phases[place])
        parts = [buffer[a:b] for a, b in pieces(0, buffer.size, max(room, 1))]
        self._rounds = [[_Round(acts, part, mails, room, worker) for acts in shots.phases[place]] for part in parts]
        self.bytes_sent = (
            (len(mails) - 1) * buffer.size * buffer.dtype.itemsize
        )  # all others' contributions are fetched
        self._lane, self._worker, self._synchronize = lane, worker, synchronize
        self._neighbours, self._rank, self._patience = transport.neighbours, transport.rank, transport.patience
        self._state, self._at, self._mark = IDLE, 0, NOW

    def start(self) -> None:
        if self._state != IDLE:
            raise TransportError("a one-shot all-reduce was started again before it was done")
        self._synchronize()
        self._at = 0
        if self._rounds:
            self._put()
            self.test()

    def _put(self) -> None:
        self._round = self._rounds[self._at][self._lane.count % len(self._rounds[self._at])]
        self._round.put()
        self._mark, self._state = self._worker.mark(), PUTTING

    def test(self) -> bool:
        while self._state != IDLE and self._step():
            pass
        return self._state == IDLE

    def _step(self) -> bool:
        """Get on to the next state. Whether that was possible."""
        if self._state == COMING:
            if not self._lane.reached():
                return False
            self._add()
        elif not self._mark.done():
            return False
        elif self._state == PUTTING:
            self._lane.advance()
            self._state = COMING
        else:
            self._state = IDLE
        return True

    def _add(self) -> None:
        """A device puts the next piece after it has added this one: only the last addition is waited for."""
        self._round.add()
        self._at += 1
        if self._at < len(self._rounds):
            self._put()
        else:
            self._mark, self._state = self._worker.mark(), ADDING

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, self._awaited, lambda: self.moved, self._patience)

    @property
    def moved(self) -> int:
        return self._at * (ADDING + 1) + self._state

    def _awaited(self) -> str:
        if self._state != COMING:
            return f"the device of rank {self._rank} in a one-shot all-reduce"
        late = peers([self._neighbours[place] for place in self._lane.late()])
        return f"{late} to come to a one-shot all-reduce, rank {self._rank}"


class _Round:
    """What a rank does for one piece in one phase, before the wait and after it."""

    def __init__(self, acts, part, mails: Sequence, room: int, worker: Worker):
        def slot(act):
            return mails[act.owner][act.slot * room : act.slot * room + part.size]

        self._targets = [slot(act) for act in acts if act.kind == PUT]
        self._sources = [slot(act) for act in acts if act.kind == ADD]
        self._part, self._worker = part, worker

    def put(self) -> None:
        for target in self._targets:
            self._worker.copy(self._part, target)

    def add(self) -> None:
        self._worker.add_all(self._sources, self._part)
