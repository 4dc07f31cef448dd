"""Some of a transport's ranks, numbered from 0, for schedules over messages among them."""

from collections.abc import Sequence
from dataclasses import replace

from ringtrain.transport.base import ForwardingTransport, Handle, Moves, Transport


class Subgroup(ForwardingTransport):
    """Messages among ``ranks`` of the transport, in order, this one among them. Its other calls are the transport's."""

    def __init__(self, transport: Transport, ranks: Sequence[int]):
        super().__init__(transport)
        self._ranks = tuple(ranks)
        self.seat = replace(self.seat, rank=self._ranks.index(transport.rank), size=len(self._ranks))

    def sends(self, moves: Moves, tag: int) -> Handle:
        return self._inner.sends([(self._ranks[peer], span) for peer, span in moves], tag)

    def recvs(self, moves: Moves, tag: int) -> Handle:
        return self._inner.recvs([(self._ranks[peer], span) for peer, span in moves], tag)
