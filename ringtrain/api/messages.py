"""Messages from one rank to another, of arrays of any library."""

from ringtrain.api.collective_runs import contiguous
from ringtrain.api.collectives import lend_bytes
from ringtrain.api.progress import ProgressThread
from ringtrain.api.request import Agreement, check_writable_array
from ringtrain.api.usable import Usable
from ringtrain.errors import UsageError
from ringtrain.transport.base import MessageHandle, TagSpace

LAST_TAG = 32767  # of any MPI


class MessageMethods:
    """Messages: :class:`ringtrain.Communicator` has them. They are no collectives: only the two ranks call."""

    rank: int
    size: int
    _progress: ProgressThread
    _usable: Usable
    _messages: TagSpace
    _agreement: Agreement

    def send(self, array, peer: int, tag: int = 0, *, async_op: bool = False):
        """Send the elements of an array of any type but objects to rank ``peer``. It may wait for the peer to receive.
        Messages of one tag between two ranks keep their order. Raises UsageError, StalledError.
        """
        self._check_message(peer, tag, async_op)
        data = contiguous(lend_bytes(array).host)
        return self._move(
            f"send to rank {peer} (tag {tag})", self._messages.send(data, peer, tag), lambda: None, async_op
        )

    def recv(self, array, peer: int | None = None, tag: int = 0, *, async_op: bool = False):
        """Receive into the array a message of as many bytes from rank ``peer``, or from any rank, and return the array.
        The Work's ``source`` says who has sent it. Raises UsageError, StalledError, TransportError for a message of
        another length.
        """
        self._check_message(peer, tag, async_op)
        borrowed = lend_bytes(array)
        check_writable_array(borrowed.host, "the array")
        data = contiguous(borrowed.host)

        def finish():
            if data is not borrowed.host:
                borrowed.host[...] = data
            borrowed.settle()
            return array

        return self._move(f"recv (tag {tag})", self._messages.receive(data, peer, tag), finish, async_op)

    def _move(self, called: str, handle: MessageHandle, finish, async_op: bool):
        if async_op:
            return self._progress.deliver(called, handle, finish, self._agreement.deadline_s)
        with self._usable:
            handle.wait(self._agreement.deadline_s)
        return finish()

    def _check_message(self, peer: int | None, tag: int, async_op: bool) -> None:
        self._usable.check()
        self._progress.check_call(async_op)
        if peer is not None and (not 0 <= peer < self.size or peer == self.rank):
            raise UsageError(f"peer={peer}: the other ranks are 0 to {self.size - 1}, without this rank, {self.rank}")
        if not 0 <= tag <= LAST_TAG:
            raise UsageError(f"tag={tag}: a tag is 0 to {LAST_TAG}, since every MPI has these")
