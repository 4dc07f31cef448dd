"""NUMA nodes, adapters and devices, as /sys of machines that are not there has them."""

import pytest

from ringtrain.launch.doctor import places
from ringtrain.launch.doctor.doctor import OK, WARN, Line
from ringtrain.launch.doctor.places import Adapter
from ringtrain.ops.cuda import identity
from tests.fakes.visits import line_of, lines_of, write

UUID = "GPU-8f2c005b-0000-0000-d1a5-001122334455"
INFORMATION = """\
Model: \t\t NVIDIA H200
IRQ:   \t\t 300
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.a0.00.01
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t {bus}
Device Minor: \t 0
GPU Firmware: \t 580.95.05
GPU Excluded:\t No
"""


@pytest.fixture
def machine(tmp_path):
    """Two NUMA nodes of two cores; eth0 on the first, an adapter of InfiniBand and a GPU on the second."""
    for node in (0, 1):
        write(tmp_path, f"sys/devices/system/node/node{node}/cpulist", f"{2 * node}-{2 * node + 1}\n")
    network(tmp_path, "eth0", 0, "25000")
    write(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
    write(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n")
    write(tmp_path, "sys/class/infiniband/mlx5_0/device/numa_node", "1\n")
    for bus, uuid, node in (("0000:0a:00.0", UUID.replace("8f2c", "8f2d"), 0), ("0000:1b:00.0", UUID, 1)):
        told = INFORMATION.format(uuid=uuid, bus=bus.upper())
        write(tmp_path, f"proc/driver/nvidia/gpus/{bus}/information", told)
        write(tmp_path, f"sys/bus/pci/devices/{bus}/numa_node", f"{node}\n")
    return tmp_path


def network(root, name, node, speed="", state="up"):
    write(root, f"sys/class/net/{name}/device/numa_node", f"{node}\n")
    write(root, f"sys/class/net/{name}/speed", speed)
    write(root, f"sys/class/net/{name}/operstate", state)


@pytest.fixture
def affinity(monkeypatch):
    return lambda *cpus: monkeypatch.setattr(places.os, "sched_getaffinity", lambda process: set(cpus))


def test_adapters_are_those_that_are_up_and_real(machine):
    write(machine, "sys/class/net/lo/operstate", "unknown")
    network(machine, "eth1", 1, "10000", state="down")
    network(machine, "eth2", -1, "-1")
    assert places.adapters(machine) == [
        Adapter("mlx5_0", "200 Gb/sec (4X HDR)", 1),
        Adapter("eth0", "25 Gb/s", 0),
        Adapter("eth2", "rate not told", None),
    ]


def test_nodes_none_of_whose_ranks_is_beside_an_adapter_are_warned(machine, affinity):
    (machine / "sys/class/infiniband/mlx5_0/ports/1/state").write_text("1: DOWN")
    affinity(2, 3)
    line = line_of(places.network, machine, 2, nodes=2)
    assert line.status == WARN and line.text == "eth0 (25 Gb/s, NUMA node 0); no rank of this node runs beside it"
    assert "bind ranks to cores 0-1 as well" in line.advice
    assert line_of(places.network, machine, 2).status == OK  # nothing is sent by it
    affinity(1, 2)
    assert line_of(places.network, machine, 2, nodes=2) == Line(OK, "network", "eth0 (25 Gb/s, NUMA node 0)")


def test_without_adapters_nothing_is_wrong(tmp_path):
    assert line_of(places.network, tmp_path, 2, nodes=2) == Line(OK, "network", "no adapter is told")


def test_an_adapter_of_unknown_place_is_beside_everybody(machine, affinity):
    affinity(3)
    network(machine, "eth0", -1)
    (machine / "sys/class/infiniband/mlx5_0/ports/1/state").write_text("1: DOWN")
    assert line_of(places.network, machine, 2, nodes=2).status == OK


def test_ranks_over_several_memories_are_warned(machine, affinity):
    affinity(1, 2)
    line = line_of(places.memory_nodes, machine, 2)
    assert (line.status, line.text) == (WARN, "2 nodes: 0-1; 2-3; a rank's cores are on 2 nodes")
    assert "--bind-to numa" in line.advice
    assert line_of(places.memory_nodes, machine).status == OK  # one rank may have the machine
    affinity(2, 3)
    assert line_of(places.memory_nodes, machine, 2) == Line(OK, "NUMA", "2 nodes: 0-1; 2-3")


def test_one_memory_is_one_node(tmp_path):
    assert lines_of(places.memory_nodes, tmp_path)[0] == [Line(OK, "NUMA", "one node")]


def test_a_rank_far_from_its_device_is_warned(machine, affinity):
    affinity(0, 1)
    line = places.beside_device(machine, UUID)
    assert line.status == WARN and line.text == "NUMA node 1, and this rank runs on none of its cores"
    assert "cores 2-3" in line.advice
    affinity(1, 2)
    assert places.beside_device(machine, UUID) == Line(OK, "device's place", "NUMA node 1, beside cores 2-3")
    assert places.beside_device(machine, UUID[:-1]).text == "not told"


def test_the_uuid_that_cuda_tells_is_found_where_the_driver_lists_it(machine, affinity, monkeypatch):
    monkeypatch.setattr(identity, "_asked", lambda index: bytes.fromhex(UUID[4:].replace("-", "")))
    affinity(2)
    assert places.beside_device(machine, identity.uuid_of(0, b"")).text == "NUMA node 1, beside cores 2-3"


def test_where_there_is_one_memory_a_device_is_beside_it(tmp_path):
    write(tmp_path, "sys/devices/system/node/node0/cpulist", "0-3")
    assert places.beside_device(tmp_path, UUID) == Line(OK, "device's place", "one NUMA node")
    assert places.beside_device(tmp_path / "none", UUID).text == "not told"
