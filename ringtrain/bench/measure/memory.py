"""Whether the buffers of a sweep fit into memory, before any is taken: systems promise memory that is not there, and
end whoever uses it."""

import re
import socket
from pathlib import Path

from ringtrain.bench import texts
from ringtrain.errors import UsageError, everywhere
from ringtrain.humanize import format_bytes, plural
from ringtrain.transport.base import Transport

MEMINFO = Path("/proc/meminfo")


def kernel_bytes(name: str, meminfo: Path = MEMINFO) -> int | None:
    """What the kernel tells of this host's memory; None where it does not."""
    found = re.search(rf"^{name}:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE) if meminfo.is_file() else None
    return int(found[1]) << 10 if found else None


def available_bytes(meminfo: Path = MEMINFO) -> int | None:
    """What this host can still hand out; None where it does not say."""
    return kernel_bytes("MemAvailable", meminfo)


def check_memory(transport: Transport, nbytes: int, meminfo: Path = MEMINFO) -> None:
    """Collective. Raises UsageError on all ranks where ``nbytes`` on each rank are more than a host has."""
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
    """The same of a device's memory, which several ranks may share; ``device`` tells it from others."""
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
