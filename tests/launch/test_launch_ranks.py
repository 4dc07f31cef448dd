"""What ranks can do to one another, and which pair of them is slow."""

import ctypes
import os

import pytest

from ringtrain.errors import TransportError
from ringtrain.launch.doctor import links
from ringtrain.launch.doctor import ranks as between
from ringtrain.launch.doctor.doctor import OK, WARN, Line
from ringtrain.launch.doctor.links import Pair, in_turn, judge
from ringtrain.transport.local import LocalTally
from tests.fakes.visits import line_of, lines_of, put


def test_additions_from_afar_are_tried(tmp_path):
    line = line_of(between.one_sided, tmp_path, 3, environ={"OMPI_MCA_osc": "rdma"})
    assert line == Line(OK, "one-sided", "windows of the MPI add up, OMPI_MCA_osc=rdma")


def test_additions_that_are_lost_are_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalTally, "add", lambda self, start, values: None)
    line = line_of(between.one_sided, tmp_path, 2)
    assert line.status == WARN and "2 ranks each added 1, and found 0; tickets are [0.0, 1.0]" in line.text
    assert "OMPI_MCA_osc" in line.advice


def test_tickets_that_two_have_are_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalTally, "take", lambda self, place, amount: 0.0)
    assert line_of(between.one_sided, tmp_path, 2).status == WARN


def test_windows_that_fail_are_a_warning(tmp_path, monkeypatch):
    def fail(self, start, values):
        raise TransportError("MPI failed while adding: no such window")

    monkeypatch.setattr(LocalTally, "add", fail)
    line = line_of(between.one_sided, tmp_path, 2)
    assert (line.status, line.text) == (WARN, "MPI failed while adding: no such window")


# ── memory of others ──────────────────────────────────────────────────────────────────────────────────────────
def test_memory_of_a_process_is_read(tmp_path):
    there = ctypes.create_string_buffer(b"12345678", 8)
    address = ctypes.addressof(there)
    assert between.read_from(os.getpid(), address, b"12345678") == ""
    assert "another container" in between.read_from(os.getpid(), address, b"87654321")
    assert between.read_from(os.getpid(), 8, b"12345678") == "Bad address"


def test_ranks_that_cannot_read_one_another_are_warned(tmp_path, monkeypatch):
    assert lines_of(between.single_copy, tmp_path, 2)[0] == []  # threads, without an MPI
    assert line_of(between.single_copy, tmp_path, 1, mpi=True).text == "there is one rank on this node"
    assert line_of(between.single_copy, tmp_path, 3, mpi=True).status == OK  # really: of this process
    monkeypatch.setattr(between, "read_from", lambda pid, address, wanted: "Operation not permitted")
    put(tmp_path, {"proc/sys/kernel/yama/ptrace_scope": "2\n"})
    line = line_of(between.single_copy, tmp_path, 2, mpi=True)
    assert line.status == WARN and "Operation not permitted, kernel.yama.ptrace_scope is 2" in line.text
    assert "--cap-add SYS_PTRACE" in line.advice


# ── dying, and clocks ─────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "found, environ, status, text",
    [
        ((False, False), {}, OK, "no ULFM"),
        ((True, False), {}, OK, "built in, and off"),
        ((True, True), {}, OK, "ULFM is on: with --elastic"),
        ((True, True), {"OMPI_MCA_pml": "ucx"}, WARN, "messages go by pml ucx"),
        ((True, True), {"OMPI_MCA_pml": "cm"}, WARN, "messages go by pml cm"),
    ],
)
def test_what_comes_after_a_death(tmp_path, monkeypatch, found, environ, status, text):
    monkeypatch.setattr(between, "fault_tolerance", lambda: found)
    line = line_of(between.faults, tmp_path, environ=environ, mpi=True)
    assert line.status == status and text in line.text
    assert ("--with-ft ulfm" in line.advice) == (found == (True, False) or status == WARN)
    assert lines_of(between.faults, tmp_path)[0] == []


def test_clocks_that_are_apart_are_a_warning(tmp_path, monkeypatch):
    assert lines_of(between.clocks, tmp_path, 2)[0] == []
    assert line_of(between.clocks, tmp_path, 2, nodes=2).text.endswith("ms of n0's")

    def early(visit):  # the second node's clock: three seconds behind
        shifted = visit.transport.gather_json
        if visit.transport.rank == 1:
            visit.transport.gather_json = lambda value: shifted(value - 3 if isinstance(value, float) else value)
        return between.clocks(visit)

    line = line_of(early, tmp_path, 2, nodes=2)
    assert line.status == WARN and line.text == "that of n1 is 3.0 s behind n0's" and "chrony" in line.advice


# ── links ─────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_every_pair_has_its_turn_and_every_rank_soon(size):
    pairs = list(in_turn(size))
    assert len(set(pairs)) == len(pairs) == size * (size - 1) // 2
    assert all(a < b for a, b in pairs) and {rank for pair in pairs[:size] for rank in pair} == set(range(size))
    assert pairs == list(in_turn(size))


def test_links_of_both_kinds_are_measured(tmp_path, monkeypatch):
    assert lines_of(links.links, tmp_path)[0] == []
    every = lines_of(links.links, tmp_path, 3, nodes=[0, 0, 1])
    assert every[0] == every[1] == every[2]
    assert [line.name for line in every[0]] == ["links inside a node", "links between nodes"]
    assert [line.text.split(" (")[1] for line in every[0]] == ["1 pair)", "2 pairs)"]
    monkeypatch.setattr(links, "BUDGET_S", 0.0)
    (line,) = lines_of(links.links, tmp_path, 3)[0]
    assert line.text.endswith("(1 of 3 pairs)")


def pairs(slow=5e9, late=1e-6, count=3):
    usual = [Pair(0, rank, "inside a node", 1e-6, 5e9) for rank in range(1, count)]
    return [*usual, Pair(1, 2, "inside a node", late, slow)]


def test_a_pair_that_stands_out_is_named():
    hosts = ["n0", "n1", "n1"]
    assert judge(pairs(), hosts, 3) == Line(OK, "links inside a node", "1 µs, 5 GB/s (3 pairs)")
    line = judge(pairs(slow=1e9), hosts, 9)
    assert line.status == WARN and line.text == "1 µs, 5 GB/s (3 of 9 pairs), but ranks 1 and 2 (n1): 1 GB/s"
    assert "bench-allreduce --pairs" in line.advice
    assert judge(pairs(late=1e-3), ["n0", "n1", "n2"], 3).text.endswith("but ranks 1 and 2 (n1 and n2): 1 ms")
    assert judge(pairs(late=50e-6), hosts, 3).status == OK  # a busy core
    assert judge(pairs(slow=1e9, count=2), hosts, 2).status == OK  # two cannot be told apart
