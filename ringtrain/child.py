"""The command that starts a module of ringtrain as another process, by the same Python."""

import os
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def child_command(module: str, *words: str) -> list[str]:
    """Return the command line of a module. Files of the working folder, as a random.py, do not hide Python's own
    modules: -P. The folder that holds ringtrain itself is an exception: it may be the only place to find it.
    """
    safe = [] if os.path.samefile(os.curdir, CHECKOUT) else ["-P"]
    return [sys.executable, *safe, "-m", module, *words]
