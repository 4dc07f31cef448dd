"""Start, watch and end one mpirun from outside, and find the processes and files that it leaves."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

TAG = "RINGTRAIN_WORLD"  # in the environment of every process that we start
LIMIT_S = 300.0  # far more than any run takes: a run that is not over then hangs
PATIENCE_S = 10.0  # the last of mpirun's helpers may need a moment
POLL_S = 0.005
SHARED_MEMORY = Path("/dev/shm")


class World:
    """``arguments``: of Python, on every rank; ``output``: the file of what ranks print; ``launcher``: more options of
    mpirun. MPI's own files go beside the output."""

    def __init__(self, ranks: int, arguments: Sequence, output: Path, launcher: Sequence[str] = ()):
        self.began, self._output = time.monotonic(), output
        line = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *launcher, sys.executable]
        environ = {**os.environ, TAG: str(os.getpid()), "TMPDIR": str(output.parent)}
        with open(output, "ab") as file:
            self._process = subprocess.Popen(
                [*line, *map(str, arguments)], stdout=file, stderr=file, env=environ, start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int | None:
        """Its exit status; None if it hangs, after which it is ended."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(LIMIT_S)
        for pid in [*self.pids().values(), self._process.pid]:
            send(pid, signal.SIGKILL)
        self._process.wait()
        return None

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait for the condition; False if the world ends, or hangs, before."""
        limit = time.monotonic() + LIMIT_S
        while self.running and time.monotonic() < limit:
            if condition():
                return True
            time.sleep(POLL_S)
        return False

    def signal(self, number: signal.Signals) -> None:
        """Send it to mpirun, which forwards it to all ranks."""
        self._process.send_signal(number)

    def pids(self) -> dict[int, int]:
        """The process of each rank: the oldest one with its number below this mpirun."""
        found: dict[int, int] = {}
        for pid, environ in sorted(tagged().items()):
            if "OMPI_COMM_WORLD_RANK" in environ and self._process.pid in _above(pid):
                found.setdefault(int(environ["OMPI_COMM_WORLD_RANK"]), pid)
        return found

    def last_words(self) -> str:
        return self._output.read_text(errors="replace")[-300:]


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, number)


def tagged() -> dict[int, dict[str, str]]:
    """Running processes that we started, directly or not, with their environment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or belongs to someone else
            text = (folder / "environ").read_text(errors="replace")
            if f"{TAG}={os.getpid()}\0" in text and status(int(folder.name))["State"][0] != "Z":
                found[int(folder.name)] = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
    return found


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status"""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _above(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        while pid > 1:
            pid = int(status(pid)["PPid"])
            found.append(pid)
    return found


class Leftovers:
    """Processes and files of shared memory that were not there when this was made. A segment that Open MPI leaves when
    ranks are killed (docs/hangs.md) is not counted."""

    def __init__(self):
        self._known = self._files()

    def __call__(self, spared: set[int] = frozenset()) -> list[str]:
        """Describe what is left, and end those processes. ``spared``: processes of worlds that still run."""
        limit = time.monotonic() + PATIENCE_S
        while tagged().keys() - spared and time.monotonic() < limit:
            time.sleep(POLL_S)
        stray, files = tagged().keys() - spared, self._files() - self._known
        for pid in stray:
            send(pid, signal.SIGKILL)
        self._known |= files
        return [f"process {pid}" for pid in sorted(stray)] + [f"{SHARED_MEMORY}/{name}" for name in sorted(files)]

    def _files(self) -> set[str]:
        return {name for name in os.listdir(SHARED_MEMORY) if not name.startswith("sm_segment.")}


def records(out: Path) -> list[dict]:
    """The complete records of a run's log."""
    with suppress(FileNotFoundError):
        lines = (out / "log.jsonl").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
    return []


def losses(out: Path) -> dict[int, float]:
    """Losses by iteration."""
    return {record["iteration"]: record["loss"] for record in records(out) if record["event"] == "iteration"}


def scratch(name: str) -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix=f"ringtrain-{name}-", ignore_cleanup_errors=True)
