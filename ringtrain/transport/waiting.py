"""The one way to wait for bytes: keep asking, more and more politely, and not for ever.

Asking is what makes an MPI progress, so a wait never sleeps long. It spins for the first 50 µs, since most
waits are shorter; then gives the core to whoever wants it, since with more ranks than cores the awaited peer
does; and after 10 ms it sleeps between questions, since a peer that is that late is computing, perhaps on
this very core.
"""

import os
import time
from collections.abc import Callable

from ringtrain.errors import StalledError

SPIN_S = 50e-6
YIELD_S = 10e-3
SLEEP_S = 50e-6


def _steady() -> int:
    return 0


def _nothing() -> None:
    pass


def wait_for(
    test: Callable[[], bool],
    deadline_s: float,
    awaited: Callable[[], str],
    progress: Callable[[], int] = _steady,
    spin_s: float = SPIN_S,
    poll: Callable[[], None] = _nothing,
) -> None:
    """Return when ``test()`` is true. Raises StalledError when ``deadline_s`` seconds pass without a change
    of ``progress()``, a number that grows as parts of the whole are done; ``awaited()`` says for whom and
    what. ``poll()`` is for tests that do not make the MPI progress themselves: it is called between them once the
    first ``spin_s`` seconds are over."""
    if test():
        return
    seen, since = progress(), time.perf_counter()
    while not test():
        now = time.perf_counter()
        if progress() != seen:
            seen, since = progress(), now
        elif now - since > deadline_s:
            raise StalledError(f"no progress for {deadline_s:g} s, waiting for {awaited()}")
        if now - since > spin_s:
            poll()
            _pause(now - since)


def _pause(idle_s: float) -> None:
    if idle_s > YIELD_S:
        time.sleep(SLEEP_S)
    else:
        time.sleep(0)  # lets another thread of this process have the interpreter
        os.sched_yield()


def peers(ranks) -> str:
    """``rank 3``, or ``ranks 0, 2``: how peers are named in messages."""
    ranks = sorted(set(ranks))
    named = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}"
