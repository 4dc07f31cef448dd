"""Run stages of the acceptance on a GPU within a time, and write their report.

Exit codes: 0, every stage passed; 1, one failed, fell short of what is wanted, or was not done; 2, something that the
stages want is missing here, and nothing was run.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import bars
from preflight import lacking
from processes import end, ended
from report import markdown
from stages import CALLS, HERE, ROOT, SECONDS, STAGES, Stage, facts

PASSED, FAILED, SHORT, LEFT_OUT = "passed", "failed", "fell short", "not done"
COUNTED = (PASSED, SHORT)  # stages that ended: figures of others are of a part, neither judged nor a bar
LEAST_S = 15.0  # the least time of a stage
WARMERS = 4  # processes that compile, beside the first stage
ARCHIVED = (".json", ".jsonl", ".txt", ".toml")  # reports and logs, and no weights


@dataclass(slots=True)
class Outcome:
    """Of one stage. rows: what was measured, one table; judged: figures and their bars; said: why it did not pass, or
    what else is to be known"""

    name: str
    title: str
    wanted: str
    status: str
    seconds: float = 0.0
    command: str = ""
    rows: list[dict] = field(default_factory=list)
    judged: list[dict] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    said: str = ""


def main() -> int:
    options = parse()
    stages = chosen(options.stages)
    missing = lacking([need for stage in stages for need in stage.needs], options.wheels)
    if missing:
        print("\n  ".join(["gpu-acceptance: nothing was run, as these are missing here:", *missing]), file=sys.stderr)
        return 2
    if options.look:
        return 0
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = run_all(stages, folder, options.seconds)
    return conclude(outcomes)


def parse():
    calls = "; ".join(" ".join(call) for call in CALLS)
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-acceptance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="*", help=f"those that fit into one call: {calls} [the first of these]")
    parser.add_argument("--out", default="acceptance", help="folder of report.md, report.json, bars.json, report.tar")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all stages together")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install, in an environment of their own")
    parser.add_argument("--look", action="store_true", help="only say what is missing")
    options = parser.parse_args()
    unknown = set(options.stages) - {stage.name for stage in STAGES}
    if unknown:
        parser.error(f"no stage is called {', '.join(sorted(unknown))}: {', '.join(s.name for s in STAGES)} are there")
    return options


def chosen(names: list[str]) -> list[Stage]:
    return [stage for stage in STAGES if stage.name in (names or CALLS[0])]


def conclude(outcomes: list[Outcome]) -> int:
    for status in (FAILED, SHORT, LEFT_OUT):
        names = [outcome.name for outcome in outcomes if outcome.status == status]
        if names:
            print(f"gpu-acceptance: {status}: {', '.join(names)}", file=sys.stderr)
    return 1 if any(outcome.status != PASSED for outcome in outcomes) else 0


def run_all(stages: list[Stage], folder: Path, seconds: float) -> list[Outcome]:
    began, outcomes, found = time.monotonic(), [], facts()
    kept = bars.read()
    with tempfile.TemporaryDirectory(prefix="gpu-acceptance-") as work, warming():
        for stage in stages:
            outcome = run(stage, Path(work), seconds - (time.monotonic() - began))
            judge(outcome, kept.get(found.get("gpu"), {}).get(stage.name, {}))
            outcomes.append(outcome)
            write(folder, Path(work), found, outcomes)  # after each stage: a killed run keeps its report
            print(f"{outcome.status:10} {stage.title} ({outcome.seconds:.0f} s) {outcome.said}", flush=True)
    return outcomes


@contextmanager
def warming():
    """Compile kernels into CuPy's cache in processes that end with the context."""
    command = [sys.executable, str(HERE / "warm.py")]
    given = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT, "start_new_session": True}
    processes = [subprocess.Popen([*command, str(part), str(WARMERS)], **given) for part in range(WARMERS)]
    try:
        yield
    finally:
        for process in processes:
            end(process)


def run(stage: Stage, work: Path, left: float) -> Outcome:
    outcome = Outcome(stage.name, stage.title, stage.wanted, LEFT_OUT)
    if left < LEAST_S:
        outcome.said = "no time was left for it: name it as a stage of another call"
        return outcome
    own = (work / stage.name).resolve()
    own.mkdir(exist_ok=True)
    command = stage.command(own)
    outcome.command, began = " ".join(map(str, command)), time.monotonic()
    limit = min(stage.seconds, left)
    with open(own / "output.txt", "w") as output:
        code = status(command, stage.environment(), output, limit)
    outcome.seconds = time.monotonic() - began
    reading = stage.read(own)
    outcome.rows, outcome.figures = reading.rows, reading.figures
    outcome.status = PASSED if code == 0 and not reading.short else SHORT if code == 0 else FAILED
    if code and stage.unable and stage.unable in (own / "output.txt").read_text(errors="replace"):
        outcome.status = LEFT_OUT
    ended = "" if code == 0 else f"not done after {limit:.0f} s. " if code is None else f"exit code {code}. "
    outcome.said = ended + reading.short + (f" The end of its output: {tail(own / 'output.txt')}" if code != 0 else "")
    return outcome


def judge(outcome: Outcome, own_bars: dict[str, float]) -> None:
    """Compare the figures of a stage that ended with those of an earlier run on such a GPU."""
    outcome.judged, short = bars.judged(outcome.figures, own_bars if outcome.status in COUNTED else {})
    if short:
        outcome.status, outcome.said = SHORT, "; ".join(filter(None, [outcome.said, short]))


def status(command: list, environment: dict, output, limit: float) -> int | None:
    """Return the exit code of a command; None if it took longer."""
    try:
        return ended(list(map(str, command)), limit, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
    except OSError as error:
        output.write(f"{command[0]}: {error.strerror}\n")
        return 127


def tail(path: Path, most: int = 600) -> str:
    return " / ".join(path.read_text(errors="replace").strip().splitlines())[-most:]


def write(folder: Path, work: Path, found: dict, outcomes: list[Outcome]) -> None:
    """Write report.md and report.json, bars.json with the new figures, and report.tar with the files of all stages."""
    told = {"facts": found, "stages": [asdict(outcome) for outcome in outcomes]}
    (folder / "report.json").write_text(json.dumps(told, indent=1) + "\n")
    (folder / "report.md").write_text(markdown(told))
    measured = bars.read()
    for outcome in outcomes:
        if outcome.status in COUNTED:
            measured = bars.merged(measured, found.get("gpu", "unknown"), outcome.name, outcome.figures)
    (folder / "bars.json").write_text(json.dumps(measured, indent=1) + "\n")
    with tarfile.open(folder / "report.tar", "w") as archive:
        for path in sorted(work.rglob("*")):
            if path.is_file() and path.suffix in ARCHIVED:
                archive.add(path, path.relative_to(work))


if __name__ == "__main__":
    sys.exit(main())
