"""Kill one rank of a PyTorch script at a random moment after its first step, again and again, and check the outcome.

\b
    scripts/bench survival gpt --runs 50                        the others go on, to the losses of a run that loses
                                                                   that rank by plan; rank 0's death ends all with 75
    scripts/bench survival resnet --runs 20 --elastic replace  a new rank takes the place

Seconds are from the kill until the survivors have met, and are about to redo the step. Exits with 1 if a run broke a
rule. Needs Open MPI 5.
"""

import random
import statistics
import sys
import time
from pathlib import Path

import click
from page import ROOT
from survivor_net import NETS, Planned
from worlds import POLL_S, Leftovers, World, end, losses, newest, records, scratch

SCRIPT = ROOT / "scripts" / "benchmarks" / "survivor_net.py"
SAME, LATEST_S = 1e-6, 0.05


def start(options, out: Path) -> World:
    flags = ["--elastic", options.elastic, "--out", out, SCRIPT, options.net, "--steps", options.steps]
    return World(options.ranks, flags, out.with_suffix(".txt"), ["--with-ft", "ulfm"], module="ringtrain.torch")


def lost(out: Path) -> dict | None:
    return next((record for record in records(out) if record["event"] == "lost"), None)


def kill(options, out: Path, draw: random.Random, planned: Planned) -> tuple[int, float | None, list[str]]:
    """Return (the rank, seconds until the survivors have met, broken rules)."""
    world, rank = start(options, out), draw.randrange(options.ranks) if options.rank is None else options.rank
    after = draw.randrange(1, options.steps - 2)
    world.until(lambda: newest(out) >= after)
    time.sleep(draw.uniform(0.0, LATEST_S))
    died = time.monotonic()
    end(pid for number, pid in world.pids().items() if number == rank)
    met_s = None
    while rank and met_s is None and world.running:
        met_s = time.monotonic() - died if lost(out) else None
        time.sleep(POLL_S)
    status = world.wait()
    if rank == 0:
        return rank, None, rooted(options, out, status, planned)
    if status != 0:
        return rank, met_s, [f"its status is {status}: {world.last_words()}"]
    return rank, met_s, differences(options, out, rank, planned)


def rooted(options, out: Path, status: int | None, planned: Planned) -> list[str]:
    """Check that a run whose rank 0 died has ended as promised, and goes on."""
    text = out.with_suffix(".txt").read_text(errors="replace")
    saved = out / f"{SCRIPT.stem}.survivors.pt"
    wrong = [] if "rank 0 has died: the others saved" in text and saved.exists() else ["the others did not save"]
    wrong += [] if status == 75 else [f"its status is {status}, not 75"]
    if start(options, out).wait() != 0:
        return [*wrong, "it does not go on with the same command"]
    return wrong + ([] if not saved.exists() else ["what was saved is still there"])


def differences(options, out: Path, rank: int, planned: Planned) -> list[str]:
    logged, record = losses(out), lost(out)
    replaced = options.elastic == "replace"
    wanted = planned.losses(-1 if replaced else rank, record["resumed_at"] if record else 0)
    if sorted(logged) != list(range(1, options.steps + 1)):
        return [f"its log has {len(logged)} of {options.steps} steps"]
    apart = max(abs(logged[step + 1] / loss - 1) for step, loss in enumerate(wanted))
    return [] if apart <= SAME else [f"its losses are {apart:.1e} from those of a run that loses the rank by plan"]


@click.command(help=__doc__)
@click.argument("net", type=click.Choice(list(NETS)))
@click.option("--runs", default=50, show_default=True)
@click.option("--ranks", default=4, show_default=True)
@click.option("--steps", default=40, show_default=True)
@click.option("--elastic", type=click.Choice(["shrink", "replace"]), default="shrink", show_default=True)
@click.option("--rank", type=int, help="The one that dies [drawn].")
@click.option("--seed", default=0, show_default=True, help="Of ranks and moments.")
def faults(**flags):
    options = type("Options", (), flags)
    planned, wrong, seconds, roots = Planned(options.net, options.ranks, options.steps), 0, [], 0
    with scratch("faults") as folder:
        draw, left = random.Random(options.seed), Leftovers()
        for number in range(options.runs):
            rank, met_s, broken = kill(options, Path(folder) / f"{number:03}", draw, planned)
            broken += [f"left {what}" for what in left()]
            seconds += [met_s] if met_s is not None else []
            roots, wrong = roots + (rank == 0), wrong + bool(broken)
            line = f"{number:4}  rank {rank}" + ("" if met_s is None else f": {met_s:.2f} s")
            print("\n      WRONG: ".join([line, *broken]), flush=True)
    print(f"{options.runs - wrong} of {options.runs} as promised, {roots} of them rank 0's deaths")
    if seconds:
        print(f"seconds until the survivors have met: median {statistics.median(seconds):.2f}, most {max(seconds):.2f}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    faults()
