"""The command ``ringtrain runs``."""

from collections.abc import Sequence
from pathlib import Path

import click

from ringtrain.errors import UsageError
from ringtrain.humanize import plural
from ringtrain.report.comparison.logs import read_iterations
from ringtrain.runs.conditions import parse_condition, sort_runs
from ringtrain.runs.summary import list_runs
from ringtrain.runs.table import NAME, csv_text, iterations_text, json_text, run_columns
from ringtrain.show.output import echo, echo_file, echo_notes
from ringtrain.show.results import OutputPaths, show_tables, write_text

STANDARD_OUTPUT = "-"


@click.command()
@click.argument("folder", metavar="[DIR]", default="runs", type=click.Path(path_type=Path))
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help='List runs with, such as "lr>=0.1" or "model=lenet"; may be repeated: all must hold. Operators: =, !=, <, <=, '
    ">, >=.",
)
@click.option("--sort", "key", metavar="NAME", help="Order by an option or a result; -NAME: falling. [date]")
@click.option("--json", "json_path", type=click.Path(), help="Write all results and options; -: to standard output.")
@click.option("--csv", "csv_path", type=click.Path(), help="Write a line a run; -: to standard output.")
@click.option("--log", "log_path", type=click.Path(), help="Write the log of the run DIR as CSV, a line an iteration.")
def runs(folder, conditions, key, json_path, csv_path, log_path):
    """List the runs in and below DIR: how each ended, its scores, and the options in which they differ.

    \b
    ringtrain runs --where "lr>=0.1" --where "outcome=done" --sort=-test_accuracy
    ringtrain runs runs/lenet-20260131-235959 --log log.csv

    A name is one of a column, or of an option of `ringtrain train`. docs/runs.md has all results.
    """
    if log_path is not None:
        _write_log(folder, log_path, others=bool(conditions or key or json_path or csv_path))
    else:
        _list(folder, conditions, key, json_path, csv_path)


def _list(
    folder: Path, conditions: Sequence[str], key: str | None, json_path: str | None, csv_path: str | None
) -> None:
    if json_path == csv_path == STANDARD_OUTPUT:
        raise UsageError("standard output takes one of --json and --csv: give the other a file")

    OutputPaths(*(path for path in (json_path, csv_path) if path != STANDARD_OUTPUT)).check()
    wanted = [parse_condition(text) for text in conditions]
    sort_runs([], key)  # a wrong name is told before the folders are read
    listed, notes = list_runs(folder)
    chosen = sort_runs((run for run in listed if all(condition.holds(run) for condition in wanted)), key)
    if not listed:
        notes.append(f"there is no run in {folder}")
    elif len(chosen) < len(listed):
        notes.append(f"{len(chosen)} of {plural(len(listed), 'run')} in {folder}")
    to_output = STANDARD_OUTPUT in (json_path, csv_path)
    if not to_output:
        show_tables(NAME, *run_columns(chosen))
    echo_notes(notes, err=to_output)
    if json_path is not None:
        _write(json_path, json_text(chosen, notes))
    if csv_path is not None:
        _write(csv_path, csv_text(chosen))


def _write_log(folder: Path, path: str, others: bool) -> None:
    if others:
        raise UsageError("--log writes one run: leave out --where, --sort, --json and --csv")
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
