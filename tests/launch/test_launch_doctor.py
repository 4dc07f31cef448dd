"""What the doctor finds in machines that are not there, and how it tells of ranks that differ."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from ringtrain.errors import DeviceError, RingtrainError
from ringtrain.humanize import format_seconds
from ringtrain.launch.doctor import cores, devices, disk, host
from ringtrain.launch.doctor.checks import CHECKS
from ringtrain.launch.doctor.doctor import (
    FAIL,
    OK,
    WARN,
    Line,
    examine,
    format_lines,
    merge_lines,
    summary_line,
    worst_status,
)
from ringtrain.ops.cpu import compile as kernels
from ringtrain.ops.cpu import library
from ringtrain.transport.cuda_aware.decision import NO, Evidence
from tests.fakes.doctor_context import line_of, lines_of
from tests.fakes.host_cuda import HostRuntime
from tests.says import says

VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs)\nGCC version: 12\n"


@pytest.fixture
def machine(tmp_path):
    """machine(GPUs) makes a root of a file system with so many; None: without a driver."""

    def make(gpus=None):
        if gpus is not None:
            (tmp_path / "proc/driver/nvidia").mkdir(parents=True, exist_ok=True)
            (tmp_path / "proc/driver/nvidia/version").write_text(VERSION)
        for number in range(gpus or 0):
            folder = tmp_path / f"proc/driver/nvidia/gpus/0000:{number}"
            folder.mkdir(parents=True)
            (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 0\n")
        return tmp_path

    return make


def visits(root, size=1, environ=None, device="auto", **options):
    """The lines of a world of that size."""
    environ = {"HOME": str(root), **(environ or {})}
    every = lines_of(lambda context: examine(context, CHECKS), root, size, environ, device=device, **options)
    assert all(lines == every[0] for lines in every)
    return {line.name: line for line in every[0]}


def test_a_machine_without_a_device_is_well(machine):
    lines = visits(machine())
    assert [name for name in lines if name.startswith(("GPU", "device", "mpi-cuda"))] == ["GPU driver", "mpi-cuda"]
    assert lines["GPU driver"] == Line(OK, "GPU driver", says("runs", "CPU"))
    assert lines["mpi-cuda"].text == says("there", "MPI")
    assert lines["python"].text.startswith("ringtrain ")
    assert (lines["mpi"].status, lines["mpi"].advice) == (WARN, says("several", "site"))
    assert worst_status(list(lines.values())) == WARN


def test_a_device_that_was_asked_for_and_is_not_there_is_a_failure(machine):
    lines = visits(machine(), device="cuda", make=Mock(side_effect=DeviceError("--device cuda: no driver is here")))
    assert (lines["GPU driver"].status, lines["device"].status) == (WARN, FAIL)
    assert lines["GPU driver"].advice == says("--gpus", "--nv")
    assert lines["device"].text == "--device cuda: no driver is here"


def test_each_rank_opens_its_device(machine):
    opened = []

    def make(number):
        opened.append(number)
        return HostRuntime()

    lines = visits(machine(2), size=3, make=make, visible=2)
    assert sorted(opened) == [0, 0, 1]  # local rank modulo the devices
    assert lines["GPU driver"].text == "570.86.15" and lines["GPUs"].text == "2 × NVIDIA H200"
    assert "host, compute capability 9.0, 4 processors, 8.0 of 16.0 GiB free, CUDA 13.0" in lines["device"].text


def test_ranks_with_one_device_between_them_are_warned(machine):
    runtimes = [HostRuntime(), HostRuntime()]
    lines = visits(machine(2), size=3, make=lambda number: runtimes[number], visible=2)
    assert (lines["shared device"].status, lines["shared device"].text) == (WARN, says("0, 2"))
    assert lines["shared device"].advice == says("many", "GPUs")
    assert "shared device" not in visits(machine(), size=2, make=lambda number: runtimes[number], visible=2)


def test_a_device_that_cannot_be_used_is_no_failure_unless_it_was_asked_for(machine):
    lines = visits(machine(1), environ={"CUDA_VISIBLE_DEVICES": ""}, visible=0)
    assert (lines["device"].status, lines["device"].text) == (WARN, says("CUDA_VISIBLE_DEVICES", "''"))
    assert lines["GPUs"].text == says("1 × NVIDIA H200")
    line = visits(machine(), make=Mock(side_effect=DeviceError("device 0 is in use by another process")))["device"]
    assert (line.status, line.text) == (WARN, "device 0 is in use by another process")
    assert "device" not in visits(machine(), device="cpu", mpi_cuda="auto")


@pytest.mark.parametrize("size", [1, 3])
def test_the_way_of_device_memory_is_told_rung_by_rung(machine, monkeypatch, size):
    evidence = [Evidence("query", NO, "it says no"), Evidence("ucx", NO, "none")]
    monkeypatch.setattr(devices, "look", lambda: evidence)
    monkeypatch.setattr("ringtrain.transport.world.look", lambda: evidence)
    root = machine(1)

    def lines(device, mpi_cuda, visible=1):
        options = {"device": device, "mpi_cuda": mpi_cuda, "visible": visible}
        return lines_of(devices.mpi_cuda, root, size, mpi=True, **options)[0]

    rungs = [Line(OK, f"mpi-cuda: {rung.name}", says(rung.answer, rung.why)) for rung in evidence]
    assert lines("cpu", "auto") == [*rungs, Line(OK, "mpi-cuda", says("device", "send"))]
    assert lines("cuda", "auto", visible=0) == [*rungs, Line(OK, "mpi-cuda", says("can", "used"))]
    flag, *asked, last = lines("auto", "auto")
    assert flag == Line(OK, "mpi-cuda: flag", says("unknown", "--mpi-cuda")) and asked[:2] == rungs
    assert asked[2] == Line(OK, "mpi-cuda: sight", says("yes", "see", "devices"))
    assert (last.status, last.advice) == (WARN, says("docs", "gpu"))
    assert last.text == says("it says no; none")
    assert lines("cuda", "staged")[-1] == Line(OK, "mpi-cuda", says("--mpi-cuda", "staged", "through"))


def test_two_cupys_are_a_failure(monkeypatch):
    def installed(*names):
        packages = [SimpleNamespace(name=name, version="14.2.0") for name in names]
        monkeypatch.setattr(devices, "distributions", lambda: packages)
        return next(devices.packages(None))

    assert installed("numpy") == Line(OK, "CUDA packages", "none")
    assert installed("cupy-cuda13x", "nvidia-cuda-nvrtc").text == "cupy-cuda13x 14.2.0, nvidia-cuda-nvrtc 14.2.0"
    both = installed("cupy-cuda13x", "cupy-cuda12x")
    assert (both.status, both.advice) == (FAIL, says("cupy-cuda12x cupy-cuda13x"))


def test_little_shared_memory_and_none_are_a_warning(machine, monkeypatch):
    root = machine()
    line = line_of(host.shared_memory, root, 2, shares=False)
    assert line.status == WARN and line.text == says("none", "between")
    (root / "dev/shm").mkdir(parents=True)
    for free, status in ((63 << 20, WARN), (64 << 20, OK)):
        monkeypatch.setattr(host.shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        line = visits(root)["shared memory"]
        assert line.status == status and line.text == says(f"{free >> 20:,}")
        assert line.advice == (says("--shm-size") if status == WARN else "")


def test_the_best_kernels_that_the_cpu_could_run_are_missed(monkeypatch):
    built = {"families": {"x86-64-v3": "g++"}, "failed": {"x86-64-v4": "bad value"}}
    monkeypatch.setattr(kernels, "read_built", lambda: built)
    monkeypatch.setattr(library, "open_library", lambda: (None, "x86-64-v3"))
    monkeypatch.setattr(library, "cpu_families", lambda: having)

    def line(compiled):
        monkeypatch.setattr(library, "compiled_families", lambda: compiled)
        return next(host.cpu_kernels(None))

    used, having = says("x86-64-v3", "g++"), ["x86-64-v3", "x86-64-v2"]
    assert line({"x86-64-v3"}) == Line(OK, "CPU kernels", used)
    having = ["x86-64-v4", "x86-64-v3", "x86-64-v2"]
    words = says(used, "RINGTRAIN_CPU_FAMILY", "x86-64-v4")
    assert line({"x86-64-v3", "x86-64-v4"}) == Line(OK, "CPU kernels", words)
    words = says(used, "x86-64-v4", "bad value")
    assert line({"x86-64-v3"}) == Line(WARN, "CPU kernels", words, says("slower", "CXX"))


def test_cores_that_are_shared_are_a_warning(machine, monkeypatch):
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda process: {4, 5})
    assert visits(machine(), size=2)["cores"] == Line(OK, "cores", "4-5, the same for all ranks")
    line = visits(machine(), size=3)["cores"]
    assert (line.status, line.text) == (WARN, "4-5, the same for all ranks: 3 ranks on 2 cores")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DeviceError("it is gone"), "it is gone"),
        (PermissionError(13, "Permission denied", "held/a"), "[Errno 13] Permission denied: 'held/a'"),
    ],
)
def test_an_error_in_a_check_is_a_finding(tmp_path, error, text):
    def looks_at_something(context):
        raise error

    line = line_of(lambda context: examine(context, [looks_at_something]), tmp_path)
    assert line == Line(FAIL, "looks at something", text)


def test_ranks_that_differ_are_named():
    same, old, new = Line(OK, "a", "same"), Line(WARN, "b", "old", "update"), Line(OK, "b", "new")
    lines = merge_lines([[same, new], [same, old], [same, new, Line(OK, "c", "more")]])
    assert lines == [
        same,
        Line(OK, "b", "new", "", (0, 2)),
        Line(WARN, "b", "old", "update", (1,)),
        Line(OK, "c", "more", "", (2,)),
    ]
    assert format_lines(lines, ["n1", "n2", "n1"]) == [
        "ok    a  same",
        "ok    b  new [ranks 0, 2 on n1]",
        "warn  b  old [rank 1 on n2]",
        "         → update",
        "ok    c  more [rank 2 on n1]",
    ]
    failed = Line(FAIL, "d", "")
    assert [worst_status(each) for each in (lines, [], [*lines, failed])] == [WARN, OK, FAIL]
    assert summary_line([same, failed, new]) == "1 fail, 2 ok"  # beginning with the worst
    (line,) = format_lines([Line(OK, "a", "b", "", tuple(range(9)))], [f"n{rank}" for rank in range(10)])
    assert line.endswith("b [ranks 0, 1, 2, 3, 4, 5, 6, 7 … on n0, n1, n2, n3 …]")  # many are not all named


def test_lines_are_as_wide_as_the_terminal():
    lines = [Line(WARN, "name", "one two three four five six seven", "do this and that and more", (1,))]
    assert format_lines(lines, ["n0", "n1"], 36) == [
        "warn  name  one two three four five",
        "            six seven [rank 1 on n1]",
        "            → do this and that and",
        "              more",
    ]
    path = "/a/long/path/that/cannot/be/broken/anywhere"
    assert format_lines([Line(OK, "name", path)], ["n0"], 30) == [f"ok    name  {path}"]
    assert format_lines([Line(OK, "name", "")], ["n0"], 30) == ["ok    name  "]


# ── links between nodes ───────────────────────────────────────────────────────────────────────────────────────
def test_one_rank_of_each_node_is_measured_beside_its_neighbours():
    assert host.in_circle([0, 3]) == [(0, 3)]
    assert host.in_circle([0, 2, 4]) == [(0, 2), (2, 4), (0, 4)]
    assert len(host.in_circle(range(5))) == 10 and len(host.in_circle(range(100))) == 200


def test_links_between_nodes_are_measured(tmp_path):
    assert lines_of(host.links, tmp_path, 3)[0] == []
    line = line_of(host.links, tmp_path, 3, nodes=[0, 0, 1])
    assert (line.status, line.name) == (OK, "links") and says("1 pair").matches(line.text)


@pytest.mark.parametrize("hosts, name", [(list("abcc"), "c"), (list("aaaa"), "node 2 of a")])
def test_the_node_with_slow_links_is_named(tmp_path, monkeypatch, hosts, name):
    def slow_at_rank_2(buffers, tag, pairs):
        rates = {True: 1e9, False: 5e9}
        return [{"first": a, "second": b, "latency_s": 1e-6, "bytes_per_s": rates[2 in (a, b)]} for a, b in pairs]

    monkeypatch.setattr(host, "measure_pairs", slow_at_rank_2)
    line = line_of(host.links, tmp_path, 4, nodes=[0, 1, 2, 2], hosts=hosts)
    assert (line.status, line.advice) == (WARN, says("--pairs"))
    assert line.text == says("1 µs", "1 GB/s", "3 pairs", name, "5.0 times")


# ── the place where runs go: full, forbidden, seen by one node alone, slow ────────────────────────────────────────
def looked(root, size=1, check=disk.run_folder, **how):
    every = lines_of(check, root, size, **how)
    assert all(lines == every[0] for lines in every)
    assert not list(root.rglob(".ringtrain-doctor*"))
    return {line.name: line for line in every[0]}


def test_a_place_that_is_well(tmp_path):
    lines = looked(tmp_path, 3, nodes=2, path=lambda rank: tmp_path / "runs/new")
    assert list(lines) == ["run folder"] and lines["run folder"].status == OK
    assert lines["run folder"].text == says(tmp_path)


def test_little_room_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda place: SimpleNamespace(free=disk.GIB - 1))
    line = looked(tmp_path)["run folder"]
    assert (line.status, line.advice) == (WARN, says("--out"))


def test_a_place_where_nothing_can_be_written_is_a_failure(tmp_path, monkeypatch):
    def refuse(path, content):
        raise RingtrainError(f"{path.name}: writing is not allowed")

    monkeypatch.setattr(disk.files, "write", refuse)
    assert list(looked(tmp_path, 2).values()) == [
        Line(FAIL, "run folder", "mark: writing is not allowed", says("--out"))
    ]
    assert looked(tmp_path, check=disk.disk) == {}
    read_only = OSError(30, "Read-only file system"), ["Read-only file system"]
    for error, words in (read_only, (FileNotFoundError(2), [])):
        monkeypatch.setattr(disk, "folder_in", lambda path, error=error: (_ for _ in ()).throw(error))
        assert looked(tmp_path, 2)["run folder"].text == says(tmp_path, *words)


def test_a_place_of_one_node_alone_is_a_warning(tmp_path, monkeypatch):
    really = disk.os.path.isfile
    seen = iter([True, False, False])
    monkeypatch.setattr(disk.os.path, "isfile", lambda path: next(seen) and really(path))
    line = looked(tmp_path, 3, nodes=3, hosts=["a", "a", "a"])["run folder's place"]
    assert line == Line(WARN, "run folder's place", says("a"), says("--out"))
    assert list(disk._lines(tmp_path, "", list("abcdef")))[1].text == says("a, b, c, d and 2 more")


def test_a_file_in_the_folders_place_is_a_failure(tmp_path):
    (tmp_path / "runs").touch()
    line = looked(tmp_path, path=lambda rank: tmp_path / "runs/a")["run folder"]
    assert line.status == FAIL and line.text == says(tmp_path / "runs", "Not a directory")


@pytest.mark.parametrize("seconds, status", [(1e-4, OK), (0.2, WARN)])
def test_the_disk_is_timed(tmp_path, monkeypatch, seconds, status):
    clock = iter(range(1000))
    monkeypatch.setattr(disk.time, "perf_counter", lambda: next(clock) * seconds)
    monkeypatch.setattr(disk, "BLOCK", 1 << 10)
    monkeypatch.setattr(disk, "SLOW_BYTES_PER_S", 100e3)
    monkeypatch.setattr(disk, "MOST_BYTES", 4 << 10)
    line = looked(tmp_path, 2, check=disk.disk)["disk"]
    assert (line.status, line.advice) == (status, says("--checkpoint-every", "--out") if status == WARN else "")
    assert line.text == says(0, format_seconds(seconds))
