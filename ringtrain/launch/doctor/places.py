"""What lies near which cores: NUMA nodes, adapters of networks, devices. All of it as Linux tells it under /sys."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringtrain.bench.header import ranges
from ringtrain.humanize import plural
from ringtrain.launch.doctor.cores import numbers_of
from ringtrain.launch.doctor.doctor import OK, WARN, Line, Visit
from ringtrain.launch.doctor.linux import text_of


@dataclass(frozen=True, slots=True)
class Adapter:
    """``node``: of NUMA, None where Linux does not say; ``rate``: in words"""

    name: str
    rate: str
    node: int | None


def numa(root: Path) -> dict[int, set[int]]:
    """The cores of each NUMA node."""
    folders = sorted((root / "sys/devices/system/node").glob("node[0-9]*"))
    return {int(folder.name[4:]): numbers_of((folder / "cpulist").read_text()) for folder in folders}


def adapters(root: Path) -> list[Adapter]:
    """Of InfiniBand, and of networks that are up; not what has no hardware of its own."""
    found = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        if "ACTIVE" in text_of(port / "state"):
            device = port.parents[1]
            found.append(Adapter(device.name, text_of(port / "rate") or "InfiniBand", _node(device / "device")))
    for folder in sorted((root / "sys/class/net").glob("*")):
        if (folder / "device").exists() and text_of(folder / "operstate") in ("up", "unknown"):
            found.append(Adapter(folder.name, _rate(text_of(folder / "speed")), _node(folder / "device")))
    return found


def _rate(megabits: str) -> str:
    return f"{int(megabits) / 1000:g} Gb/s" if megabits.isdigit() and int(megabits) else "rate not told"


def _node(device: Path) -> int | None:
    text = text_of(device / "numa_node")
    return int(text) if text.isdigit() else None  # -1: there is one, or nobody knows


def near(nodes: dict[int, set[int]], node: int | None, cores: Sequence[int]) -> bool:
    """Whether some of these cores are of this NUMA node, as far as is known."""
    return node not in nodes or bool(nodes[node] & set(cores))


def network(visit: Visit) -> list[Line]:
    """The adapters of a node, and whether a rank runs beside one; collective."""
    transport, nodes = visit.transport, numa(visit.root)
    cores, found = sorted(os.sched_getaffinity(0)), adapters(visit.root)
    sides = [near(nodes, adapter.node, cores) for adapter in found]
    every = transport.gather_json(any(sides) or not sides)
    text = ", ".join(_told(adapter, len(nodes)) for adapter in found) or "no adapter is told"
    if transport.nodes > 1 and not any(every[rank] for rank in transport.neighbours):
        home = next(adapter for adapter in found if adapter.node in nodes)
        advice = f"what it sends crosses the sockets: bind ranks to cores {ranges(nodes[home.node])} as well"
        return [Line(WARN, "network", f"{text}; no rank of this node runs beside it", advice)]
    return [Line(OK, "network", text)]


def _told(adapter: Adapter, nodes: int) -> str:
    where = f", NUMA node {adapter.node}" if nodes > 1 and adapter.node is not None else ""
    return f"{adapter.name} ({adapter.rate}{where})"


def memory_nodes(visit: Visit) -> list[Line]:
    """The NUMA nodes, and on how many of them a rank runs."""
    nodes, cores = numa(visit.root), set(os.sched_getaffinity(0))
    if len(nodes) < 2:
        return [Line(OK, "NUMA", "one node")]
    own = [number for number, there in nodes.items() if there & cores]
    text = f"{len(nodes)} nodes: {'; '.join(ranges(there) for there in nodes.values())}"
    if len(own) > 1 and visit.transport.local_size > 1:
        advice = "its memory may lie far from where it runs: mpirun --map-by numa --bind-to numa, --cpu-bind of srun"
        return [Line(WARN, "NUMA", f"{text}; a rank's cores are on {plural(len(own), 'node')}", advice)]
    return [Line(OK, "NUMA", text)]


def of_device(root: Path, uuid: str) -> int | None:
    """The NUMA node of a GPU."""
    for file in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        told = file.read_text()
        bus = re.search(r"Bus Location:\s*(\S+)", told)
        if bus and re.search(rf"GPU UUID:\s*{re.escape(uuid)}\s", told):
            return _node(root / "sys/bus/pci/devices" / bus[1].lower())
    return None


def beside_device(root: Path, uuid: str) -> Line:
    """Whether this rank runs beside its GPU."""
    nodes, node = numa(root), of_device(root, uuid)
    if node not in nodes or len(nodes) < 2:
        return Line(OK, "device's place", "one NUMA node" if len(nodes) == 1 else "not told")
    cores = ranges(nodes[node])
    if not near(nodes, node, sorted(os.sched_getaffinity(0))):
        advice = f"copies cross the sockets: bind this rank to cores {cores}; nvidia-smi topo -m shows all"
        return Line(WARN, "device's place", f"NUMA node {node}, and this rank runs on none of its cores", advice)
    return Line(OK, "device's place", f"NUMA node {node}, beside cores {cores}")
