"""Some of a transport's ranks, numbered from 0: what schedules need to run among them, over messages."""

from collections.abc import Sequence

from ringtrain.transport.base import Handle, Transport


class Subgroup:
    """``ranks``: of the transport, in order, this one among them. ``nodes``: how many nodes the whole transport has."""

    def __init__(self, transport: Transport, ranks: Sequence[int]):
        self._transport, self._ranks = transport, tuple(ranks)
        self.rank, self.size, self.nodes = self._ranks.index(transport.rank), len(self._ranks), transport.nodes
        self.patience, self.scratch = transport.patience, transport.scratch
        self.before_leaving = transport.before_leaving

    def sends(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        return self._transport.sends([(self._ranks[peer], span) for peer, span in moves], tag)

    def recvs(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        return self._transport.recvs([(self._ranks[peer], span) for peer, span in moves], tag)
