"""The command ``ringtrain doctor``."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from ringtrain.cli.world import in_world
from ringtrain.launch.doctor import checks
from ringtrain.launch.doctor.doctor import (
    FAIL,
    OK,
    DoctorContext,
    Line,
    examine,
    format_lines,
    summary_line,
    worst_status,
)
from ringtrain.show.output import echo, echo_file
from ringtrain.transport.base import Transport

MAKER = "ringtrain.ops.cuda.cupy_runtime:make_runtime"
PLAIN_WIDTH = 80  # where the output is no terminal, as under mpirun


@click.command()
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Check GPUs: auto, if there is a driver; cuda, and fail without a usable GPU.",
)
@click.option(
    "--mpi-cuda",
    type=click.Choice(["auto", "direct", "staged"]),
    default="auto",
    show_default=True,
    help="How device memory travels between ranks, as in `train`.",
)
@click.option(
    "--path",
    type=click.Path(),
    default="runs",
    show_default=True,
    help="Place of run folders, where a test checkpoint is written and the disk is timed.",
)
@click.option("--quick", is_flag=True, help="Measure nothing: neither the disk nor the links between ranks.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a line is warn, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def doctor(path, quick, strict, as_json, **options):
    """Preflight check: versions, MPI, cores, GPUs, disk, links, and what to do about each.

    Under mpirun it checks all ranks together and names those that differ. Each line is ok, warn (a run works, but not
    as well as it could) or fail, with advice. Exit status: 0; 1 if a line is fail; 4 if a check does not end.
    docs/errors.md says more.
    """

    def action(transport: Transport) -> int:
        from ringtrain.ops.cuda.cupy_runtime import make_runtime, visible_devices

        context = DoctorContext(
            transport, os.environ, visible=visible_devices, make=make_runtime, maker=MAKER, path=Path(path), **options
        )
        lines = examine(context, checks.CHECKS if quick else (*checks.CHECKS, *checks.MEASURED))
        hosts = transport.gather_json(context.host)
        if transport.rank == 0:
            _show(lines, hosts, as_json)
        return int(worst_status(lines) == FAIL or (strict and worst_status(lines) != OK))

    return in_world(action)


def _show(lines: Sequence[Line], hosts: Sequence[str], as_json: bool) -> None:
    if as_json:
        content = {"status": worst_status(lines), "hosts": hosts, "lines": [asdict(line) for line in lines]}
        echo_file(json.dumps(content, indent=2))
    else:
        width = shutil.get_terminal_size((PLAIN_WIDTH, 0)).columns
        echo(*format_lines(lines, hosts, width), summary_line(lines))
