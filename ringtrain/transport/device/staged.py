"""Device memory staged through host memory: for an MPI that cannot read device memory, or is slow at it."""

from ringtrain.transport.base import Handle, Moves, TestedHandle, Transport
from ringtrain.transport.device.staging import CopyEngine, Prepare, StagedMessage
from ringtrain.transport.waiting import peers


class StagedHandle(TestedHandle):
    """Moves of device memory, and possibly of host memory too."""

    def __init__(self, engine: CopyEngine, messages: list[StagedMessage], verb: str, tag: int, inner: Transport):
        self._engine, self._messages, self._verb, self._tag = engine, messages, verb, tag
        self.patience, self._names = inner.patience, inner.world_ranks

    def start(self) -> None:
        self._engine.start(self._messages)

    def test(self) -> bool:
        self._engine.progress()
        return all(message.done for message in self._messages)

    def awaited(self) -> str:
        late = [self._names[message.channel.peer] for message in self._messages if not message.done]
        return f"{peers(late)} to {self._verb} (tag {self._tag})"


class Staged:
    """Sends and receives of ``inner``, also of device memory. Both ends of a move must be of one kind, host or device:
    device memory travels in segments.
    """

    words = "staged through pinned host memory"

    def __init__(self, inner: Transport, engine: CopyEngine):
        self._inner, self._engine = inner, engine

    def sends(self, moves: Moves, tag: int) -> Handle:
        return self._handle(True, moves, tag, self._inner.sends, "receive")

    def recvs(self, moves: Moves, tag: int) -> Handle:
        return self._handle(False, moves, tag, self._inner.recvs, "send")

    def _handle(self, sending: bool, moves: Moves, tag: int, prepare: Prepare, verb: str) -> StagedHandle:
        channels = [(self._engine.channel(sending, peer, tag, prepare), span) for peer, span in moves]
        messages = [message for channel, span in channels for message in channel.messages(span)]
        return StagedHandle(self._engine, messages, verb, tag, self._inner)
