"""The shards of the arena that servers own."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from ringtrain.collectives.algorithms.rooted import broadcast_from_root, reduce_to_root
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import ConfigError
from ringtrain.exchange.base import Roles
from ringtrain.exchange.buckets.ownership import Ownership
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.humanize import format_bytes, plural
from ringtrain.memory.arena import ALIGNMENT, Arena
from ringtrain.memory.buckets import Bucket, make_buckets
from ringtrain.memory.spans import Span
from ringtrain.transport.waiting import peers


def server_shards(settings: ExchangeSettings, arena: Arena, servers: int, whole: bool = False) -> tuple[Ownership, str]:
    """Return the shards of servers, each cut into buckets, and how many bytes of weights each owns. Gradients go
    straight to the servers, and weights come back. ``whole``: no parameter is cut."""
    config, itemsize = settings.config, arena.weights.dtype.itemsize
    parts = divide_ownership(arena.spans, servers, whole)
    owned = buckets_of(parts, itemsize, config.bucket_bytes)
    size = settings.transport.size
    shards = Ownership(
        settings,
        [bucket for _, bucket in owned],
        pieces_of(arena.spans, parts),
        lambda index, members: reduce_to_root(owned[index][0], members, size),
        lambda index, members: broadcast_from_root(owned[index][0], members, size),
        divides=not whole,
        serves=True,
        names=("sum at a server", "spread from a server"),
    )
    return shards, _load(parts, itemsize)


def roles_of(size: int, config: ExchangeConfig) -> tuple[Roles, str]:
    """Return the roles of ranks, and "on rank 0" or "on ranks 0, 1, dedicated": the first ranks serve, and train too
    unless they are dedicated. Raises ConfigError where there are not enough ranks."""
    servers, dedicated = config.servers, config.dedicated
    if servers > size:
        raise ConfigError(
            f"--servers {servers} is more than the {plural(size, 'rank')}: give at most {size}, or start more ranks"
        )
    if dedicated and servers == size:
        raise ConfigError(
            f"--dedicated with --servers {servers} leaves none of the {plural(size, 'rank')} to train: start more "
            "ranks, or give --no-dedicated"
        )
    roles = Roles(trainers=tuple(range(servers if dedicated else 0, size)), servers=tuple(range(servers)))
    return roles, f"on {peers(roles.servers)}" + (", dedicated" if dedicated else "")


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


EVEN = 1.3  # times the mean: the most that an owner has, unless one parameter is larger


def in_even_order(spans: Sequence[Span], owners: int) -> list[int]:
    """Return the order of whole parameters in which owners of neighbours have about equal parts: as they are where
    these have, since backward finishes them in that order; else each, the largest first, goes to the owner that has
    least."""
    counts, every = [span.count for span in spans], list(range(len(spans)))
    parts = [sum(span.count for span in part) for part in divide_ownership(spans, owners, whole=True)]
    if max(parts) <= max(max(counts), EVEN * sum(counts) / owners):
        return every
    rows: list[list[int]] = [[] for _ in range(owners)]
    for index in sorted(every, key=lambda each: -counts[each]):
        min(rows, key=lambda row: sum(counts[each] for each in row)).append(index)
    return [index for row in rows for index in sorted(row)]


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


def _load(parts: Sequence[Sequence[Span]], itemsize: int) -> str:
    """Say how many bytes of weights the servers own."""
    sizes = [itemsize * (part[-1].stop - part[0].start) for part in parts]
    if len(sizes) == 1:
        return f"rank 0 serves all {format_bytes(sizes[0])} of weights"
    return f"{len(sizes)} ranks own {format_bytes(min(sizes))} to {format_bytes(max(sizes))} of weights each"
