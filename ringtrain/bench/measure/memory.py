"""Check that the buffers of a sweep fit into memory, before any is allocated: systems promise memory that they lack,
and end the process that uses it.
"""

import re
import socket
from pathlib import Path

from ringtrain.errors import UsageError, everywhere
from ringtrain.humanize import format_bytes, plural
from ringtrain.template import Template
from ringtrain.transport.base import Transport

MEMINFO = Path("/proc/meminfo")


def kernel_bytes(name: str, meminfo: Path = MEMINFO) -> int | None:
    """Return the kernel's figure for this host's memory; None without one."""
    found = re.search(rf"^{name}:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE) if meminfo.is_file() else None
    return int(found[1]) << 10 if found else None


def available_bytes(meminfo: Path = MEMINFO) -> int | None:
    """Return the memory that this host can still give; None if unknown."""
    return kernel_bytes("MemAvailable", meminfo)


def check_memory(transport: Transport, nbytes: int, meminfo: Path = MEMINFO) -> None:
    """Raise UsageError on all ranks if a host has less than ``nbytes`` for each of its ranks. Collective."""
    _check(
        transport,
        nbytes,
        socket.gethostname(),
        available_bytes(meminfo),
        Template(
            "buffers of {nbytes} on {ranks} need {wanted}, but host {host} has {free} of memory left: make -e "
            "smaller, or start fewer ranks on it"
        ),
    )


def check_device_memory(transport: Transport, nbytes: int, free_bytes: int, device: str) -> None:
    """Raise UsageError on all ranks if a device, which several ranks may share, lacks memory. ``device``: its identity.
    Collective.
    """
    _check(
        transport,
        nbytes,
        device,
        free_bytes,
        Template(
            "buffers of {nbytes} on {ranks} need {wanted}, but their device has {free} of memory left: make -e "
            "smaller, or start fewer ranks on it"
        ),
    )


def _check(transport: Transport, nbytes: int, place: str, free_bytes: int | None, full: Template) -> None:
    found = transport.gather_json([place, free_bytes])
    for name in dict.fromkeys(own for own, _ in found):
        there = [free for own, free in found if own == name]
        least = min((free for free in there if free is not None), default=None)
        if least is not None and nbytes * len(there) > least:
            facts = {"nbytes": nbytes, "wanted": nbytes * len(there), "free": least}
            words = {key: format_bytes(value) for key, value in facts.items()}
            raise everywhere(UsageError(full(ranks=plural(len(there), "rank"), host=name, **words)))
