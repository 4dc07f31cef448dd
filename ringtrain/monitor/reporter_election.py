"""Who tells an error that several ranks see: the lowest of them that can, and its end is that of the others."""

import time
from collections.abc import Callable, Sequence

from ringtrain.monitor.flight_recorder import EVERYTHING, FlightRecorder

SEEN_S = 0.05  # by when a store is surely seen on this node
LOOK_S = SEEN_S / 5  # between two looks of one who waits for the board to change
TURN_S, TURNS = 1.0, 3
SILENCE_TURNS = 10  # for so long a rank keeps quiet after another has begun to tell


class ReporterElection:
    """turn_s:  how long a rank waits for each lower one that could tell the same error
    reach_s: by when all ranks have seen what was written on the board
    clock:   seconds, by which turns pass

    ``taken``: whether this rank tells one, or waits to.
    """

    def __init__(
        self, board: FlightRecorder, turn_s: float, reach_s: float, clock: Callable[[], float] = time.monotonic
    ):
        self._board, self._turn_s, self._reach_s, self._clock = board, turn_s, reach_s, clock
        self.taken = False

    def take(self, able: Sequence[int], number: int = EVERYTHING, itself: bool = False) -> None:
        """Return when it is this rank's turn. One that has kept quiet, and is not ended, tells it too, later.

        able:   the ranks that can tell it
        number: of the collective that it is about
        itself: the rank that holds all up can, and has a turn before them

        Whoever is waited for has the time to show where it is, before it is ended.
        """
        self.taken, heard = True, False
        before = min(sum(rank < self._board.rank for rank in able) + itself, TURNS)
        until = self._clock() + before * self._turn_s
        while self._clock() < until or (not heard and self._board.told_number()):
            if not heard and self._board.told_number():
                heard, until = True, self._clock() + SILENCE_TURNS * self._turn_s
            time.sleep(LOOK_S)
        self._board.tell(number)
        time.sleep(min(self._reach_s, self._turn_s))
