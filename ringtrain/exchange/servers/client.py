"""A worker's side of a server: changes go to it, and weights come from it, a bucket at a time."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.servers.mailbox import GOODBYE, PUSH, TAGS
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
    def arrived(self, index: int) -> bool:
        """Whether the weights of the bucket at this index have arrived since the last push."""

    @abstractmethod
    def awaited(self) -> str:
        """The ranks that delay the weights, in words."""

    def sent(self) -> bool:
        """Whether all messages have left."""
        return True

    def goodbye(self) -> None:  # noqa: B027
        """Tell the server that no change comes until the next meeting is over."""


class RemoteServer(ServerClient):
    """Another rank, which has a mailbox. change, pulled: flat arrays over the arena, to push and for pulled weights.
    Tags from ``tag`` on."""

    def __init__(
        self, transport: Transport, server: int, buckets: Sequence[Bucket], change: Array, pulled: Array, tag: int
    ):
        self.buckets, self._server = buckets, server
        part = change[buckets[0].start : buckets[-1].stop]
        self._nbytes = part.size * part.dtype.itemsize
        self._word = np.zeros(1, np.int64)
        self._announcement = transport.sends([(server, self._word)], tag)
        self._change = transport.sends([(server, part)], tag + 1)
        self._pulls = [
            transport.recvs([(server, pulled[bucket.start : bucket.stop])], tag + TAGS + index)
            for index, bucket in enumerate(buckets)
        ]

    def push(self) -> None:
        for pull in self._pulls:
            pull.start()
        self._announce(PUSH)
        self._change.start()
        self.bytes_sent += self._nbytes

    def _announce(self, word: int) -> None:
        self._word[0] = word
        self._announcement.start()

    def arrived(self, index: int) -> bool:
        return self._pulls[index].test()

    def awaited(self) -> str:
        return f"{peers([self._server])} to send weights"

    def sent(self) -> bool:
        return self._announcement.test() and self._change.test()

    def goodbye(self) -> None:
        self._announce(GOODBYE)


class LocalServer(ServerClient):
    """This rank itself. change, pulled: as above."""

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
