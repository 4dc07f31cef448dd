"""Checks between ranks: links between nodes."""

import pytest

from ringtrain.launch.doctor import host
from ringtrain.launch.doctor.doctor import OK, WARN
from tests.fakes.doctor_context import line_of, lines_of
from tests.says import says


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
