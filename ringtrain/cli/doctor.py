"""The command ``ringtrain doctor``."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ringtrain.show.output import echo, echo_file

if TYPE_CHECKING:
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
def doctor(device, mpi_cuda, path, quick, strict, as_json):
    """Preflight check: versions, MPI, cores, GPUs, disk, links, and what to do about each.

    Under mpirun it checks all ranks together and names those that differ. Each line is ok, warn (a run works, but not
    as well as it could) or fail, with advice. Exit status: 0; 1 if a line is fail; 4 if a check does not end.
    docs/hangs.md says more.
    """
    from ringtrain.cli.world import in_world

    return in_world(lambda transport: _doctor(transport, device, mpi_cuda, Path(path), quick, strict, as_json))


def _doctor(transport: "Transport", device: str, mpi_cuda: str, path, quick: bool, strict: bool, as_json: bool) -> int:
    from ringtrain.launch.doctor import checks
    from ringtrain.launch.doctor.doctor import FAIL, OK, DoctorContext, examine, worst_status

    context = DoctorContext(transport, os.environ, device, mpi_cuda, _visible, _make, MAKER, path=path)
    chosen = checks.CHECKS if quick else (*checks.CHECKS, *checks.MEASURED)
    lines = examine(context, chosen)
    hosts = transport.gather_json(context.host)
    if transport.rank == 0:
        if as_json:
            echo_file(_as_json(lines, hosts))
        else:
            echo(*_as_text(lines, hosts))
    return int(worst_status(lines) == FAIL or (strict and worst_status(lines) != OK))


def _visible() -> int:
    from ringtrain.ops.cuda.cupy_runtime import visible_devices

    return visible_devices()


def _make(number: int):
    from ringtrain.ops.cuda.cupy_runtime import make_runtime

    return make_runtime(number)


def _as_text(lines, hosts) -> list[str]:
    from ringtrain.launch.doctor.doctor import format_lines, summary_line

    width = shutil.get_terminal_size((PLAIN_WIDTH, 0)).columns
    return [*format_lines(lines, hosts, width), summary_line(lines)]


def _as_json(lines, hosts) -> str:
    from ringtrain.launch.doctor.doctor import worst_status

    return json.dumps(
        {"status": worst_status(lines), "hosts": hosts, "lines": [asdict(line) for line in lines]}, indent=2
    )
