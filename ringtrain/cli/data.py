"""The command ``ringtrain data``: make, show and check data sets."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from ringtrain.cli.hints import CommandGroup
from ringtrain.cli.options import Size, layout_flags
from ringtrain.cli.world import in_world
from ringtrain.data.batches.pictures import View
from ringtrain.data.file.check import class_rows, dataset_rows, split_rows
from ringtrain.data.file.contents import VERIFY_BYTES
from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.file.format import metadata_checksum
from ringtrain.data.file.grammar import Layout
from ringtrain.data.image_files import open as images
from ringtrain.data.image_files.check import Checked, check_share, problems_together
from ringtrain.data.readers.make import make_dataset
from ringtrain.errors import RingtrainError, everywhere
from ringtrain.humanize import plural
from ringtrain.parsing import whole_number
from ringtrain.show.output import echo, echo_notes
from ringtrain.show.tables import boxed_table, cell
from ringtrain.template import joined
from ringtrain.transport.agree import on_root, together_json
from ringtrain.transport.base import Transport

SEEN = 224, 224  # of image files, for mean and standard deviation


class DataGroup(CommandGroup):
    def get_command(self, ctx, name):
        return super().get_command(ctx, "info" if name == "show" else name)  # as `models` and `schedule` call it


@click.group(cls=DataGroup)
def data():
    """Make, show and check data sets."""


class ImageSize(click.ParamType):
    """HxW, as in 32x48, or one number of pixels for both."""

    name = "HxW"

    def convert(self, value, param, ctx):
        match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", value) if isinstance(value, str) else None
        sides = tuple(whole_number(side or match[1]) for side in match.groups()) if match else (None,)
        if None in sides:
            self.fail(f"{value!r} is not a height and a width: write it as in 32x48, or 32 for 32x32", param, ctx)
        return sides


@data.command()
@click.argument("source", metavar="SRC", type=click.Path())
@click.option("-o", "--out", required=True, type=click.Path(), help="The HDF5 file to write.")
@click.option("--name", help="Name of the data set. [the source's]")
@click.option("--test-fraction", type=float, help="Use this fraction of the examples as the test part (0 to 1).")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the choice by --test-fraction.")
@click.option("--size", type=ImageSize(), help="Make images of a folder this high and wide: 32x48, or 32.")
@click.option("--context", type=Size(1), help="Bytes of context in an example of text; SRC may then be any file. [128]")
@layout_flags
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def make(source, out, layout, ignore_label, **options):
    """Make a data set from SRC.

    SRC is one of: a folder or prefix of IDX files (MNIST and its likes, .gz too); a folder or .tar.gz of
    the python version of CIFAR-10 or CIFAR-100; what `train --data` takes: FILE.h5:images,labels, an .npz with x_train,
    y_train, x_test, y_test (or x, y; or images, labels), x.npy,y.npy, or a quoted pattern of such files; a folder of
    images, one subfolder a class; text, as book.txt or a quoted pattern of such files: its end is the test part.
    """
    with _progress() as progress:
        content = make_dataset(source, out, layout=Layout(layout, ignore_label), progress=progress, **options)
    echo_notes(content.notes)
    parts = ", ".join(f"{part.count:,} {name}" for name, part in content.parts())
    label = "x".join(map(str, content.train.label_shape)) or "1"
    of_what = f"with {label} values each" if content.train.of_values else f"in {len(content.classes)} classes"
    echo(f"{out}: {content.name}, {parts} examples {of_what}")


@data.command()
@click.argument("file", metavar="DATA", type=click.Path())
@layout_flags
def info(file, layout, ignore_label):
    """Show the contents of a data set, anything that `train --data` takes, with mean and standard deviation of
    image files as at 224 x 224. `show` is the same."""
    with _progress() as progress:
        if images.accepts(file):
            opened = images.open_images(file, View(SEEN), 3, skip=True)
        else:
            form = Layout(layout, ignore_label)
            opened = open_dataset(file, progress=progress, most_bytes=VERIFY_BYTES, layout=form)
    echo_notes(opened.notes)
    console = Console()
    for what, value in dataset_rows(opened):
        console.print(Text.assemble((f"{what:8} ", "bold"), cell(value)), soft_wrap=True)
    names = [name for name, _ in opened.splits()]
    console.print(_table(("split", "examples", "shape", "MB", "no label"), [r[:5] for r in split_rows(opened)]))
    if opened.train.has_classes:
        console.print(_table(("", "class", *names), class_rows(opened)))
    for name, split in opened.splits():
        console.print(f"sha256 {name:5} {split.checksum}", highlight=False, soft_wrap=True)
    if opened.train.problems:
        echo_notes([f"mean and std are of {images.SAMPLE:,} images at most; `ringtrain data check {file}` decodes all"])
        raise _listed(file, [*opened.train.problems.values()])
    if opened.location != "files":
        console.print(f"sha256 file  {metadata_checksum(opened.classes, opened)}", highlight=False, soft_wrap=True)


@data.command()
@click.argument("file", metavar="DATA", type=click.Path())
@layout_flags
def check(file, layout, ignore_label):
    """Read all of a data set that `train --data` takes and verify layout, labels and checksums; decode every
    image. Under mpirun the ranks of a node divide its files. Exit 1 if it is bad."""
    return in_world(lambda transport: _check(transport, file, Layout(layout, ignore_label)))


def _check(transport: Transport, file: str, layout: Layout) -> None:
    activity = transport.activity

    def share() -> tuple[str, Checked]:
        with _progress(activity.touch) as progress, activity.during(f"checking {file}"):
            return activity.host, check_share(file, layout, progress, transport.local_rank, transport.local_size)

    shares = together_json(transport, share)
    hosts = defaultdict(set)  # (place, problem) → those that have it
    for host, (problems, _) in shares:
        for place, text in problems:
            hosts[place, text].add(host)
    everyone, ranked = {host for host, _ in shares}, sorted(hosts.items(), key=lambda each: each[0][0])
    problems = [text if have == everyone else f"{', '.join(sorted(have))}: {text}" for (_, text), have in ranked]
    problems = problems or on_root(transport, lambda: problems_together(file, layout))
    if problems:
        raise everywhere(_listed(file, problems))
    if transport.rank == 0:
        echo(f"{file} is good")
        echo_notes(shares[0][1][1])


def _listed(file: str, problems: Sequence[str]) -> RingtrainError:
    first = f"{file} has {plural(len(problems), 'problem')}:"
    return RingtrainError(joined([first, *(f"  - {problem}" for problem in problems)]))


def _table(titles, rows):
    return boxed_table(titles, rows, ("split", "class", "shape"), titles[:2])


@contextmanager
def _progress(touch: Callable[[], None] = lambda: None):
    """Yield a progress function that calls ``touch()`` and shows a bar for each activity; without a terminal none."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict = {}

        def progress(what, done, total):
            touch()
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        yield progress
