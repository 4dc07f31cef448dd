"""Check that the buffers of a sweep fit into memory, before any is allocated: systems promise memory that they lack,
and end the process that uses it.
"""

import re
import socket
from pathlib import Path

from ringtrain.bench import texts
from ringtrain.errors import UsageError, everywhere
from ringtrain.humanize import format_bytes, plural
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
    hosts = transport.gather_json([socket.gethostname(), available_bytes(meminfo)])
    for name in dict.fromkeys(host for host, _ in hosts):
        there = [available for host, available in hosts if host == name]
        least = min((available for available in there if available is not None), default=None)
        if least is not None and nbytes * len(there) > least:
            raise everywhere(
                UsageError(
                    texts.HOST_FULL(
                        nbytes=format_bytes(nbytes),
                        ranks=plural(len(there), "rank"),
                        wanted=format_bytes(nbytes * len(there)),
                        host=name,
                        free=format_bytes(least),
                    )
                )
            )


def check_device_memory(transport: Transport, nbytes: int, free_bytes: int, device: str) -> None:
    """Raise UsageError on all ranks if a device, which several ranks may share, lacks memory. ``device``: its identity.
    Collective.
    """
    found = transport.gather_json([device, free_bytes])
    for name in dict.fromkeys(own for own, _ in found):
        there = [free for own, free in found if own == name]
        if nbytes * len(there) > min(there):
            raise everywhere(
                UsageError(
                    texts.DEVICE_FULL(
                        nbytes=format_bytes(nbytes),
                        ranks=plural(len(there), "rank"),
                        wanted=format_bytes(nbytes * len(there)),
                        free=format_bytes(min(there)),
                    )
                )
            )
