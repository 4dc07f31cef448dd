"""What the time of an all-reduce hangs on, besides its size: the machine, and how ranks lie on its nodes."""

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringtrain.allreduce import texts as texts
from ringtrain.humanize import plural
from ringtrain.monitor.guarded_transport import bare
from ringtrain.transport.base import Transport

FIELDS = ("cpu", "cores", "library", "transport")
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class RankLayout:
    """name: nodes x ranks on each, "2x4"; "3+2" where nodes are uneven; "2x2 scattered" where neighbours in rank are
    not neighbours in place
    """

    name: str
    ranks: int
    nodes: int

    def words(self) -> str:
        """1x2 → "2 ranks on 1 node"."""
        return texts.LAYOUT(ranks=plural(self.ranks, "rank"), nodes=plural(self.nodes, "node"))


def layout_of(node_of: Sequence[int]) -> RankLayout:
    """``node_of``: the node of every rank, counted from 0."""
    nodes = max(node_of) + 1
    counts = [list(node_of).count(node) for node in range(nodes)]
    name = "+".join(map(str, counts)) if len(set(counts)) > 1 else f"{nodes}x{counts[0]}"
    return RankLayout(name if list(node_of) == sorted(node_of) else f"{name} scattered", len(node_of), nodes)


def look(transport: Transport) -> tuple[dict[str, str], RankLayout]:
    """The machine's fingerprint, a text for each of :data:`FIELDS`, and the layout. Collective; the same on all ranks.

    The number of cores is the node's, not what ranks are bound to.
    """
    own = {"cpu": cpu_model(), "cores": str(os.cpu_count()), "library": library(transport), "node": transport.node}
    everyone = transport.gather_json(own | {"transport": type(bare(transport)).__name__.lower()})
    return {name: _together([rank[name] for rank in everyone]) for name in FIELDS}, layout_of(
        [rank["node"] for rank in everyone]
    )


def library(transport: Transport) -> str:
    """Name and version, without what a run may choose: the thread level."""
    return transport.describe().split(", thread level")[0]


def cpu_model(cpuinfo: Path = CPUINFO) -> str:
    """As the kernel names it, or the kind of processor where it does not."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def digest(machine: dict[str, str]) -> str:
    """Eight characters that differ where machines do."""
    return hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:8]


def differences(written: dict[str, str], here: dict[str, str]) -> list[str]:
    """A line for each field that is not the same."""
    return [
        texts.DIFFERENCE(field=name, there=written[name], here=here[name])
        for name in FIELDS
        if written[name] != here[name]
    ]


def _together(values: list[str]) -> str:
    """One text for all nodes; the different ones side by side."""
    return " | ".join(sorted(set(values)))
