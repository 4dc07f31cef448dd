"""Runs the stages of the acceptance on a GPU within a time, and writes the report of them."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from report import markdown
from stages import STAGES, Stage, facts

PASSED, FAILED, SHORT, LEFT_OUT = "passed", "failed", "fell short", "left out"
LEAST_S = 15.0  # what a stage must at least have
GRACE_S = 5.0  # for what is told to end


@dataclass(slots=True)
class Outcome:
    """Of one stage. rows: what was measured, one table; said: why it did not pass, or what else is to be known"""

    name: str
    title: str
    wanted: str
    status: str
    seconds: float = 0.0
    command: str = ""
    rows: list[dict] = field(default_factory=list)
    said: str = ""


def main() -> int:
    options = parse()
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    found = facts()
    if found["gpu"] is None:
        print(f"gpu-acceptance: {found['why']}", file=sys.stderr)
        return 2
    began, outcomes = time.monotonic(), []
    for stage in chosen(options.stages):
        left = options.seconds - (time.monotonic() - began)
        outcomes.append(run(stage, folder, left))
        write(folder, found, outcomes)  # each time: what is killed at its limit has told all before
        print(f"{outcomes[-1].status:10} {stage.title} ({outcomes[-1].seconds:.0f} s) {outcomes[-1].said}", flush=True)
    return 1 if any(outcome.status in (FAILED, SHORT) for outcome in outcomes) else 0


def parse():
    parser = argparse.ArgumentParser(prog="scripts/gpu-acceptance", description=__doc__)
    parser.add_argument("stages", nargs="*", help=f"of {', '.join(stage.name for stage in STAGES)} [all]")
    parser.add_argument("--out", default="acceptance", help="folder of the report and of what stages write")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all stages together")
    options = parser.parse_args()
    unknown = set(options.stages) - {stage.name for stage in STAGES}
    if unknown:
        parser.error(f"no stage is called {', '.join(sorted(unknown))}: {', '.join(s.name for s in STAGES)} are there")
    return options


def chosen(names: list[str]) -> list[Stage]:
    return [stage for stage in STAGES if not names or stage.name in names]


def run(stage: Stage, folder: Path, left: float) -> Outcome:
    outcome = Outcome(stage.name, stage.title, stage.wanted, LEFT_OUT)
    if left < LEAST_S:
        outcome.said = "no time was left for it: name it as a stage of another call"
        return outcome
    own = (folder / stage.name).resolve()
    own.mkdir(exist_ok=True)
    command = stage.command(own)
    outcome.command, began = " ".join(map(str, command)), time.monotonic()
    limit = min(stage.seconds, left)
    with open(own / "output.txt", "w") as output:
        code = status(command, output, limit)
    outcome.seconds = time.monotonic() - began
    outcome.rows, short = stage.read(own)
    outcome.status = PASSED if code == 0 and not short else SHORT if code == 0 else FAILED
    if code and stage.unable and stage.unable in (own / "output.txt").read_text(errors="replace"):
        outcome.status = LEFT_OUT
    ended = "" if code == 0 else f"not done after {limit:.0f} s. " if code is None else f"exit code {code}. "
    outcome.said = ended + short + (f" The end of its output: {tail(own / 'output.txt')}" if code else "")
    return outcome


def status(command: list, output, limit: float) -> int | None:
    """Its exit code; None where it was not done in time: then all that it started is ended, as ranks would keep the GPU
    from the stages that follow."""
    command = list(map(str, command))
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        for number in (signal.SIGTERM, signal.SIGKILL):  # mpirun hands the first on
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(GRACE_S)
        return None


def tail(path: Path, most: int = 600) -> str:
    return " / ".join(path.read_text(errors="replace").strip().splitlines())[-most:]


def write(folder: Path, found: dict, outcomes: list[Outcome]) -> None:
    told = {"facts": found, "stages": [asdict(outcome) for outcome in outcomes]}
    (folder / "report.json").write_text(json.dumps(told, indent=1) + "\n")
    (folder / "report.md").write_text(markdown(told))


if __name__ == "__main__":
    sys.exit(main())
