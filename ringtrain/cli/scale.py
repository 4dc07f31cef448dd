"""The command ``ringtrain scale``: a training of ringtrain, or a script of PyTorch, on several numbers of ranks."""

import datetime
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from ringtrain import __version__
from ringtrain.child import child_command
from ringtrain.cli.commands import FOLDER, LAUNCHER, ended_by_signals, last_words, read_script
from ringtrain.cli.options import NUMBERS, explicit_flags
from ringtrain.cli.train import train
from ringtrain.config.option import NEVER
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
from ringtrain.train.checkpoints.resume import Origin, resolve_run
from ringtrain.train.options import read_options

# Rank 0 saves alone, and the others go on meanwhile: its next iteration would be too short. So a run saves and
# evaluates at its end alone.
ONCE = ("--checkpoint-every", str(NEVER), "--evaluate-every", str(NEVER))
PLACE = "{batch}"


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of a round. ``batch``: over all ranks; None: the script's own. ``scalings``: the kinds that it counts for,
    "strong", "weak" or both"""

    ranks: int
    batch: int | None
    scalings: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{'-'.join(self.scalings)}-{self.ranks}"


@dataclass(frozen=True, slots=True)
class Scaled:
    """A training, or a command that starts a script."""

    words: Sequence[str]  # as they stand after --
    batch: int | None  # of all ranks in strong scaling, of a rank in weak; None: the script's own
    options: Sequence[str] = ()  # the words up to the script; none of a training

    @property
    def is_script(self) -> bool:
        return bool(self.options)

    def planned(self, counts: Sequence[int], scalings: Sequence[str]) -> list[PlannedRun]:
        """Return the runs of a round. One rank has the same batch in both kinds of scaling, and one run for both."""
        kinds: dict[tuple[int, int | None], list[str]] = {}
        for scaling in scalings:
            for ranks in counts:
                batch = self.batch * ranks if scaling == "weak" and self.batch else self.batch
                kinds.setdefault((ranks, batch), []).append(scaling)
        return [PlannedRun(*key, tuple(names)) for key, names in kinds.items()]

    def command(self, run: PlannedRun, folder: Path) -> list[str]:
        """Return what each rank of a run starts."""
        if not self.is_script:
            words = [*self.words, *ONCE, "--batch", str(run.batch), "--out", str(folder)]
            return child_command("ringtrain", *words)
        share = "" if run.batch is None else str(run.batch // run.ranks)
        script = [word.replace(PLACE, share) for word in self.words[len(self.options) :]]
        return [*self.options, "--out", str(folder), *script]

    def unlike(self, run: PlannedRun, batch: int, sample: dict) -> str:
        """Return why a script's run of this batch is none of its scaling beside an earlier run's, or nothing."""
        is_weak = run.scalings == ("weak",)
        wanted = sample["batch"] // sample["ranks"] * run.ranks if is_weak else sample["batch"]
        if not self.is_script or batch == wanted:
            return ""
        kind = f"{run.scalings[-1]} scaling wants {wanted:,}, as {sample['ranks']} had {sample['batch']:,}"
        return f"its steps have {batch:,} examples over {run.ranks} ranks, and {kind}: {PLACE} is the batch of one rank"


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


# ── what is measured ──────────────────────────────────────────────────────────────────────────────────────────────────
def read_scaled(words: Sequence[str], batch: int | None, scalings: Sequence[str], counts: Sequence[int]) -> Scaled:
    """Return what these words start, after the checks that need neither data nor ranks. Raises UsageError."""
    if LAUNCHER in words:
        return _script(words, batch, scalings, counts)
    if not words or words[0] != "train":
        raise UsageError(
            "scale measures `train` with options, or python -m ringtrain.torch with a script, after --: ringtrain "
            f"scale -n 1,2 -- train; got {repr(words[0]) if words else 'nothing'}"
        )
    if batch is not None:
        raise UsageError(f"--batch {batch} before -- is of a script; a training has its own: -- train --batch {batch}")
    params = dict(train.make_context("ringtrain train", list(words[1:])).params)
    config, _ = resolve_run(Origin(), read_options(params.pop("run_file"), explicit_flags(params)))
    if config.run.out is not None or config.run.resume is not None:
        raise UsageError(
            "scale names the folders of the runs, and each begins anew: leave "
            f"{'--out' if config.run.out is not None else '--resume'} out after --"
        )
    return Scaled(words, config.run.batch)


def _script(words: Sequence[str], batch: int | None, scalings: Sequence[str], counts: Sequence[int]) -> Scaled:
    options, script, parsed = read_script(words, "scale")
    if parsed.out != FOLDER:
        raise UsageError("scale names the folders of the runs: leave --out out after --")
    if any(PLACE in word for word in script) != (batch is not None):
        missing = "--batch B before --" if batch is None else f"{PLACE} in the command"
        raise UsageError(f"{PLACE} is the batch of one rank, made from --batch B; {missing} is missing")
    if "strong" in scalings and batch is None:
        raise UsageError(
            f"strong scaling divides a batch among the ranks, and the command has no {PLACE}: put it where the script "
            "takes the batch of one rank, and give --batch B; or give --weak alone, where each rank keeps its batch"
        )
    uneven = [ranks for ranks in counts if "strong" in scalings and batch is not None and batch % ranks]
    if uneven:
        raise UsageError(f"--batch {batch} cannot be divided among {uneven[0]} ranks: give a multiple of each of -n")
    return Scaled(words, batch, options)


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
