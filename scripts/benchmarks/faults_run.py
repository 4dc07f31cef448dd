"""Runs of which one rank is killed: when that is, how it is done, and what must be so afterwards."""

import math
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from worlds.runs import losses, reached, records
from worlds.world import Hung, World, send, tagged

from ringtrain.checkpoint import outcome, run_folder
from ringtrain.errors import RingtrainError

HANGS_S = 180.0  # far more than any run takes, and than survivors look for one another
ENDS_S = 10.0  # by when all ranks are gone where they do not go on
SAME = 1e-9  # relative: how far losses in float64 may be from those of the unbroken run
EVERY = 20  # iterations between checkpoints
EARLY = 0.3  # share of kills before the first iteration
POLL_S = 0.003

STARTING, OPENING = "before it loads the MPI", "before there is a run folder"
PREPARING, TRAINING, OVER = "before the first iteration", "while it trains", "when all is done"
PHASES = (STARTING, OPENING, PREPARING, TRAINING, OVER)
ELASTIC = ("--with-ft", "ulfm")


@dataclass(frozen=True, slots=True)
class Unbroken:
    """A run that nobody disturbs. begins_s: from its launch until the first iteration is in the log; exact: whether
    its strategy promises the same losses at any number of ranks; losses: by iteration"""

    iterations: int
    begins_s: float
    accuracy: float
    exact: bool
    losses: dict[int, float]


@dataclass(frozen=True, slots=True)
class Moment:
    """seconds: after the launch, or after that iteration is in the log, where there is one"""

    seconds: float
    iteration: int | None = None

    def words(self) -> str:
        after = "the launch" if self.iteration is None else f"iteration {self.iteration}"
        return f"{self.seconds:.3f} s after {after}"


def draw_moment(draw: random.Random, unbroken: Unbroken) -> Moment:
    if draw.random() < EARLY:
        return Moment(draw.uniform(0.0, unbroken.begins_s))
    return Moment(draw.uniform(0.0, 0.03), draw.randrange(unbroken.iterations))


@dataclass(slots=True)
class Killed:
    """What became of one run.

    phase:   where the rank was, one of PHASES
    became:  "went on" (to the end), "ended" or "hung"
    seconds: from the kill, by this program's clock: until the next iteration was in the log, or until all had ended
    own_s:   what ringtrain tells: from when a survivor saw the death until training went on
    source:  what it went on from, or the newest good checkpoint
    apart:   how far its losses were from those of the unbroken run, relative
    segments: files of shared memory that are Open MPI's own and were left
    """

    rank: int
    moment: Moment
    phase: str = ""
    became: str = ""
    status: int | None = None
    seconds: float | None = None
    own_s: float | None = None
    source: str = ""
    apart: float | None = None
    segments: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Runs:
    """``given``: the flags of the program."""

    def __init__(self, given, place: Path):
        self._given, self._place = given, place
        self._goes_on = given.elastic or given.replace

    def _start(self, out: Path) -> World:
        mode = ("--elastic", "replace" if self._given.replace else "shrink") if self._goes_on else ()
        train = ["-m", "ringtrain", "train", "--out", out, "--epochs", self._given.epochs, "--dtype", "float64"]
        train += ["--checkpoint-every", EVERY, *mode, *self._given.more]
        told, mpi = out.with_suffix(".txt"), self._place / "mpi"
        return World(self._given.ranks, train, told, mpi, ELASTIC if self._goes_on else ())

    def unbroken(self) -> Unbroken:
        self._start(self._place / "warm-up").wait()  # after which kernels are compiled
        out = self._place / "unbroken"
        world = self._start(out)
        while world.running and not reached(out, 1):
            time.sleep(POLL_S)
        begins_s = time.monotonic() - world.began
        if world.wait():
            raise SystemExit(f"the unbroken run did not train: see {out.with_suffix('.txt').read_text()[-2000:]}")
        told = {record["event"]: record for record in records(out)}
        end = told["end"]
        return Unbroken(end["iterations"], begins_s, end["test_accuracy"], told["start"]["exact"], losses(out))

    def killed(self, number: int, rank: int, moment: Moment, unbroken: Unbroken) -> Killed:
        out, run = self._place / f"{number:03}", Killed(rank, moment)
        world = self._start(out)
        victim = await_moment(world, out, run)
        run.phase, saved = phase_of(out, victim), last_saved(out)
        died = time.monotonic()
        if victim is None:
            run.phase = OVER
            if not is_done(out):
                run.wrong.append("it ended by itself, before the kill")
        else:
            send(victim, signal.SIGKILL)
        watch(world, out, died, run)
        self._judge(out, run, saved, unbroken)
        return run

    def _judge(self, out: Path, run: Killed, saved: int, unbroken: Unbroken) -> None:
        if run.became == "hung":
            run.wrong.append(f"it hung for {HANGS_S:g} s, and was ended")
            return
        done = is_done(out)
        run.became = "went on" if done else "ended"
        if done and run.phase != OVER and not self._goes_on:
            run.wrong.append("it went on without a rank")
        elif done:
            check_went_on(self._given, out, run, unbroken)
        else:
            self._check_ended(out, run, saved)

    def _check_ended(self, out: Path, run: Killed, saved: int) -> None:
        if self._goes_on and run.phase not in (STARTING, OPENING):
            run.wrong.append("the others did not go on")
        if not self._goes_on and run.status == 0:
            run.wrong.append("its status is 0")
        if run.seconds > ENDS_S:
            run.wrong.append(f"it ended {run.seconds:.1f} s after the death")
        if saved:
            check_checkpoint(out, run, saved)


# ── when ──────────────────────────────────────────────────────────────────────────────────────────────────────
def await_moment(world: World, out: Path, run: Killed) -> int | None:
    """The process of the rank that is to be killed, when it is to be; None where it has gone before."""
    moment, since = run.moment, world.began
    if moment.iteration is not None:
        while world.running and not (moment.iteration and reached(out, moment.iteration)):
            if not moment.iteration and (out / outcome.NAME).exists():
                break
            time.sleep(POLL_S)
        since = time.monotonic()
    time.sleep(max(0.0, since + moment.seconds - time.monotonic()))
    while world.running:  # it may not have been started yet
        found = world.pids().get(run.rank)
        if found is not None:
            return found
    return None


def phase_of(out: Path, victim: int | None) -> str:
    """Where a run is, as it looks from outside."""
    if is_done(out):
        return OVER
    if reached(out, 1):
        return TRAINING
    if (out / outcome.NAME).exists():
        return PREPARING
    try:
        maps = Path(f"/proc/{victim}/maps").read_text()
    except OSError:
        return STARTING
    return OPENING if "/libmpi.so" in maps else STARTING


def is_done(out: Path) -> bool:
    try:
        return outcome.read(out).outcome == outcome.DONE
    except RingtrainError:
        return False


def last_saved(out: Path) -> int:
    """The iteration of the newest checkpoint that the log tells of, or 0."""
    return max((record["iteration"] for record in records(out) if record["event"] == "checkpoint"), default=0)


# ── what becomes of it ────────────────────────────────────────────────────────────────────────────────────────
def watch(world: World, out: Path, died: float, run: Killed) -> None:
    """Until all of it has ended. Where the others go on, seconds are until the next iteration is in the log."""
    seen, went_on = (0, 0), None
    while world.running and time.monotonic() - died < HANGS_S:
        if went_on is None:
            now = _stamp(out)
            went_on = time.monotonic() if now != seen and has_gone_on(out) else None
            seen = now
        time.sleep(POLL_S)
    try:
        run.status = world.wait(0.0 if world.running else None)
    except Hung:
        run.became = "hung"
        return
    while tagged() and time.monotonic() - died < HANGS_S:
        time.sleep(POLL_S)
    run.seconds = (went_on or time.monotonic()) - died


def _stamp(out: Path) -> tuple[int, int]:
    try:
        found = os.stat(out / "log.jsonl")
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def has_gone_on(out: Path) -> bool:
    """Whether an iteration, or the end, comes after the news of a death."""
    kinds = [record["event"] for record in records(out)]
    return "lost" in kinds and not {"iteration", "end"}.isdisjoint(kinds[kinds.index("lost") :])


def check_went_on(given, out: Path, run: Killed, unbroken: Unbroken) -> None:
    found, told = outcome.read(out), [record for record in records(out) if record["event"] == "lost"]
    ranks = given.ranks - (not given.replace)
    survived = (found.ranks, len(found.lost), len(told)) == (ranks, 1, 1)
    if not survived and not (run.phase == OVER and not found.lost):
        run.wrong.append(found.words())
    if told:
        run.source, run.own_s = told[0]["source"], told[0]["seconds"]
    numbers = [record["iteration"] for record in records(out) if record["event"] == "iteration"]
    if numbers != list(range(1, unbroken.iterations + 1)):
        run.wrong.append("its log does not have every iteration once")
    elif unbroken.exact:
        check_same(out, run, unbroken)


def check_same(out: Path, run: Killed, unbroken: Unbroken) -> None:
    """It is the run that nobody disturbs: the same losses but for rounding, the same accuracy."""
    own = losses(out)
    run.apart = max(apart(own[number], loss) for number, loss in unbroken.losses.items())
    if run.apart > SAME:
        run.wrong.append(f"its losses are {run.apart:.1e} from those of the unbroken run")
    accuracy = next(record["test_accuracy"] for record in reversed(records(out)) if record["event"] == "end")
    if accuracy != unbroken.accuracy:
        run.wrong.append(f"its accuracy is {accuracy:.4f}")


def apart(found: float | None, wanted: float) -> float:
    """Relative; the log has None for what is not finite."""
    return math.inf if found is None else abs(found / wanted - 1)


def check_checkpoint(out: Path, run: Killed, saved: int) -> None:
    """What was saved before the kill is there, or what was saved after it."""
    try:
        found = run_folder.find(out)
    except RingtrainError as error:
        run.wrong.append(str(error))
        return
    run.source = f"checkpoint {found.checkpoint.iteration}"
    if found.checkpoint.iteration < saved:
        run.wrong.append(f"the checkpoint of iteration {saved} is gone")
    if found.skipped:
        run.wrong.append(f"a checkpoint was passed over: {found.skipped[0]}")
