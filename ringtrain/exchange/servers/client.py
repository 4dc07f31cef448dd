"""A worker's side of a server: changes go to it, and weights come from it, a bucket at a time.

Both kinds push to the server of ``buckets``, neighbours, the arena's lowest first, from flat arrays over the arena:
``change``, to push, and ``pulled``, for pulled weights. ``push()`` and ``goodbye()`` want ``sent()`` to be true.
"""

from collections.abc import Sequence

from ringtrain.arrays import Array
from ringtrain.exchange.announcements import Announcer
from ringtrain.exchange.servers.mailbox import GOODBYE, PUSH, TAGS
from ringtrain.exchange.servers.parameter_shard import ParameterShard
from ringtrain.nn.buckets import Bucket
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers


class RemoteServer:
    """Another rank, which has a mailbox. Tags from ``tag`` on."""

    def __init__(
        self,
        transport: Transport,
        server: int,
        buckets: Sequence[Bucket],
        change: Array,
        pulled: Array,
        tag: int,
        deadline_s: float,
    ):
        self.buckets, self._server, self.bytes_sent = buckets, server, 0
        part = change[buckets[0].start : buckets[-1].stop]
        self._nbytes = part.size * part.dtype.itemsize
        self._announcer = Announcer(transport, [server], tag, deadline_s)
        self._change = transport.sends([(server, part)], tag + 1)
        self._pulls = [
            transport.recvs([(server, pulled[bucket.start : bucket.stop])], tag + TAGS + index)
            for index, bucket in enumerate(buckets)
        ]

    def push(self) -> None:
        """Send the change, and ask for weights."""
        for pull in self._pulls:
            pull.start()
        self._announcer.send(PUSH)
        self._change.start()
        self.bytes_sent += self._nbytes

    def arrived(self, index: int) -> bool:
        """Whether the weights of the bucket at this index have arrived since the last push."""
        return self._pulls[index].test()

    def awaited(self) -> str:
        """The ranks that delay the weights, in words."""
        return f"{peers([self._server])} to send weights"

    def sent(self) -> bool:
        """Whether all messages have left."""
        return self._announcer.sent() and self._change.test()

    def goodbye(self) -> None:
        """Tell the server that no change comes until the next meeting is over."""
        self._announcer.send(GOODBYE)


class LocalServer:
    """This rank itself."""

    bytes_sent = 0

    def __init__(self, shard: ParameterShard, rank: int, buckets: Sequence[Bucket], change: Array, pulled: Array):
        self._shard, self._rank, self.buckets = shard, rank, buckets
        self._change, self._pulled = change[shard.start : shard.stop], pulled[shard.start : shard.stop]

    def push(self) -> None:
        self._shard.push(self._change, self._pulled)

    def arrived(self, index: int) -> bool:
        return self._shard.answered

    def awaited(self) -> str:
        clock = self._shard.clock
        return f"{peers(clock.late(clock.clocks[self._rank]))} to give an update"

    def sent(self) -> bool:
        return True

    def goodbye(self) -> None:
        """Say nothing: no message is awaited from this rank."""
