"""The header of a sweep: the place and the settings that a reader needs to compare it with another."""

import os
import platform
import socket
import sys
import time
from collections.abc import Mapping

import ringtrain
from ringtrain.allreduce.machine import cpu_model
from ringtrain.humanize import plural
from ringtrain.monitor.guarded_transport import bare
from ringtrain.transport.base import Transport

PREFIXES = ("OMPI_MCA_", "PRTE_MCA_", "UCX_", "FI_", "I_MPI_", "MPICH_", "MV2_", "OMP_", "OPENBLAS_", "RINGTRAIN_CPU_")
LAUNCHERS_OWN = ("OMPI_MCA_PREFIXES", "OMPI_MCA_num_procs", "OMPI_MCA_initial_wdir", "OMPI_MCA_cpu_type")


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's settings that change how messages and kernels run."""
    return {k: v for k, v in sorted(environ.items()) if k.startswith(PREFIXES) and k not in LAUNCHERS_OWN}


def ranges(numbers) -> str:
    """Return numbers as text: "0-3,8" of {0, 1, 2, 3, 8}."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def why_cores_are_shared(placements: list[dict]) -> str | None:
    """Return the reason why ranks must share cores on some host, or None. ``placements`` are by rank: host, cores."""
    for host in dict.fromkeys(placement["host"] for placement in placements):
        cores_by_rank = [placement["cores"] for placement in placements if placement["host"] == host]
        cores = {core for placement in cores_by_rank for core in placement}
        if len(cores_by_rank) > len(cores):
            return f"{plural(len(cores_by_rank), 'rank')} on {plural(len(cores), 'core')}"
    return None


def make_header(transport: Transport, start: str) -> dict:
    """Return the header. Collective; the same on all ranks but for the clock. ``start``: the way that ranks start
    together.
    """
    cores = sorted(os.sched_getaffinity(0))
    facts = {
        "host": socket.gethostname(),
        "cores": cores,
        "host_cores": os.cpu_count() or len(cores),
        "cpu": cpu_model(),
    }
    placements = transport.gather_json(facts | {"load": os.getloadavg()[0]})
    hosts = list(dict.fromkeys(placement["host"] for placement in placements))
    return {
        "ringtrain": ringtrain.__version__,
        "command": " ".join(sys.argv[1:]),
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "library": transport.describe(),
        "transport": type(bare(transport)).__name__.lower(),  # messages, loopback
        "transport_why": "rows say what carried each" if transport.size > 1 else "there is one rank",
        "ranks": transport.size,
        "nodes": transport.nodes,
        "hosts": {host: sum(p["host"] == host for p in placements) for host in hosts},
        "host_by_rank": [placement["host"] for placement in placements],
        "binding": [ranges(placement["cores"]) for placement in placements],
        "host_cores": min(placement["host_cores"] for placement in placements),
        "crowded": why_cores_are_shared(placements),
        "cpu": " | ".join(dict.fromkeys(placement["cpu"] for placement in placements)),
        "load": max(placement["load"] for placement in placements),
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "start": start,
        "environment": relevant(os.environ),
    }


def before_a_call(protocol: Mapping) -> str:
    """Return how buffers and caches are treated before each timed call, and what runs beside, by a header's
    ``protocol``."""
    writes = "every" if protocol.get("fresh", True) else "no"  # of an earlier version's --warm
    treated = f"{writes} rank writes its buffer" + ", and caches are emptied" * bool(protocol.get("cold_bytes"))
    beside = plural(protocol.get("beside", 0), "busy process", "busy processes")
    return f"{treated}; beside {beside} on each node" if protocol.get("beside") else treated
