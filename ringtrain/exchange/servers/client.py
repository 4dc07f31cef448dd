"""A worker's side where ranks are apart: to each server updates go, and from each weights come, a bucket at a time."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ringtrain.exchange import texts
from ringtrain.exchange.servers.mailbox import TAGS, Sender
from ringtrain.exchange.servers.parameter_shard import ParameterShard
from ringtrain.nn.buckets import Bucket
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers


class ServerClient(ABC):
    """To the server of ``buckets``, neighbours, the arena's lowest first."""

    buckets: Sequence[Bucket]
    bytes_sent: int = 0

    @abstractmethod
    def push(self) -> None:
        """Send the update, and ask for weights. When :meth:`sent` is true."""

    @abstractmethod
    def arrived(self, place: int) -> bool:
        """Whether the weights of the bucket at this place have come since the last push."""

    @abstractmethod
    def sent(self) -> bool:
        """Whether all that was sent has left."""

    @abstractmethod
    def goodbye(self) -> None:
        """No more updates until the next meeting is over. When :meth:`sent` is true."""

    @abstractmethod
    def awaited(self) -> str:
        """For whom a worker waits whose weights do not come."""


class RemoteServer(ServerClient):
    """To another rank. update, base: flat arrays over the arena: what is pushed, and what weights come to. Tags from
    ``tag`` on."""

    def __init__(self, transport: Transport, server: int, buckets: Sequence[Bucket], update, base, tag: int):
        self.buckets, self._server = buckets, server
        start, stop = buckets[0].start, buckets[-1].stop
        self._sender = Sender(transport, server, update[start:stop], tag)
        self._pulls = [
            transport.recvs([(server, base[bucket.start : bucket.stop])], tag + TAGS + place)
            for place, bucket in enumerate(buckets)
        ]
        self._nbytes = (stop - start) * update.dtype.itemsize

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
    """To the server that this rank is itself."""

    def __init__(self, store: ParameterShard, rank: int, buckets: Sequence[Bucket], update, base):
        self._store, self._rank, self.buckets = store, rank, buckets
        self._update, self._base = update[store.start : store.stop], base[store.start : store.stop]

    def push(self) -> None:
        self._store.give(self._update, self._base)

    def arrived(self, place: int) -> bool:
        return self._store.free

    def sent(self) -> bool:
        return True

    def goodbye(self) -> None:
        """It sees for itself that it is at the meeting."""

    def awaited(self) -> str:
        clock = self._store.clock
        return texts.AWAITED_UPDATES(ranks=peers(clock.late(clock.clocks[self._rank])))
