"""Visits of the doctor to machines that are not there: a folder is the root of their file system."""

from pathlib import Path

from ringtrain.launch.doctor.doctor import DoctorContext, Line
from ringtrain.transport.base import ForwardingTransport
from tests.loopback.world import LoopbackWorld


def refuse(*number):
    raise AssertionError("a device was opened that nobody asked for")


class Messaging(ForwardingTransport):
    """A world that says it has an MPI."""

    def describe(self):
        return "Some MPI, thread level multiple"


def put(root: Path, files: dict[str, str]) -> None:
    """Files under a root: path → text."""
    for name, text in files.items():
        write(root, name, text)


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def lines_of(
    check, root: Path, size=1, environ=None, nodes=1, mpi=False, hosts=None, path=None, device="cpu",
    mpi_cuda="staged", visible=1, make=refuse, shares=True,
) -> list[list[Line]]:  # fmt: skip
    """What a check says on every rank."""

    def body(transport):
        world = Messaging(transport) if mpi else transport
        host = hosts[transport.rank] if hosts else f"n{transport.node}"
        where = path(transport.rank) if path else root
        more = {"root": root, "path": where, "host": host}
        return list(check(DoctorContext(world, environ or {}, device, mpi_cuda, lambda: visible, make, "a:b", **more)))

    return LoopbackWorld(size, nodes, shares=shares).run(body)


def line_of(check, root: Path, size=1, **how) -> Line:
    """The one line that all ranks say."""
    every = lines_of(check, root, size, **how)
    assert all(lines == every[0] for lines in every), every
    (line,) = every[0]
    return line
