"""Cores, their time and memory, as machines that are not there tell of them."""

import pytest

from ringtrain.launch.doctor import cgroup, cores
from ringtrain.launch.doctor.cgroup import memory_limits
from ringtrain.launch.doctor.doctor import OK, WARN, Line
from tests.fakes.doctor_context import line_of, put, write
from tests.says import says

GIB = 1 << 30


@pytest.fixture
def affinity(monkeypatch):
    def set_to(*cpus):
        monkeypatch.setattr(cores.os, "sched_getaffinity", lambda process: set(cpus))

    return set_to


def grouped(root, line, files):
    write(root, "proc/self/cgroup", line)
    put(root / "sys/fs/cgroup", files)


# ── control groups ────────────────────────────────────────────────────────────────────────────────────────────
OF_BOTH = {"a/b/memory.max": 3 * GIB, "a/b/memory.current": GIB, "a/memory.max": 5 * GIB}
OTHERS = {"a/memory.max": 3 * GIB, "memory.max": 5 * GIB, "memory.current": 5 * GIB - 7}
VERSION_1 = {
    "memory/memory.limit_in_bytes": 2 * GIB, "memory/memory.usage_in_bytes": 7,
    "memory/memory.stat": "inactive_file 2\ntotal_inactive_file 4\n",
}  # fmt: skip
IN_DOCKER = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n"


def read_files(cached):
    stat = f"anon 5\nfile 9\ninactive_file {cached}\nslab 1\n"
    return {"memory.max": 3 * GIB, "memory.current": 2 * GIB, "memory.stat": stat}


@pytest.mark.parametrize(
    ("line", "files", "limits"),
    [
        (None, {}, (None, None)),
        ("0::/\n", {"memory.max": "max"}, (None, None)),
        ("0::/a/b\n", OF_BOTH, (3 * GIB, 2 * GIB)),  # the least of a group and those above it
        ("0::/a\n", OTHERS, (3 * GIB, 7)),  # others have used what a group above may have
        ("0::/\n", read_files(GIB), (3 * GIB, 2 * GIB)),  # files that were read leave memory free
        ("0::/\n", read_files(9 * GIB), (3 * GIB, 3 * GIB)),
        (IN_DOCKER, VERSION_1, (2 * GIB, 2 * GIB - 3)),  # a container sees its own at the top
        ("4:memory:/\n3:cpu:/\n", {"memory/memory.limit_in_bytes": 9223372036854771712}, (None, None)),
    ],
)
def test_limits_of_control_groups(tmp_path, line, files, limits):
    if line:
        grouped(tmp_path, line, {name: str(value) for name, value in files.items()})
    assert memory_limits(tmp_path) == limits


# ── cores ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_two_threads_of_one_core_are_not_two_cores(tmp_path, affinity):
    for cpu in (0, 1, 2, 3):
        siblings = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        put(tmp_path, {siblings: f"{cpu % 2},{cpu % 2 + 2}"})
    affinity(0, 2)
    assert cores.whole_cores(tmp_path, [0, 2]) == [0]
    words = says("0,2", "2 ranks on 1 core")
    assert line_of(cores.cores, tmp_path, 2) == Line(WARN, "cores", words, says("--map-by", "--hint"))
    affinity(0, 1, 2, 3)
    assert line_of(cores.cores, tmp_path, 2) == Line(OK, "cores", says("0-3"))


def test_cores_of_many_ranks_are_not_all_told():
    assert cores._cores_text([str(n) for n in range(9)]) == says("0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | … of 9")
    assert cores._cores_text(["0-3"]) == "0-3"


# ── threads ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_more_threads_than_cores_are_a_warning(tmp_path, monkeypatch, affinity):
    affinity(0, 1, 2, 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert line_of(cores.threads, tmp_path, 2) == Line(OK, "threads", says("2 threads"))
    line = line_of(cores.threads, tmp_path, 3, environ={"OMP_NUM_THREADS": "2"})
    text = says(6, "3 ranks", "4 cores", "n0")
    assert line == Line(WARN, "threads", text, says("OMP_NUM_THREADS=2"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert line_of(cores.threads, tmp_path, 5).status == OK  # the cores' line tells of ranks without a core


def test_all_that_there_is(tmp_path):
    assert cgroup.whole_bytes(tmp_path) is None and cgroup.free_bytes(tmp_path) is None
    put(tmp_path, {"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB\n"})
    assert cgroup.whole_bytes(tmp_path) == 8 * GIB and cgroup.free_bytes(tmp_path) == 4 * GIB
    grouped(tmp_path, "0::/\n", {"memory.max": str(3 * GIB), "memory.current": str(2 * GIB)})
    assert cgroup.whole_bytes(tmp_path) == 3 * GIB and cgroup.free_bytes(tmp_path) == GIB
