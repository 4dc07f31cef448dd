"""The shards of the arena that servers own, and the reducers that carry them: gradients to the owner, weights back."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

from ringtrain.arrays import Array
from ringtrain.collectives.algorithms import rooted
from ringtrain.collectives.algorithms.rooted import RootedTree
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.shared_memory import topology_of
from ringtrain.errors import ConfigError
from ringtrain.exchange.base import Roles
from ringtrain.exchange.buckets.reduce_scatter import execution
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.streams import stream_pair
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.ranges import Piece
from ringtrain.humanize import format_bytes, plural
from ringtrain.memory.arena import ALIGNMENT, Arena
from ringtrain.memory.buckets import Bucket, make_buckets
from ringtrain.memory.spans import Span
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers

Tree = Callable[[int, Sequence[int]], RootedTree]  # (server, members)
Meanwhile = Callable[[], None] | None


class Shards:
    """The shard of each server, cut into buckets, and reducers along trees to the servers and from them.

    servers: how many there are
    whole:   no parameter is cut

    ``pieces``: the pieces of each parameter, by its name. ``free_tag``: the first tag that no reducer uses. All ranks
    ask for the same reducers in the same order.
    """

    def __init__(self, settings: ExchangeSettings, arena: Arena, servers: int, whole: bool):
        config, itemsize = settings.config, arena.weights.dtype.itemsize
        self.parts = divide_ownership(arena.spans, servers, whole)
        self.pieces = pieces_of(arena.spans, self.parts)
        self._owned = buckets_of(self.parts, itemsize, config.bucket_bytes)
        self._settings, self.streams = settings, stream_pair(settings.ops)
        self._tree = _tree_of(settings.transport, config.server_levels)
        self.free_tag = 0

    def piece_of(self, rank: int) -> list[Piece]:
        """The elements that ``rank`` owns: one piece, or none."""
        return [(part[0].start, part[-1].stop) for part in self.parts[rank : rank + 1]]

    def buckets_of(self, server: int) -> list[Bucket]:
        """The buckets of one server, the arena's lowest first."""
        return [bucket for owner, bucket in reversed(self._owned) if owner == server]

    def indices_of(self, server: int) -> list[int]:
        """Indices into the buckets of every reducer of those that ``server`` owns, the arena's lowest first."""
        return [index for index in reversed(range(len(self._owned))) if self._owned[index][0] == server]

    def sums(self, buffer: Array, members: Sequence[int], meanwhile: Meanwhile = None) -> Reducer:
        """Return the reducer that brings the sums over ``members`` to the servers; ``meanwhile``: called while it
        waits."""
        return self._reducer("sum at a server", rooted.reduce_to_root, buffer, members, meanwhile)

    def broadcasts(
        self, buffer: Array, members: Sequence[int], meanwhile: Meanwhile = None, lowest_first: bool = False
    ) -> Reducer:
        """Return the reducer that brings each server's part of ``buffer`` to ``members``."""
        half = rooted.broadcast_from_root
        return self._reducer("spread from a server", half, buffer, members, meanwhile, lowest_first)

    def _reducer(
        self,
        what: str,
        half: Callable[[RootedTree], Schedule],
        buffer: Array,
        members: Sequence[int],
        meanwhile: Meanwhile,
        lowest_first: bool = False,
    ) -> Reducer:
        schedules = [half(self._tree(server, members)) for server in range(len(self.parts))]
        settings, ops = self._settings, self.streams.exchange
        reductions = [
            execution(
                settings, ops, schedules[server], buffer[b.start : b.stop], tag, what, b.name, meanwhile=meanwhile
            )
            for tag, (server, b) in enumerate(self._owned, self.free_tag)
        ]
        self.free_tag += len(self._owned)
        buckets = [bucket for _, bucket in self._owned]
        order = range(len(buckets))[::-1] if lowest_first else None
        return Reducer(buckets, reductions, settings.config.deadline_s, self.streams, order=order)


def _tree_of(transport: Transport, levels: int) -> Tree:
    """Straight trees; with two levels by way of the heads of nodes, and collective."""
    if levels == 1:
        return lambda root, members: rooted.straight(root, members, transport.size)
    node_of = topology_of(transport).node_of()
    return lambda root, members: rooted.by_nodes(root, members, node_of)


def roles_of(size: int, servers: int, dedicated: bool) -> Roles:
    """The first ranks serve, and train too unless they are dedicated. Raises ConfigError where there are not enough
    ranks."""
    if servers > size:
        raise ConfigError(
            f"--servers {servers} is more than the {plural(size, 'rank')}: give at most {size}, or start more ranks"
        )
    if dedicated and servers == size:
        raise ConfigError(
            f"--dedicated with --servers {servers} leaves none of the {plural(size, 'rank')} to train: start more "
            "ranks, or give --no-dedicated"
        )
    return Roles(trainers=tuple(range(servers if dedicated else 0, size)), servers=tuple(range(servers)))


def divide_ownership(spans: Sequence[Span], servers: int, whole: bool = False) -> list[list[Span]]:
    """Return the neighbouring spans of each server, equally many elements; a parameter that is cut becomes several
    spans. ``whole``: no parameter is cut, and the largest part is as small as possible. Raises ConfigError for more
    servers than spans."""
    if servers > len(spans):
        count = len(spans)
        raise ConfigError(f"--servers {servers} is more than the {count} parameters of the model: give at most {count}")
    if whole:
        return _whole(spans, servers)
    lines = spans[-1].stop // ALIGNMENT
    edges = [lines * server // servers * ALIGNMENT for server in range(servers + 1)]
    return [_within(spans, *bounds) for bounds in pairwise(edges)]


def _within(spans: Sequence[Span], start: int, stop: int) -> list[Span]:
    pieces = []
    for span in spans:
        a, b = max(span.start, start), min(span.stop, stop)
        if (a, b) == (span.start, span.stop):
            pieces.append(span)
        elif a < b:
            pieces.append(Span(f"{span.name}[{a - span.start}:{b - span.start}]", a, b, (b - a,), span.parameter))
    return pieces


def pieces_of(spans: Sequence[Span], parts: Sequence[Sequence[Span]]) -> dict[str, list[Span]]:
    """Return the pieces of each parameter, by its name."""
    pieces = [piece for part in parts for piece in part]
    return {span.name: [p for p in pieces if span.start <= p.start and p.stop <= span.stop] for span in spans}


def _whole(spans: Sequence[Span], servers: int) -> list[list[Span]]:
    counts = [span.stop - span.start for span in spans]
    sizes = range(max(counts), sum(counts) + 1)
    most = sizes[bisect_left(sizes, -servers, key=lambda size: -_parts_under(counts, size))]
    parts: list[list[Span]] = []
    for index, span in enumerate(spans):
        left = len(spans) - index
        full = not parts or span.stop - parts[-1][0].start > most
        if full or left == servers - len(parts):  # one is left for each of the other servers
            parts.append([])
        parts[-1].append(span)
    return parts


def _parts_under(counts: Sequence[int], most: int) -> int:
    """Return how many parts of at most ``most`` elements there are."""
    parts, filled = 1, 0
    for count in counts:
        if filled + count > most:
            parts, filled = parts + 1, 0
        filled += count
    return parts


def buckets_of(parts: Sequence[Sequence[Span]], itemsize: int, bucket_bytes: int) -> list[tuple[int, Bucket]]:
    """Return (server, bucket) from the arena's end to its start: no bucket has two servers."""
    return [
        (server, bucket)
        for server in reversed(range(len(parts)))
        for bucket in make_buckets(parts[server], itemsize, bucket_bytes)
    ]


def format_servers(roles: Roles, dedicated: bool) -> str:
    """Return "on rank 0" or "on ranks 0, 1, dedicated"."""
    return f"on {peers(roles.servers)}, dedicated" if dedicated else f"on {peers(roles.servers)}"


def format_load(parts: Sequence[Sequence[Span]], itemsize: int) -> str:
    """Say how many bytes of weights the servers own."""
    sizes = [itemsize * (part[-1].stop - part[0].start) for part in parts]
    if len(sizes) == 1:
        return f"rank 0 serves all {format_bytes(sizes[0])} of weights"
    return f"{len(sizes)} ranks own {format_bytes(min(sizes))} to {format_bytes(max(sizes))} of weights each"
