"""Trains in a world, and with ``--elastic`` in the next one after the death of ranks.

The survivors leave the old world, meet in a new one, and resume there: from the newest state that a survivor holds, or
from the newest checkpoint. The survivor with this state becomes rank 0, which has the run folder, the log and the
terminal.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ringtrain.errors import RingtrainError
from ringtrain.report.events import RanksLost
from ringtrain.storage.run_folder.run_folder import FoundCheckpoint
from ringtrain.train.checkpoints.resume import Origin, restart_origin
from ringtrain.train.checkpoints.state import common_facts
from ringtrain.train.options import RunOptions
from ringtrain.train.start.recovery_state import ANEW, CHECKPOINT, MEMORY, REPLACE, OutcomeWriter, RecoveryState
from ringtrain.train.start.start import run_training
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.agree import keep_on_root
from ringtrain.transport.fault_tolerance import KILLED_S
from ringtrain.transport.world import World, remove_segments

NO_STATE = -1  # finished iterations of a rank without a whole state


def newest_first(facts: dict) -> tuple:
    """Sort key of survivors: most finished iterations first, then the lowest rank."""
    return -facts["done"], facts["rank"]


def end_all(world: World, code: int) -> None:
    """End all ranks at once, after a second Ctrl-C or the end of the terminal."""
    if world.transport.size > 1:
        world.transport.abort(code)
    else:
        remove_segments()


class ElasticRun:
    """Trains in this world, and with ``--elastic`` after deaths in the next ones. ``command`` starts a replacement."""

    def __init__(self, world: World, options: RunOptions, command: Sequence[str], stop: StopFlag):
        self._world, self._options, self._stop = world, options, stop
        self._command = command if options.elastic == REPLACE else ()
        self._ranks = world.transport.size  # of every world, if lost ranks are replaced
        self._state = RecoveryState()

    def train(self) -> None:
        """Train to the end of the run. Raises RingtrainError, except for deaths that other ranks survive."""
        resuming = self._world.joined  # a replacement joins a world that has lost a rank
        while not self._has_trained(resuming):
            resuming = True

    def _has_trained(self, resuming: bool) -> bool:
        """Train in this world. False if a rank died, and the survivors are in a new world."""
        try:
            self._world.enter()
            if resuming:
                self._enter()
            run_training(self._world.transport, self._options, self._stop, self._state)
            if self._options.elastic is not None:
                # One that sees a death only in its last step would recover alone, and wait for ranks that are to end.
                self._world.transport.barrier()
            return True
        except RingtrainError as error:
            ending, tolerant = self._stop.ending, not self._world.transport.why_not_fault_tolerant
            if ending or self._options.elastic is None or not (tolerant and self._world.is_of_a_death(error)):
                if ending and self._world.is_of_a_death(error):
                    time.sleep(KILLED_S)  # the launcher is ending all ranks
                self._state.record_failure(error)  # a death too, as the end of the run
                raise
            self._state.lost_at = time.perf_counter()
        self._leave()  # outside of the handler, whose error holds the old world's arrays
        return False

    # ── from the old world to the new one ─────────────────────────────────────────────────────────────────
    def _leave(self) -> None:
        """Leave the old world for one of the survivors."""
        state = self._state
        state.keep()
        done = NO_STATE if state.recoverable is None else state.recoverable.iteration
        facts = {"done": done, "folder": state.folder}
        self._world.survive(facts, newest_first, self._ranks, self._command, state.record_failure)
        if self._world.survived is not None:
            state.lost += self._world.survived.lost

    def _enter(self) -> None:
        """Receive the origin from the new rank 0. Collective."""
        state, transport = self._state, self._world.transport
        if state.outcome is not None:
            self._take_over(state.folder, state.outcome.progress.iteration)
        origin, known = keep_on_root(transport, self._decide)
        state.origin = origin or Origin(**known["origin"])
        state.folder, state.lost, state.reported = known["origin"]["folder"], tuple(known["lost"]), known["reported"]
        state.ranks_lost = RanksLost(**known["ranks_lost"])
        self._take_over(state.folder, state.ranks_lost.resumed_at)
        gc.collect()  # the old world's objects refer to one another in cycles

    def _take_over(self, folder: str | None, iteration: int) -> None:
        """Let this world's rank 0 write the outcome file, if there is a folder: the last world's may have died."""
        if folder is not None:
            state, transport = self._state, self._world.transport
            writes = transport.rank == 0
            state.outcome = OutcomeWriter(Path(folder), writes, state.iterations, transport.size, state.lost)
            state.outcome.progress.iteration = iteration

    def _decide(self) -> tuple[Origin, dict]:
        """Find the origin on rank 0; (origin, JSON-able facts). The folder may come from any survivor: a death may have
        come when only some ranks knew it."""
        survived, state = self._world.survived, self._state
        facts: Sequence[dict] = survived.facts if survived is not None else ()
        folder = next((each["folder"] for each in facts if each["folder"]), None)
        origin, source = self._origin(folder)
        ranks_lost = RanksLost(
            lost=list(state.lost[state.reported :]),
            ranks=self._world.transport.size,
            replaced=survived.replaced if survived is not None else 0,
            resumed_at=origin.iteration or 0,
            source=source,
            seconds=0.0,
        )
        known = {"lost": state.lost, "reported": state.reported, "ranks_lost": asdict(ranks_lost)}
        return origin, {"origin": origin.as_json(), **known}

    def _origin(self, folder: str | None) -> tuple[Origin, str]:
        """(the start in this world, one of :data:`MEMORY`, :data:`CHECKPOINT`, :data:`ANEW`)"""
        recoverable = self._state.recoverable
        if recoverable is None:
            origin = restart_origin(folder, self._options)
            return origin, ANEW if origin.facts is None else CHECKPOINT
        checkpoint = recoverable.capture()
        facts = {**common_facts(checkpoint), "due": recoverable.due}
        stored = FoundCheckpoint(Path("the memory of a survivor"), checkpoint)
        return Origin(facts=facts, folder=folder, continues=True, config=checkpoint.config, stored=stored), MEMORY
