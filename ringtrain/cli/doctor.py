"""``ringtrain doctor``"""

import click


@click.command()
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Look at GPUs: auto, where there is a driver; cuda, and fail where one cannot be used.",
)
@click.option(
    "--mpi-cuda",
    type=click.Choice(["auto", "direct", "staged"]),
    default="auto",
    show_default=True,
    help="How device memory is to go between ranks, as of `train`.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def doctor(device, mpi_cuda, as_json):
    """What is here, and whether it will do.

    Under mpirun, of all ranks together: where they differ, they are named. Each line is ok, warn (a run goes, but not
    as well as it could) or fail, with what to do. Ends with 1 where a line is fail, else with 0.
    """
    from ringtrain.cli.world import in_world

    return in_world(lambda transport: _doctor(transport, device, mpi_cuda, as_json))


def _doctor(transport, device: str, mpi_cuda: str, as_json: bool) -> int:
    import os
    import socket

    from ringtrain.launch.checks import CHECKS
    from ringtrain.launch.doctor import FAIL, Visit, examine, show, worst

    visit = Visit(transport, os.environ, device, mpi_cuda, _visible, _make, MAKER)
    lines = examine(visit, CHECKS)
    hosts = transport.gather_json(socket.gethostname())
    if transport.rank == 0:
        click.echo(_as_json(lines, hosts) if as_json else "\n".join(show(lines, hosts)))
    return int(worst(lines) == FAIL)


MAKER = "ringtrain.ops.cuda.cupy_runtime:make_runtime"


def _visible() -> int:
    from ringtrain.ops.cuda.cupy_runtime import visible_devices

    return visible_devices()


def _make(number: int):
    from ringtrain.ops.cuda.cupy_runtime import make_runtime

    return make_runtime(number)


def _as_json(lines, hosts) -> str:
    import json
    from dataclasses import asdict

    from ringtrain.launch.doctor import worst

    return json.dumps({"status": worst(lines), "hosts": hosts, "lines": [asdict(line) for line in lines]}, indent=2)
