"""One rank of a short training is killed at a random moment, again and again: what becomes of the run.

    scripts/bench faults --runs 50                      without --elastic: all must end within 10 s, non-zero, and leave
                                                        the checkpoints that were saved
    scripts/bench faults --runs 50 --elastic            the others must go on to the end, with the same losses
    scripts/bench faults --runs 10 --elastic --replace  with a new rank in place of the dead one

Three kills of ten come at a time drawn between the launch and the first iteration: while Python starts, the MPI starts,
data is read, kernels are loaded. The others come up to 30 ms after an iteration drawn from all. Where a rank was is
looked up just before the kill, and the table tells what became of runs by that. With --elastic a rank that dies before
there is a run folder may end the run, within 10 s: there may be no MPI yet to tell the others. All that die later must
be survived.

Runs are in float64, so that losses with fewer ranks are those of the unbroken run but for rounding, and are held to
that. Seconds are counted from the kill, by the clock of this program. A table is printed, what went wrong, and a row
for docs/elastic.md; ends with 1 where anything went wrong. It needs Open MPI 5's mpirun.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

from faults_run import OVER, PHASES, Killed, Runs, Unbroken, draw_moment
from worlds.left import Leftovers
from worlds.private import enter


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--elastic", action="store_true", help="the others are to go on")
    parser.add_argument("--replace", action="store_true", help="and a new rank is to come in place of the dead one")
    parser.add_argument("--seed", type=int, default=0, help="of ranks and moments")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="where runs are kept; they are removed otherwise")
    parser.add_argument("more", nargs="*", help="more flags of `ringtrain train`, after --")
    given = parser.parse_args()
    if not enter():
        print("no namespaces are to be had here: what others leave in shared memory counts as ours")
    with tempfile.TemporaryDirectory(prefix="ringtrain-faults-", ignore_cleanup_errors=True) as place:
        return run(given, given.keep or Path(place))


def run(given, place: Path) -> int:
    (place / "mpi").mkdir(parents=True)
    runs, draw, killed = Runs(given, place), random.Random(given.seed), []
    unbroken = runs.unbroken()
    print(
        f"unbroken: {unbroken.iterations} iterations, the first after {unbroken.begins_s:.2f} s, accuracy "
        f"{unbroken.accuracy:.4f}; losses {'compared' if unbroken.exact else 'not compared: not exact'}",
        flush=True,
    )
    left = Leftovers(place / "mpi")
    for number in range(given.runs):
        one = runs.killed(number, draw.randrange(given.ranks), draw_moment(draw, unbroken), unbroken)
        for what in left():
            (one.segments if "sm_segment" in what else one.wrong).append(f"left {what}")
        killed.append(one)
        print(line(number, one), flush=True)
    print("\n" + table(killed, unbroken) + "\n\n" + row(given, killed))
    return int(any(one.wrong for one in killed))


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────
def line(number: int, one: Killed) -> str:
    told = f"{number:4}  rank {one.rank} {one.moment.words()}, {one.phase}: {one.became}, status {one.status}"
    told += f", {one.seconds:6.2f} s" if one.seconds is not None else ""
    told += f" ({one.own_s:.2f} s by its own clock)" if one.own_s is not None else ""
    return told + f", {one.source}" * bool(one.source) + "".join(f"\n      WRONG: {what}" for what in one.wrong)


def table(killed: list[Killed], unbroken: Unbroken) -> str:
    rows = [(f"killed {phase}", became([one for one in killed if one.phase == phase])) for phase in PHASES]
    rows += [
        ("hung", str(sum(one.became == "hung" for one in killed))),
        ("left a process or a file", str(sum(any("left " in what for what in one.wrong) for one in killed))),
        ("left a segment of Open MPI's", str(sum(bool(one.segments) for one in killed))),
        ("launcher's statuses", told_of(str(one.status) for one in killed)),
        ("went on from", told_of(one.source for one in killed if one.became == "went on")),
        ("s from the kill to the next iteration", spread(one.seconds for one in killed if one.became == "went on")),
        ("s from its being seen, by ringtrain", spread(one.own_s for one in killed if one.became == "went on")),
        ("s from the kill until all had ended", spread(one.seconds for one in killed if one.became == "ended")),
    ]
    apart = [one.apart for one in killed if one.apart is not None]
    if apart:
        rows.append(("losses apart, relative, at most", f"{max(apart):.1e} of {len(apart)} runs"))
    return "\n".join(f"{name:<40} {value}" for name, value in rows)


def became(killed: list[Killed]) -> str:
    wrong = sum(bool(one.wrong) for one in killed)
    return f"{len(killed):3}: {told_of(one.became for one in killed)}" + f"; {wrong} WRONG" * bool(wrong)


def told_of(values) -> str:
    return ", ".join(f"{value} {count}" for value, count in sorted(Counter(values).items())) or "none"


def spread(seconds) -> str:
    found = sorted(value for value in seconds if value is not None)
    return f"median {statistics.median(found):.2f}, most {found[-1]:.2f} of {len(found)}" if found else "none"


def row(given, killed: list[Killed]) -> str:
    """As docs/elastic.md has it."""
    way = "`--elastic replace`" if given.replace else "`--elastic`" if given.elastic else "without"
    counted = [one for one in killed if one.phase != OVER]
    words = {one.became for one in counted}
    seconds = {word: sorted(o.seconds for o in counted if o.became == word and o.seconds is not None) for word in words}
    times = [f"{word}: {statistics.median(s):.2f}, {s[-1]:.2f}" for word, s in sorted(seconds.items()) if s]
    return f"| {way} | {len(counted)} | {told_of(one.became for one in counted)} | {'; '.join(times)} |"


if __name__ == "__main__":
    sys.exit(main())
