"""The guard of collectives. It numbers every collective and writes it to the flight recorder, which all ranks read. So
an error names the ranks that make another call, and the ranks that do not join.

A collective costs two stores and one comparison. A rank stores the *word* of the collective, its number and fingerprint
in 64 bits, at the start and at the end, and then compares it with the word of the next rank of the node. A rank
compares with all ranks when it has waited for a millisecond and when the transport has failed. A thread compares from
time to time: it detects a rank that is stuck in the MPI, and differences between nodes.
"""

import sys
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

from ringtrain.collectives.execution.reduction import NATIVE, Reduction
from ringtrain.errors import MismatchError, RankLostError, RingtrainError, StalledError, TransportError
from ringtrain.monitor import diagnosis, stack_dump
from ringtrain.monitor.flight_recorder import EVERYTHING, LOW, SHIFT, FlightRecorder, RankRecord
from ringtrain.monitor.watchdog import Watchdog
from ringtrain.template import Lines, joined
from ringtrain.transport.activity import DEADLINE_S
from ringtrain.transport.base import Handle, Transport

FIRST_LOOK_S = 1e-3  # a rank that has waited for so long compares with all ranks
LONGEST_LOOK_S = 0.25
SEEN_S = 0.05  # by then all ranks of the node see a store
LOOK_S = SEEN_S / 5  # between two looks at the recorder
WRITTEN_S, CARRIED_S = 0.6, 2.0  # after these times all ranks of this node, and of all nodes, see a store
STUCK_LOOKS = 3  # looks for which the thread leaves an error to the main thread
TURN_S, TURNS = 1.0, 3
SILENCE_TURNS = 10  # a rank that has seen another one's report waits so many turns


class Guard:
    """Checks the collectives of all ranks, which watch the same ones in one order. Creating a guard is collective.

    deadline_s: how long a rank may be in a collective while no rank makes progress; then all end with exit code 4
    turn_s:     how long a rank waits for each lower rank that could report the same error
    end:        end(error) ends the run from a thread; the default writes the error and aborts all ranks
    clock:      seconds, for deadlines and turns

    ``reports``: whether this rank reports an error, or waits to.
    """

    def __init__(
        self,
        transport: Transport,
        deadline_s: float = DEADLINE_S,
        turn_s: float = TURN_S,
        end: Callable[[RingtrainError], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.recorder, self._activity = FlightRecorder(transport), transport.activity
        self.deadline_s = deadline_s
        self.waiting = False  # the main thread waits here, and reports what it sees
        self._end, self._clock, self._transport = end or self._end_all, clock, transport
        self._reach_s = 0.0 if transport.size == 1 else CARRIED_S if transport.nodes > 1 else WRITTEN_S
        self._turn_s, self.reports = turn_s, False
        self._watched: list[weakref.ref[GuardedReduction]] = []  # for their progress
        self._awaited = ""  # the peers that the main thread waits for, in the transport's words
        self._suspected = 0, 0  # a collective whose calls differ, and the number of looks that saw it
        self.watchdog = Watchdog(self.recorder, deadline_s, self._look, clock)
        self.watchdog.start()
        for ending in (transport.before_closing, transport.before_leaving):  # however the run ends
            ending.append(self.close)
        self._before = self._activity.collective, self._activity.everyone
        self._activity.collective, self._activity.everyone = self._open_collectives, self._rank_states

    def read(self) -> list[RankRecord]:
        return self.recorder.read(self._silent_s)

    # ── watched calls ────────────────────────────────────────────────────────────────────────────────────
    def watch(
        self, reduction: Reduction, op: str, dtype, count: int, what: str = "all-reduce", content: str = ""
    ) -> Reduction:
        """Return the reduction under the guard. ``count``: its elements; ``what``: its name in messages; ``content``:
        its data, such as the names of spans."""
        text = f"{what} of {count:,} {dtype} by {reduction.algorithm} ({op})"
        fingerprint = self.recorder.describe(f"{text}, {content}" if content else text)
        watched = GuardedReduction(self, reduction, fingerprint, enters=reduction.transport == NATIVE)
        self._watched.append(weakref.ref(watched))
        watched.algorithm, watched.transport, watched.why = reduction.algorithm, reduction.transport, reduction.why
        watched.bytes_sent, watched.blocks = reduction.bytes_sent, reduction.blocks
        return watched

    def run(self, text: str, action: Callable):
        """Run ``action()``, a collective that blocks, and return its value. ``text``: of the call, as on all ranks"""
        word = self._enter(text)
        try:
            value = action()
        except TransportError as error:
            raise self.mismatch_or(word, error) from error
        self.recorder.end(word)
        self.check_all()
        return value

    def started(self, text: str, start: Callable[[], Handle]) -> Handle:
        """Run ``start()``, which starts a collective, and return its handle under the guard."""
        word = self._enter(text)
        try:
            return GuardedReduction(self, start(), word & LOW, word)
        except TransportError as error:
            raise self.mismatch_or(word, error) from error

    def iterate(self, iteration: int) -> None:
        """Set the iteration of training, from 1, for messages."""
        self.recorder.iterate(iteration)
        self._activity.iteration = iteration

    def close(self) -> None:
        """End the guard: this rank begins no more collectives. Not collective; a second call does nothing."""
        self.watchdog.end()
        self.recorder.leave()
        self._activity.collective, self._activity.everyone = self._before

    # ── one collective ────────────────────────────────────────────────────────────────────────────────────
    def _enter(self, text: str) -> int:
        """Begin a collective of the MPI and return its word. Raises MismatchError if another rank has begun another
        call: some of these calls damage memory if sizes differ."""
        word = self.recorder.begin(self.recorder.describe(text))
        if self.recorder.next_rank_differs(word):
            self.check(word)
        return word

    def check(self, word: int) -> None:
        """Raises MismatchError if another rank makes another call under the same number."""
        if self.recorder.differs(word):
            time.sleep(SEEN_S)  # until the stores of both ranks are seen
            if self.recorder.differs(word):
                raise self._mismatch(word >> SHIFT)

    def check_all(self) -> None:
        """Raises MismatchError if another rank made another call in any of the last collectives."""
        number = self.recorder.first_difference()
        if number:
            time.sleep(SEEN_S)
            if number == self.recorder.first_difference():
                raise self._mismatch(number)

    def mismatch_or(self, word: int, error: TransportError) -> TransportError:
        """Return a mismatch if ranks made different calls, which makes a transport fail; else the error."""
        if isinstance(error, RankLostError):
            return error
        # count looks, not seconds: the loop ends even if the clock of a test stands still
        for _ in range(1 + int(self._reach_s / LOOK_S)):
            if self.recorder.differs(word):
                return self._mismatch(word >> SHIFT)
            time.sleep(LOOK_S)
        return error

    def wait(self, handle: Handle, word: int, deadline_s: float) -> None:
        """Wait and look at the recorder meanwhile, less and less often. Raises MismatchError, and StalledError with the
        state of all ranks."""
        look_s, deadline_s = 2 * FIRST_LOOK_S, min(deadline_s, self.deadline_s)
        self.waiting, since = True, self._clock()
        try:
            while not self._ends_within(handle, word, min(look_s, self.watchdog.every_s)):
                look_s = min(2 * look_s, LONGEST_LOOK_S)
                self.check(word)
                # of a group that was idle nothing has changed for longer than this wait lasts
                if min(self.watchdog.still_s(), self._clock() - since) > deadline_s:
                    raise self._stalled(deadline_s)
        finally:
            self.waiting = False

    def _ends_within(self, handle: Handle, word: int, seconds: float) -> bool:
        try:
            handle.wait(seconds)
        except StalledError as error:
            self._awaited = error.awaited
            return False
        except TransportError as error:
            raise self.mismatch_or(word, error) from error
        return True

    # ── errors and their reporter ─────────────────────────────────────────────────────────────────────────
    def _mismatch(self, number: int) -> MismatchError:
        rows = self._rows_with(number)
        self.await_turn_to_report([row.rank for row in rows if number in row.entries], number)
        return MismatchError(diagnosis.mismatch(rows, number) or f"collective {number} is not the same on all ranks")

    def _rows_with(self, number: int) -> list[RankRecord]:
        """Read the rows when all ranks have begun the collective, or have had time to do so: the call of most ranks is
        the expected one."""
        since = self._clock()
        while True:
            rows = self.read()
            if all(row.last >= number for row in rows) or self._clock() - since > self._reach_s:
                return rows
            time.sleep(LOOK_S)

    def _stalled(self, deadline_s: float) -> StalledError:
        rows = self.read()
        text = diagnosis.stall(rows, self.recorder.world_rank, self.recorder.gap)
        number = diagnosis.first_open(rows) or 0
        alive = [row for row in rows if row.silent_s is None]
        waiting = [row.rank for row in alive if number in row.entries and not row.entries[number].done]
        culprit = any(row.limited and row.last < number for row in alive)
        self.await_turn_to_report(waiting, number or EVERYTHING, culprit)
        awaited = f"; it waits for {self._awaited}" if self.recorder.gap and self._awaited else ""
        return _whole(f"no progress for {deadline_s:g} s in {text}{awaited}")

    def with_rank_states(self, error: StalledError) -> StalledError:
        """Add the state of all ranks to the error of a rank that waited outside of collectives."""
        if error.whole:
            return error
        first = Lines(f"{error}{diagnosis.held_up(self.read())}")
        self.await_turn_to_report([])
        return _whole(joined([first, *self._rank_states()]))

    def _silent_s(self, place: int) -> float | None:
        """Return the seconds since the last sign of life of the rank of this row; None if they are few."""
        quiet_s = self.watchdog.quiet_s(place)
        return quiet_s if quiet_s > max(self.deadline_s / 2, 2 * self.watchdog.every_s) else None

    def await_turn_to_report(self, able: Sequence[int], number: int = EVERYTHING, itself: bool = False) -> None:
        """Return when it is this rank's turn to report an error. Several ranks see it; the lowest that can report it
        does, and ends all: rank 0 may be the dead or the stuck one. A rank that waits for another one's report and is
        not ended gets its turn later.

        able:   the ranks that can report the error
        number: of the collective that the error is about
        itself: whether the rank that delays all can report it, too: it has the first turn

        At the end there is time for the rank that the others wait for to show its stacks.
        """
        self.reports, heard = True, False
        before = min(sum(rank < self.recorder.world_rank for rank in able) + itself, TURNS)
        until = self._clock() + before * self._turn_s
        while self._clock() < until or (not heard and self.recorder.reported_number()):
            if not heard and self.recorder.reported_number():
                heard, until = True, self._clock() + SILENCE_TURNS * self._turn_s
            time.sleep(LOOK_S)
        self.recorder.report(number)
        time.sleep(min(self._reach_s, self._turn_s))

    # ── the thread ────────────────────────────────────────────────────────────────────────────────────────
    def _look(self) -> bool:
        """Write this rank's sign of life, progress and stage, and end the run if the main thread cannot. The watchdog
        calls it regularly. Returns whether it ended the run."""
        self.recorder.beat()
        self._write_moves()
        self.write_stage()
        if not self.reports and not self._activity.shown and self._is_awaited(self.recorder.reported_number()):
            self._activity.shown = True
            stack_dump.write_stacks(self._activity, self.recorder.world_rank)
        waiting = self.waiting  # read before `reports`: a main thread that reports sets that first, then waits no more
        error = None if self.reports else self._error(self.recorder.inside(), waiting)
        if error is not None:
            self._activity.before_end(error)
            self._end(error)
        return error is not None

    def _end_all(self, error: RingtrainError) -> None:
        sys.stderr.write(f"ringtrain: rank {self.recorder.world_rank}: {error}\n")
        with suppress(SystemExit):  # ends a world of threads; nothing catches it in this one
            self._transport.abort(error.exit_code)

    def write_stage(self) -> None:
        activity, stage = self._activity, self._activity.stage
        self.recorder.do(activity.words(), time.monotonic() - stage.since, stage.limited, activity.touches)
        if activity.iteration:
            self.recorder.iterate(activity.iteration)

    def _is_awaited(self, reported: int) -> bool:
        """Whether another rank reports a stall and this rank causes it: it has not joined the collective, or its
        iteration is behind."""
        if reported != EVERYTHING:
            return self.recorder.last < reported
        return self.recorder.world_rank in diagnosis.behind(self.read())

    def _rank_states(self) -> list[str]:
        return diagnosis.rank_states(self.read(), self.recorder.world_rank, self.recorder.gap)

    def _open_collectives(self) -> str:
        entries = [entry for entry in self.recorder.read()[self.recorder.rank].entries.values() if not entry.done]
        return "; ".join(f"in collective {entry.number}, {entry.text}" for entry in entries[:2])

    def _write_moves(self) -> None:
        for reference in self._watched[:]:
            watched = reference()
            if watched is None:
                self._watched.remove(reference)
            elif watched.word:
                self.recorder.move(watched.word, watched.moved)

    def _error(self, inside: list[int], waiting: bool) -> RingtrainError | None:
        number = self.recorder.first_difference()
        before, looks = self._suspected
        looks = looks + 1 if number and number == before else 0
        self._suspected = number, looks
        if looks >= STUCK_LOOKS:
            return self._mismatch(number)
        patience_s = self.deadline_s + (STUCK_LOOKS * LONGEST_LOOK_S if waiting else 0.0)
        if inside and self.watchdog.still_s() > patience_s:
            return self._stalled(self.deadline_s)
        return None


class GuardedReduction(Reduction):
    """A handle under a guard: its start and its end are written to the flight recorder.

    fingerprint: of the call
    word:        of the collective that is under way; 0 if none is
    enters:      whether its start calls a collective of the MPI
    """

    def __init__(self, guard: Guard, handle: Handle, fingerprint: int, word: int = 0, enters: bool = False):
        self._guard, self._recorder, self._handle, self._fingerprint = guard, guard.recorder, handle, fingerprint
        self.word, self._enters = word, enters
        self._started = bool(word)

    def announce(self) -> None:
        """Take its number now, in the one order of all collectives."""
        self.word = self._recorder.begin(self._fingerprint)
        self._started = False

    def start(self) -> None:
        word, self._started = self.word, True
        if not word:
            word = self.word = self._recorder.begin(self._fingerprint)
        if self._enters and self._recorder.next_rank_differs(word):
            self._guard.check(word)
        try:
            self._handle.start()
        except TransportError as error:
            raise self._guard.mismatch_or(word, error) from error

    def test(self) -> bool:
        word = self.word
        if not word:
            return True
        try:
            if not self._handle.test():
                return False
        except TransportError as error:
            raise self._guard.mismatch_or(word, error) from error
        self._end(word)
        return True

    def wait(self, deadline_s: float) -> None:
        word = self.word
        if not word:
            return
        try:
            self._handle.wait(FIRST_LOOK_S)
        except StalledError:
            self._guard.wait(self._handle, word, deadline_s)
        except TransportError as error:
            raise self._guard.mismatch_or(word, error) from error
        self._end(word)

    def _end(self, word: int) -> None:
        self.word = 0
        if not self._recorder.end(word):
            self._guard.check(word)

    def free(self) -> None:
        self._handle.free()

    @property
    def moved(self) -> int:
        return getattr(self._handle, "moved", 0) if self._started else 0


def _whole(text: str) -> StalledError:
    """Return an error that has the state of all ranks already."""
    error = StalledError(Lines(text))
    error.whole = True
    return error
