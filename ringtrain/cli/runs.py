"""The command ``ringtrain runs``."""

from pathlib import Path

import click

from ringtrain.errors import UsageError
from ringtrain.humanize import plural
from ringtrain.report.comparison.logs import read_iterations
from ringtrain.runs.summary import list_runs
from ringtrain.runs.table import NAME, csv_text, iterations_text, json_text, run_columns, sort_runs
from ringtrain.show.output import echo, echo_file, echo_notes
from ringtrain.show.results import OutputPaths, show_tables, write_text

STANDARD_OUTPUT = "-"


@click.command()
@click.argument("folder", metavar="[DIR]", default="runs", type=click.Path(path_type=Path))
@click.option("--sort", "key", metavar="NAME", help="Order by an option or a result; -NAME: falling. [date]")
@click.option("--json", "json_path", type=click.Path(), help="Write all results and options; -: to standard output.")
@click.option("--csv", "csv_path", type=click.Path(), help="Write a line a run; -: to standard output.")
@click.option("--log", "log_path", type=click.Path(), help="Write the log of the run DIR as CSV, a line an iteration.")
def runs(folder, key, json_path, csv_path, log_path):
    """List the runs in and below DIR: how each ended, its scores, and the options in which they differ.

    \b
    ringtrain runs --sort=-test_accuracy
    ringtrain runs runs/lenet-20260131-235959 --log log.csv

    A name is one of a column, or of an option of `ringtrain train`. docs/runs.md has all results.
    """
    if log_path is not None:
        _write_log(folder, log_path, others=bool(key or json_path or csv_path))
    else:
        _list(folder, key, json_path, csv_path)


def _list(folder: Path, key: str | None, json_path: str | None, csv_path: str | None) -> None:
    if json_path == csv_path == STANDARD_OUTPUT:
        raise UsageError("standard output takes one of --json and --csv: give the other a file")
    OutputPaths(*(path for path in (json_path, csv_path) if path != STANDARD_OUTPUT)).check()
    sort_runs([], key)  # a wrong name is told before the folders are read
    listed, notes = list_runs(folder)
    listed = sort_runs(listed, key)
    notes += [] if listed else [f"there is no run in {folder}"]
    to_output = STANDARD_OUTPUT in (json_path, csv_path)
    if not to_output:
        show_tables(NAME, *run_columns(listed))
    echo_notes(notes, err=to_output)
    if json_path is not None:
        _write(json_path, json_text(listed, notes))
    if csv_path is not None:
        _write(csv_path, csv_text(listed))


def _write_log(folder: Path, path: str, others: bool) -> None:
    if others:
        raise UsageError("--log writes one run: leave out --sort, --json and --csv")
    OutputPaths(path if path != STANDARD_OUTPUT else None).check()
    rows = read_iterations(folder)
    _write(path, iterations_text(rows))
    if path != STANDARD_OUTPUT:
        echo(f"{path}: {plural(len(rows), 'iteration')}")


def _write(path: str, text: str) -> None:
    if path == STANDARD_OUTPUT:
        echo_file(text)
    else:
        write_text(path, text)
