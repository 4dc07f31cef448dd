"""What a run of `ringtrain train` has written."""

import json
import time
from pathlib import Path

from worlds.world import LIMIT_S, World

POLL_S = 0.02


def records(out: Path) -> list[dict]:
    """Of its log, all that are whole."""
    file = out / "log.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def losses(out: Path) -> dict[int, float]:
    """By iteration."""
    return {record["iteration"]: record["loss"] for record in records(out) if record["event"] == "iteration"}


def reached(out: Path, iteration: int) -> bool:
    return max(losses(out), default=0) >= iteration


def last_words(out: Path) -> str:
    """What it said last: its own words, if there are any."""
    lines = out.with_suffix(".txt").read_text(errors="replace").splitlines()
    return " | ".join([line for line in lines if line.startswith("ringtrain: ")][-2:] or lines[-6:])


def wait_for(world: World, out: Path, iteration: int) -> bool:
    """Wait until it is there; False where it ends before."""
    until = time.monotonic() + LIMIT_S
    while world.running and time.monotonic() < until:
        if reached(out, iteration):
            return True
        time.sleep(POLL_S)
    return False
