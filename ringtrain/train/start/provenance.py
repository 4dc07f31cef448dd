"""Collects the place, time, command and versions of a run, for its ``start`` record."""

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from ringtrain.launch.slurm.job_end import job_number
from ringtrain.transport.base import Transport

PACKAGES = ("numpy", "mpi4py", "h5py", "cupy-cuda12x", "cupy-cuda13x")


def provenance(transport: Transport) -> dict:
    """The fields of :class:`ringtrain.report.events.RunStarted`. Collective."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hosts": transport.gather_json(transport.activity.host),
        "command": command_of(sys.argv),
        "versions": {"python": platform.python_version(), **versions_of(PACKAGES)},
        "mpi": transport.describe(),
        "job": job_number(os.environ),
    }


def command_of(argv: Sequence[str]) -> str:
    """The command line without ``mpirun`` and its options, which this process does not see."""
    name = Path(argv[0]).name
    return shlex.join(["ringtrain" if name == "__main__.py" else name, *argv[1:]])


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """The versions of the installed packages."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
