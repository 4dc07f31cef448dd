"""The course of an all-reduce in memory that the ranks of a node share: wait for all, compute, wait for all.

A rank signals its arrival when its own buffer is final, and its end when its device is done: so there are two more
waits.
"""

from abc import abstractmethod

from ringtrain.collectives import texts
from ringtrain.collectives.execution.reduction import DeviceMark, Reduction, ReductionDevice
from ringtrain.errors import TransportError
from ringtrain.transport.base import Transport
from ringtrain.transport.shared_arena import SignalCounter
from ringtrain.transport.waiting import peers, wait_for

# What a rank waits for: nothing; its buffer to be final; all ranks to come; messages between nodes, if there are
# several; its own operations; all ranks to be done.
IDLE, FINAL, COMING, MOVING, WORKING, LEAVING = range(6)


class NodeReduction(Reduction):
    """An all-reduce with two waits for all ranks of the node, and this rank's work between them."""

    _called: str  # its name in messages

    def __init__(self, transport: Transport, counter: SignalCounter, device: ReductionDevice):
        self._world, self._counter, self._device = transport, counter, device
        self._state = IDLE
        self._mark: DeviceMark

    def start(self) -> None:
        if self._state != IDLE:
            raise TransportError(texts.STARTED_AGAIN.format(name=self._called))
        self._mark = self._device.mark()
        self._state = FINAL
        self.test()

    def test(self) -> bool:
        if self._state == FINAL and self._mark.done():
            self._counter.advance()
            self._state = COMING
        if self._state == COMING and self._counter.reached():
            self._state = MOVING
        if self._state == MOVING and self._move():
            self._mark = self._device.mark()
            self._state = WORKING
        if self._state == WORKING and self._mark.done():
            self._counter.advance()
            self._state = LEAVING
        if self._state == LEAVING and self._counter.reached():
            self._state = IDLE
        return self._state == IDLE

    @abstractmethod
    def _move(self) -> bool:
        """Do as much of this rank's work as is possible without waiting. Returns whether all is issued."""

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, self._awaited, lambda: self.moved, self._world.patience)

    @property
    def moved(self) -> int:
        return self._state

    def _awaited(self) -> str:
        late = awaited_ranks(self._world, self._counter)
        awaited = texts.AWAITED_START if self._state in (FINAL, COMING) else texts.AWAITED_END
        whom = "its device" if self._state in (FINAL, WORKING) else late
        return awaited.format(whom=whom, name=self._called, rank=self._world.world_ranks[self._world.rank])


def awaited_ranks(transport: Transport, counter: SignalCounter) -> str:
    """Return the name of the ranks of the node that have not advanced as often as this one."""
    names = transport.world_ranks
    return peers([names[transport.neighbours[local_rank]] for local_rank in counter.late()])
