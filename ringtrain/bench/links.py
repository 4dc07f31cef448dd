"""Moves between ranks that calibration is made of, each a function that plays one round and returns when this rank is
done. Preparing one is not collective; playing it is, for those who take part."""

import statistics
from collections.abc import Callable

import numpy as np

from ringtrain.bench.timing import timed
from ringtrain.transport.base import Transport

DEADLINE_S = 120.0
WARM_UP = 2


def room(transport: Transport, nbytes: int) -> tuple:
    """Two buffers of bytes, to send from and to receive into, whose pages are there."""
    pair = transport.allocate(nbytes, np.uint8), transport.allocate(nbytes, np.uint8)
    for span in pair:
        span[...] = 0
    return pair


def nothing() -> None:
    """What a rank plays that has no part."""


def ping_pong(transport: Transport, first: int, second: int, out, into, tag: int) -> Callable[[], None]:
    """``first`` sends to ``second``, who sends back; the others have nothing to do."""
    if transport.rank not in (first, second):
        return nothing
    peer = second if transport.rank == first else first
    send, recv = transport.sends([(peer, out)], tag), transport.recvs([(peer, into)], tag)
    handles = (send, recv) if transport.rank == first else (recv, send)

    def play() -> None:
        for handle in handles:
            handle.start()
            handle.wait(DEADLINE_S)

    return play


def exchange(transport: Transport, to: int | None, source: int | None, out, into, tag: int) -> Callable[[], None]:
    """Send to one rank while receiving from one; None for ranks that have no such peer."""
    handles = [] if source is None else [transport.recvs([(source, into)], tag)]
    handles += [] if to is None else [transport.sends([(to, out)], tag)]

    def play() -> None:
        for handle in handles:
            handle.start()
        for handle in handles:
            handle.wait(DEADLINE_S)

    return play


def repeated(action: Callable[[], None], times: int) -> Callable[[], None]:
    def play() -> None:
        for _ in range(times):
            action()

    return play


def slowest_s(transport: Transport, action: Callable[[], None], repeats: int) -> float:
    """The median over ``repeats`` of the slowest rank's time; collective."""
    own = [timed(transport, action) for _ in range(WARM_UP + repeats)][WARM_UP:]
    return statistics.median(max(times) for times in zip(*transport.gather_json(own), strict=True))
