"""Files of a sweep: JSON with everything, CSV with one tidy row a measurement."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ringtrain.bench.measure.buffers import CPU, NO_WAY
from ringtrain.bench.measure.rows import COLUMNS, KEY, OK
from ringtrain.bench.measure.trials import ALL_REDUCE
from ringtrain.records import Rules, load, read, unfit
from ringtrain.show.tables import csv_text, json_text
from ringtrain.storage import files

SWEEP = "file of `ringtrain bench-allreduce --json`"
LARGEST_BYTES = 1 << 30  # of a sweep: its raw samples are many


def write_json(path, header: dict, rows: list[dict]) -> None:
    """Write the sweep as JSON. Raises RingtrainError if the write fails; likewise :func:`write_csv`."""
    files.write(Path(path), json_text({"header": header, "rows": rows}).encode())


def write_csv(path, rows: list[dict]) -> None:
    """Write the rows as CSV, without the raw samples; reasons of doubt share one cell."""
    names = [name for name in COLUMNS if name != "samples_s"]
    lines = ({**row, "unreliable": "; ".join(row["unreliable"] or [])} for row in rows)
    files.write(Path(path), csv_text(names, lines).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """What names a row, and its times. Files of earlier versions have no collective, wire, device and way."""

    collective: str = ALL_REDUCE
    algorithm: str
    device: str = CPU
    way: str = NO_WAY
    ranks: int
    nodes: int
    bytes: int
    dtype: str
    wire_dtype: str = ""
    op: str
    placement: str
    status: str
    median_s: float | None = None
    samples_s: Annotated[tuple[float, ...] | None, Rules(above=0)]

    def __post_init__(self) -> None:
        if self.status == OK and not self.samples_s:
            raise unfit(list, self.samples_s, {"wanted": "times, as the row is ok"}).under("samples_s")

    def names(self) -> dict:
        """Return what names the row, in the order of :data:`KEY`."""
        return {name: getattr(self, name) for name in KEY} | {"wire_dtype": self.wire_dtype or self.dtype}


def _with_names(rows: list) -> list[dict]:
    """Return checked rows, with the keys that name them."""
    return [row | checked.names() for row, checked in zip(rows, read(list[SweepRow], rows), strict=True)]


@dataclass(frozen=True)
class SweepFile:
    """The form of the file."""

    header: dict
    rows: Annotated[list[dict], Rules(reader=_with_names)]


def read_json(path) -> dict:
    """Return the content of a file of :func:`write_json`. Raises UsageError for anything else."""
    return vars(load(SweepFile, path, SWEEP, largest=LARGEST_BYTES))
