"""Runs beside one another, as ``ringtrain compare`` shows and writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ringtrain import __version__
from ringtrain.errors import RingtrainError
from ringtrain.report.comparison import table
from ringtrain.report.comparison.logs import RunLog
from ringtrain.report.comparison.over_seeds import variant_notes, variant_rows
from ringtrain.report.comparison.plot import comparison_figure, variants_figure
from ringtrain.report.comparison.rows import FailedVariant, notes_of, rows_of
from ringtrain.show.figures import check_picture, write_picture
from ringtrain.show.output import echo, echo_notes
from ringtrain.show.results import PICTURE, OutputPaths, show_tables
from ringtrain.show.tables import json_text
from ringtrain.storage.files import Folder


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows of the runs, rows of the variants over seeds, if any, and notes."""

    runs: Sequence[RunLog | FailedVariant]
    rows: list[dict]
    variants: list[dict]
    notes: list[str]

    def json_text(self) -> str:
        names = ("rows", "variants", "notes")
        return json_text({"ringtrain": __version__} | {name: getattr(self, name) for name in names})

    def show(self, paths: OutputPaths, picture: Path | None = None) -> None:
        """Show and write the comparison. ``picture``: its path if --plot is not given; None: no picture"""
        if self.variants:
            show_tables(table.VARIANT_NAME, table.VARIANT_GROUPS, self.variants)
        else:
            show_tables(table.NAME, table.GROUPS, self.rows)
        echo_notes(self.notes)
        paths.write(self.json_text, lambda: table.csv_text(self.rows, self.variants))
        path = paths.plot_path or picture
        if path is None:
            return
        try:
            check_picture(path)
            write_picture(self._figure(), path, None if picture is None or paths.plot_path else Folder(picture.parent))
        except RingtrainError as error:
            if paths.plot_path:
                raise
            echo(f"note: no picture: {error}")
        else:
            echo(PICTURE.format(path=path))

    def _figure(self) -> partial:
        whole = [(run, row) for run, row in zip(self.runs, self.rows, strict=True) if isinstance(run, RunLog)]
        logs = [run for run, _ in whole]
        if self.variants:
            return partial(variants_figure, logs, self.variants, {row["name"]: row["variant"] for row in self.rows})
        return partial(comparison_figure, logs, [row for _, row in whole])


def compared(runs: Sequence, variant_of: dict[str, str] | None, more: Sequence[str] = ()) -> Comparison:
    """Return the comparison of runs. variant_of: names of runs → their variants, over seeds; more: further notes"""
    rows = rows_of(runs, variant_of)
    variants = variant_rows(rows) if variant_of else []
    return Comparison(runs, rows, variants, [*notes_of(runs, rows), *variant_notes(variants), *more])
