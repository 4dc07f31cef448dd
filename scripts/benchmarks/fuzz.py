"""Bad input at scale: readers are given spoiled files, texts, variables and flags, each for some time, and must return
a value or raise an error that can be read: never a traceback, a hang, a dead process, a file or descriptor left behind.

Each reader runs in a process of its own, in limited memory, which is started anew where it dies. What breaks a rule is
kept in --out with its traceback, and the command that repeats it is printed. Exits with 1 where there is any.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from scripts.fuzz.catalogue import READERS  # noqa: E402
from scripts.fuzz.worker import Ledger, keep  # noqa: E402

HANG_S = 20.0  # for one input: each takes milliseconds
STARTS_S = 600.0  # until a process has imported everything, on a busy machine
GLANCE_S = 0.25


@dataclass(slots=True)
class Outcome:
    inputs: int = 0
    deaths: int = 0
    covered: str = ""
    found: list[Path] = field(default_factory=list)


def fuzz(name: str, folder: Path, seconds: float, seed: int) -> Outcome:
    """One reader, in as many processes as it takes."""
    outcome, begun = Outcome(), time.monotonic()
    (folder / "found").mkdir(parents=True, exist_ok=True)
    while (left := seconds - (time.monotonic() - begun)) > 1:
        ledger = fresh_ledger(folder)
        end = watch(name, folder, left, seed + outcome.deaths, ledger)
        outcome.inputs += ledger.count
        outcome.covered = covered(folder) or outcome.covered
        if end is None:
            break
        outcome.deaths += 1
        if not ledger.count or outcome.deaths > 20:
            raise SystemExit(f"{name}: {end}\n{(folder / 'told').read_text(errors='replace')[-3000:]}")
        keep(folder / "found", ledger.data, f"{end} {outcome.deaths}", f"the process {end} at this input")
    outcome.found = sorted((folder / "found").glob("*.input"))
    return outcome


def fresh_ledger(folder: Path) -> Ledger:
    (folder / "ledger").unlink(missing_ok=True)
    return Ledger(folder / "ledger")


def watch(name: str, folder: Path, seconds: float, seed: int, ledger: Ledger) -> str | None:
    """One process, to its end; None where it came to that by itself, or what became of it."""
    command = [sys.executable, "-m", "scripts.fuzz.worker", name, str(folder), str(seconds), str(seed)]
    places = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with open(folder / "told", "w") as told:
        child = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=told, stderr=told,
            env=os.environ | {"PYTHONPATH": places, "PYTHONFAULTHANDLER": "1"},
        )  # fmt: skip
    seen, since = 0, time.monotonic()
    while child.poll() is None:
        time.sleep(GLANCE_S)
        if ledger.count != seen:
            seen, since = ledger.count, time.monotonic()
        elif time.monotonic() - since > (HANG_S if seen else STARTS_S):
            child.kill()
            child.wait()
            return f"was at it for {time.monotonic() - since:.0f} s"
    return None if child.returncode == 0 else f"ended with {child.returncode}"


def covered(folder: Path) -> str:
    told = (folder / "told").read_text(errors="replace")
    by_atheris = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", told)
    if by_atheris:
        edges, features, kept = by_atheris[-1]
        return f"{edges} edges, {features} features, {kept} inputs kept"
    return "".join(re.findall(r"covered: (.*)", told)[-1:])


def repeat(name: str, path: str) -> int:
    """One input again, with its traceback."""
    folder = Path(path).resolve().parent / "repeated"
    command = [sys.executable, "-m", "scripts.fuzz.worker", name, str(folder), "0", "0", str(Path(path).resolve())]
    try:
        return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tell(name: str, outcome: Outcome) -> None:
    what = f"{len(outcome.found)} found" if outcome.found else "nothing found"
    print(f"{name:16} {outcome.inputs:>9,} inputs  {what:14} {outcome.covered}", flush=True)
    for path in outcome.found:
        told = path.with_suffix(".txt").read_text().rstrip().splitlines()
        print(f"    {told[-1][:300]}\n    scripts/bench fuzz {name} --repeat {path}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"of {', '.join(READERS)} [all]")
    parser.add_argument("--seconds", type=float, default=120.0, help="for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzz"), help="folder of what is found")
    parser.add_argument("--repeat", metavar="FILE", help="read this one input, that broke a rule, again")
    options = parser.parse_args()
    unknown = set(options.readers) - READERS.keys()
    if unknown or (options.repeat and len(options.readers) != 1):
        parser.error(f"readers are {', '.join(READERS)}; --repeat is of one")
    if options.repeat:
        return repeat(options.readers[0], options.repeat)
    broken = 0
    for name in options.readers or READERS:
        outcome = fuzz(name, options.out.resolve() / name, options.seconds, options.seed)
        tell(name, outcome)
        broken += len(outcome.found)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
