"""One rank of a short training is killed at a random moment, again and again: what becomes of the run.

    scripts/bench faults --runs 50                      without --elastic: all must end within 10 s, non-zero, and leave
                                                        a good checkpoint
    scripts/bench faults --runs 50 --elastic            the others must go on to the end
    scripts/bench faults --runs 10 --elastic --replace  with a new rank in place of the dead one

The moment is an iteration drawn at random, and a part of one; iteration 0 is while ranks prepare. A table is printed,
and what went wrong; ends with 1 where anything did. It needs Open MPI 5's mpirun.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from ringtrain.checkpoint import outcome, run_folder
from ringtrain.errors import RingtrainError

HANGS_S = 300.0  # far more than any run takes
ENDS_S = 10.0  # by when all ranks are gone where nobody goes on
NOISE = 0.03  # of the accuracy on 360 test examples, from one order of summation to another
EVERY = 20  # iterations between checkpoints


@dataclass(slots=True)
class Killed:
    """What became of one run. ``seconds``: from the kill until training went on, or until all had ended."""

    rank: int
    moment: int
    status: int | None = None
    seconds: float = 0.0
    source: str = ""
    accuracy: float = 0.0
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--elastic", action="store_true", help="the others are to go on")
    parser.add_argument("--replace", action="store_true", help="and a new rank is to come in place of the dead one")
    parser.add_argument("--seed", type=int, default=0, help="of ranks and moments")
    parser.add_argument("--keep", action="store_true", help="keep the folders of runs that went wrong")
    parser.add_argument("more", nargs="*", help="more flags of `ringtrain train`, after --")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ringtrain-faults-"))
    unbroken = reference(given, folder / "unbroken")
    print(f"unbroken: {unbroken['iterations']} iterations, accuracy {unbroken['test_accuracy']:.4f}", flush=True)
    draw, runs = random.Random(given.seed), []
    for number in range(given.runs):
        runs.append(one(given, folder / f"{number:03}", draw, unbroken))
        print(line(number, runs[-1]), flush=True)
        if not (runs[-1].wrong and given.keep):
            shutil.rmtree(folder / f"{number:03}", ignore_errors=True)
    print(summary(given, runs, unbroken))
    if not any(run.wrong for run in runs) or not given.keep:
        shutil.rmtree(folder)
    return int(any(run.wrong for run in runs))


def command(given, out: Path) -> list[str]:
    elastic = ["--elastic", "replace" if given.replace else "shrink"] if given.elastic or given.replace else []
    tolerant = ["--with-ft", "ulfm"] if elastic else []
    train = [sys.executable, "-m", "ringtrain", "train", "--out", str(out), "--epochs", str(given.epochs)]
    train += ["--checkpoint-every", str(EVERY), *elastic, *given.more]
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(given.ranks), *tolerant, *train]


def reference(given, out: Path) -> dict:
    subprocess.run(command(given, out), check=True, stdout=subprocess.DEVNULL)
    return records(out, "end")[0]


def records(out: Path, kind: str) -> list[dict]:
    lines = (out / "log.jsonl").read_text().splitlines()
    return [found for found in map(json.loads, lines) if found["event"] == kind]


# ── one run ───────────────────────────────────────────────────────────────────────────────────────────────────
def one(given, out: Path, draw: random.Random, unbroken: dict) -> Killed:
    goes_on = given.elastic or given.replace
    first = 0 if goes_on else EVERY + 1
    run = Killed(draw.randrange(given.ranks), draw.randrange(first, unbroken["iterations"]))
    out.parent.mkdir(exist_ok=True)
    with open(f"{out}.txt", "wb") as told:
        process = subprocess.Popen(command(given, out), stdout=told, stderr=subprocess.STDOUT)
        numbers = await_moment(process, out, run.moment)
        time.sleep(draw.uniform(0.0, 0.03))
        mapped = {path for number in numbers.values() for path in shared(number)}
        died = time.time()
        end_rank(numbers, run)
        run.status = ended(process, run)
    run.seconds = time.time() - died
    if goes_on:
        check_went_on(given, out, run, unbroken)
    else:
        check_ended(out, run)
    check_left(numbers, mapped, run)
    return run


def await_moment(process, out: Path, moment: int) -> dict[int, int]:
    """Process numbers by rank, when that iteration is finished; 0: when there is a folder."""
    log, since = out / "log.jsonl", time.monotonic()
    while process.poll() is None and time.monotonic() - since < HANGS_S:
        if (out / outcome.NAME).exists() and (not moment or finished(log) >= moment):
            break
        time.sleep(0.003)
    return ranks_of(process.pid)


def finished(log: Path) -> int:
    """Iterations, as the end of the log has it."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - 2048))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return 0
    for text in reversed(lines):
        if b'"event": "iteration"' in text:
            return int(text.split(b'"iteration": ')[1].split(b",")[0])
    return 0


def ranks_of(launcher: int) -> dict[int, int]:
    """Rank → process, of all that a launcher has started."""
    found = {}
    for number in children(launcher):
        text = read(f"/proc/{number}/environ")
        for entry in text.split(b"\0"):
            if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                found[int(entry.partition(b"=")[2])] = number
    return found


def children(number: int) -> list[int]:
    below = [int(text) for text in read(f"/proc/{number}/task/{number}/children").split()]
    return [each for child in below for each in (child, *children(child))]


def shared(number: int) -> list[str]:
    """Files of shared memory that a process maps."""
    lines = read(f"/proc/{number}/maps").decode().splitlines()
    return [text.split(maxsplit=5)[5] for text in lines if "/dev/shm/" in text and not text.endswith("(deleted)")]


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def end_rank(numbers: dict[int, int], run: Killed) -> None:
    try:
        os.kill(numbers[run.rank], signal.SIGKILL)
    except (KeyError, ProcessLookupError):
        run.wrong.append("it ended before it could be killed")


def ended(process, run: Killed) -> int | None:
    try:
        return process.wait(HANGS_S)
    except subprocess.TimeoutExpired:
        run.wrong.append(f"it hung for {HANGS_S:g} s")
        process.send_signal(signal.SIGTERM)
        process.wait()
        return None


# ── what must be so ───────────────────────────────────────────────────────────────────────────────────────────
def check_went_on(given, out: Path, run: Killed, unbroken: dict) -> None:
    try:
        found = outcome.read(out)
    except RingtrainError as error:
        run.wrong.append(str(error))
        return
    ranks = given.ranks - (not given.replace)
    if (found.outcome, found.ranks, len(found.lost)) != ("done", ranks, 1):
        run.wrong.append(found.words())
        return
    told, ends = records(out, "lost"), records(out, "end")
    run.source = told[0]["source"] if told else "?"
    run.seconds = told[0]["seconds"] if told else run.seconds
    run.accuracy = ends[-1]["test_accuracy"]
    if abs(run.accuracy - unbroken["test_accuracy"]) > NOISE:
        run.wrong.append(f"its accuracy is {run.accuracy:.4f}")
    numbers = [record["iteration"] for record in records(out, "iteration")]
    if numbers != list(range(1, unbroken["iterations"] + 1)):
        run.wrong.append("its log does not have every iteration once")


def check_ended(out: Path, run: Killed) -> None:
    if run.status == 0:
        run.wrong.append("its status is 0")
    if run.seconds > ENDS_S:
        run.wrong.append(f"it ended {run.seconds:.1f} s after the death")
    try:
        found = run_folder.find(out)
    except RingtrainError as error:
        run.wrong.append(str(error))
        return
    run.source = f"checkpoint {found.checkpoint.iteration}"
    if found.skipped:
        run.wrong.append(f"a checkpoint was passed over: {found.skipped[0]}")


def check_left(numbers: dict[int, int], mapped: set[str], run: Killed) -> None:
    since = time.monotonic()
    while any(alive(number) for number in numbers.values()) and time.monotonic() - since < ENDS_S:
        time.sleep(0.05)
    run.wrong += [f"process {number} is left" for number in numbers.values() if alive(number)]
    run.wrong += [f"{path} is left" for path in mapped if os.path.exists(path)]


def alive(number: int) -> bool:
    text = read(f"/proc/{number}/stat").decode()
    return bool(text) and text[text.rindex(")") + 2] != "Z"


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────
def line(number: int, run: Killed) -> str:
    told = f"{number:4}  rank {run.rank} after iteration {run.moment:4}: status {run.status}, {run.seconds:6.2f} s"
    told += f", {run.source}" + (f", accuracy {run.accuracy:.4f}" if run.accuracy else "")
    return told + "".join(f"\n      WRONG: {what}" for what in run.wrong)


def summary(given, runs: list[Killed], unbroken: dict) -> str:
    good = [run for run in runs if not run.wrong]
    goes_on = given.elastic or given.replace
    seconds = sorted(run.seconds for run in good) or [0.0]
    rows = [
        ("runs", str(len(runs))),
        ("went on to the end" if goes_on else "ended, with a good checkpoint", str(len(good))),
        ("hung", str(sum("hung" in what for run in runs for what in run.wrong))),
        ("left something", str(sum("is left" in what for run in runs for what in run.wrong))),
        ("seconds: median, largest", f"{statistics.median(seconds):.2f}, {seconds[-1]:.2f}"),
        ("launcher's statuses", str(sorted({str(run.status) for run in runs}))),
    ]
    if goes_on:
        scores = [run.accuracy for run in good] or [0.0]
        rows.append(("accuracy: mean, least, most", ", ".join(f"{f(scores):.4f}" for f in (statistics.mean, min, max))))
        rows.append(("of an unbroken run", f"{unbroken['test_accuracy']:.4f}"))
        sources = sorted({run.source for run in good})
        rows.append(("went on from", ", ".join(f"{s} {sum(r.source == s for r in good)}" for s in sources)))
    return "\n".join(f"{name:<30} {value}" for name, value in rows)


if __name__ == "__main__":
    sys.exit(main())
