"""The command ``ringtrain compare``."""

import datetime
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from ringtrain import plugin
from ringtrain.cli import commands
from ringtrain.cli.options import plugin_option
from ringtrain.cli.variants import folders_of, named_variants, seeded, variants_of
from ringtrain.cli.world import in_world
from ringtrain.errors import Interrupted, RingtrainError, UsageError, nearest
from ringtrain.report.comparison.compared import compared
from ringtrain.report.comparison.logs import CUT_SHORT, RunLog, read_run, run_names
from ringtrain.report.comparison.over_seeds import variants_by_seed
from ringtrain.report.comparison.rows import FailedVariant
from ringtrain.show.output import complain, echo
from ringtrain.show.results import OutputPaths
from ringtrain.storage.files import Folder
from ringtrain.storage.run_folder.run_folder import RUNS, make_unused_folder
from ringtrain.train.start.variants import VariantResult, check_variants, run_variants
from ringtrain.transport.agree import on_root
from ringtrain.transport.base import Transport
from ringtrain.transport.world import connect as begin_anew


@click.command()
@plugin_option
@click.argument("arguments", metavar="[RUN]... | [-- TRAIN OPTIONS | COMMAND]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--sync",
    "strategies",
    multiple=True,
    metavar="A,B,...",
    help='Train once with each of these strategies, which may have options: "allreduce,averaging --average-every 4".',
)
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME: OPTIONS",
    help='Train once with these options: "large: --batch 256 --lr 0.1". May be repeated.',
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    metavar="K",
    help="Train each variant with K seeds, from --seed on; show means and standard deviations.",
)
@click.option("--over-seeds", is_flag=True, help="Average existing runs that differ by seed alone, in order of date.")
@click.option(
    "--baseline", metavar="NAME", help="Existing run, or variant of runs, to compare others with. [the first]"
)
@click.option("-n", "--ranks", type=click.IntRange(1), help="Start COMMAND of PyTorch's script on so many ranks.")
@click.option("--launcher", metavar="TEXT", help='Start ranks so: "srun --mpi=pmix -n {ranks}". [mpirun, or srun]')
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME=PATTERN",
    help='Take a score from lines that COMMAND prints: "loss=loss ([0-9.]+)". May be repeated.',
)
@click.option("-o", "--out", help="Folder of the variants' runs. [runs/compare-DATE-TIME]")
@click.option("--plot", "plot_path", type=click.Path(), help="Draw to PNG, SVG or PDF. [variants: compare.png]")
@click.option("--json", "json_path", type=click.Path(), help="Write everything, figures of each rank too.")
@click.option("--csv", "csv_path", type=click.Path(), help="Write a line a run, and over seeds a line a variant.")
def compare(arguments, strategies, variants, seeds, over_seeds, baseline, ranks, launcher, metrics, out, **files):
    """Compare runs: one table, and a picture.

    \b
    ringtrain compare runs/a runs/b
    mpirun -np 4 ringtrain compare --sync allreduce,sharded -- --model lenet --data F.h5 --epochs 1
    ringtrain compare -n 4 --sync allreduce,gossip -- python -m ringtrain.torch train.py

    The first form compares existing run folders; --plot draws them. The second trains first: once with each strategy
    (--sync) or set of options (--variant), one after another on the same ranks. Options after -- apply to all of them.
    The third starts a script of PyTorch instead, each variant in processes of its own. --seeds 5 trains each five
    times. docs/runs.md explains the columns, docs/pytorch.md the third form.
    """
    paths = OutputPaths(**files)
    if ranks is None and (launcher or metrics or commands.LAUNCHER in arguments):
        flag = "--launcher" if launcher else "--metric" if metrics else f"-m {commands.LAUNCHER}"
        raise UsageError(f"{flag} is of a script of PyTorch, whose ranks compare starts: give their number by -n")
    if ranks is not None and not strategies and not variants:
        raise UsageError(f"-n {ranks} starts a script of PyTorch once with each variant: give --sync or --variant")
    if ranks is not None and plugin.LOADED:
        raise UsageError("--plugin is not of scripts of PyTorch: a script calls ringtrain.plugin.load_plugins")
    if not strategies and not variants:
        if seeds is not None:
            raise UsageError(
                f"--seeds {seeds} trains variants: give --sync or --variant; --over-seeds averages runs that exist"
            )
        tell = partial(_tell_folders, arguments, out, over_seeds, baseline, paths)
        return in_world(lambda transport: on_root(transport, tell))
    if over_seeds:
        raise UsageError("--over-seeds averages runs that exist: --seeds K trains variants over seeds")
    if baseline:
        raise UsageError(
            f"--baseline is of runs that exist: others are compared with the first, so put {baseline} there"
        )
    if ranks is not None:
        command = commands.read_command(arguments, ranks, launcher, metrics)
        return _compare_commands(command, named_variants(strategies, variants), seeds, out, paths)
    asked, variant_of = variants_of(arguments, strategies, variants), None
    if seeds is not None:
        asked, variant_of = seeded(asked, seeds)
    return in_world(lambda transport: _compare_variants(transport, asked, variant_of, out, paths))


# ── existing runs ─────────────────────────────────────────────────────────────────────────────────────────────────────
def _tell_folders(
    folders: tuple[str, ...], out: str | None, over_seeds: bool, baseline: str | None, paths: OutputPaths
) -> None:
    if not folders:
        raise UsageError("nothing to compare: give folders of runs, or --sync A,B with training options after --")
    for folder in folders:
        if folder.startswith("-"):
            raise UsageError(f"{folder} is not the folder of a run: training options need --sync or --variant")
    if out is not None:
        raise UsageError(f"--out {out} is the folder for trained variants: give --sync or --variant, or leave it out")
    resolved = [Path(folder).resolve() for folder in folders]
    runs = [read_run(folder, name) for folder, name in zip(folders, run_names(resolved), strict=True)]
    paths.check()
    if over_seeds:  # as they were trained: names of folders have another order
        runs.sort(key=lambda run: run.start.get("date") or "")
    variant_of = variants_by_seed(runs) if over_seeds else None
    names = variant_of or {run.name: run.name for run in runs}
    if baseline is not None and baseline not in names.values():
        raise UsageError(f"no run or variant --baseline {baseline!r}; {nearest(baseline, set(names.values()))}")
    runs.sort(key=lambda run: names[run.name] != baseline)
    if variant_of and len(set(variant_of.values())) == len(set(resolved)):
        raise UsageError("--over-seeds: no two of these runs differ by seed alone")
    compared(runs, variant_of).show(paths)


# ── variants ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def _compare_variants(
    transport: Transport, asked: list, variant_of: dict[str, str] | None, out: str | None, paths: OutputPaths
) -> int:
    def connect():
        """Return a world for one variant, watched by this process's threads."""
        world = begin_anew()
        world.activity = transport.activity
        return world

    on_root(transport, lambda: _check_files(out, asked, paths))
    check_variants(connect, asked)
    parent = on_root(transport, lambda: out or _new_folder())
    asked = _with_folders(parent, asked)

    def begun(variant) -> None:
        if transport.rank == 0:
            _tell_begun(asked, variant)

    def ended(ran: list) -> None:
        if transport.rank == 0:
            _keep(ran, variant_of, Path(parent) / "compare.json")

    ran = run_variants(transport, connect, asked, begun, ended)
    not_run = ", ".join(variant.name for variant in asked[len(ran) :])
    more = [f"not run: {not_run}"] if not_run else []
    on_root(transport, lambda: compared(_read(ran), variant_of, more).show(paths, Path(parent) / "compare.png"))
    if not_run:
        return Interrupted.exit_code
    return 1 if any(each.problem for each in ran) else 0


def _compare_commands(
    command: commands.ComparedCommand, named: list, seeds: int | None, out: str | None, paths: OutputPaths
) -> int:
    asked, variant_of = command.variants(named, seeds)
    _check_files(out, asked, paths)
    parent, ran = out or _new_folder(), []
    asked = _with_folders(parent, asked)
    with commands.ended_by_signals(Path(parent) / "compare.json"):
        for variant in asked:
            _tell_begun(asked, variant)
            ran.append(VariantResult(variant, command.run(variant)))
            _keep(ran, variant_of, Path(parent) / "compare.json")
            commands.check_seeds(_read(ran), variant_of)
    runs = _read(ran)
    scores = [commands.scores_of(run) for run in runs if isinstance(run, RunLog)]
    untold = "no run has told a score: call ringtrain.torch.log_step in the script, or give --metric"
    more = [untold] if scores and not any(scores) else []
    compared(runs, variant_of, more).show(paths, Path(parent) / "compare.png")
    return 1 if any(each.problem for each in ran) else 0


def _new_folder() -> str:
    return str(make_unused_folder(RUNS, "compare", datetime.datetime.now()))


def _with_folders(parent: str, asked: list) -> list:
    folders = folders_of(parent, asked)
    return [replace(each, flags={**each.flags, "out": out}) for each, out in zip(asked, folders, strict=True)]


def _tell_begun(asked: list, variant) -> None:
    echo("", f"== variant {asked.index(variant) + 1} of {len(asked)}: {variant.name}")


def _check_files(out: str | None, asked: list, paths: OutputPaths) -> None:
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
    paths.check()
    existing = [folder for folder in (folders_of(out, asked) if out else []) if Path(folder).exists()]
    if existing:
        raise UsageError(f"{existing[0]} exists already: name another folder with --out, or compare the runs in {out}")


def _read(ran: list) -> list:
    """Return the logs of the variants; the reason for a variant that failed before it had a log."""
    runs: list[RunLog | FailedVariant] = []
    for each in ran:
        try:
            run = read_run(each.variant.flags["out"], each.variant.name)
            cut = each.problem if run.outcome == CUT_SHORT else None
            runs.append(replace(run, failed={"text": cut}) if cut else run)
        except UsageError as error:
            runs.append(FailedVariant(each.variant.name, each.problem or str(error)))
    return runs


def _keep(ran: list, variant_of: dict[str, str] | None, path: Path) -> None:
    """Write the table of the finished variants, which a later failure leaves intact."""
    if ran[-1].problem is not None:
        echo(f"ringtrain: variant {ran[-1].variant.name!r}: {ran[-1].problem}", err=True)
    try:
        Folder(path.parent).write(path, compared(_read(ran), variant_of).json_text().encode())
    except RingtrainError as error:
        complain(error)
