import json

import pytest

from ringtrain.bench import slopes
from ringtrain.bench.slopes import draw, formula_s, measure, title_of
from ringtrain.ops.reference import ReferenceOps
from ringtrain.transport.loopback import LoopbackWorld


def rows_of(size):
    def body(t):
        return measure(t, ReferenceOps("float32"), ["star", "ring"], nbytes=4096, repeats=3)

    ranks = LoopbackWorld(size).run(body)
    for own in ranks[1:]:
        assert [row["median_s"] for row in own] == [row["median_s"] for row in ranks[0]]
    return ranks[0]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_are_those_of_the_slowest_rank_on_all_ranks(size):
    star, ring = json.loads(json.dumps(rows_of(size)))
    assert (star["algorithm"], ring["algorithm"]) == ("star", "ring")
    for row in (star, ring):
        assert (row["ranks"], row["nodes"], row["bytes"], row["repeats"]) == (size, 1, 4096, 3)
        assert 0 < row["min_s"] <= row["median_s"] <= row["p95_s"] and row["cv"] >= 0
        assert (row["pair_bytes_per_s"] > 0) == (row["busy_bytes_per_s"] > 0) == (size > 1)
    assert star["wire_bytes"] == 4096 * (size - 1)


def test_ranks_write_the_buffer_before_each_all_reduce_outside_the_clock(monkeypatch):
    events = []

    class Noting(ReferenceOps):
        def fill(self, x, value):
            events.append(("written", x.size))
            super().fill(x, value)

    def noted(transport, action):
        events.append("clock")
        return timed(transport, action)

    timed = slopes.timed
    monkeypatch.setattr(slopes, "timed", noted)
    LoopbackWorld(1).run(lambda t: measure(t, Noting("float32"), ["star", "ring"], nbytes=4096, repeats=3))
    assert events == [("written", 1024), "clock"] * 2 * (slopes.WARM_UP + 3)


def test_formulas():
    row = {"bytes": 1000, "ranks": 5}
    assert formula_s({**row, "algorithm": "star"}, rate=100.0) == 80
    assert formula_s({**row, "algorithm": "ring"}, rate=100.0) == 16
    assert formula_s({**row, "algorithm": "ring", "ranks": 1}, rate=0.0) == 0


def test_a_plot_of_several_runs(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [row for size in (3, 1, 2) for row in rows_of(size)]
    draw(rows, tmp_path / "slopes.png")
    assert (tmp_path / "slopes.png").read_bytes().startswith(b"\x89PNG")


def test_the_title_says_what_b_is_and_where_cores_were_short():
    rows = [{**row, "oversubscribed": row["ranks"] == 3} for size in (2, 3) for row in rows_of(size)]
    title = title_of(rows, one_b=2e9)
    assert "one link alone: b = 2.00 GB/s" in title and "all links busy: K=2 " in title
    assert title.endswith("more ranks than cores at K = 3: there cores and memory are measured")
