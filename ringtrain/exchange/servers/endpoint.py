"""One rank's end of a parameter server: its own shard, if it serves, and a client of each server, if it is a worker."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.base import Roles
from ringtrain.exchange.buckets.ownership import Ownership
from ringtrain.exchange.servers.outer_merge import OuterMerge
from ringtrain.exchange.servers.parameter_shard import GOODBYE, NUMBERS, PUSH, TAGS, ParameterShard
from ringtrain.exchange.servers.quorum import clock_of
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.memory.arena import Arena
from ringtrain.memory.buckets import Bucket
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Mark
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers, wait_for


class RemoteServer:
    """A worker's side of a server on another rank, which has a mailbox: changes go to it, and weights come from it, a
    bucket at a time.

    buckets:        of the server, neighbours, the arena's lowest first
    change, pulled: flat arrays over the arena, to push and for pulled weights
    tag:            the first of its tags

    :meth:`push` and :meth:`goodbye` want :meth:`sent` to be true.
    """

    def __init__(
        self,
        transport: Transport,
        server: int,
        buckets: Sequence[Bucket],
        change: Array,
        pulled: Array,
        tag: int,
    ):
        self.buckets, self._server, self.bytes_sent = buckets, server, 0
        part = change[buckets[0].start : buckets[-1].stop]
        self._nbytes = part.size * part.dtype.itemsize
        self._numbers = np.zeros(NUMBERS, np.int64)
        self._announcement = transport.sends([(server, self._numbers)], tag)
        self._change = transport.sends([(server, part)], tag + 1)
        self._pulls = [
            transport.recvs([(server, pulled[bucket.start : bucket.stop])], tag + TAGS + index)
            for index, bucket in enumerate(buckets)
        ]

    def push(self, examples: int) -> None:
        """Send the change, which is from so many examples, and ask for weights."""
        for pull in self._pulls:
            pull.start()
        self._announce(PUSH, examples)
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
        return self._announcement.test() and self._change.test()

    def goodbye(self) -> None:
        """Tell the server that no change comes until the next meeting is over."""
        self._announce(GOODBYE, 0)

    def _announce(self, kind: int, examples: int) -> None:
        self._numbers[:] = kind, examples
        self._announcement.start()


class LocalServer:
    """The same for a server on this rank."""

    bytes_sent = 0

    def __init__(self, shard: ParameterShard, rank: int, buckets: Sequence[Bucket], change: Array, pulled: Array):
        self._shard, self._rank, self.buckets = shard, rank, buckets
        self._change, self._pulled = change[shard.start : shard.stop], pulled[shard.start : shard.stop]

    def push(self, examples: int) -> None:
        self._shard.push(self._change, examples, self._pulled)

    def arrived(self, index: int) -> bool:
        return self._shard.answered

    def awaited(self) -> str:
        clock = self._shard.clock
        return f"{peers(clock.late(clock.clocks[self._rank]))} to give an update"

    def sent(self) -> bool:
        return True

    def goodbye(self) -> None:
        self._shard.goodbye()


class Endpoint:
    """Pushes changes from the memory of the arena's gradients, pulls weights, and serves while it waits.

    ``shard``: None where the rank is no server. ``pulled``: the weights of the last pull; empty where the rank is no
    worker. ``has_pushed``: whether this rank has pushed since the last meeting. ``exposed_s``: how long the loop was
    blocked in training.
    """

    def __init__(self, settings: ExchangeSettings, roles: Roles, shards: Ownership, arena: Arena):
        transport, rank, dtype = settings.transport, settings.transport.rank, arena.weights.dtype
        self._settings, self._arena, self._shards, self.own_ops = settings, arena, shards, shards.streams.exchange
        self.shard = None
        if rank in roles.servers:
            clock, buckets = clock_of(settings.config, roles.trainers), shards.buckets_of(rank)
            bounds = buckets[0].start, buckets[-1].stop
            outer = OuterMerge(self.own_ops, arena, *bounds, settings.config) if settings.config.quorum else None
            self.shard = ParameterShard(transport, self.own_ops, buckets, clock, dtype, shards.free_tag, outer)
        is_worker = rank in roles.trainers
        self.pulled = transport.scratch(arena.count, dtype) if is_worker else arena.weights[:0]
        self._clients = [self._client(server) for server in roles.servers if is_worker]
        self._pulls = [(client, index) for client in self._clients for index in range(len(client.buckets))]
        self._home = {
            span.name: at for at, (client, index) in enumerate(self._pulls) for span in client.buckets[index].spans
        }
        self._due: set[int] = set()  # indices into _pulls of the weights that were asked for
        self.has_pushed, self.exposed_s = False, 0.0

    def _client(self, server: int) -> LocalServer | RemoteServer:
        arrays = self._shards.buckets_of(server), self._arena.grads, self.pulled
        transport = self._settings.transport
        if self.shard is not None and server == transport.rank:
            return LocalServer(self.shard, server, *arrays)
        return RemoteServer(transport, server, *arrays, self._shards.free_tag)

    def open(self) -> None:
        """Let workers push and pull from now on. All ranks have the same weights."""
        ops = self._settings.ops
        if self._clients:
            ops.copy(self._arena.weights, self.pulled)
        if self.shard is not None:
            self.own_ops.after(ops.mark())
            self.shard.open(self._arena.weights)

    # ── a worker ──────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, final: Mark, examples: int) -> None:
        """Push changes, which are computed when the mark ``final`` is done, from so many examples, and ask for weights.
        :meth:`pull_all` came before."""
        self._wait(final.done, lambda: "this rank's device to make its update")
        for client in self._clients:
            self._wait(client.sent, client.awaited)
            client.push(examples)
        self._due = set(range(len(self._pulls)))
        self.has_pushed = True

    def pull(self, span: Span) -> None:
        """Wait for the weights of this span, if they were asked for."""
        if self._due:
            for piece in self._shards.pieces[span.name]:
                self._pull(self._home[piece.name])

    def pull_all(self) -> None:
        """Wait for all weights that were asked for."""
        for at in sorted(self._due):
            self._pull(at)

    def _pull(self, at: int) -> None:
        if at not in self._due:
            return
        client, index = self._pulls[at]
        self._wait(lambda: client.arrived(index), client.awaited)
        start, stop = client.buckets[index].start, client.buckets[index].stop
        self._settings.ops.copy(self.pulled[start:stop], self._arena.weights[start:stop])
        self._due.remove(at)

    def goodbye(self) -> None:
        """Tell all servers that no change comes until the next meeting is over."""
        for client in self._clients:
            self._wait(client.sent, client.awaited)
            client.goodbye()
        for client in self._clients:
            self._wait(client.sent, client.awaited)

    # ── a server ──────────────────────────────────────────────────────────────────────────────────────────────
    def serve(self) -> None:
        """Serve other ranks, without waiting."""
        if self.shard is not None:
            self.shard.serve()

    def keep_pace(self, updates: int) -> None:
        """Wait until a worker may have made ``updates``: so a dedicated server stays in the workers' iterations."""
        if self.shard is not None:
            clock = self.shard.clock
            self._wait(lambda: clock.allows(updates), lambda: f"{peers(clock.late(updates))} to give an update")

    def serve_until_quiet(self, meanwhile: Callable[[], None]) -> None:
        """Serve until all workers have said goodbye."""
        shard = self.shard
        if shard is None:
            return

        def quiet() -> bool:
            meanwhile()
            return shard.quiet

        self._wait(quiet, lambda: f"{peers(shard.present)} to come to the meeting of all ranks")

    def publish(self) -> None:
        """Copy the shard's weights into the arena."""
        if self.shard is not None:
            weights = self._arena.weights[self.shard.start : self.shard.stop]
            self._settings.ops.copy(self.shard.weights, weights)

    # ── both ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _wait(self, test: Callable[[], bool], awaited: Callable[[], str]) -> None:
        """Serve until ``test()``."""

        def served() -> bool:
            self.serve()
            return test()

        settings = self._settings
        wait_for(served, settings.config.deadline_s, awaited, self._progress, settings.transport.patience)

    def _progress(self) -> int:
        return 0 if self.shard is None else self.shard.clock.version

    @contextmanager
    def exposed(self) -> Iterator[None]:
        """Count the time of this block in ``exposed_s``."""
        began = time.perf_counter()
        yield
        self.exposed_s += time.perf_counter() - began

    @property
    def bytes_sent(self) -> int:
        """By training, not by meetings."""
        served = 0 if self.shard is None else self.shard.bytes_sent
        return served + sum(client.bytes_sent for client in self._clients)
