"""The command ``ringtrain report``."""

import datetime
import os
from functools import partial
from pathlib import Path

import click

from ringtrain.errors import UsageError
from ringtrain.report.comparison.logs import run_names
from ringtrain.report.comparison.plot import comparison_figure
from ringtrain.report.comparison.rows import rows_of
from ringtrain.report.page import read_reported, report_page
from ringtrain.report.plots import curves_figure
from ringtrain.show.figures import drawn, need_matplotlib
from ringtrain.show.output import echo
from ringtrain.storage import files

PAGE, PICTURES = ".html", (".png", ".svg", ".pdf")


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    default="report.html",
    show_default=True,
    help="File to write: .html; or .png, .svg, .pdf, which have the curves alone.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def report(runs, out, force):
    """Write a report of RUN, a run folder, as one HTML file that needs no network: curves, communication by bucket,
    confusion matrix, options, environment. Of several runs: their curves in one picture, and what differs.
    """
    if out.suffix not in (PAGE, *PICTURES):
        raise UsageError(f"--out {out}: a report is one of {', '.join((PAGE, *PICTURES))}")
    if os.path.lexists(out) and not force:
        raise UsageError(f"{out} exists: give another --out, or --force")
    need_matplotlib()
    names = run_names([Path(run).resolve() for run in runs])
    reported = [read_reported(Path(run), name) for run, name in zip(runs, names, strict=True)]
    if out.suffix == PAGE:
        date = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
        data = report_page(reported, date).encode(errors="backslashreplace")
    else:
        logs = [run.log for run in reported]
        one = len(logs) == 1
        make = partial(curves_figure, logs[0]) if one else partial(comparison_figure, logs, rows_of(logs))
        data = drawn(make, out.suffix.lstrip("."))
    files.write(out, data)
    echo(f"{out}: {', '.join(names)}, {len(data) / 1e6:.2f} MB")
