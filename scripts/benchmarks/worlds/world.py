"""One mpirun and its ranks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TAG = "RINGTRAIN_WORLD"  # in the environment of all that we start
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
LIMIT_S = 300.0  # far beyond what anything here takes: what is not done then hangs
MIB = 1 << 20


class Hung(Exception):
    """It did not end in time; it was ended."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Of one rank. seconds: since the world began; heap: bytes that are its alone; shared: of shared memory that it
    has touched; files, threads: how many are open, and run"""

    seconds: float
    heap: int
    shared: int
    files: int
    threads: int


class World:
    """``arguments``: of Python, on every rank; ``output``: the file that takes what they say; ``folder``: for the
    MPI's own files; ``launcher``: more options of mpirun."""

    def __init__(self, ranks: int, arguments: Sequence, output: Path, folder: Path, launcher: Sequence[str] = ()):
        self.ranks, self.output, self.began = ranks, output, time.monotonic()
        line = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *launcher, sys.executable]
        environ = {**os.environ, TAG: str(os.getpid()), "TMPDIR": str(folder)}
        with open(output, "ab") as file:
            self._process = subprocess.Popen(
                [*line, *map(str, arguments)],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ, start_new_session=True,
            )  # fmt: skip

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Its exit status. Raises Hung."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise Hung(f"did not end in {limit_s:g} s") from None

    def end(self) -> None:
        """At once, all of it."""
        for pid in [*self.pids().values(), self._process.pid]:
            send(pid, signal.SIGKILL)
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """To mpirun, which hands it on to all ranks."""
        self._process.send_signal(number)

    def pids(self) -> dict[int, int]:
        """The process of each rank."""
        found: dict[int, int] = {}
        for pid, environ in sorted(tagged().items()):
            rank = next((environ[name] for name in RANKS if name in environ), None)
            if rank is not None and self._process.pid in ancestors(pid):
                found.setdefault(int(rank), pid)  # and no later copy of it
        return found

    @property
    def pid(self) -> int:
        return self._process.pid

    def samples(self) -> dict[int, Sample]:
        """Of each rank that is there."""
        seconds = time.monotonic() - self.began
        found = {rank: _sample(pid, seconds) for rank, pid in self.pids().items()}
        return {rank: sample for rank, sample in found.items() if sample is not None}


def send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has just ended


def tagged() -> dict[int, dict[str, str]]:
    """Processes that we started and their children, but for ourselves, with their environment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "environ").read_text(errors="replace")
        except OSError:
            continue  # it has just ended, or is somebody else's
        if f"{TAG}={os.getpid()}\0" in text:
            found[int(folder.name)] = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
    return found


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = int(_status(pid).get("PPid", 0))
        found.append(pid)
    return found


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _sample(pid: int, seconds: float) -> Sample | None:
    status = _status(pid)
    try:
        files = len(os.listdir(f"/proc/{pid}/fd"))
        heap, shared = (int(status[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))
        return Sample(seconds, heap, shared, files, int(status["Threads"]))
    except (OSError, KeyError):
        return None  # it has just ended


def own_memory() -> int:
    """Bytes that this process has for itself alone."""
    return int(_status(os.getpid())["RssAnon"].split()[0]) << 10
