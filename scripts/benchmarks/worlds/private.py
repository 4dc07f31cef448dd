"""Shared memory and process numbers of our own, so that what is left behind is ours for certain, and ends with us."""

import os
import subprocess
import sys

INSIDE = "RINGTRAIN_PRIVATE"
SHARED_MEMORY = "/dev/shm"


def enter() -> bool:
    """Begin this program anew where nobody else is, if this machine lets us; whether it is there."""
    if INSIDE in os.environ:
        return os.environ[INSIDE] == "yes"
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    alone = ["unshare", *user, "--pid", "--fork", "--mount", "--mount-proc", "--kill-child", "--", "sh", "-c"]
    mount = f"mount -t tmpfs tmpfs {SHARED_MEMORY} && "
    if not _works([*alone, f"{mount}true"]):
        os.environ[INSIDE] = "no"
        return False
    line = [*alone, f'{mount}exec "$@"', "sh", sys.executable, *sys.argv]
    sys.stdout.flush()
    return os.execvpe(line[0], line, {**os.environ, INSIDE: "yes"})  # which does not return


def _works(line: list[str]) -> bool:
    try:
        return subprocess.run(line, capture_output=True).returncode == 0
    except OSError:
        return False
