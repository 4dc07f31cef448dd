"""Device memory staged through host memory: for an MPI that cannot read a device's, or is slow at it."""

from collections.abc import Sequence

from ringtrain.transport import texts
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.device.staging import CopyEngine, StagedMessage
from ringtrain.transport.waiting import Patience, peers, wait_for


class StagedHandle(Handle):
    """Moves of which some or all are of device memory."""

    def __init__(self, engine: CopyEngine, pieces: list[StagedMessage], verb: str, tag: int, patience: Patience):
        self._engine, self._pieces, self._verb, self._tag, self._patience = engine, pieces, verb, tag, patience

    def start(self) -> None:
        self._engine.start(self._pieces)

    def test(self) -> bool:
        self._engine.progress()
        return all(piece.done for piece in self._pieces)

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, self._awaited, patience=self._patience)

    def _awaited(self) -> str:
        late = [piece.channel.peer for piece in self._pieces if not piece.done]
        return texts.AWAITED_PEERS(peers=peers(late), verb=self._verb, tag=self._tag)


class Staged:
    """Sends and receives of ``inner``, device memory among them. Both ends of a move must be of one kind, host or
    device: device memory travels in pieces."""

    words = texts.THROUGH_HOST

    def __init__(self, inner: Transport, engine: CopyEngine):
        self._inner, self._engine = inner, engine

    def sends(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        return self._handle(True, moves, tag, self._inner.sends, "receive")

    def recvs(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        return self._handle(False, moves, tag, self._inner.recvs, "send")

    def _handle(self, sending: bool, moves, tag: int, prepare, verb: str) -> StagedHandle:
        channels = [(self._engine.channel(sending, peer, tag, prepare), span) for peer, span in moves]
        pieces = [piece for channel, span in channels for piece in channel.pieces(span)]
        return StagedHandle(self._engine, pieces, verb, tag, self._inner.patience)
