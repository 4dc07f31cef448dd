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

from files import put, read_json, sources_digest
from preflight import COMPILER, SANITIZER, lacking, lacking_kernels
from processes import ended, ending
from report import BARS, judged, markdown, with_bars
from stages import BEFORE, CALLS, FIRST_CALLS, NAMED, ROOT, SECONDS, STAGES, Stage, facts

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
        later = chain(*(NAMED[name].needs for name in chain(*CALLS[:FIRST_CALLS])))
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
    files = f"report.md, report.tar, {PROBE} …"
    parser.add_argument("--out", type=Path, default=Path("acceptance"), help=f"folder of the report: {files}")
    parser.add_argument("--seconds", type=float, help=f"for all stages together [their limits, at most {SECONDS:g}]")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install, in an environment of their own")
    parser.add_argument("--kernels", type=Path, help="folder of kernels that scripts/gpu-kernels has compiled")
    parser.add_argument("--home", type=Path, help=f"folder of this machine's environment, where {PROBE} stays, too")
    parser.add_argument("--look", action="store_true", help="only say what is missing")
    parser.add_argument("--rehearse", action="store_true", help="play the first three calls on a machine without a GPU")
    options = parser.parse_args()
    if unknown := set(options.stages) - set(NAMED):
        parser.error(f"no stage is called {', '.join(sorted(unknown))}: {', '.join(NAMED)} are there")
    return options


def chosen(options) -> list[Stage]:
    return [NAMED[name] for name in dict.fromkeys(options.stages or CALLS[options.call - 1])]


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
    bars = read_json(BARS).get(machine.get("gpu"), {})
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-acceptance-") as folder:
        work = Path(folder)
        for stage in stages:
            outcome = Outcome(stage.name, stage.title, stage.wanted, said="it was under way")
            outcomes.append(outcome)
            try:
                left = seconds - (time.monotonic() - began)
                run(stage, outcome, work, left, options, lambda: write(options, work, machine, outcomes))
                judge(outcome, bars.get(stage.name, {}))
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
    words = list(map(str, command))
    outcome.command, began, said = " ".join(words), time.monotonic(), folder / "output.txt"
    outcome.limit, code = min(stage.seconds, left), None
    outcome.played = stage.played if options.rehearse else ""
    try:
        with open(said, "w") as output:
            where = {"stdout": None if stage.live else output, "stderr": subprocess.STDOUT, "cwd": ROOT}
            code = ended(words, outcome.limit, beat=beat, env=environment, **where)
    except OSError as error:
        code = 127
        said.write_text(f"{words[0]}: {error.strerror}")
    finally:
        outcome.seconds = time.monotonic() - began
        reading = stage.read(folder)
        outcome.rows, outcome.figures = reading.rows, reading.figures
        outcome.said = reading.short
    outcome.status = PASSED if code == 0 and not reading.short else SHORT if code == 0 else FAILED
    text = said.read_text(errors="replace")
    if code and stage.unable and stage.unable in text:
        outcome.status = LEFT_OUT
    if code != 0:
        how = f"not done after {outcome.limit:.0f} s" if code is None else ending(code)
        outcome.said = f"{how}. {reading.short} The end of its output: {' / '.join(text.strip().splitlines())[-600:]}"


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


def judge(outcome: Outcome, bars: dict[str, float]) -> None:
    """Compare the figures of a stage that ended with those of an earlier run on such a GPU."""
    outcome.judged, short = judged(outcome.figures, bars if outcome.status in COUNTED else {})
    if short:
        outcome.status, outcome.said = SHORT, "; ".join(filter(None, [outcome.said, short]))


def write(options, work: Path, machine: dict, outcomes: list[Outcome]) -> None:
    """Write report.md and report.json, bars.json with the new figures, probe.json, and report.tar with the files of all
    stages."""
    name = f"-{options.call}" if options.rehearse else ""
    content = {"facts": machine, "stages": [asdict(outcome) for outcome in outcomes]}
    figures = {outcome.name: outcome.figures for outcome in outcomes if outcome.status in COUNTED}
    put(options.out / f"report{name}.json", json.dumps(content, indent=1) + "\n")
    put(options.out / f"report{name}.md", markdown(content))
    put(options.out / "bars.json", json.dumps(with_bars(machine.get("gpu", "unknown"), figures), indent=1) + "\n")
    if (work / "probe" / PROBE).exists():
        for folder in filter(None, (options.out, options.home)):
            put(folder / PROBE, (work / "probe" / PROBE).read_text())
    aside = options.out / ".report.tar.part"
    with tarfile.open(aside, "w") as archive:
        for path in sorted(work.rglob("*")):
            if path.is_file() and path.suffix in ARCHIVED:
                archive.add(path, path.relative_to(work))
    os.replace(aside, options.out / "report.tar")


if __name__ == "__main__":
    sys.exit(main())
