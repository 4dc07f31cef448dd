"""The one way to wait for bytes: test again and again, less and less often, and not for ever.

An MPI makes progress in its test calls, so a wait never sleeps for long. It spins first, since most waits are short. It
then yields the core: with more ranks than cores the awaited peer may need it. After 1 ms it sleeps between tests: such
a late peer is computing, perhaps on this core.
"""

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ringtrain.errors import StalledError

SPIN_S = 50e-6
POLL_S = 500e-6
YIELD_S = 1e-3
SLEEP_S = 50e-6


@dataclass(frozen=True, slots=True)
class Patience:
    """How to wait on the machine of a transport's ranks."""

    # how long to test without a pause; 0 if ranks share cores: the awaited rank may need this one
    spin_s: float = SPIN_S
    # yields the core for the shortest time. A sleep of 0 s takes 50 µs on Linux; only threads that wait for one
    # another in one interpreter need it
    pause: Callable[[], None] = os.sched_yield
    # lets the MPI make progress and raise its errors when the test does not call it; runs every 0.5 ms
    poll: Callable[[], None] = lambda: None


ALONE = Patience()
SERVICES: list[Callable[[], None]] = []  # of the main thread for other ranks: they run while it waits for anything


def wait_for(
    test: Callable[[], bool],
    deadline_s: float,
    awaited: Callable[[], str],
    progress: Callable[[], int] = lambda: 0,
    patience: Patience = ALONE,
    sleeps: bool = False,
) -> None:
    """Return when ``test()`` is true. Raises StalledError when ``deadline_s`` seconds pass without a change of
    ``progress()``, the number of parts that are done; ``awaited()`` names the awaited peers and messages. ``sleeps``:
    whether the test itself sleeps until what it waits for comes."""
    if test():
        return
    seen = progress()
    since = polled = time.perf_counter()
    while not test():
        now = time.perf_counter()
        if progress() != seen:
            seen, since = progress(), now
        elif now - since > deadline_s:
            error = StalledError(f"no progress for {deadline_s:g} s, waiting for {awaited()}")
            error.awaited = awaited()
            raise error
        if now - polled > POLL_S:
            polled = now
            patience.poll()
            _serve()
        if sleeps:
            continue
        if now - since > YIELD_S:
            time.sleep(SLEEP_S)
        elif now - since > patience.spin_s:
            patience.pause()


def wait_for_thread(done: threading.Event, timeout_s: float | None) -> bool:
    """Return whether another thread sets the event before the timeout."""
    end = math.inf if timeout_s is None else time.perf_counter() + timeout_s
    while SERVICES and not done.wait(POLL_S) and time.perf_counter() < end:
        _serve()
    return done.wait(None if timeout_s is None else max(0.0, end - time.perf_counter()))


def _serve() -> None:
    for serve in SERVICES if threading.current_thread() is threading.main_thread() else ():
        serve()


def peers(ranks) -> str:
    """The name of peers in messages: ``rank 3``, or ``ranks 0, 2``."""
    ranks = sorted(set(ranks))
    named = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}"


def placed(ranks, hosts) -> str:
    """Peers with the names of their hosts, if these are known: ``rank 3 (node7)``. ``hosts``: by rank."""
    named = list(dict.fromkeys(hosts[rank] for rank in sorted(set(ranks)) if hosts[rank]))
    more = f" and {len(named) - 8} more" if len(named) > 8 else ""
    return f"{peers(ranks)} ({', '.join(named[:8])}{more})" if named else peers(ranks)
