"""Scaling as a table, and as CSV."""

from collections.abc import Sequence

from rich.table import Table

from ringtrain import tables
from ringtrain.report import texts
from ringtrain.report.scaling.figures import BESIDE, FIELDS, interval
from ringtrain.tables import cell, plain_table

COLUMNS = (
    ("scaling", "", lambda row: row["scaling"]),
    ("ranks", "", lambda row: str(row["ranks"])),
    ("nodes", "", lambda row: str(row["nodes"])),
    ("batch", "", lambda row: f"{row['batch']:,}"),
    ("images/s", "", lambda row: interval(row, "images_per_s", "{:,.0f}".format)),
    ("step", "ms", lambda row: f"{1e3 * row['step_s']:.3g}"),
    ("speed-up", "", lambda row: interval(row, "speedup", "{:.2f}".format)),
    ("efficiency", "%", lambda row: "–" if row["efficiency"] is None else f"{100 * row['efficiency']:.0f}"),
    ("exposed", "ms a step", lambda row: interval(row, "exposed_s", lambda value: f"{1e3 * value:.3g}")),
)
BESIDE_COLUMNS = (
    ("predicted", "images/s", lambda row: _known(row["predicted_images_per_s"], "{:,.0f}")),
    ("error", "%", lambda row: _known(row["error"], "{:+.0%}").removesuffix("%")),
)


def scaling_table(rows: Sequence[dict]) -> Table:
    """Return a line for each kind of scaling and number of ranks, beside a plan with its columns."""
    table, columns = plain_table(), COLUMNS + (BESIDE_COLUMNS if _is_beside(rows) else ())
    for title, unit, _ in columns:
        table.add_column(f"{title}\n{unit}", justify="left" if title == "scaling" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(text(row)) for _, _, text in columns))
    return table


def _is_beside(rows: Sequence[dict]) -> bool:
    return any(name in row for row in rows for name in BESIDE)


def _known(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def interval_note(rows: Sequence[dict]) -> str:
    """Return what the intervals are."""
    found = sorted({(row["rounds"], row["confidence"]) for row in rows if row["confidence"] is not None})
    if not found:
        return "one round: no intervals"
    return texts.INTERVALS(
        confidences=", ".join(texts.CONFIDENCE(percent=100 * confidence, rounds=rounds) for rounds, confidence in found)
    )


def csv_text(rows: Sequence[dict]) -> str:
    """Return a line for each kind of scaling and number of ranks, beside a plan with its figures."""
    names = FIELDS + (BESIDE if _is_beside(rows) else ())
    return tables.csv_text(names, ([row.get(name) for name in names] for row in rows))
