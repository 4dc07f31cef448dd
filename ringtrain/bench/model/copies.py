"""Calibration of device memory, in the same run as the measurements that it judges: copies within a device, and from a
neighbour's. All ranks copy at once, since they may share a device, or a link.

The time is a device's own, between two events around several copies; the slowest rank's counts.
"""

import statistics
from dataclasses import dataclass

from ringtrain.bench.measure.buffers import DeviceBuffers

COPY_BYTES = 64 << 20  # more than a device's cache
COPIES, REPEATS = 4, 7


@dataclass(frozen=True, slots=True)
class Copies:
    """Rates of copies.

    own_bytes_per_s:  of copies within each rank's memory: so many bytes are read in a second, and as many written
    peer_bytes_per_s: of copies from a neighbour's memory; None if devices do not map it
    """

    own_bytes_per_s: float
    peer_bytes_per_s: float | None


def measure_copies(buffers: DeviceBuffers) -> Copies:
    """Return the rates. Collective; the same on all ranks."""
    transport = buffers.transport
    source, target = buffers.allocate(COPY_BYTES), buffers.allocate(COPY_BYTES)
    views = transport.peer_views(source)
    inside = _rate(buffers, source, target)
    mapped = all(transport.gather_json(views is not None and len(views) > 1))
    if views is None or not mapped:
        return Copies(inside, None)
    local_rank = transport.neighbours.index(transport.rank)
    return Copies(inside, _rate(buffers, views[(local_rank + 1) % len(views)], target))


def _rate(buffers: DeviceBuffers, source, target) -> float:
    times = [_copied_s(buffers, source, target) for _ in range(1 + REPEATS)][1:]
    slowest = [max(each) for each in zip(*buffers.transport.gather_json(times), strict=True)]
    return source.size / statistics.median(slowest)


def _copied_s(buffers: DeviceBuffers, source, target) -> float:
    """Return the seconds a copy."""
    stream = buffers.stream
    buffers.transport.barrier()
    began = stream.record(timed=True)
    for _ in range(COPIES):
        buffers.runtime.copy(source, target, stream)
    ended = stream.record(timed=True)
    ended.wait()
    return ended.seconds_since(began) / COPIES


def mapped_bound_s(copies: Copies, ranks: int, nbytes: int) -> float:
    """Return a lower bound for an all-reduce in memory that devices map, by the bytes that its kernels move.

    Each rank's memory is read once and written once: the owner of each of its p slices of n/p bytes does both. A copy
    of n bytes does the same. 2(p-1)/p · n pass the rank's link in either direction.
    """
    times = [nbytes / copies.own_bytes_per_s]
    if copies.peer_bytes_per_s is not None:
        times.append(2 * (ranks - 1) / ranks * nbytes / copies.peer_bytes_per_s)
    return max(times) if ranks > 1 else 0.0
