"""The choice of the rank that reports an error: several ranks see it, and the lowest that can reports it and ends all.

Rank 0 alone cannot report for all: it may be the dead or the stuck one.
"""

import time
from collections.abc import Callable, Sequence

from ringtrain.monitor.flight_recorder import EVERYTHING, FlightRecorder

SEEN_S = 0.05  # by then all ranks of the node see a store
LOOK_S = SEEN_S / 5  # between two looks at the recorder
TURN_S, TURNS = 1.0, 3
SILENCE_TURNS = 10  # a rank that has seen another one's report waits so many turns


class ReporterElection:
    """turn_s:  how long a rank waits for each lower rank that could report the same error
    reach_s: by then all ranks see a change of the recorder
    clock:   seconds, for turns

    ``taken``: whether this rank reports an error, or waits to.
    """

    def __init__(
        self, recorder: FlightRecorder, turn_s: float, reach_s: float, clock: Callable[[], float] = time.monotonic
    ):
        self._recorder, self._turn_s, self._reach_s, self._clock = recorder, turn_s, reach_s, clock
        self.taken = False

    def take(self, able: Sequence[int], number: int = EVERYTHING, itself: bool = False) -> None:
        """Return when it is this rank's turn. A rank that waits for another one's report and is not ended gets its turn
        later.

        able:   the ranks that can report the error
        number: of the collective that the error is about
        itself: whether the rank that delays all can report it, too: it has the first turn

        At the end there is time for the rank that the others wait for to show its stacks.
        """
        self.taken, heard = True, False
        before = min(sum(rank < self._recorder.world_rank for rank in able) + itself, TURNS)
        until = self._clock() + before * self._turn_s
        while self._clock() < until or (not heard and self._recorder.reported_number()):
            if not heard and self._recorder.reported_number():
                heard, until = True, self._clock() + SILENCE_TURNS * self._turn_s
            time.sleep(LOOK_S)
        self._recorder.report(number)
        time.sleep(min(self._reach_s, self._turn_s))
