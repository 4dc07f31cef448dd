"""Cores, their time and memory, as machines that are not there tell of them."""

import pytest

from ringtrain.launch.doctor import cgroup, cores
from ringtrain.launch.doctor.cgroup import Limits, read_limits
from ringtrain.launch.doctor.doctor import OK, WARN, Line
from tests.fakes.doctor_context import line_of, lines_of, put, write
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
def test_no_group_has_no_limit(tmp_path):
    assert read_limits(tmp_path) == Limits()
    grouped(tmp_path, "0::/\n", {"cpu.max": "max 100000", "memory.max": "max"})
    assert read_limits(tmp_path) == Limits()


def test_the_least_limit_of_a_group_and_those_above_it_counts(tmp_path):
    grouped(
        tmp_path,
        "0::/a/b\n",
        {
            "a/b/cpu.max": "400000 100000",
            "a/cpu.max": "150000 100000",
            "a/b/memory.max": str(3 * GIB),
            "a/b/memory.current": str(GIB),
            "a/memory.max": str(5 * GIB),
        },
    )
    assert read_limits(tmp_path) == Limits(1.5, 3 * GIB, 2 * GIB)


def test_others_may_use_up_what_a_group_above_may_have(tmp_path):
    files = {"memory.max": str(5 * GIB), "memory.current": str(5 * GIB - 7)}
    grouped(tmp_path, "0::/a\n", {"a/memory.max": str(3 * GIB), **files})
    assert read_limits(tmp_path) == Limits(None, 3 * GIB, 7)


@pytest.mark.parametrize("cached, free", [(GIB, 2 * GIB), (9 * GIB, 3 * GIB)])
def test_files_that_were_read_leave_memory_free(tmp_path, cached, free):
    limits = {"memory.max": str(3 * GIB), "memory.current": str(2 * GIB)}
    grouped(tmp_path, "0::/\n", {**limits, "memory.stat": f"anon 5\nfile 9\ninactive_file {cached}\nslab 1\n"})
    assert read_limits(tmp_path) == Limits(None, 3 * GIB, free)


def test_version_1_is_read_too_and_a_container_sees_its_own_at_the_top(tmp_path):
    grouped(
        tmp_path,
        "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n",
        {
            "cpu/cpu.cfs_quota_us": "200000",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": str(2 * GIB),
            "memory/memory.usage_in_bytes": "7",
            "memory/memory.stat": "inactive_file 2\ntotal_inactive_file 4\n",
        },
    )
    assert read_limits(tmp_path) == Limits(2.0, 2 * GIB, 2 * GIB - 3)
    grouped(
        tmp_path,
        "4:memory:/\n3:cpu:/\n",
        {"cpu/cpu.cfs_quota_us": "-1", "memory/memory.limit_in_bytes": "9223372036854771712"},
    )
    assert read_limits(tmp_path) == Limits()


# ── cores ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_numbers_as_linux_writes_them():
    assert cores.numbers_of("0-3,8\n") == {0, 1, 2, 3, 8}
    assert cores.numbers_of("") == set()


def test_two_threads_of_one_core_are_not_two_cores(tmp_path, affinity):
    for cpu in (0, 1, 2, 3):
        siblings = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        put(tmp_path, {siblings: f"{cpu % 2},{cpu % 2 + 2}"})
    affinity(0, 2)
    assert cores.whole_cores(tmp_path, [0, 2]) == [0]
    line = line_of(cores.cores, tmp_path, 2)
    text = says("0,2", "2 ranks on 1 core")
    assert line == Line(WARN, "cores", text, says("--map-by", "--hint"))
    affinity(0, 1, 2, 3)
    assert line_of(cores.cores, tmp_path, 2) == Line(OK, "cores", says("0-3"))


def test_cores_of_many_ranks_are_not_all_told():
    assert cores._cores_text([str(n) for n in range(9)]) == says("0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | … of 9")
    assert cores._cores_text(["0-3"]) == "0-3"


def test_a_quota_below_the_ranks_is_a_warning(tmp_path):
    assert lines_of(cores.quota, tmp_path, 3)[0] == []
    grouped(tmp_path, "0::/\n", {"cpu.max": "250000 100000"})
    assert line_of(cores.quota, tmp_path, 2) == Line(OK, "core quota", says("2.5", "n0", "2 ranks"))
    line = line_of(cores.quota, tmp_path, 3)
    assert line == Line(WARN, "core quota", says("2.5", "n0", "3 ranks"), says("--cpus"))


def test_the_host_with_least_for_each_rank_is_told_of(tmp_path):
    """Four cores for two ranks, and four for three."""
    grouped(tmp_path, "0::/\n", {"cpu.max": "400000 100000"})
    line = line_of(cores.quota, tmp_path, 5, nodes=[0, 0, 1, 1, 1])
    assert line == Line(OK, "core quota", says("4", "n1", "3 ranks"))


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
