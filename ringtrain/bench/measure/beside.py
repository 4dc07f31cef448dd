"""Busy processes beside the ranks, as other jobs and the workers of loaders are on a node that is shared."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# On any core of the node, though a rank may be bound to one; and not for longer than the rank lives.
BUSY = """
import os, sys
os.sched_setaffinity(0, range(os.cpu_count()))
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000): pass
"""


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep ``count`` processes of this node computing."""
    command = [sys.executable, "-I", "-S", "-c", BUSY, str(os.getpid())]
    processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
