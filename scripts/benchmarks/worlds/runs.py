"""What a run of `ringtrain train` has written."""

import json
from pathlib import Path


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
