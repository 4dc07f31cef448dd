"""The guard of collectives: every one is numbered and written on a board that all ranks see, so that a call that is not
the same on all ranks, and a rank that does not come, are told by name.

A collective costs two stores and one comparison: its word on this rank's row, and at its end that of the next rank of
the node. Whoever has waited for a millisecond compares with all ranks; so does whoever has had an error of the
transport, and a thread, now and then, for all the rest: a rank that is stuck within the MPI, ranks of other nodes.
"""

import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

from ringtrain.collectives.execution.reduction import NATIVE, Reduction
from ringtrain.errors import MismatchError, RankLostError, RingtrainError, StalledError, TransportError
from ringtrain.monitor import diagnosis, stack_dump
from ringtrain.monitor import texts as texts
from ringtrain.monitor.flight_recorder import EVERYTHING, SHIFT, CollectiveCall, FlightRecorder, RankRecord, make_call
from ringtrain.monitor.guarded_reduction import FIRST_LOOK_S, GuardedReduction
from ringtrain.monitor.reporter_election import LOOK_S, SEEN_S, TURN_S, ReporterElection
from ringtrain.monitor.watchdog import Watchdog
from ringtrain.transport.activity import DEADLINE_S
from ringtrain.transport.base import Handle, Transport

LONGEST_LOOK_S = 0.25
WRITTEN_S, CARRIED_S = 0.6, 2.0  # by when all ranks of this node, and those of others, have brought theirs to the board
STUCK_LOOKS = 3  # so often the thread sees what the main thread would tell, before it tells it itself


class Guard:
    """Collective to make. All ranks watch the same collectives, in the same order.

    deadline_s: how long a rank may be in a collective while no rank gets on, before all end with exit code 4
    turn_s:     how long a rank waits for each lower one that could tell the same error, so that one does
    end:        end(error): how a thread ends the run; by writing the error and aborting all ranks unless given
    clock:      seconds, by which deadlines and turns pass
    """

    def __init__(
        self,
        transport: Transport,
        deadline_s: float = DEADLINE_S,
        turn_s: float = TURN_S,
        end: Callable[[RingtrainError], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.board, self._activity = FlightRecorder(transport), transport.activity
        self.deadline_s = deadline_s
        self.waiting = False  # the main thread waits here, and will tell what it sees
        self._rank, self._end, self._clock = transport.rank, end or _ending(transport), clock
        self._reach_s = 0.0 if transport.size == 1 else CARRIED_S if transport.nodes > 1 else WRITTEN_S
        self._turns = ReporterElection(self.board, turn_s, self._reach_s, clock)
        self._watched: list[weakref.ref[GuardedReduction]] = []  # which know how far a collective has got
        self._shown = False  # whether this rank has shown where it is
        self._awaited = ""  # what the main thread waits for, as the transport says it
        self._calls: dict[str, CollectiveCall] = {}
        self._suspect, self._suspected = 0, 0  # number of a collective that differs, and in how many looks it did
        self.watchdog = Watchdog(self.board, deadline_s, self._look, clock)
        self.watchdog.start()
        for ending in (transport.before_closing, transport.before_leaving):  # whatever becomes of those who made it
            ending.append(self.close)
        self._before = self._activity.collective, self._activity.everyone
        self._activity.collective, self._activity.everyone = self._say_collective, self._say_everyone

    @property
    def gap(self) -> str:
        """Whose collectives this rank cannot see, and why; empty where it sees all."""
        return self.board.gap

    # ── what is watched ───────────────────────────────────────────────────────────────────────────────────
    def watch(
        self, reduction: Reduction, op: str, dtype, count: int, what: str = texts.ALL_REDUCE, of: str = ""
    ) -> Reduction:
        """The same, of ``count`` elements, under the guard. ``what`` people call it; ``of``: what it carries, such as
        the names of spans."""
        called = {"kind": what, "count": count, "dtype": dtype, "algorithm": reduction.algorithm, "op": op}
        text = texts.WATCHED_OF(**called, carried=of) if of else texts.WATCHED(**called)
        fingerprint = self.call(text).fingerprint
        native = reduction.transport == NATIVE
        watched = GuardedReduction(self, reduction, fingerprint, progress=lambda: reduction.moved, enters=native)
        self._watched.append(weakref.ref(watched))
        watched.algorithm, watched.transport, watched.why = reduction.algorithm, reduction.transport, reduction.why
        watched.bytes_sent, watched.blocks = reduction.bytes_sent, reduction.blocks
        return watched

    def call(self, text: str) -> CollectiveCall:
        """What :meth:`run` is given: all ranks that make the call have the same text."""
        call = self._calls.get(text)
        if call is None:
            call = self._calls[text] = make_call(text)
            self.board.describe(call)
        return call

    def run(self, call: CollectiveCall, action: Callable):
        """``action()``, a call that blocks until it is done; its value."""
        word = self._enter(call)
        try:
            value = action()
        except TransportError as error:
            raise self.explained(word, error) from error
        self.board.end(word)
        self.check_all()
        return value

    def started(self, call: CollectiveCall, start: Callable[[], Handle]) -> Handle:
        """``start()``, which gives the handle of what it has started, under the guard."""
        word = self._enter(call)
        try:
            return GuardedReduction(self, start(), call.fingerprint, word)
        except TransportError as error:
            raise self.explained(word, error) from error

    def iterate(self, iteration: int) -> None:
        """Training is at this iteration, from 1: the step that messages speak of."""
        self.board.iterate(iteration)
        self._activity.iteration = iteration

    def close(self) -> None:
        """This rank begins no more collectives. Not collective; may be called again."""
        self.watchdog.end()
        self.board.leave()
        self._activity.collective, self._activity.everyone = self._before

    # ── a collective ──────────────────────────────────────────────────────────────────────────────────────
    def _enter(self, call: CollectiveCall) -> int:
        """Begin a call into the MPI's own collectives, some of which damage memory where sizes differ: the word. Raises
        MismatchError where another rank does something else already."""
        word = self.board.begin(call.fingerprint)
        if self.board.contradicted(word):
            self.check(word)
        return word

    def check(self, word: int) -> None:
        """Raises MismatchError where another rank makes another call under the same number."""
        if self.board.differs(word):
            time.sleep(SEEN_S)  # two words that were not written together are now both there
            if self.board.differs(word):
                raise self._mismatch(word >> SHIFT)

    def check_all(self) -> None:
        """Raises MismatchError where another rank made another call in any of the last collectives."""
        number = self.board.differing()
        if number:
            time.sleep(SEEN_S)
            if number == self.board.differing():
                raise self._mismatch(number)

    def explained(self, word: int, error: TransportError) -> TransportError:
        """A mismatch, where that is why the transport failed; else the error itself."""
        if isinstance(error, RankLostError):
            return error
        # by looks, not by the clock: an error of the transport is told even where that stands still
        for _ in range(int(self._reach_s / LOOK_S)):
            if self.board.differs(word):
                break
            time.sleep(LOOK_S)
        return self._mismatch(word >> SHIFT) if self.board.differs(word) else error

    def wait(self, handle: Handle, word: int, deadline_s: float) -> None:
        """The long way to wait: look at the board, less and less often, until there is nothing to wait for. Raises
        MismatchError, and StalledError with what the board says."""
        look_s, deadline_s = 2 * FIRST_LOOK_S, min(deadline_s, self.deadline_s)
        self.waiting = True
        try:
            while not self._ends_within(handle, word, min(look_s, self.watchdog.every_s)):
                look_s = min(2 * look_s, LONGEST_LOOK_S)
                self.check(word)
                if self.watchdog.still_s() > deadline_s:
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
            raise self.explained(word, error) from error
        return True

    # ── what is told, and by whom ─────────────────────────────────────────────────────────────────────────
    def _mismatch(self, number: int) -> MismatchError:
        rows = self._joined(number)
        self._turns.take([row.rank for row in rows if number in row.entries], number)
        return MismatchError(diagnosis.mismatch(rows, number) or texts.UNKNOWN_MISMATCH(number=number))

    def _joined(self, number: int) -> list[RankRecord]:
        """The rows when all ranks have begun the collective, or have had the time to: what most do tells what is
        right."""
        since = self._clock()
        while True:
            rows = self.board.read()
            if all(row.last >= number for row in rows) or self._clock() - since > self._reach_s:
                return rows
            time.sleep(LOOK_S)

    def _stalled(self, deadline_s: float) -> StalledError:
        rows = self.board.read()
        told = diagnosis.stall(rows, self._rank, self._quiet, self.board.gap)
        number = diagnosis.first_open(rows, self._quiet)
        waiting = [row.rank for row in rows if number in row.entries and not row.entries[number].done]
        itself = any(row.limited for row in rows if row.last < (number or 0) and self._quiet(row.rank) is None)
        self._turns.take([rank for rank in waiting if self._quiet(rank) is None], number or EVERYTHING, itself)
        if self.board.gap and self._awaited:
            return _whole(texts.STALLED_AWAITING(seconds=deadline_s, collective=told, awaited=self._awaited))
        return _whole(texts.STALLED(seconds=deadline_s, collective=told))

    def located(self, error: StalledError) -> StalledError:
        """The error of a rank that has waited outside of collectives, with what all ranks do."""
        if error.whole:
            return error
        told = f"{error}{diagnosis.held_up(self.board.read(), self._quiet)}{self._say_everyone()}"
        self._turns.take([], EVERYTHING)
        return _whole(told)

    def _quiet(self, rank: int) -> float | None:
        """Seconds for which the rank has given no sign of life; None where it gives them."""
        quiet_s = self.watchdog.quiet_s(rank)
        return quiet_s if quiet_s > max(self.deadline_s / 2, 2 * self.watchdog.every_s) else None

    # ── the thread ────────────────────────────────────────────────────────────────────────────────────────
    def _look(self) -> bool:
        """After each look of the watchdog: beat, write how far collectives have got, and end the run where the main
        thread cannot. Whether that was done."""
        self.board.beat()
        self._write_moves()
        self._write_stage()
        if not self._turns.taken and not self._shown and self._is_awaited(self.board.told_number()):
            self._shown = True
            stack_dump.show(self._activity, self._rank)
        error = None if self._turns.taken else self._error(self.board.inside())
        if error is not None:
            self._activity.before_end(error)
            self._end(error)
        return error is not None

    def _write_stage(self) -> None:
        activity, stage = self._activity, self._activity.stage
        self.board.do(activity.words(), time.monotonic() - stage.since, stage.limited, activity.touches)
        if activity.iteration:
            self.board.iterate(activity.iteration)

    def _is_awaited(self, told: int) -> bool:
        """Whether another rank tells that all wait, and this one is why: it has not joined the collective, or is behind
        in the training."""
        if told != EVERYTHING:
            return self.board.last < told
        return self._rank in diagnosis.behind(self.board.read(), self._quiet)

    def _say_everyone(self) -> str:
        lines = diagnosis.whereabouts(self.board.read(), self._quiet, self.board.gap, self._rank)
        return "".join(f"\n{line}" for line in lines)

    def _say_collective(self) -> str:
        rows = self.board.read()
        entries = [entry for entry in rows[self._rank].entries.values() if not entry.done]
        return "; ".join(texts.IN_COLLECTIVE(number=entry.number, call=entry.text) for entry in entries[:2])

    def _write_moves(self) -> None:
        for reference in self._watched[:]:
            watched = reference()
            if watched is None:
                self._watched.remove(reference)
            elif watched.word:
                self.board.move(watched.word, watched.moved)

    def _error(self, inside: list[int]) -> RingtrainError | None:
        number = self.board.differing()
        self._suspected = self._suspected + 1 if number and number == self._suspect else 0
        self._suspect = number
        if self._suspected >= STUCK_LOOKS:
            return self._mismatch(number)
        patience_s = self.deadline_s + (STUCK_LOOKS * LONGEST_LOOK_S if self.waiting else 0.0)
        if inside and self.watchdog.still_s() > patience_s:
            return self._stalled(self.deadline_s)
        return None


def _whole(text: str) -> StalledError:
    error = StalledError(text)
    error.whole = True
    return error


def _ending(transport: Transport) -> Callable[[RingtrainError], None]:
    def end(error: RingtrainError) -> None:
        sys.stderr.write(texts.ENDING(rank=transport.rank, error=error) + "\n")
        with suppress(SystemExit):  # by which a world of threads ends: here is nobody to take it
            transport.abort(error.exit_code)

    return end
