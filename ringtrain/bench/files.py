"""A sweep as files: JSON with everything, CSV with one tidy row a measurement."""

import csv
import json
from pathlib import Path

from ringtrain.bench.rows import COLUMNS, KEY
from ringtrain.errors import UsageError

COMPARED = {*KEY, "status", "samples_s"} - {"wire_dtype"}


def write_json(path, header: dict, rows: list[dict]) -> None:
    Path(path).write_text(json.dumps({"header": header, "rows": rows}, indent=1) + "\n")


def write_csv(path, rows: list[dict]) -> None:
    """Without the raw samples; reasons of doubt in one cell."""
    names = [name for name in COLUMNS if name != "samples_s"]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**row, "unreliable": "; ".join(row["unreliable"] or [])} for row in rows)


def read_json(path) -> dict:
    """What :func:`write_json` wrote. Raises UsageError for anything else."""
    try:
        found = json.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}): give a file that bench-allreduce --json wrote") from None
    rows = found.get("rows") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.keys() >= COMPARED for row in rows):
        raise UsageError(f"{path} has no rows of bench-allreduce: give a file that its --json wrote")
    for row in rows:
        row.setdefault("wire_dtype", row["dtype"])  # a file from before there were wires
    return found


def check_writable(path) -> None:
    """Before hours of measuring. Raises UsageError."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {folder}")
    try:
        open(path, "a").close()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
