"""One rank's ends where ranks are apart: its store, if it serves, and its links to all servers, if it trains. Whoever
waits here serves meanwhile."""

from collections.abc import Callable, Sequence

from ringtrain.exchange import texts
from ringtrain.exchange.base import Roles
from ringtrain.exchange.buckets.streams import StreamPair
from ringtrain.exchange.servers.client import LocalServer, RemoteServer, ServerClient
from ringtrain.exchange.servers.ownership import pieces_of
from ringtrain.exchange.servers.parameter_shard import ParameterShard
from ringtrain.nn.base import Span
from ringtrain.nn.buckets import Bucket
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers, wait_for


class Endpoint:
    """streams:    of the network's operations, in which updates are made and weights taken, and of a server's
    arena:      updates go from the memory of its gradients
    parts:      of the arena, a server's each
    owned:      the buckets of each server, lowest first
    staleness:  updates that a rank may be ahead of the slowest; None: as many as it likes
    deadline_s: how long to wait for others that make no progress, before StalledError
    tag:        the first that is free

    ``store`` and ``base``, the weights that were taken last, are None on ranks that do not serve, or do not train.
    """

    def __init__(
        self,
        transport: Transport,
        streams: StreamPair,
        arena,
        roles: Roles,
        parts: Sequence[Sequence[Span]],
        owned: Sequence[Sequence[Bucket]],
        staleness: int | None,
        deadline_s: float,
        tag: int,
    ):
        self._transport, self._streams, self._ops = transport, streams, streams.network
        self._arena, self._deadline_s = arena, deadline_s
        rank, dtype = transport.rank, arena.weights.dtype
        self.store = self.base = None
        if rank in roles.servers:
            self.store = ParameterShard(transport, streams.own, owned[rank], roles.trainers, staleness, dtype, tag)
        self._links: list[ServerClient] = []
        if rank in roles.trainers:
            self.base = transport.scratch(arena.count, dtype)
            self._links = [self._link(server, buckets, tag) for server, buckets in enumerate(owned)]
        self._coming = [(link, place) for link in self._links for place in range(len(link.buckets))]
        at = {span.name: at for at, (link, place) in enumerate(self._coming) for span in link.buckets[place].spans}
        pieces = pieces_of(arena.spans, parts) if at else {}
        self._home = {name: {at[piece.name] for piece in cut} for name, cut in pieces.items()}
        self.exposed_s = 0.0  # how long the loop was held up in training
        self._due: set[int] = set()  # places in _coming of weights that were asked for

    def _link(self, server: int, buckets: Sequence[Bucket], tag: int) -> ServerClient:
        memory = (self._arena.grads, self.base)
        if server == self._transport.rank:
            return LocalServer(self.store, server, buckets, *memory)
        return RemoteServer(self._transport, server, buckets, *memory, tag)

    def open(self) -> None:
        """The time between two meetings begins; weights are the same on all ranks."""
        if self.base is not None:
            self._ops.copy(self._arena.weights, self.base)
        if self.store is not None:
            self._streams.own.after(self._ops.mark())
            self.store.open(self._arena.weights)

    # ── a worker ──────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, final) -> None:
        """Updates go, when the mark ``final`` says that they have been computed, and weights are asked for.
        :meth:`wait_all` came before."""
        if not final.done():
            self.wait(final.done, lambda: texts.AWAITED_UPDATE)
        for link in self._links:
            self.wait(link.sent, link.awaited)
            link.push()
        self._due = set(range(len(self._coming)))

    def before_read(self, span: Span) -> None:
        """Return when the weights of this span have come that were asked for."""
        if self._due:
            for at in sorted(self._home[span.name] & self._due):
                self._take(at)

    def wait_all(self) -> None:
        """Return when all have."""
        for at in sorted(self._due):
            self._take(at)

    def _take(self, at: int) -> None:
        link, place = self._coming[at]
        self.wait(lambda: link.arrived(place), link.awaited)
        bucket = link.buckets[place]
        self._ops.copy(self.base[bucket.start : bucket.stop], self._arena.weights[bucket.start : bucket.stop])
        self._due.remove(at)

    def goodbye(self) -> None:
        """Tell all servers that no update comes until the next meeting is over."""
        for link in self._links:
            self.wait(link.sent, link.awaited)
            link.goodbye()
        for link in self._links:
            self.wait(link.sent, link.awaited)

    # ── a server ──────────────────────────────────────────────────────────────────────────────────────────────
    def serve(self) -> None:
        """Do what can be done for others without waiting."""
        if self.store is not None:
            self.store.serve()

    def keep_pace(self, made: int) -> None:
        """A rank that only serves and has made so many iterations goes on as one that trains may: so ranks meet at the
        same iterations."""
        clock = self.store.clock
        self.wait(lambda: clock.allows(made), lambda: texts.AWAITED_UPDATES(ranks=peers(clock.late(made))))

    def until_quiet(self, meanwhile: Callable[[], None]) -> None:
        """Serve until all that train have said goodbye."""
        if self.store is None:
            return

        def quiet() -> bool:
            meanwhile()
            return self.store.quiet

        self.wait(quiet, lambda: texts.AWAITED_MEETING(ranks=peers(self.store.present)))

    def publish(self) -> None:
        """The store's weights become the arena's."""
        if self.store is not None:
            self._ops.copy(self.store.weights, self._arena.weights[self.store.start : self.store.stop])

    # ── both ──────────────────────────────────────────────────────────────────────────────────────────────────
    def wait(self, test: Callable[[], bool], awaited: Callable[[], str]) -> None:
        """Serve until ``test()``."""

        def served() -> bool:
            self.serve()
            return test()

        wait_for(served, self._deadline_s, awaited, self._progress, self._transport.patience)

    def _progress(self) -> int:
        return self.store.clock.version if self.store is not None else 0

    @property
    def bytes_sent(self) -> int:
        """In training, not at meetings."""
        served = self.store.bytes_sent if self.store is not None else 0
        return served + sum(link.bytes_sent for link in self._links)
