"""Checks between ranks: additions from afar, death of a rank, links between nodes."""

import re

import pytest

from ringtrain.bench import texts as bench_texts
from ringtrain.errors import TransportError
from ringtrain.launch import texts
from ringtrain.launch.doctor import ranks
from ringtrain.launch.doctor.doctor import OK, WARN, Line
from ringtrain.transport.threads.local_counters import LocalCounters
from tests.fakes.doctor_context import line_of, lines_of


def test_additions_from_afar_are_tried(tmp_path):
    line = line_of(ranks.one_sided, tmp_path, 3, environ={"OMPI_MCA_osc": "rdma"})
    assert line == Line(OK, "one-sided", texts.ONE_SIDED(setting=", OMPI_MCA_osc=rdma"))


def test_additions_that_are_lost_are_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalCounters, "add", lambda self, start, values: None)
    line = line_of(ranks.one_sided, tmp_path, 2)
    text = texts.ONE_SIDED_WRONG(ranks="2 ranks", added=0, tickets=[0.0, 1.0])
    assert line == Line(WARN, "one-sided", text, texts.ONE_SIDED_TRY)


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
        ((False, False), {}, OK, texts.ULFM_NOT_BUILT(checkpoint=texts.ULFM_RESUME), ""),
        ((True, False), {}, OK, texts.ULFM_OFF(checkpoint=texts.ULFM_RESUME), texts.ULFM_START),
        ((True, True), {}, OK, texts.ULFM_ON, ""),
        ((True, True), {"OMPI_MCA_pml": "ucx"}, WARN, texts.ULFM_NOT_OB1(pml="ucx"), texts.ULFM_OB1),
        ((True, True), {"OMPI_MCA_pml": "cm"}, WARN, texts.ULFM_NOT_OB1(pml="cm"), texts.ULFM_OB1),
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
    assert (line.status, line.name) == (OK, "links") and re.fullmatch(texts.LINKS.pattern(pairs="1 pair"), line.text)


@pytest.mark.parametrize("hosts, name", [(list("abcc"), "c"), (list("aaaa"), "node 2 of a")])
def test_the_node_with_slow_links_is_named(tmp_path, monkeypatch, hosts, name):
    def slow_at_rank_2(buffers, tag, pairs):
        rates = {True: 1e9, False: 5e9}
        return [{"first": a, "second": b, "latency_s": 1e-6, "bytes_per_s": rates[2 in (a, b)]} for a, b in pairs]

    monkeypatch.setattr(ranks, "measure_pairs", slow_at_rank_2)
    line = line_of(ranks.links, tmp_path, 4, nodes=[0, 1, 2, 2], hosts=hosts)
    assert (line.status, line.advice) == (WARN, texts.LINKS_LEAVE)
    found = texts.LINKS(latency="1 µs", rate="1 GB/s", pairs="3 pairs")
    assert line.text.startswith(texts.LINKS_SICK(links=found, sick=bench_texts.SLOW_LINKS(name=name, times=5)))
