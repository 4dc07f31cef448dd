"""Kill one rank of a short training at a random moment, again and again, and check the outcome.

\b
    scripts/bench faults --runs 50                     all ranks must end within 10 s, non-zero; the run then goes on
                                                       from its checkpoint to the losses of an unbroken run
    scripts/bench faults --runs 50 --elastic shrink    the survivors must go on to the same losses
    scripts/bench faults --runs 10 --elastic replace   the same, with a new rank in place of the dead one

Three kills of ten come between the launch and the first iteration, the others up to 30 ms after a random iteration.
With --elastic a rank that dies before there is a run folder may end the run: there may be no MPI yet to report its
death. Runs are in float64, so that losses with fewer ranks differ by rounding only. Seconds are from the kill until the
next iteration is in the log, or until all processes have ended. Exits with 1 if a run broke a rule. Needs Open MPI 5.
"""

import random
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import click
from worlds import LIMIT_S, POLL_S, Leftovers, World, end, losses, newest, records, scratch, tagged

from ringtrain.storage.run_folder import outcome

ENDS_S, SAME, EARLY, LATEST_S = 10.0, 1e-9, 0.3, 0.03
OPENING, PREPARING, TRAINING, OVER = "before its folder", "before iteration 1", "training", "over"


@dataclass(slots=True)
class Killed:
    """phase: where the run was; seconds: from the kill until the next iteration, or the end; wrong: broken rules"""

    phase: str
    became: str = ""
    seconds: float = 0.0
    status: int | None = None
    wrong: list[str] = field(default_factory=list)


def start(options, out: Path, *more) -> World:
    flags = ["--out", out, "--epochs", options.epochs, "--dtype", "float64", "--checkpoint-every", 20, *more]
    mode, launcher = (["--elastic", options.elastic], ["--with-ft", "ulfm"]) if options.elastic else ([], [])
    return World(options.ranks, [*flags, *mode], out.with_suffix(".txt"), launcher)


def unbroken(options, out: Path) -> tuple[float, dict[int, float]]:
    """Return (seconds until the first iteration, losses)."""
    start(options, out.with_name("warm-up")).wait()  # reads files into the page cache
    world = start(options, out)
    world.until(lambda: bool(losses(out)))
    begins_s = time.monotonic() - world.began
    if world.wait():
        raise SystemExit(f"the unbroken run did not train: {world.last_words()}")
    return begins_s, losses(out)


def kill(options, out: Path, draw: random.Random, begins_s: float, wanted: dict[int, float]) -> Killed:
    world, after, rank = start(options, out), draw.randrange(len(wanted)), draw.randrange(options.ranks)
    if draw.random() < EARLY:
        time.sleep(draw.uniform(0.0, begins_s))
    else:
        world.until(lambda: newest(out) >= after)
        time.sleep(draw.uniform(0.0, LATEST_S))
    world.until(lambda: rank in world.pids())
    run, seen, died = Killed(phase_of(out)), newest(out), time.monotonic()
    end(pid for number, pid in world.pids().items() if number == rank)
    went_on = options.elastic and world.until(lambda: newest(out) > seen)
    went_on_s, run.status = time.monotonic() - died, world.wait()
    while not went_on and tagged() and time.monotonic() - died < LIMIT_S:
        time.sleep(POLL_S)
    run.seconds = went_on_s if went_on else time.monotonic() - died
    judge(options, out, run, wanted)
    return run


def phase_of(out: Path) -> str:
    if not (out / outcome.NAME).exists():
        return OPENING
    if outcome.read_outcome(out).outcome == outcome.DONE:
        return OVER
    return TRAINING if losses(out) else PREPARING


def judge(options, out: Path, run: Killed, wanted: dict[int, float]) -> None:
    if run.status is None:
        run.became = "hung"
        run.wrong.append(f"it hung for {LIMIT_S:g} s")
        return
    done = (out / outcome.NAME).exists() and outcome.read_outcome(out).outcome == outcome.DONE
    run.became = "went on" if done else "ended"
    if done and run.phase != OVER and not options.elastic:
        run.wrong.append("it went on without a rank")
    if not done:
        if options.elastic and run.phase != OPENING:
            run.wrong.append("the others did not go on")
        if run.status == 0:
            run.wrong.append("its status is 0")
        if run.seconds > ENDS_S:
            run.wrong.append(f"it ended {run.seconds:.1f} s after the death")
        if start(options, out, "--resume", "auto").wait() != 0:
            run.wrong.append("it does not go on with --resume auto")
    run.wrong += differences(out, wanted, once=done)


def differences(out: Path, wanted: dict[int, float], once: bool) -> list[str]:
    logged, count = losses(out), sum(record["event"] == "iteration" for record in records(out))
    if logged.keys() != wanted.keys() or (once and count != len(wanted)):
        return ["its log does not have every iteration" + " once" * once]
    apart = max(abs(logged[number] / loss - 1) for number, loss in wanted.items())
    return [f"its losses are {apart:.1e} from those of the unbroken run"] if not apart <= SAME else []


@click.command(help=__doc__)
@click.option("--runs", default=50, show_default=True)
@click.option("--ranks", default=4, show_default=True)
@click.option("--epochs", default=6, show_default=True)
@click.option("--elastic", type=click.Choice(["shrink", "replace"]))
@click.option("--seed", default=0, show_default=True, help="Of ranks and moments.")
def faults(**flags):
    options, killed, seconds_of_kind = SimpleNamespace(**flags), [], defaultdict(list)
    with scratch("faults") as folder:
        draw, left = random.Random(options.seed), Leftovers()
        begins_s, wanted = unbroken(options, Path(folder) / "unbroken")
        for number in range(options.runs):
            run = kill(options, Path(folder) / f"{number:03}", draw, begins_s, wanted)
            run.wrong += [f"left {what}" for what in left()]
            killed.append(run)
            seconds_of_kind[f"{run.phase}: {run.became}"].append(run.seconds)
            line = f"{number:4}  {run.phase}: {run.became}, status {run.status}, {run.seconds:.2f} s"
            print("\n      WRONG: ".join([line, *run.wrong]), flush=True)
    for kind, seconds in sorted(seconds_of_kind.items()):
        print(f"{kind} {len(seconds)}, s: median {statistics.median(seconds):.2f}, most {max(seconds):.2f}")
    sys.exit(any(run.wrong for run in killed))


if __name__ == "__main__":
    faults()
