"""Files of a sweep: JSON with everything, CSV with one tidy row a measurement."""

import json
import math
from pathlib import Path

from ringtrain.bench.measure.buffers import CPU, NO_WAY
from ringtrain.bench.measure.rows import COLUMNS, KEY, OK
from ringtrain.errors import UsageError
from ringtrain.parsing import parse_json, read_text
from ringtrain.storage import files
from ringtrain.tables import csv_text

LATER = {"wire_dtype", "device", "way"}  # keys that files of before do not have
LARGEST_BYTES = 1 << 30  # of a sweep: its raw samples are many
COMPARED = {*KEY, "status", "samples_s"} - LATER


def write_json(path, header: dict, rows: list[dict]) -> None:
    """Write the sweep as JSON. Raises RingtrainError if the write fails; likewise :func:`write_csv`."""
    files.write(Path(path), (json.dumps({"header": header, "rows": rows}, indent=1) + "\n").encode())


def write_csv(path, rows: list[dict]) -> None:
    """Write the rows as CSV, without the raw samples; reasons of doubt share one cell."""
    names = [name for name in COLUMNS if name != "samples_s"]
    told = ({**row, "unreliable": "; ".join(row["unreliable"] or [])} for row in rows)
    files.write(Path(path), csv_text(names, ([row.get(name) for name in names] for row in told)).encode())


def read_json(path) -> dict:
    """Return the content of a file of :func:`write_json`. Raises UsageError for anything else."""
    try:
        found = parse_json(read_text(path, LARGEST_BYTES))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}): give a file from bench-allreduce --json") from None
    rows = found.get("rows") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.keys() >= COMPARED for row in rows):
        raise UsageError(f"{path} has no rows of bench-allreduce: give a file from its --json")
    for number, row in enumerate(rows):
        row.setdefault("wire_dtype", row["dtype"])
        row.setdefault("device", CPU)
        row.setdefault("way", NO_WAY)
        _check_row(row, f"{path}, row {number}")
    return found


def _check_row(row: dict, where: str) -> None:
    for name in KEY:
        if not isinstance(row[name], str | int):
            raise UsageError(f"{where}: {name} is {row[name]!r}, wanted a name or a number")
    for name in ("algorithm", "status"):
        if not isinstance(row[name], str):
            raise UsageError(f"{where}: {name} is {row[name]!r}, wanted a word")
    samples = row["samples_s"] if isinstance(row["samples_s"], list) else []
    are_times = samples and all(isinstance(s, int | float) and 0 < s < math.inf for s in samples)
    if row["status"] == OK and not are_times:
        raise UsageError(f"{where}: samples_s is {row['samples_s']!r:.60}, wanted a list of seconds, each above 0")


def check_writable(path) -> None:
    """Check the path before hours of measuring. Raises UsageError."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {folder}")
    there = Path(path).exists()
    try:
        open(path, "a").close()
        if not there:  # it is the sweep's to make
            Path(path).unlink()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
