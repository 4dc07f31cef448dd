"""Bad input at scale: readers are given spoiled files, texts, variables and flags, each for some time, and must return
a value or raise an error that can be read: never a traceback, a hang, a dead process, a file or descriptor left behind.

Each reader runs in a process of its own, in limited memory, which is started anew where it dies. What breaks a rule is
kept in --out with its traceback, and the command that repeats it is printed. Exits with 1 where there is any.
"""

import argparse
import os
import re
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from scripts.fuzz.worker import Ledger, keep, load, work  # noqa: E402

HANG_S = 20.0  # for one input: each takes milliseconds
STARTS_S = 120.0  # until the first
GLANCE_S = 0.25


@dataclass(slots=True)
class Outcome:
    inputs: int = 0
    deaths: int = 0
    covered: str = ""
    found: list[Path] = field(default_factory=list)


def fuzz(atheris, reader, folder: Path, seconds: float, seed: int) -> Outcome:
    """One reader, in as many processes as it takes."""
    outcome, begun = Outcome(), time.monotonic()
    put_aside(folder / "found", folder / "found-before")
    while (left := seconds - (time.monotonic() - begun)) > 1:
        (folder / "ledger").unlink(missing_ok=True)
        ledger = Ledger(folder / "ledger")
        end = watch(atheris, reader, folder, left, seed + outcome.deaths, ledger)
        outcome.inputs += ledger.count
        outcome.covered = covered(folder) or outcome.covered
        if end is None:
            break
        outcome.deaths += 1
        if not ledger.count or outcome.deaths > 20:
            raise SystemExit(f"{reader.name}: {end}\n{(folder / 'told').read_text(errors='replace')[-3000:]}")
        keep(folder / "found", ledger.data, f"{end} {outcome.deaths}", f"the process {end} at this input")
    outcome.found = sorted((folder / "found").glob("*.input"))
    return outcome


def put_aside(found: Path, before: Path) -> None:
    """What was found earlier may be mended since: it is kept, and does not count."""
    for path in (found, before):
        path.mkdir(parents=True, exist_ok=True)
    for path in found.iterdir():
        path.replace(before / path.name)


def watch(atheris, reader, folder: Path, seconds: float, seed: int, ledger: Ledger) -> str | None:
    """One process, to its end; None where it came to that by itself, or what became of it."""
    sys.stdout.flush()
    child = os.fork()  # of one that has imported everything
    if not child:
        be_child(atheris, reader, folder, seconds, seed)
    seen, since = 0, time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return None if code == 0 else f"ended with {code}"
        time.sleep(GLANCE_S)
        if ledger.count != seen:
            seen, since = ledger.count, time.monotonic()
        elif time.monotonic() - since > (HANG_S if seen else STARTS_S):
            os.kill(child, 9)
            os.waitpid(child, 0)
            return f"was at it for {time.monotonic() - since:.0f} s"


def be_child(atheris, reader, folder: Path, seconds: float, seed: int) -> None:
    """Never returns."""
    try:
        with open(folder / "told", "a") as told:
            for stream in (1, 2):
                os.dup2(told.fileno(), stream)
        work(atheris, reader, folder, seconds, seed)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(3)


def covered(folder: Path) -> str:
    told = (folder / "told").read_text(errors="replace")
    by_atheris = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", told)
    if by_atheris:
        edges, features, kept = by_atheris[-1]
        return f"{edges} edges, {features} features, {kept} inputs kept"
    return "".join(re.findall(r"covered: (.*)", told)[-1:])


def repeat(reader, path: Path) -> int:
    """One input again, with its traceback."""
    data = path.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder) / "room"
        room.mkdir()
        os.chdir(room)
        print(reader.judge(data, room) or "it was read without an error")
    return 0


def tell(name: str, outcome: Outcome) -> None:
    what = f"{len(outcome.found)} found" if outcome.found else "nothing found"
    print(f"{name:16} {outcome.inputs:>9,} inputs  {what:14} {outcome.covered}", flush=True)
    for path in outcome.found:
        told = path.with_suffix(".txt").read_text().rstrip().splitlines()
        print(f"    {told[-1][:300]}\n    scripts/bench fuzz {name} --repeat {path}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", metavar="READER", help="[all]")
    parser.add_argument("--seconds", type=float, default=120.0, help="for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzz"), help="folder of what is found")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="read this one input, that broke a rule, again")
    options = parser.parse_args()
    atheris, known = load()
    if set(options.readers) - known.keys() or (options.repeat and len(options.readers) != 1):
        parser.error(f"readers are {', '.join(known)}; --repeat is of one")
    if options.repeat:
        return repeat(known[options.readers[0]], options.repeat)
    how = "atheris" if atheris else "tracing, which is slower than atheris (pip install 'ringtrain[fuzz]')"
    print(f"coverage by {how}", flush=True)
    broken = 0
    for name in options.readers or known:
        outcome = fuzz(atheris, known[name], options.out.resolve() / name, options.seconds, options.seed)
        tell(name, outcome)
        broken += len(outcome.found)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
