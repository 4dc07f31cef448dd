"""The runs that are killed and damaged: how one is started, found among processes, and looked at from outside."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ringtrain.checkpoint.run_folder import RunFolder

NET = """
input = { shape = [8, 8, 1], mean = "image", std = "channel", pad = 1, flip = true }
layers = [
  { name = "flat", kind = "Flatten" },
  { name = "fc1", kind = "Linear", units = WIDE },
  { name = "relu", kind = "ReLU" },
  { name = "drop", kind = "Dropout", rate = 0.2 },
  { name = "fc2", kind = "Linear", units = 10 },
]
[recipe]
batch = 60
lr = 0.02
momentum = 0.9
"""


def arguments(net: Path, out: Path, **flags) -> list[str]:
    given = {"model": net, "data": "digits", "ops": "reference", "out": out, "resume": "auto", **flags}
    options = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return [sys.executable, "-m", "ringtrain", "train", *options]


def kill(number: int | None) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)


def children(number: int) -> list[int]:
    told = subprocess.run(["pgrep", "-P", str(number)], capture_output=True, text=True).stdout.split()
    return [each for child in map(int, told) for each in (child, *children(child))]


def rank_0(number: int, folder: RunFolder) -> int:
    for child in children(number):
        with contextlib.suppress(OSError):
            if b"OMPI_COMM_WORLD_RANK=0\0" in Path(f"/proc/{child}/environ").read_bytes():
                return child
    raise TimeoutError


def of_folder(folder: RunFolder) -> list[int]:
    """Processes that were started for it."""
    told = subprocess.run(["pgrep", "-f", f"ringtrain train .*{folder.path}"], capture_output=True, text=True)
    return [int(number) for number in told.stdout.split()]


def await_end(folder: RunFolder, patience_s: float) -> None:
    """A launcher that is killed ends before what it started, which keeps the folder's lock as long as it lives. Raises
    TimeoutError."""
    deadline = time.monotonic() + patience_s
    while of_folder(folder):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)


def names(folder: RunFolder) -> list[str]:
    try:
        return os.listdir(folder.checkpoints)
    except FileNotFoundError:
        return []


def records(out: Path, kind: str) -> list[dict]:
    lines = (out / "log.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == kind]
