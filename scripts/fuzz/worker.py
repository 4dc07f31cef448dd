"""A process that fuzzes one reader until its time is up.

Every input is written down before it is read (:class:`Ledger`), so that whoever started this process knows what it was
at when it died or hung. What breaks a rule is kept as a file, once for each place in the code, and fuzzing goes on.
With atheris (libFuzzer) coverage of ringtrain, and of the parser of TOML that it uses, chooses which inputs are spoiled
further; without it, coverage of ringtrain does, by tracing, which is slower.
"""

import gc
import hashlib
import io
import mmap
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random

MOST_BYTES = 1 << 20
ROOM_BYTES = 1 << 30  # of memory, above what a process has that has imported everything
PARSERS = ["ringtrain", "tomllib"]
PACKAGE = str(Path(find_spec("ringtrain").origin).parent) + os.sep  # not imported here: atheris instruments imports
SEEDS_FIRST = 0.05  # of inputs, a seed as it is


class Ledger:
    """A file of the input that is being read: count of inputs, length, bytes. Shared with whoever looks on."""

    def __init__(self, path: Path):
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.truncate(16 + MOST_BYTES)
            self._memory = mmap.mmap(file.fileno(), 16 + MOST_BYTES)

    def begin(self, data: bytes) -> None:
        self._memory[16 : 16 + len(data)] = data
        self._memory[8:16] = len(data).to_bytes(8, "little")
        self._memory[:8] = (self.count + 1).to_bytes(8, "little")

    @property
    def count(self) -> int:
        return int.from_bytes(self._memory[:8], "little")

    @property
    def data(self) -> bytes:
        return self._memory[16 : 16 + int.from_bytes(self._memory[8:16], "little")]


def keep(folder: Path, data: bytes, place: str, told: str) -> Path | None:
    """Write down an input that broke a rule; None where this place in the code has one already."""
    path = folder / f"{hashlib.sha256(place.encode()).hexdigest()[:12]}.input"
    if path.exists():
        return None
    path.with_suffix(".txt").write_text(told, encoding="utf-8", errors="backslashreplace")
    path.write_bytes(data)
    return path


def place_of(error: BaseException) -> str:
    """Kind of error, and where in ringtrain (or else anywhere) it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(PACKAGE)] or frames
    return f"{type(error).__name__} {own[-1].filename}:{own[-1].lineno}"


def tried(reader, folder: Path, found: Path, data: bytes) -> None:
    try:
        reader.judge(data, folder)
    except Exception as error:
        keep(found, data, place_of(error), traceback.format_exc())


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM_BYTES,) * 2)


# ── by tracing ────────────────────────────────────────────────────────────────────────────────────────────────
class Lines:
    """Lines of ringtrain that were ever run."""

    def __init__(self):
        self.seen: set = set()
        self._fresh = False

    def fresh(self, run: Callable[[], None]) -> bool:
        """Whether ``run()`` came to a line that none before it did."""
        self._fresh = False
        collecting = gc.isenabled()
        gc.disable()  # ringtrain has a finalizer: when it runs is not of the input's doing
        sys.settrace(self._call)
        try:
            run()
        finally:
            sys.settrace(None)
            if collecting:
                gc.enable()
        return self._fresh

    def _call(self, frame, event, arg):
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame, event, arg):
        key = frame.f_code, frame.f_lineno
        if key not in self.seen:
            self.seen.add(key)
            self._fresh = True
        return self._line


def by_tracing(reader, one: Callable[[bytes], None], seconds: float, seed: int) -> None:
    random, lines, corpus = Random(seed), Lines(), list(reader.seeds())
    for data in corpus:
        lines.fresh(partial(one, data))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = reader.mutate(random, random.choice(corpus))[:MOST_BYTES]
        if lines.fresh(partial(one, data)):
            corpus.append(data)
    print(f"covered: {len(lines.seen)} lines of ringtrain, {len(corpus)} inputs kept")


# ── by atheris ────────────────────────────────────────────────────────────────────────────────────────────────
def by_atheris(atheris, reader, one: Callable[[bytes], None], seconds: float, seed: int, corpus: Path) -> None:
    seeds = reader.seeds()
    for place, data in enumerate(seeds):
        (corpus / f"seed-{place}").write_bytes(data)

    def mutate(data: bytes, most: int, choice: int) -> bytes:
        random = Random(choice)
        if random.random() < SEEDS_FIRST:
            data = random.choice(seeds)
        if random.random() < 0.2:
            return atheris.Mutate(data, most)
        return reader.mutate(random, data)[:most]

    limits = [f"-max_total_time={max(1, int(seconds))}", f"-seed={seed + 1}", "-rss_limit_mb=0", "-timeout=100000"]
    handled = [f"-handle_{signal}=0" for signal in ("segv", "abrt", "bus", "ill", "fpe", "int", "term")]
    options = [
        f"-artifact_prefix={corpus.parent}/",
        *limits,
        *handled,
        f"-max_len={MOST_BYTES}",
        "-print_final_stats=1",
        "-len_control=0",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *options], one, custom_mutator=mutate)
    atheris.Fuzz()


def load() -> tuple:
    """atheris, or None where it is not installed; and all readers, instrumented by it."""
    try:
        import atheris
    except ImportError:
        from scripts.fuzz.catalogue import READERS

        return None, READERS
    told = io.StringIO()  # a line a module
    with redirect_stderr(told), atheris.instrument_imports(include=PARSERS):
        from scripts.fuzz.catalogue import READERS
    return atheris, READERS


def work(atheris, reader, folder: Path, seconds: float, seed: int) -> None:
    """Fuzz a reader until its time is up; the process is used up by that."""
    room, found, corpus = (folder / each for each in ("room", "found", "corpus"))
    for each in (room, found, corpus):
        each.mkdir(parents=True, exist_ok=True)
    os.chdir(room)
    ledger = Ledger(folder / "ledger")

    def one(data: bytes) -> None:
        ledger.begin(data)
        tried(reader, room, found, data)

    one(reader.seeds()[0])  # what is imported late is imported now
    limit_memory()
    if atheris is None:
        by_tracing(reader, one, seconds, seed)
    else:
        by_atheris(atheris, reader, one, seconds, seed, corpus)
