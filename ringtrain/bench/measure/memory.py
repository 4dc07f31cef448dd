"""Check that the buffers of a sweep fit into memory, before any is allocated: systems promise memory that they lack,
and end the process that uses it.
"""

import re
import socket
from pathlib import Path

from ringtrain.errors import UsageError, everywhere
from ringtrain.humanize import format_bytes, plural
from ringtrain.transport.base import Transport

MEMINFO = Path("/proc/meminfo")


def kernel_bytes(name: str, meminfo: Path = MEMINFO) -> int | None:
    """Return the kernel's figure for this host's memory; None without one."""
    match = re.search(rf"^{name}:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE) if meminfo.is_file() else None
    return int(match[1]) << 10 if match else None


def available_bytes(meminfo: Path = MEMINFO) -> int | None:
    """Return the memory that this host can still give; None if unknown."""
    return kernel_bytes("MemAvailable", meminfo)


def check_memory(transport: Transport, nbytes: int, meminfo: Path = MEMINFO) -> None:
    """Raise UsageError on all ranks if a host has less than ``nbytes`` for each of its ranks. Collective."""
    host = socket.gethostname()
    _check(transport, nbytes, host, available_bytes(meminfo), f"host {host}")


def check_device_memory(transport: Transport, nbytes: int, free_bytes: int, device: str) -> None:
    """Raise UsageError on all ranks if a device, which several ranks may share, lacks memory. ``device``: its identity.
    Collective.
    """
    _check(transport, nbytes, device, free_bytes, "their device")


def _check(transport: Transport, nbytes: int, identity: str, free_bytes: int | None, title: str) -> None:
    memories = transport.gather_json([identity, free_bytes, title])
    for shared in dict.fromkeys(identity for identity, _, _ in memories):
        ranks = [(free, title) for identity, free, title in memories if identity == shared]
        least, wanted = min((free for free, _ in ranks if free is not None), default=None), nbytes * len(ranks)
        if least is not None and wanted > least:
            raise everywhere(
                UsageError(
                    f"buffers of {format_bytes(nbytes)} on {plural(len(ranks), 'rank')} need {format_bytes(wanted)}, "
                    f"but {ranks[0][1]} has {format_bytes(least)} of memory left: make -e smaller, or start fewer "
                    "ranks on it"
                )
            )
