"""The one way to wait for bytes: keep asking, more and more politely, and not for ever.

Asking is what makes an MPI progress, so a wait never sleeps long. It spins first, since most waits are short; then
gives the core to whoever wants it, since with more ranks than cores the awaited peer does; and after 1 ms it sleeps
between questions, since a peer that is that late is computing, perhaps on this very core.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from ringtrain.errors import StalledError
from ringtrain.transport import texts

SPIN_S = 50e-6
POLL_S = 500e-6
YIELD_S = 1e-3
SLEEP_S = 50e-6


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Patience:
    """How to wait where a transport's ranks run.

    spin_s: how long to keep asking at once; 0 where ranks share cores, and the awaited one may need this very core
    pause:  gives the core away, for as short as can be. Sleeping for no time at all takes Linux 50 µs: only threads
            that wait for one another in one interpreter need it
    poll:   lets the MPI get on, and say what it has to say, while the test looks elsewhere; called every 0.5 ms
    """

    spin_s: float = SPIN_S
    pause: Callable[[], None] = os.sched_yield
    poll: Callable[[], None] = _nothing


ALONE = Patience()


def _steady() -> int:
    return 0


def wait_for(
    test: Callable[[], bool],
    deadline_s: float,
    awaited: Callable[[], str],
    progress: Callable[[], int] = _steady,
    patience: Patience = ALONE,
) -> None:
    """Return when ``test()`` is true. Raises StalledError when ``deadline_s`` seconds pass without a change
    of ``progress()``, a number that grows as parts of the whole are done; ``awaited()`` says for whom and
    what."""
    if test():
        return
    seen = progress()
    since = polled = time.perf_counter()
    while not test():
        now = time.perf_counter()
        if progress() != seen:
            seen, since = progress(), now
        elif now - since > deadline_s:
            error = StalledError(texts.NO_PROGRESS(seconds=deadline_s, awaited=awaited()))
            error.awaited = awaited()
            raise error
        if now - polled > POLL_S:
            polled = now
            patience.poll()
        if now - since > YIELD_S:
            time.sleep(SLEEP_S)
        elif now - since > patience.spin_s:
            patience.pause()


def peers(ranks) -> str:
    """``rank 3``, or ``ranks 0, 2``: how peers are named in messages."""
    ranks = sorted(set(ranks))
    named = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}"


def placed(ranks, hosts) -> str:
    """``rank 3 (node7)``: the same with the names of their hosts, where these are known; ``hosts`` by rank."""
    named = list(dict.fromkeys(hosts[rank] for rank in sorted(set(ranks)) if hosts[rank]))
    more = f" and {len(named) - 8} more" if len(named) > 8 else ""
    return f"{peers(ranks)} ({', '.join(named[:8])}{more})" if named else peers(ranks)
