"""Checks between ranks: additions from afar, death of a rank, links between nodes."""

import pytest

from ringtrain.errors import TransportError
from ringtrain.launch.doctor import ranks
from ringtrain.launch.doctor.doctor import OK, WARN, Line
from ringtrain.transport.threads.local_counters import LocalCounters
from tests.fakes.doctor_context import line_of, lines_of
from tests.says import says


def test_additions_from_afar_are_tried(tmp_path):
    line = line_of(ranks.one_sided, tmp_path, 3, environ={"OMPI_MCA_osc": "rdma"})
    assert line == Line(OK, "one-sided", says(", OMPI_MCA_osc=rdma"))


def test_additions_that_are_lost_are_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalCounters, "add", lambda self, start, values: None)
    line = line_of(ranks.one_sided, tmp_path, 2)
    text = says("2 ranks", "0", [0.0, 1.0])
    assert line == Line(WARN, "one-sided", text, says("--asynchronous"))


def test_tickets_that_two_have_are_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalCounters, "take", lambda self, place, amount: 0.0)
    assert line_of(ranks.one_sided, tmp_path, 2).status == WARN


def test_windows_that_fail_are_a_warning(tmp_path, monkeypatch):
    def fail(self, start, values):
        raise TransportError("MPI failed while adding: no such window")

    monkeypatch.setattr(LocalCounters, "add", fail)
    line = line_of(ranks.one_sided, tmp_path, 2)
    assert (line.status, line.text) == (WARN, "MPI failed while adding: no such window")


# ── death of a rank ───────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "found, environ, status, text, advice",
    [
        ((False, False), {}, OK, says("--elastic", "--resume"), ""),
        ((True, False), {}, OK, says("--resume", "built", "off"), says("--elastic", "--with-ft")),
        ((True, True), {}, OK, says("--elastic"), ""),
        ((True, True), {"OMPI_MCA_pml": "ucx"}, WARN, says("--elastic", "ucx"), says("--with-ft")),
        ((True, True), {"OMPI_MCA_pml": "cm"}, WARN, says("--elastic", "cm"), says("--with-ft")),
    ],
)
def test_what_comes_after_a_death(tmp_path, monkeypatch, found, environ, status, text, advice):
    monkeypatch.setattr(ranks, "fault_tolerance", lambda: found)
    line = line_of(ranks.faults, tmp_path, environ=environ, mpi=True)
    assert line == Line(status, "fault tolerance", text, advice)
    assert lines_of(ranks.faults, tmp_path)[0] == []


# ── links ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_one_rank_of_each_node_is_measured_beside_its_neighbours():
    assert ranks.in_circle([0, 3]) == [(0, 3)]
    assert ranks.in_circle([0, 2, 4]) == [(0, 2), (2, 4), (0, 4)]
    assert len(ranks.in_circle(range(5))) == 10 and len(ranks.in_circle(range(100))) == 200


def test_links_between_nodes_are_measured(tmp_path):
    assert lines_of(ranks.links, tmp_path, 3)[0] == []
    line = line_of(ranks.links, tmp_path, 3, nodes=[0, 0, 1])
    assert (line.status, line.name) == (OK, "links") and line.text == says("1 pair")


@pytest.mark.parametrize("hosts, name", [(list("abcc"), "c"), (list("aaaa"), "node 2 of a")])
def test_the_node_with_slow_links_is_named(tmp_path, monkeypatch, hosts, name):
    def slow_at_rank_2(buffers, tag, pairs):
        rates = {True: 1e9, False: 5e9}
        return [{"first": a, "second": b, "latency_s": 1e-6, "bytes_per_s": rates[2 in (a, b)]} for a, b in pairs]

    monkeypatch.setattr(ranks, "measure_pairs", slow_at_rank_2)
    line = line_of(ranks.links, tmp_path, 4, nodes=[0, 1, 2, 2], hosts=hosts)
    assert (line.status, line.advice) == (WARN, says("--pairs"))
    assert line.text == says("1 µs", "1 GB/s", "3 pairs", name, "5.0 times")
