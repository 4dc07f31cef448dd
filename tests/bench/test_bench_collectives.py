"""Sweeps of collectives other than the all-reduce: rows, checks that notice, refusals, gates."""

import pytest

from ringtrain.api.communicator import Communicator
from ringtrain.bench.measure.collectives import COLLECTIVES
from ringtrain.bench.measure.rows import COLUMNS, group
from ringtrain.bench.sweep import gates, tables
from ringtrain.bench.sweep.run import BenchOptions, sweep_of
from ringtrain.errors import UsageError
from tests.bench.sweeps import by, swept
from tests.says import says

OTHERS = [name for name in COLLECTIVES if name not in ("all-reduce", "barrier")]
BUS = {"broadcast": 1.0, "reduce": 1.0}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("collective", OTHERS)
def test_every_collective_has_checked_rows_beside_the_mpis(collective, size):
    result = swept(size, collective=collective, algorithms=("auto", "mpi"), sizes=(1000, 300_000), ops=("sum", "max"))
    assert len(result.rows) == 2 * 2 * (2 if COLLECTIVES[collective].adds else 1)
    for row in result.rows:
        assert tuple(row) == COLUMNS and (row["collective"], row["status"], row["wrong"]) == (collective, "ok", 0)
        assert row["algorithm"] in ("auto:stream", "mpi") and row["memory"] == "ordinary"
        assert row["bytes"] == 4 * row["count"]
        assert row["count"] % (size if COLLECTIVES[collective].has_rows else 1) == 0
        assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] * BUS.get(collective, 1 - 1 / size))
        assert row["bound_share"] is None and row["same_over_repeats"]
        assert row["op"] == "none" or collective in ("reduce", "reduce-scatter")
    assert result.header["fits"] == []
    lines = [tables.row_line(row, crowded=result.header["crowded"]) for row in result.rows]
    assert all(len(line) <= 100 for line in [*lines, *tables.titles(), group(result.rows[0])])


def test_a_barrier_has_a_row_without_bytes():
    rows = swept(3, collective="barrier", algorithms=("auto", "mpi")).rows
    assert [(row["bytes"], row["busbw_bytes_per_s"], row["wrong"]) for row in rows] == [(0, 0.0, None)] * 2
    assert all(row["median_s"] > 0 for row in rows)


@pytest.mark.parametrize("collective", OTHERS)
def test_one_wrong_element_is_counted(monkeypatch, collective):
    method = collective.replace("-", "_")
    right = getattr(Communicator, method)

    def spoilt(communicator, array, *arguments, out=None, **named):
        more = {} if collective == "broadcast" else {"out": out}
        result = right(communicator, array, *arguments, **more, **named)
        if result is not None and communicator.rank == communicator.size - 1:
            result.reshape(-1)[5] += 1
        return result

    monkeypatch.setattr(Communicator, method, spoilt)
    auto, mpi = swept(3, collective=collective, algorithms=("auto", "mpi"), sizes=(3000,)).rows
    assert (auto["status"], auto["wrong"], mpi["status"]) == ("wrong", 3, "ok")
    assert gates.wrong([auto, mpi])


def test_schedules_and_types_that_do_not_suit_are_refused_with_a_reason():
    rows = swept(3, collective="all-gather", algorithms=("ring", "tree", "mpi"), sizes=(300,)).rows
    assert [row["status"] for row in rows] == ["ok", "refused", "ok"] and by(rows, algorithm="tree")[0]["reason"]
    (row,) = swept(2, collective="reduce", algorithms=("ring",), sizes=(64,)).rows
    assert row["reason"] == says("reduce", "schedules")
    rows = swept(2, collective="reduce", algorithms=("auto", "mpi"), sizes=(64,), dtypes=("bfloat16",)).rows
    assert [row["status"] for row in rows] == ["refused"] * 2
    rows = swept(2, collective="reduce-scatter", algorithms=("auto", "mpi"), sizes=(64,), ops=("mean",)).rows
    assert [row["wrong"] for row in rows] == [0, 0]


@pytest.mark.parametrize("more", [{"wires": "float16"}, {"device": "cuda"}, {"tuning": "file"}, {"segment_bytes": 9}])
def test_what_the_all_reduce_alone_has_is_refused(more):
    with pytest.raises(UsageError, match=says("--collective broadcast", "all-reduce")):
        sweep_of(BenchOptions(**{"collective": "broadcast", **more}))


def test_names_of_algorithms_are_checked():
    assert sweep_of(BenchOptions(collective="broadcast")).algorithms == ["auto", "mpi"]
    asked = BenchOptions(collective="broadcast", algorithms="mpi,gloo,tree")
    assert sweep_of(asked).algorithms == ["mpi", "gloo", "tree"]
    with pytest.raises(UsageError, match=says("mapped")):
        sweep_of(BenchOptions(collective="broadcast", algorithms="mapped"))
    assert sweep_of(BenchOptions(algorithms="ring,gloo")).algorithms == ["ring", "gloo"]


def test_rows_of_another_collective_are_not_compared():
    old = swept(2, algorithms=("mpi",), sizes=(64,)).rows
    new = swept(2, collective="reduce", algorithms=("mpi",), sizes=(64,)).rows
    with pytest.raises(UsageError, match=says("nothing to compare")):
        gates.regressions(old, new, 0.05)
