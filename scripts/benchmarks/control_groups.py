"""A control group, version 1 or 2, in which measured processes have less time on cores."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000


class CpuGroup:
    """A group for the processes that enter it, and those that they start, with as much time as so many cores. Raises
    OSError where none can be made."""

    def __init__(self, cores: float):
        quota, version_1 = round(cores * PERIOD_US), GROUPS / "cpu"
        name, value = "cpu.max", f"{quota} {PERIOD_US}"
        if version_1.is_dir():
            name, value = "cpu.cfs_quota_us", str(quota)
        self._folder = (version_1 if version_1.is_dir() else GROUPS) / f"ringtrain-cpu-{os.getpid()}"
        self._folder.mkdir()
        try:
            (self._folder / name).write_text(value)
        except OSError:
            self.remove()
            raise

    def enter(self) -> None:
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        """End the processes that are left in it, as ranks of a launch that was interrupted, and remove it."""
        for _ in range(100):
            with suppress(OSError):  # busy
                self._folder.rmdir()
                return
            for number in (self._folder / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(number), signal.SIGKILL)
            time.sleep(0.05)
        self._folder.rmdir()
