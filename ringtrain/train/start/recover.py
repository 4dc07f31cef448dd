"""``--elastic``: training that survives the death of ranks.

The survivors leave the old world, find one another in a new one, and train there as a resumed run does, from the newest
state that one of them holds, or from the newest checkpoint. Whoever holds it becomes rank 0, which has the run folder,
the log and the terminal.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ringtrain.errors import RingtrainError
from ringtrain.report.events import RanksLost
from ringtrain.storage.run_folder.run_folder import FoundCheckpoint
from ringtrain.train.agree import on_root
from ringtrain.train.checkpoints.outcome_file import OutcomeWriter
from ringtrain.train.checkpoints.resume import Origin, go_on
from ringtrain.train.checkpoints.state import place
from ringtrain.train.start.recovery_state import ANEW, CHECKPOINT, MEMORY, REPLACE, RecoveryState, wanted
from ringtrain.train.start.start import train
from ringtrain.train.stopping.signals import INTERRUPTED_AGAIN, StopFlag
from ringtrain.transport.fault_tolerance import KILLED_S
from ringtrain.transport.world import World, remove_segments

NOTHING = -1  # finished iterations of a rank that holds no whole state


def start(world: World, run_file: str | None, flags: dict, command: Sequence[str], stop: StopFlag) -> None:
    """Train as flags and run file say, in this world and those that follow it where ranks die. ``command``: by which a
    rank is started anew. Raises RingtrainError."""
    ElasticRun(world, run_file, flags, command, stop).train()


def newest_first(facts: dict) -> tuple:
    """The order of survivors: who has finished the most iterations, and of those the lowest rank."""
    return -facts["done"], facts["rank"]


class ElasticRun:
    def __init__(self, world: World, run_file: str | None, flags: dict, command: Sequence[str], stop: StopFlag):
        self._world, self._run_file, self._flags, self._stop = world, run_file, flags, stop
        self._mode = wanted(run_file, flags)
        self._command = command if self._mode == REPLACE else ()
        self._ranks = world.transport.size  # that are wanted
        self._journey = RecoveryState()
        stop.end_all = self._end_all

    def train(self) -> None:
        lost = self._attempt(self._world.joined)  # a replacement comes into a world that has lost a rank
        while lost:
            lost = self._attempt(True)

    def _attempt(self, resuming: bool) -> bool:
        """Whether a rank was lost on the way."""
        try:
            self._world.enter()
            if resuming:
                self._enter()
            train(self._world.transport, self._run_file, self._flags, self._stop, self._journey)
            self._part()
        except RingtrainError as error:
            self._check_survivable(error)
            self._journey.lost_at = time.perf_counter()
        else:
            return False
        self._leave()  # here, where the error has let go of the old world's arrays
        return True

    def _part(self) -> None:
        """Who is done waits for the others: one that missed a dead rank in its last step would be left to recover
        alone, and wait for ranks that are on their way out."""
        if self._mode is not None:
            self._world.transport.barrier()

    def _check_survivable(self, error: RingtrainError) -> None:
        """Raises the error, told, unless it is a death that others survive."""
        lost = self._world.is_of_a_death(error)
        if lost and self._stop.ending:
            time.sleep(KILLED_S)  # the launcher was told to end all, and is at it
        if not lost or self._mode is None or self._world.transport.why_not_fault_tolerant or self._stop.ending:
            self._tell(error)
            raise error

    def _end_all(self) -> None:
        if self._world.transport.size > 1:
            self._world.transport.abort(INTERRUPTED_AGAIN)
        else:
            remove_segments()

    def _tell(self, error: RingtrainError) -> None:
        if self._journey.ending is not None:
            self._journey.ending.failed(error)

    # ── from the old world to the new one ─────────────────────────────────────────────────────────────────
    def _leave(self) -> None:
        """Find the other survivors."""
        journey = self._journey
        journey.keep()
        done = NOTHING if journey.salvage is None else journey.salvage.iteration
        facts = {"done": done, "folder": journey.folder}
        self._world.survive(facts, newest_first, self._ranks, self._command, self._tell)
        journey.lost += self._world.survived.lost

    def _enter(self) -> None:
        """All ranks learn from the new rank 0 where to go on. Collective."""
        journey, transport = self._journey, self._world.transport
        if journey.ending is not None:
            self._take_over(journey.ending.progress.iteration)
        held: list[Origin] = []
        told = on_root(transport, lambda: self._decide(held))
        journey.origin = held[0] if held else Origin(**told["origin"])
        journey.folder, journey.lost, journey.told = told["origin"]["folder"], tuple(told["lost"]), told["told"]
        journey.news = RanksLost(**told["news"])
        if journey.folder is not None:
            self._take_over(journey.news.resumed_at)
        gc.collect()  # the old world's objects hold one another in rings

    def _take_over(self, iteration: int) -> None:
        """What this world comes to is written by its own rank 0: that of the last one may be the one that died."""
        journey, transport = self._journey, self._world.transport
        folder, writes = Path(journey.folder), transport.rank == 0
        journey.ending = OutcomeWriter(folder, writes, journey.iterations, transport.size, journey.lost)
        journey.ending.progress.iteration = iteration

    def _decide(self, held: list[Origin]) -> dict:
        """On rank 0; JSON-able. What was known to any survivor counts: not all learn the same before a death."""
        survived, journey = self._world.survived, self._journey
        folder = next((facts["folder"] for facts in survived.facts if facts["folder"]), None)
        origin, source = self._origin(folder)
        held.append(origin)
        news = RanksLost(
            lost=list(journey.lost[journey.told :]),
            ranks=self._world.transport.size,
            replaced=survived.replaced,
            resumed_at=origin.iteration or 0,
            source=source,
            seconds=0.0,
        )
        return {"origin": origin.told(), "lost": journey.lost, "told": journey.told, "news": asdict(news)}

    def _origin(self, folder: str | None) -> tuple[Origin, str]:
        """(where to go on, one of :data:`MEMORY`, :data:`CHECKPOINT`, :data:`ANEW`)"""
        salvage = self._journey.salvage
        if salvage is None:
            origin = go_on(folder, self._run_file, self._flags)
            return origin, ANEW if origin.place is None else CHECKPOINT
        checkpoint = salvage.capture()
        known = {**place(checkpoint), "due": salvage.due}
        found = FoundCheckpoint(Path("the memory of a survivor"), checkpoint)
        return Origin(place=known, folder=folder, continues=True, config=checkpoint.config, found=found), MEMORY
