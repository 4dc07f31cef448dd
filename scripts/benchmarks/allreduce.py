"""`bench-allreduce` in several launches, since one is no measurement; with contestants that it does not have:

\b
communicator  Communicator.allreduce(array, out=array) of an ordinary NumPy array
prepared      Communicator.prepare(array) of an array of Communicator.empty, started again and again

Every launch measures all of them interleaved, and numbers of ranks take turns. --beside, --quota and --cores take
cores away from the ranks, as other jobs and containers do. Prints a Markdown table of the least,
the median and the greatest of the launches' ratios to the MPI's own, and writes allreduce-K-ranks.md, .json and .png.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
from control_groups import CpuGroup
from launches import markdown, merged
from page import command_line, commit

from ringtrain import Communicator
from ringtrain.allreduce.catalogue import ALGORITHMS, AUTO, NATIVE
from ringtrain.allreduce.tuning_file import find_tuning
from ringtrain.bench.measure.buffers import ORDINARY, Buffers
from ringtrain.bench.measure.rows import group
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.measure.trials import Refusal
from ringtrain.bench.sweep import files, tables
from ringtrain.bench.sweep.plots import sweep_figure
from ringtrain.bench.sweep.sizes import parse_names, swept
from ringtrain.bench.sweep.sweep import Sweep, Watcher, sweep
from ringtrain.cli.options import Size
from ringtrain.cli.world import in_world
from ringtrain.errors import UsageError
from ringtrain.monitor.guarded_transport import bare
from ringtrain.show.figures import check_picture, write_picture
from ringtrain.storage.files import check_writable

COMMUNICATOR = "communicator"  # Communicator.allreduce(array, out=array) of any array
PREPARED = "prepared"  # Communicator.prepare(array), of an array of Communicator.empty
# Where each is measured. The MPI's own is there by the sweep's own rule.
MEMORIES = {COMMUNICATOR: (ORDINARY,), PREPARED: (PREPARED,)}
DEFAULT = ",".join((NATIVE, AUTO, PREPARED, COMMUNICATOR))


# ── contestants ───────────────────────────────────────────────────────────────────────────────────────────────
def by_communicator(communicator):
    """Return a baseline (:data:`ringtrain.bench.measure.trials.Baseline`) of one call, which copies by pieces."""

    def prepare(job):
        op = _checked(job)
        return lambda: communicator.allreduce(job.target, op, out=job.target)

    return prepare


def by_preparing(communicator):
    """Return a baseline that is prepared once, in the communicator's memory, where nothing is copied."""

    def prepare(job):
        op = _checked(job)
        reduction = communicator.prepare(job.target, op)
        return lambda: (reduction.start(), reduction.wait())

    return prepare


def memory_of(communicator):
    """Return an allocation of bytes for :class:`ringtrain.bench.measure.buffers.Buffers`."""
    return lambda nbytes: communicator.empty(-(-nbytes // 8), "float64").view(np.uint8)[:nbytes]


def _checked(job) -> str:
    """Return the operation, a sum for a mean, which the sweep divides. Raises Refusal for a type that others lack."""
    if job.numbers.name == "bfloat16":
        raise Refusal("bfloat16 is kept as uint16 here, which others would add as whole numbers")
    return "sum" if job.op == "mean" else job.op


# ── a rank ────────────────────────────────────────────────────────────────────────────────────────────────────
def measure_rank(transport, asked: Sweep, path: Path) -> None:
    """Run one launch's sweep, on every rank. Rank 0 writes it to ``path``."""
    transport = bare(transport)
    with ExitStack() as stack:
        baselines, memories = {}, {}
        if {COMMUNICATOR, PREPARED} & set(asked.algorithms):
            communicator = stack.enter_context(Communicator())
            baselines = {COMMUNICATOR: by_communicator(communicator), PREPARED: by_preparing(communicator)}
            memories = {PREPARED: memory_of(communicator)}
        table = find_tuning(transport, None).table  # the Communicator's, too
        asked = replace(asked, baselines=baselines, memories={**asked.memories, **MEMORIES}, tuning=table)
        with transport.activity.during("a sweep"):
            result = sweep(transport, asked, watcher(transport.rank), Buffers(transport, memories))
        if transport.rank == 0:
            files.write_json(path, result.header, result.rows)


def watcher(rank: int) -> Watcher:
    if rank != 0:
        return Watcher()
    headers: list[dict] = []

    def begun(header: dict) -> None:
        headers.append(header)
        click.echo("\n".join([*tables.header_lines(header), *tables.titles()]))

    def measured(rows: list[dict]) -> None:
        lines = [tables.row_line(row, crowded=headers[0]["crowded"]) for row in rows]
        click.echo("\n".join([f"# {group(rows[0])}", *lines]))

    return Watcher(begun, measured)


# ── launches ──────────────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def confinement(quota: float | None, cores: int | None) -> Iterator[Callable[[], None]]:
    """Yield what a process calls to have as much time as ``quota`` cores, on the first ``cores`` alone, with those that
    it starts. Raises OSError if no control group can be made.
    """
    with ExitStack() as stack:
        steps: list[Callable[[], None]] = []
        if quota:
            group = CpuGroup(quota)
            stack.callback(group.remove)
            steps.append(group.enter)
        if cores:
            first = sorted(os.sched_getaffinity(0))[:cores]
            steps.append(lambda: os.sched_setaffinity(0, first))
        yield lambda: [step() for step in steps]


def launch(words: list[str], confine: Callable[[], None]) -> dict | None:
    """Return one launch's sweep; None if it failed. ``confine``: what it begins with."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.json"
        done = subprocess.run([*words, sys.executable, __file__, *sys.argv[1:], "--json", path], preexec_fn=confine)
        return None if done.returncode else files.read_json(path)


def launcher(text: str, ranks: int) -> list[str]:
    """Return the words that start so many ranks. Raises UsageError."""
    try:
        words = shlex.split(text.replace("{ranks}", str(ranks)))
    except ValueError as error:
        raise UsageError(f"--launch {text}: {error}") from None
    if shutil.which("".join(words[:1])) is None:
        raise UsageError(f"--launch {text}: there is no such program; install an MPI, or name its launcher")
    return words


def write(base: Path, picture: Path, sweeps: list[dict]) -> None:
    header, rows = merged(sweeps).values()
    text = f"`{command_line(sys.argv[1:], 'allreduce')}`, commit {commit()}.\n{markdown(header, rows)}\n"
    base.with_suffix(".md").write_text(text)
    files.write_json(base.with_suffix(".json"), header, rows)
    write_picture(partial(sweep_figure, header, rows), picture)
    click.echo(f"\n{text}\n{base}.md, {base}.json, {picture}")


class Numbers(click.ParamType):
    name = "ranks,..."

    def convert(self, value, param, ctx):
        return [click.IntRange(2).convert(word, param, ctx) for word in value.split(",")]


@click.command(help=__doc__)
@click.option("--launches", type=click.IntRange(1), default=5, show_default=True, help="Of each number of ranks.")
@click.option("--ranks", type=Numbers(), default="2", show_default=True, help="One number, or several: 2,4.")
@click.option("-b", "--begin", type=Size(), default="64K", show_default=True, help="Smallest buffer.")
@click.option("-e", "--end", type=Size(), default="64M", show_default=True, help="Largest buffer.")
@click.option("-f", "--factor", default=4.0, show_default=True)
@click.option("-n", "--iterations", type=click.IntRange(1), default=20, show_default=True)
@click.option("-w", "--warm-up", type=click.IntRange(0), default=5, show_default=True)
@click.option("--algorithm", default=DEFAULT, show_default=True, help="Names, those above among them, or all.")
@click.option("--beside", type=click.IntRange(0), default=0, show_default=True, help="Busy processes on each node.")
@click.option("--quota", type=click.FloatRange(0, min_open=True), help="Time of a launch: that of so many cores.")
@click.option("--cores", type=click.IntRange(1), help="Cores of a launch: the first of this machine.")
@click.option("--launch", "text", default="mpirun -np {ranks} --bind-to none", show_default=True)
@click.option("--out", type=Path, default=".", help="Folder of the table, the figures, the picture.")
@click.option("--json", "path", type=Path, hidden=True, help="Of a rank.")
def allreduce(**flags):
    options = SimpleNamespace(**flags)
    try:
        asked = asked_of(options)
        if options.path:
            sys.exit(in_world(lambda transport: measure_rank(transport, asked, options.path)))
        worlds = {ranks: launcher(options.text, ranks) for ranks in options.ranks}
        pictures = pictures_of(options)
    except UsageError as error:
        raise click.UsageError(str(error)) from None
    sweeps, failed = {ranks: [] for ranks in worlds}, False
    with ExitStack() as stack:
        try:
            confine = stack.enter_context(confinement(options.quota, options.cores))
        except OSError as error:
            needs = "a control group of cpu.max or cpu.cfs_quota_us"
            click.echo(f"allreduce: skipped, since --quota {options.quota:g} needs {needs}: {error}")
            return
        for number, (ranks, words) in product(range(1, options.launches + 1), worlds.items()):
            what = f"launch {number} of {options.launches}, {ranks} ranks"
            click.echo(f"\n{what}")
            if (sweep_file := launch(words, confine)) is None:
                click.echo(f"allreduce: {what}, failed: no more are started", err=True)
                failed = True
                break
            sweeps[ranks].append(sweep_file)
    for ranks, launches in sweeps.items():
        if launches:
            write(options.out / f"allreduce-{ranks}-ranks", pictures[ranks], launches)
    wrong = any(row["wrong"] for launches in sweeps.values() for each in launches for row in each["rows"])
    sys.exit(bool(wrong or failed))


def asked_of(options) -> Sweep:
    names = parse_names(options.algorithm, (*ALGORITHMS, AUTO, *MEMORIES), "algorithm")
    if NATIVE not in names:
        raise UsageError(f"give {NATIVE} among --algorithm: all are compared with it")
    protocol = Protocol(repeats=options.iterations, warm_up=options.warm_up, beside=options.beside)
    return Sweep(sizes=swept(options.begin, options.end, options.factor), algorithms=names, protocol=protocol)


def pictures_of(options) -> dict[int, Path]:
    """Return the paths of pictures by number of ranks, and make their folder. Raises UsageError."""
    pictures = {ranks: options.out / f"allreduce-{ranks}-ranks.png" for ranks in options.ranks}
    options.out.mkdir(parents=True, exist_ok=True)
    for picture in pictures.values():
        check_writable(picture)
        check_picture(picture)
    return pictures


if __name__ == "__main__":
    allreduce()
