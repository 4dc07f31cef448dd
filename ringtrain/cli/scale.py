"""The command ``ringtrain scale``."""

import datetime
import os
import shlex
import shutil
from functools import partial
from pathlib import Path

import click

from ringtrain import __version__
from ringtrain.cli.commands import ended_by_signals, last_words
from ringtrain.cli.options import NUMBERS
from ringtrain.cli.scaled import PlannedRun, Scaled, read_scaled
from ringtrain.errors import UsageError
from ringtrain.humanize import RATE
from ringtrain.launch.mpirun import find_launcher, run_to_file
from ringtrain.report.comparison.logs import read_run
from ringtrain.report.scaling.figures import sample_of, scaling_rows
from ringtrain.report.scaling.shown import csv_text, interval_note, scaling_figure, scaling_table
from ringtrain.show.output import complain, echo, echo_notes
from ringtrain.show.results import OutputPaths
from ringtrain.show.tables import json_text, print_whole
from ringtrain.storage.files import Folder
from ringtrain.storage.run_folder.run_folder import RUNS, make_unused_folder
from ringtrain.template import Lines, joined


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "--ranks", "counts", type=NUMBERS, required=True, metavar="N,N,...", help="Numbers of ranks.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Runs of each number of ranks.")
@click.option("--strong", is_flag=True, help="Keep the global batch. [without --weak]")
@click.option("--weak", is_flag=True, help="Multiply the batch by the number of ranks; --base-batch scales the rate.")
@click.option(
    "--batch",
    type=click.IntRange(1),
    metavar="B",
    help="Of a script: {batch} in its command is B over the ranks (strong), or B (weak).",
)
@click.option("--launcher", metavar="TEXT", help='Start ranks so: "srun --mpi=pmix -n {ranks}". [mpirun, or srun]')
@click.option("--out", help="Folder of the runs. [runs/scale-DATE-TIME]")
@click.option("-o", "--plot", "plot_path", type=click.Path(), help="Draw to PNG, SVG or PDF.")
@click.option("--json", "json_path", type=click.Path(), help="Write everything, every run too.")
@click.option("--csv", "csv_path", type=click.Path(), help="Write a line for each number of ranks.")
@click.argument("words", metavar="-- train [OPTIONS]... | COMMAND", nargs=-1, type=click.UNPROCESSED)
def scale(counts, rounds, strong, weak, batch, launcher, out, words, **files):
    """Measure the strong and weak scaling of a training, or of a script of PyTorch.

    \b
    ringtrain scale -n 1,2,4 --rounds 3 -o scale.pdf -- train --model resnet20 --data F.h5 --iterations 60
    ringtrain scale -n 1,2,4 --batch 64 -- python -m ringtrain.torch train.py --batch {batch}

    Trains with each number of ranks in turn, round by round, and starts mpirun itself. The figures are from the logs of
    the runs: medians over iterations, without start and evaluations. docs/runs.md explains the table.
    """
    scalings = [name for name, asked in (("strong", strong or not weak), ("weak", weak)) if asked]
    if min(counts) < 1 or len(set(counts)) < 2:
        raise UsageError(f"-n {','.join(map(str, counts))}: scaling wants two numbers of ranks or more, as -n 1,2,4")
    counts = sorted(set(counts))
    scaled = read_scaled(words, batch, scalings, counts)
    planned = scaled.planned(counts, scalings)
    start = find_launcher(launcher, os.environ, "scale")
    paths = OutputPaths(**files)
    paths.check()
    folder = Path(_folder(out))
    failed: dict[str, str] = {}
    runs: list[dict] = []
    with ended_by_signals(folder / "scale.json"):
        for number in range(1, rounds + 1):
            for run in planned:
                if run.name not in failed:
                    where = folder / f"{run.name}-round-{number}"
                    echo(f"round {number} of {rounds}  {run.name:<14} batch {run.batch or 'as it is':<8} ", end="")
                    _take(run, number, start(run.ranks), scaled, where, runs, failed)
                    Folder(folder).write("scale.json", _json(scaled, runs, failed).encode())
    return _tell(scaled, runs, failed, paths)


def _folder(out: str | None) -> str:
    try:
        if out is None:
            return str(make_unused_folder(RUNS, "scale", datetime.datetime.now()))
        Path(out).mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"--out {out or RUNS} cannot be made: {error.strerror}; name a new folder") from None
    return out


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _take(
    run: PlannedRun, number: int, launcher: list[str], scaled: Scaled, folder: Path, runs: list, failed: dict
) -> None:
    """Train once; add the figures to ``runs``, or the reason to ``failed``: such a run is not tried again."""
    output = folder.with_name(f"{folder.name}.txt")
    command = [*launcher, *scaled.command(run, folder)]
    status = run_to_file(command, output)
    try:
        log = read_run(folder, run.name)
    except UsageError:
        log = None
    sample = sample_of(log) if log and status == 0 else None
    alike = [each for each in runs if run.scalings[-1] in each["scalings"]]
    problem = ""
    if not sample:
        problem = last_words(output) or "it has no log, as no optimizer has made a step"
    elif sample["ranks"] != run.ranks:
        other = "the launcher starts another number, or an MPI of another kind"
        problem = f"its log is of ranks: {sample['ranks']}; {other}"
    elif alike:
        problem = scaled.unlike(run, sample["batch"], alike[0])
    if problem or log is None or sample is None:
        ended = f"{run.name} ended with status {status} and is not tried again; all it said is in {output}:"
        failed[run.name] = joined([ended, Lines(problem)])
        echo("no figure")
        complain(failed[run.name])
        return
    facts = {name: log.start.get(name) for name in ("version", "model", "data", "device", "hosts", "mpi", "date")}
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # of no use, and large
    runs.append({"round": number, "scalings": run.scalings, "command": shlex.join(command), **sample, **facts})
    echo(f"{sample['images_per_s']:,.0f} {RATE}")


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _rows(runs: list[dict]) -> list[dict]:
    return scaling_rows([{**run, "scaling": scaling} for run in runs for scaling in run["scalings"]])


def _tell(scaled: Scaled, runs: list[dict], failed: dict[str, str], paths: OutputPaths) -> int:
    rows = _rows(runs)
    if rows:
        echo()
        print_whole(scaling_table(rows))
        echo_notes([interval_note(rows)])
    paths.write(lambda: _json(scaled, runs, failed), lambda: csv_text(rows))
    if rows:
        paths.draw(partial(scaling_figure, rows, runs))
    return 1 if failed else 0


def _json(scaled: Scaled, runs: list[dict], failed: dict[str, str]) -> str:
    command = shlex.join(scaled.words if scaled.is_script else ["ringtrain", *scaled.words])
    facts = {"ringtrain": __version__, "command": command, "rows": _rows(runs), "runs": runs, "failed": failed}
    return json_text(facts)
