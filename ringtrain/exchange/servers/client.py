"""A worker's side of a server: pushes go to it, and weights come from it, a bucket at a time."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ringtrain.exchange import texts
from ringtrain.exchange.servers.mailbox import TAGS, Sender
from ringtrain.exchange.servers.parameter_shard import ParameterShard
from ringtrain.nn.buckets import Bucket
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers


class ServerClient(ABC):
    """Pushes to the server of ``buckets``, neighbours, the arena's lowest first, and pulls their weights.

    :meth:`push` and :meth:`goodbye` want :meth:`sent` to be true.
    """

    buckets: Sequence[Bucket]
    bytes_sent: int = 0

    @abstractmethod
    def push(self) -> None:
        """Send the change, and ask for weights."""

    @abstractmethod
    def arrived(self, place: int) -> bool:
        """Whether the weights of the bucket at this place have arrived since the last push."""

    @abstractmethod
    def awaited(self) -> str:
        """The ranks that delay the weights, in words."""

    def sent(self) -> bool:
        """Whether all messages have left."""
        return True

    def goodbye(self) -> None:  # noqa: B027
        """Tell the server that no change comes until the next meeting is over."""


class RemoteServer(ServerClient):
    """The server is another rank. change, pulled: flat arrays over the arena, to push and for pulled weights. Tags from
    ``tag`` on."""

    def __init__(self, transport: Transport, server: int, buckets: Sequence[Bucket], change, pulled, tag: int):
        self.buckets, self._server = buckets, server
        start, stop = buckets[0].start, buckets[-1].stop
        self._sender = Sender(transport, server, change[start:stop], tag)
        self._pulls = [
            transport.recvs([(server, pulled[bucket.start : bucket.stop])], tag + TAGS + place)
            for place, bucket in enumerate(buckets)
        ]
        self._nbytes = (stop - start) * change.dtype.itemsize

    def push(self) -> None:
        for pull in self._pulls:
            pull.start()
        self._sender.push()
        self.bytes_sent += self._nbytes

    def arrived(self, place: int) -> bool:
        return self._pulls[place].test()

    def sent(self) -> bool:
        return self._sender.sent()

    def goodbye(self) -> None:
        self._sender.goodbye()

    def awaited(self) -> str:
        return texts.AWAITED_SERVER(server=peers([self._server]))


class LocalServer(ServerClient):
    """The server is this rank. change, pulled: as above."""

    def __init__(self, shard: ParameterShard, rank: int, buckets: Sequence[Bucket], change, pulled):
        self._shard, self._rank, self.buckets = shard, rank, buckets
        self._change, self._pulled = change[shard.start : shard.stop], pulled[shard.start : shard.stop]

    def push(self) -> None:
        self._shard.push(self._change, self._pulled)

    def arrived(self, place: int) -> bool:
        return self._shard.answered

    def awaited(self) -> str:
        clock = self._shard.clock
        return texts.AWAITED_UPDATES(ranks=peers(clock.late(clock.clocks[self._rank])))
