"""Which server owns which part of the arena, and which ranks are servers."""

from collections.abc import Sequence
from itertools import pairwise

from ringtrain.errors import ConfigError
from ringtrain.exchange.base import Roles
from ringtrain.humanize import format_bytes, plural
from ringtrain.nn.arena import ALIGNMENT
from ringtrain.nn.base import Span
from ringtrain.nn.buckets import Bucket, make_buckets
from ringtrain.transport.waiting import peers


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
    most = _least_bound([span.stop - span.start for span in spans], servers)
    parts: list[list[Span]] = []
    for index, span in enumerate(spans):
        left = len(spans) - index
        full = not parts or span.stop - parts[-1][0].start > most
        if full or left == servers - len(parts):  # one is left for each of the other servers
            parts.append([])
        parts[-1].append(span)
    return parts


def _least_bound(counts: Sequence[int], parts: int) -> int:
    """The smallest size that no part has to exceed."""
    low, high = max(counts), sum(counts)
    while low < high:
        middle = (low + high) // 2
        if _parts_under(counts, middle) <= parts:
            high = middle
        else:
            low = middle + 1
    return low


def _parts_under(counts: Sequence[int], most: int) -> int:
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
    return f"{len(sizes)} servers have {format_bytes(min(sizes))} to {format_bytes(max(sizes))} of weights each"
