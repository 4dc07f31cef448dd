"""What ended worlds have left: processes, files in shared memory, sessions of the MPI."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from worlds.private import SHARED_MEMORY
from worlds.world import send, tagged

PATIENCE_S = 10.0  # the last of mpirun's helpers may need a moment


class Leftovers:
    """What is there now is not counted. ``folder``: the MPI's own."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._known = self._files()

    def __call__(self, spared: set[int] = frozenset()) -> list[str]:
        """What is left now, in words; processes are ended. ``spared``: those of worlds that still go on."""
        until = time.monotonic() + PATIENCE_S
        while self._stray(spared) and time.monotonic() < until:
            time.sleep(0.05)
        reap(spared)
        stray, files = self._stray(spared), self._files() - self._known
        for pid in stray:
            send(pid, signal.SIGKILL)
        self._known |= files
        told = [f"process {pid}: {words}" for pid, words in stray.items()]
        return told + [f"file {name}" for name in sorted(files)]

    def _stray(self, spared: set[int]) -> dict[int, str]:
        return {pid: _words(pid) for pid in tagged() if pid not in spared and not _ended(pid)}

    def _files(self) -> set[str]:
        shared = {f"{SHARED_MEMORY}/{name}" for name in os.listdir(SHARED_MEMORY)}
        return shared | {str(path) for path in self._folder.iterdir()}


def reap(spared: set[int] = frozenset()) -> None:
    """Children that have ended and that nobody asks for: where we are the first process, those whose parents were
    killed."""
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid not in spared and _ended(pid):
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:80]
    except OSError:
        return "ended"
