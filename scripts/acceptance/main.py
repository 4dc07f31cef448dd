"""Run stages of the acceptance on a GPU within a time, and write their report.

Exit codes: 0, every stage passed; 1, one failed, fell short of what is wanted, or was not done; 2, something that the
stages want is missing here, and nothing was run.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

import bars
from files import put, read_json, sources_digest
from preflight import COMPILER, SANITIZER, lacking, lacking_kernels
from processes import ended, ending
from report import markdown
from stages import BEFORE, CALLS, FIRST_CALLS, ROOT, SECONDS, STAGES, Stage, facts

PASSED, FAILED, SHORT, LEFT_OUT = "passed", "failed", "fell short", "not done"
COUNTED = (PASSED, SHORT)  # stages that ended: figures of others are of a part, neither judged nor a bar
LEAST_S = 15.0  # the least time of a stage
ARCHIVED = (".json", ".jsonl", ".txt", ".toml")  # reports and logs, and no weights
PROBE = "probe.json"


@dataclass(slots=True)
class Outcome:
    """Of one stage. rows: what was measured, one table; judged: figures and their bars; said: why it did not pass, or
    what else is to be known; played: by what, in a rehearsal"""

    name: str
    title: str
    wanted: str
    status: str = LEFT_OUT
    seconds: float = 0.0
    limit: float = 0.0
    command: str = ""
    rows: list[dict] = field(default_factory=list)
    judged: list[dict] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    said: str = ""
    played: str = ""


def main() -> int:
    options = parse()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # ends the stage, and writes what it had
    if options.rehearse:
        return rehearse(options)
    stages = chosen(options)
    missing = lacking([need for stage in stages for need in stage.needs], options.wheels)
    missing += lacking_kernels(options.kernels)
    if missing:
        return refuse(missing)
    if options.look:
        later = [
            need
            for name in chain(*CALLS[:FIRST_CALLS])
            for stage in STAGES
            if stage.name == name
            for need in stage.needs
        ]
        for line in lacking([*later, SANITIZER], options.wheels):
            print(f"gpu-acceptance: another stage of the first calls lacks {line}", file=sys.stderr)
        return 0
    os.environ["CUPY_CACHE_DIR"] = str(options.kernels.resolve())
    return conclude(run_all(stages, options))


def refuse(missing: list[str]) -> int:
    print("\n  ".join(["gpu-acceptance: nothing was run, as these are missing here:", *missing]), file=sys.stderr)
    return 2


def parse():
    calls = "; ".join(f"{number}: {' '.join(call)}" for number, call in enumerate(CALLS, 1))
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-acceptance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="*", help="[those of --call]")
    parser.add_argument("--call", type=int, default=1, choices=range(1, 1 + len(CALLS)), help=f"{calls} [1]")
    parser.add_argument(
        "--out", type=Path, default=Path("acceptance"), help=f"folder of the report: report.md, report.tar, {PROBE} …"
    )
    parser.add_argument("--seconds", type=float, help=f"for all stages together [their limits, at most {SECONDS:g}]")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install, in an environment of their own")
    parser.add_argument("--kernels", type=Path, help="folder of kernels that scripts/gpu-kernels has compiled")
    parser.add_argument("--home", type=Path, help=f"folder of this machine's environment, where {PROBE} stays, too")
    parser.add_argument("--look", action="store_true", help="only say what is missing")
    parser.add_argument("--rehearse", action="store_true", help="play the first three calls on a machine without a GPU")
    options = parser.parse_args()
    unknown = set(options.stages) - {stage.name for stage in STAGES}
    if unknown:
        parser.error(f"no stage is called {', '.join(sorted(unknown))}: {', '.join(s.name for s in STAGES)} are there")
    return options


def chosen(options) -> list[Stage]:
    names = options.stages or CALLS[options.call - 1]
    return sorted((stage for stage in STAGES if stage.name in names), key=lambda stage: names.index(stage.name))


def conclude(outcomes: list[Outcome]) -> int:
    for status in (FAILED, SHORT, LEFT_OUT):
        names = [outcome.name for outcome in outcomes if outcome.status == status]
        if names:
            print(f"gpu-acceptance: {status}: {', '.join(names)}", file=sys.stderr)
    return 1 if any(outcome.status != PASSED for outcome in outcomes) else 0


def run_all(stages: list[Stage], options) -> list[Outcome]:
    """Run the stages one after another. The report is written every few seconds: one that is cut leaves what it had."""
    began, outcomes, machine = time.monotonic(), [], facts()
    seconds = options.seconds or min(SECONDS, sum(stage.seconds for stage in stages))
    own_bars = bars.read().get(machine.get("gpu"), {})
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-acceptance-") as folder:
        work = Path(folder)
        for stage in stages:
            outcome = Outcome(stage.name, stage.title, stage.wanted, said="it was under way")
            outcomes.append(outcome)
            try:
                left = seconds - (time.monotonic() - began)
                run(stage, outcome, work, left, options, lambda: write(options, work, machine, outcomes))
                judge(outcome, own_bars.get(stage.name, {}))
            finally:
                write(options, work, machine, outcomes)
            print(f"{outcome.status:10} {stage.title} ({outcome.seconds:.0f} s) {outcome.said}", flush=True)
    return outcomes


def run(stage: Stage, outcome: Outcome, work: Path, left: float, options, beat: Callable = lambda: None) -> None:
    if left < LEAST_S:
        outcome.said = "no time was left for it: name it as a stage of another call"
        return
    folder = (work / stage.name).resolve()
    folder.mkdir(exist_ok=True)
    probe = last_probe(options)
    put(folder / BEFORE, json.dumps(probe))
    command = (stage.small if options.rehearse else stage.command)(folder)
    environment = stage.environment(probe.get("leave_out", []), options.rehearse)
    outcome.command, began = " ".join(map(str, command)), time.monotonic()
    outcome.limit = min(stage.seconds, left)
    outcome.played = stage.played if options.rehearse else ""
    code = None
    try:
        with open(folder / "output.txt", "w") as output:
            shown = None if stage.live else output
            code = status(command, environment, shown, outcome.limit, beat)
    finally:
        outcome.seconds = time.monotonic() - began
        reading = stage.read(folder)
        outcome.rows, outcome.figures = reading.rows, reading.figures
        outcome.said = reading.short
    outcome.status = PASSED if code == 0 and not reading.short else SHORT if code == 0 else FAILED
    if code and stage.unable and stage.unable in (folder / "output.txt").read_text(errors="replace"):
        outcome.status = LEFT_OUT
    if code != 0:
        how = f"not done after {outcome.limit:.0f} s" if code is None else ending(code)
        outcome.said = f"{how}. {reading.short} The end of its output: {tail(folder / 'output.txt')}"


def last_probe(options) -> dict:
    """Return the content of the last probe.json of these sources: nothing without any."""
    for folder in filter(None, (options.out, options.home, options.kernels)):
        probe = read_json(folder / PROBE)
        if probe.get("sources") == sources_digest():
            return probe
    return {}


def rehearse(options) -> int:
    """Play the first calls, each with a report of its own."""
    stages = [stage for stage in STAGES if stage.small]
    missing = lacking([*(need for stage in stages for need in stage.needs if need.host), COMPILER], None)
    if missing:
        return refuse(missing)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="gpu-kernels-") as kernels:
        os.environ["CUPY_CACHE_DIR"] = kernels
        for number in range(1, 1 + FIRST_CALLS):
            options.call = number
            outcomes += run_all(chosen(options), options)
    for outcome in outcomes:
        seconds = f"{outcome.seconds:5.0f} s of {outcome.limit:4.0f}"
        print(f"{outcome.name:10} {outcome.status:10} {seconds}  {outcome.played}")
    return conclude(outcomes)


def judge(outcome: Outcome, own_bars: dict[str, float]) -> None:
    """Compare the figures of a stage that ended with those of an earlier run on such a GPU."""
    outcome.judged, short = bars.judged(outcome.figures, own_bars if outcome.status in COUNTED else {})
    if short:
        outcome.status, outcome.said = SHORT, "; ".join(filter(None, [outcome.said, short]))


def status(command: list, environment: dict, output, limit: float, beat: Callable) -> int | None:
    """Return the exit code of a command; None if it took longer. ``output``: a file; None: this program's."""
    try:
        words = list(map(str, command))
        return ended(words, limit, beat=beat, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=output)
        return 127


def tail(path: Path, most: int = 600) -> str:
    return " / ".join(path.read_text(errors="replace").strip().splitlines())[-most:]


def write(options, work: Path, machine: dict, outcomes: list[Outcome]) -> None:
    """Write report.md and report.json, bars.json with the new figures, probe.json, and report.tar with the files of all
    stages."""
    name = f"-{options.call}" if options.rehearse else ""
    content = {"facts": machine, "stages": [asdict(outcome) for outcome in outcomes]}
    measured = bars.read()
    for outcome in outcomes:
        if outcome.status in COUNTED:
            measured = bars.merged(measured, machine.get("gpu", "unknown"), outcome.name, outcome.figures)
    put(options.out / f"report{name}.json", json.dumps(content, indent=1) + "\n")
    put(options.out / f"report{name}.md", markdown(content))
    put(options.out / "bars.json", json.dumps(measured, indent=1) + "\n")
    if (work / "probe" / PROBE).exists():
        for place in filter(None, (options.out, options.home)):
            put(place / PROBE, (work / "probe" / PROBE).read_text())
    aside = options.out / ".report.tar.part"
    with tarfile.open(aside, "w") as archive:
        for path in sorted(work.rglob("*")):
            if path.is_file() and path.suffix in ARCHIVED:
                archive.add(path, path.relative_to(work))
    os.replace(aside, options.out / "report.tar")


if __name__ == "__main__":
    sys.exit(main())
