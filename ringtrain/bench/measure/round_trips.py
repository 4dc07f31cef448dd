"""Moves between ranks for the calibration, each a function that plays one round and returns when this rank is done.
Preparing one is not collective; playing it is, for its ranks.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable

from ringtrain.bench.measure.buffers import Buffers
from ringtrain.bench.measure.timing import timed
from ringtrain.transport.base import Handle, Transport

DEADLINE_S = 120.0
WARM_UP = 2
WINDOW = 4  # messages of a stream under way at once, so that the link never waits for the next one
STREAM_S = 0.05  # least duration of a stream, so that its start is a small fraction of it
STREAM_REPEATS = 5
MOST_MESSAGES = 1 << 14
BESIDE_REPEATS = 3
ALONE_PIECES = 50


def message_buffers(buffers: Buffers, nbytes: int) -> tuple:
    """Return two buffers of bytes, to send from and to receive into, whose pages have been touched."""
    pair = buffers.allocate(nbytes), buffers.allocate(nbytes)
    for span in pair:
        buffers.clear(span)
    return pair


def ping_pong(transport: Transport, first: int, second: int, out, into, tag: int) -> Callable[[], None]:
    """Return a round in which ``first`` sends to ``second``, which sends back; the others do nothing."""
    if transport.rank not in (first, second):
        return lambda: None
    peer = second if transport.rank == first else first
    send, recv = transport.sends([(peer, out)], tag), transport.recvs([(peer, into)], tag)
    handles = (send, recv) if transport.rank == first else (recv, send)

    def play() -> None:
        for handle in handles:
            handle.start()
            handle.wait(DEADLINE_S)

    return play


def shift(transport: Transport, to: int | None, source: int | None, out, into, tag: int) -> Callable[[], None]:
    """Return a round that sends to one rank while receiving from one; None for ranks without such a peer."""
    handles = [] if source is None else [transport.recvs([(source, into)], tag)]
    handles += [] if to is None else [transport.sends([(to, out)], tag)]

    def play() -> None:
        for handle in handles:
            handle.start()
        for handle in handles:
            handle.wait(DEADLINE_S)

    return play


def stream(transport: Transport, to: int | None, source: int | None, out, into, tag: int) -> Callable[[int], None]:
    """Return a function of a number of messages, which sends that many to one rank while receiving as many from one, a
    few of them in flight at any time. None for ranks without such a peer.
    """
    ends = _stream_ends(transport, to, source, out, into, tag)

    def play(count: int) -> None:
        flying: list[deque[Handle]] = [deque() for _ in ends]
        for number in range(count + WINDOW):
            for handles, queue in zip(ends, flying, strict=True):
                if number >= WINDOW:
                    queue.popleft().wait(DEADLINE_S)
                if number < count:
                    handles[number % WINDOW].start()
                    queue.append(handles[number % WINDOW])

    return play


def _stream_ends(transport: Transport, to: int | None, source: int | None, out, into, tag: int) -> list[list[Handle]]:
    """Return the messages of a stream that are received, and those that are sent; none of either without a peer."""
    ends = [] if source is None else [[transport.recvs([(source, into)], tag) for _ in range(WINDOW)]]
    return ends + ([] if to is None else [[transport.sends([(to, out)], tag) for _ in range(WINDOW)]])


def beside_computing_s(
    transport: Transport, to: int | None, source: int | None, out, into, tag: int, count: int, work: Callable[[], None]
) -> tuple[float, float]:
    """Return what a message sent and one received, of ``count``, take beside computing, by the mean of ranks: the
    seconds by which pieces of ``work`` take longer, and all the seconds that they travel. Collective. Messages are
    looked at between two pieces. None for ranks without such a peer.
    """
    ends = _stream_ends(transport, to, source, out, into, tag)
    alone, taken = repeated(work, ALONE_PIECES), []
    for _ in range(BESIDE_REPEATS):
        before_s = timed(transport, alone)
        transport.barrier()
        pieces, beside_s = _beside(ends, count, work)
        alone_s = (before_s + timed(transport, alone)) / 2 / ALONE_PIECES
        taken.append(((beside_s - pieces * alone_s) / count, beside_s / count))
    medians = [statistics.median(each) for each in zip(*taken, strict=True)] if ends else None
    every = [each for each in transport.gather_json(medians) if each is not None]
    core_s, beside_s = map(statistics.mean, zip(*every, strict=True))
    return max(core_s, 0.0), beside_s


def _beside(ends: list[list[Handle]], count: int, work: Callable[[], None]) -> tuple[int, float]:
    """Send and receive ``count`` messages while working. Returns (pieces of work, seconds)."""
    flying: list[deque[Handle]] = [deque() for _ in ends]
    started, pieces, began = [0] * len(ends), 0, time.perf_counter()
    while True:
        for direction, (handles, queue) in enumerate(zip(ends, flying, strict=True)):
            while queue and queue[0].test():
                queue.popleft()
            while started[direction] < count and len(queue) < WINDOW:
                queue.append(handles[started[direction] % WINDOW])
                queue[-1].start()
                started[direction] += 1
        if not any(flying):
            return pieces, time.perf_counter() - began
        if time.perf_counter() - began > DEADLINE_S:
            next(queue[0] for queue in flying if queue).wait(0)  # names the peer
        work()
        pieces += 1


def repeated(action: Callable[[], None], times: int) -> Callable[[], None]:
    """Run ``action`` several times."""

    def play() -> None:
        for _ in range(times):
            action()

    return play


def slowest_s(transport: Transport, action: Callable[[], None], repeats: int) -> float:
    """Return the median over ``repeats`` of the slowest rank's time; collective."""
    times = [timed(transport, action) for _ in range(WARM_UP + repeats)][WARM_UP:]
    return statistics.median(_slowest(transport, times))


def sustained_s(transport: Transport, play: Callable[[int], None]) -> float:
    """Return the seconds a message of a long stream, on the slowest rank; collective.

    It is the difference between a stream of 2k messages and one of k, each at its fastest: both contain the bytes that
    a shaper passes before it slows down, a switch's buffers and the time to begin, so the difference does not. But it
    is never less than a message's time in the longer stream: a disturbance of the shorter one makes no link faster.
    """
    count = WINDOW
    while count < MOST_MESSAGES and min(_slowest(transport, [_timed_stream(transport, play, count)])) < STREAM_S:
        count *= 2
    short, long = [], []
    for _ in range(STREAM_REPEATS):
        short.append(_timed_stream(transport, play, count))
        long.append(_timed_stream(transport, play, 2 * count))
    short_s, long_s = (min(_slowest(transport, times)) for times in (short, long))
    return max(long_s - short_s, long_s / 2) / count


def _timed_stream(transport: Transport, play: Callable[[int], None], count: int) -> float:
    return timed(transport, lambda: play(count))


def _slowest(transport: Transport, times_of_rank: list[float]) -> list[float]:
    """Return the slowest rank's times."""
    return [max(times) for times in zip(*transport.gather_json(times_of_rank), strict=True)]
