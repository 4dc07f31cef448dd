"""Control groups, version 1 or 2, in which measured processes run: with less memory, or less time on cores."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000


class ControlGroup:
    """A group for the processes that enter it, and those that they start. Raises OSError where none can be made.

    controller: its name in version 1
    limits:     what is written to which file, in version 1 and in version 2
    """

    def __init__(self, controller: str, *limits: tuple[str, str]):
        version_1 = (GROUPS / controller).is_dir()
        name, value = limits[0 if version_1 else 1]
        self._folder = GROUPS / (controller if version_1 else "") / f"ringtrain-{controller}-{os.getpid()}"
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


def memory_group(limit_bytes: int) -> ControlGroup:
    return ControlGroup("memory", ("memory.limit_in_bytes", str(limit_bytes)), ("memory.max", str(limit_bytes)))


def cpu_group(cores: float) -> ControlGroup:
    """Return a group that has as much time as so many cores."""
    quota = round(cores * PERIOD_US)
    return ControlGroup("cpu", ("cpu.cfs_quota_us", str(quota)), ("cpu.max", f"{quota} {PERIOD_US}"))
