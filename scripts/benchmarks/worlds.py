"""Start, watch and end one mpirun from outside, and find the processes and files that it leaves."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

TAG = "RINGTRAIN_WORLD"  # in the environment of every process of a world
OURS = f"{TAG}={os.getpid()}."
LIMIT_S = 300.0  # far more than any run takes: a run that is not over then hangs
PATIENCE_S = 10.0  # the last of mpirun's helpers may need a moment
POLL_S = 0.005
SHARED_MEMORY = Path("/dev/shm")
NUMBERS = itertools.count()


class World:
    """One mpirun of `ringtrain train` with these flags. ``output``: the file for its output; ``launcher``: more options
    of mpirun."""

    def __init__(self, ranks: int, flags: Sequence, output: Path, launcher: Sequence = ()):
        self.began, self._output, self._tag = time.monotonic(), output, f"{OURS}{next(NUMBERS)}\0"
        line = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *launcher, sys.executable]
        line += ["-m", "ringtrain", "train", *map(str, flags)]
        environ = {**os.environ, TAG: self._tag.partition("=")[2][:-1], "TMPDIR": str(output.parent)}
        with open(output, "ab") as file:
            streams = {"stdout": file, "stderr": file, "env": environ}
            self._process = subprocess.Popen(line, **streams, start_new_session=True)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int | None:
        """Return its exit status; None if it hangs, after which it is ended."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(LIMIT_S)
        end(tagged(self._tag))  # mpirun, its helpers and all ranks
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

    def pids(self) -> dict[int, int]:
        """Return the process of each rank: the oldest one with its number."""
        ranks: dict[int, int] = {}
        for pid, environ in sorted(tagged(self._tag).items()):
            if match := re.search(r"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", environ):
                ranks.setdefault(int(match[1]), pid)
        return ranks

    def last_words(self) -> str:
        return self._output.read_text(errors="replace")[-300:]


def end(pids) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def tagged(tag: str = OURS) -> dict[int, str]:
    """Return the environment of each running process of a world, or of all worlds that this program started."""
    environs = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or belongs to another user
            environs[int(folder.name)] = (folder / "environ").read_text(errors="replace")
    return {pid: text for pid, text in environs.items() if tag in text}


class Leftovers:
    """Processes and files of shared memory that appear after this was made. A segment that Open MPI leaves when ranks
    are killed (docs/errors.md) is not counted.
    """

    def __init__(self):
        self._known = self._files()

    def __call__(self) -> list[str]:
        """Describe them, and end these processes."""
        limit = time.monotonic() + PATIENCE_S
        while tagged() and time.monotonic() < limit:
            time.sleep(POLL_S)
        stray, files = tagged().keys(), self._files() - self._known
        end(stray)
        self._known |= files
        return [f"process {pid}" for pid in sorted(stray)] + [f"{SHARED_MEMORY}/{name}" for name in sorted(files)]

    def _files(self) -> set[str]:
        return {name for name in os.listdir(SHARED_MEMORY) if not name.startswith("sm_segment.")}


def records(out: Path) -> list[dict]:
    """Return the complete records of a run's log."""
    lines = (out / "log.jsonl").read_text().splitlines(True) if (out / "log.jsonl").exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def losses(out: Path) -> dict[int, float]:
    """Return losses by iteration."""
    return {record["iteration"]: record["loss"] for record in records(out) if record["event"] == "iteration"}


def newest(out: Path) -> int:
    """Return the last iteration of the log; 0 before the first."""
    return max(losses(out), default=0)


def scratch(name: str) -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix=f"ringtrain-{name}-", ignore_cleanup_errors=True)
