"""Scaling as a table, and as CSV."""

from collections.abc import Callable, Sequence

from rich.table import Table

from ringtrain.report.scaling.figures import BESIDE, FIELDS
from ringtrain.show import tables
from ringtrain.show.tables import Column, make_table


def _interval(form: str) -> Callable[..., str]:
    """Format a figure and its interval: 3.71 [3.60, 3.75]."""
    return lambda value, low, high: (form if low is None else f"{form} [{form}, {form}]").format(value, low, high)


ENDS = ("_low", "_high")
COLUMNS = (
    Column("scaling", "scaling", left=True),
    Column("ranks", "ranks"),
    Column("nodes", "nodes", none="None"),
    Column("batch", "batch", "", "{:,}"),
    Column("images_per_s", "images/s", "", _interval("{:,.0f}"), spread=ENDS),
    Column("step_s", "step", "ms", "{:.3g}", scale=1e3),
    Column("speedup", "speed-up", "", _interval("{:.2f}"), spread=ENDS),
    Column("efficiency", "efficiency", "%", "{:.0f}", scale=100),
    Column("exposed_s", "exposed", "ms a step", _interval("{:.3g}"), spread=ENDS, scale=1e3),
)
BESIDE_COLUMNS = (
    Column("predicted_images_per_s", "predicted", "images/s", "{:,.0f}"),
    Column("error", "error", "%", lambda error: f"{error:+.0%}".removesuffix("%")),
)


def scaling_table(rows: Sequence[dict]) -> Table:
    """Return a line for each kind of scaling and number of ranks, beside a plan with its columns."""
    return make_table(COLUMNS + (BESIDE_COLUMNS if _is_beside(rows) else ()), rows)


def _is_beside(rows: Sequence[dict]) -> bool:
    return any(name in row for row in rows for name in BESIDE)


def interval_note(rows: Sequence[dict]) -> str:
    """Return what the intervals are."""
    confidences = sorted({(row["rounds"], row["confidence"]) for row in rows if row["confidence"] is not None})
    if not confidences:
        return "one round: no intervals"
    words = ", ".join(f"{100 * confidence:.0f} % with {rounds} rounds" for rounds, confidence in confidences)
    return f"medians over interleaved rounds; intervals are of the median: {words}"


def csv_text(rows: Sequence[dict]) -> str:
    """Return a line for each kind of scaling and number of ranks, beside a plan with its figures."""
    return tables.csv_text(FIELDS + (BESIDE if _is_beside(rows) else ()), rows)
