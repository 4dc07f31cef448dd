"""The conditions of an all-reduce's time besides its size: the machine, and the placement of ranks on its nodes."""

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringtrain.humanize import plural
from ringtrain.monitor.guarded_transport import bare
from ringtrain.transport.base import Transport

FIELDS = ("cpu", "cores", "library", "transport")
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The placement of ranks on nodes."""

    # nodes x ranks on each, "2x4"; "3+2" for uneven nodes; "2x2 scattered" if neighbours in rank are not neighbours
    # in place
    name: str
    ranks: int
    nodes: int

    def words(self) -> str:
        """Return the layout in words: 1x2 → "2 ranks on 1 node"."""
        return f"{plural(self.ranks, 'rank')} on {plural(self.nodes, 'node')}"


def rank_layout(node_of: Sequence[int]) -> RankLayout:
    """Return the layout. ``node_of``: the node of every rank, counted from 0."""
    nodes = max(node_of) + 1
    counts = [list(node_of).count(node) for node in range(nodes)]
    name = "+".join(map(str, counts)) if len(set(counts)) > 1 else f"{nodes}x{counts[0]}"
    return RankLayout(name if list(node_of) == sorted(node_of) else f"{name} scattered", len(node_of), nodes)


def inspect_machine(transport: Transport) -> tuple[dict[str, str], RankLayout]:
    """Return the machine's fingerprint, a text for each of :data:`FIELDS`, and the layout. Collective; the same on all
    ranks.

    The number of cores is the node's, not the number in the ranks' bindings.
    """
    machine = {
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
        "library": transport.describe().split(", thread level")[0],  # a run may choose the level
        "node": transport.node,
    }
    everyone = transport.gather_json(machine | {"transport": type(bare(transport)).__name__.lower()})
    return {name: " | ".join(sorted({rank[name] for rank in everyone})) for name in FIELDS}, rank_layout(
        [rank["node"] for rank in everyone]
    )


def cpu_model(cpuinfo: Path = CPUINFO) -> str:
    """Return the kernel's name of the processor, or its kind without one."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine_digest(machine: dict[str, str]) -> str:
    """Return eight characters that differ between machines."""
    return hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:8]


def differences(written: dict[str, str], machine: dict[str, str]) -> list[str]:
    """Return a line for each field that is not the same."""
    return [
        f"  {name}: {written[name]} there, {machine[name]} here" for name in FIELDS if written[name] != machine[name]
    ]
