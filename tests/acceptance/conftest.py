import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "scripts" / "acceptance"
MAIN = FOLDER / "main.py"


@pytest.fixture
def acceptance(monkeypatch):
    """name → that module of scripts/acceptance, which is no package: there as long as a test lasts."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


@pytest.fixture
def readings(acceptance):
    return acceptance("readings")


HOLD = """
import fcntl, os, signal
file = open({path!r}, "w")
fcntl.flock(file, fcntl.LOCK_EX)
if os.fork():
    open({fifo!r}, "w").write("held")
signal.pause()
"""
TAKE = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"


def take(path) -> None:
    """Take a lock, which is free when the last process that inherited it is gone."""
    subprocess.run([sys.executable, "-c", TAKE, path], check=True, timeout=60)
