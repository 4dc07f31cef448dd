"""From sweeps to tuning tables, the table in words, and what is made of auto's own rows."""

from dataclasses import asdict

import pytest

from ringtrain.allreduce.auto import Candidates
from ringtrain.allreduce.catalogue import static_candidates
from ringtrain.allreduce.machine import RankLayout
from ringtrain.allreduce.tuning_table import Table, TimeModel, TuningRow, predict_s
from ringtrain.bench import tune
from ringtrain.bench.measure.rows import label, quieter
from ringtrain.bench.model import fit
from ringtrain.bench.model.work import AlgorithmWork
from ringtrain.bench.sweep import gates
from ringtrain.bench.sweep.plots import sweep_figure
from ringtrain.bench.sweep.sweep import Result
from ringtrain.collectives.inspect.cost import Fabric
from ringtrain.records import read
from ringtrain.show.figures import drawn
from tests.bench.sweeps import swept
from tests.says import says

PAIR = RankLayout("1x2", 2, 1)
KIB, MIB = 1 << 10, 1 << 20


def known(**times):
    """A table of float32 sums: name=(seconds at 1 KiB, seconds at 1 MiB)."""
    rows = [
        TuningRow(name, "float32", "sum", nbytes, time, True)
        for name, seconds in times.items()
        for nbytes, time in zip((KIB, MIB), seconds, strict=True)
    ]
    return Table(2, 1, "then", tuple(rows), name="1x2")


def test_a_sweep_becomes_a_table_and_two_regimes_two_lines():
    table = tune.table_from(swept(algorithms=("mpi", "ring"), dtypes=("float32", "bfloat16")), PAIR)
    assert {(row.algorithm, row.dtype) for row in table.rows} == {  # the MPI's bfloat16 was refused
        ("mpi", "float32"),
        ("ring", "float32"),
        ("ring", "bfloat16"),
    }
    assert all(row.correct and row.median_s > 0 for row in table.rows)
    assert {model.algorithm for model in table.models} == {"mpi", "ring"}
    assert all(model.from_bytes == 0 and model.start_s + model.s_per_byte > 0 for model in table.models)
    assert tune.barred(table) == []
    work, slow = AlgorithmWork(2, 1.0, 0.5), Fabric(local_alpha_s=0.5, local_beta_s=2.0, gamma_s=4.0)
    model = fit.FittedModel(work, (fit.Regime(0.0, Fabric()), fit.Regime(100.0, slow)))
    assert read(fit.FittedModel, asdict(model) | {"residuals": []}) == model
    group = {"dtype": "float32", "op": "sum", "models": {"ring": asdict(model)}}
    table = tune.table_from(Result({"at": "now", "fits": [group]}), PAIR)
    assert table.models[1] == TimeModel("ring", "float32", "sum", 100.0, 1.0, 4.0)
    for nbytes in (0, 10, 99, 100, 1000):
        assert predict_s(table.models, nbytes) == model.predict_s(nbytes)


def test_what_is_wrong_or_differs_between_ranks_does_not_win(monkeypatch):
    def silent(self, span, op="sum"):
        """Leaves every rank with its own contribution, in no time."""

    monkeypatch.setattr("tests.loopback.world.ThreadTransport.native_allreduce", silent)
    table = tune.table_from(swept(algorithms=("mpi", "ring")), PAIR)
    lines = tune.choice_lines(table, static_candidates(PAIR, "float32"), [64, 4096], "float32", "sum", whole=True)
    assert "mpi" not in "".join(lines)
    assert tune.barred(table) == [says("mpi", "64 B", "float32", "sum")]
    row = {"algorithm": "x", "dtype": "float32", "op": "sum", "bytes": 4, "median_s": 1.0, "status": "ok"}
    header = {"at": "now", "fits": []}
    for same in (True, False, None):
        table = tune.table_from(Result(header, [row | {"same_on_ranks": same}]), PAIR)
        assert table.rows[0].correct is (same is True)


def test_choices_and_where_they_change_also_between_two_sizes_alone():
    table = known(mpi=(10e-6, 4e-3), ring=(40e-6, 1e-3))
    eligible = Candidates(PAIR, ("mpi", "ring"), {})
    lines = tune.choice_lines(table, eligible, [MIB, KIB], "float32", "sum", whole=False)
    assert lines[0] == "float32 sum, 2 ranks on 1 node:"
    assert [" ".join(line.split()) for line in lines[1:3]] == [
        "1 KiB mpi measured 10 µs; ring 40 µs",
        "1 MiB ring measured 1 ms; mpi 4 ms",
    ]
    assert lines[3].startswith("  mpi gives way to ring at 29.")  # equal within 3 % from here on
    assert len(lines) == 4
    whole = tune.choice_lines(table, eligible, [KIB], "float32", "sum", whole=True)
    assert whole[2].strip() == "mpi 10 µs, ring 40 µs"
    without = tune.choice_lines(None, eligible, [KIB, MIB], "float32", "sum", whole=True)
    assert len(without) == 3 and says("tuning", "file").matches(without[1])
    apart = Candidates(RankLayout("1x2", 2, 2), ("mpi", "ring"), {})
    without = tune.choice_lines(None, apart, [KIB, MIB], "float32", "sum", whole=True)
    assert len(without) == 4 and without[3].startswith("  mpi gives way to ring at 32")
    # The tree, measured there alone; without the ring both ends take the same.
    ends = known(mpi=(10e-6, 4e-3), ring=(200e-6, 1e-3)).rows
    tree = [TuningRow("tree", "float32", "sum", nbytes, 30e-6, True) for nbytes in (16 * KIB, 64 * KIB)]
    table = Table(2, 1, "then", (*ends, *tree), name="1x2")

    def changes(*candidates):
        eligible = Candidates(PAIR, candidates, {})
        lines = tune.choice_lines(table, eligible, [KIB, MIB], "float32", "sum", whole=False)
        return [line.strip().removesuffix(" KiB") for line in lines[3:]]

    either = ["mpi gives way to tree at 16.02", "tree gives way to mpi at 64.04"]
    assert changes("mpi", "tree") == either
    assert changes("mpi", "ring", "tree") == [*either, "mpi gives way to ring at 109.1"]
    assert changes("ring") == []


def test_a_busy_machine_is_told_and_of_several_passes_the_quietest_counts():
    rows = [{"status": "ok", "cv": cv} for cv in (0.5, 0.5, 0.01)] + [{"status": "refused", "cv": None}]
    lines = tune.doubts(Result({"crowded": "4 ranks on 2 cores"}, rows))
    assert lines == [says("4 ranks on 2 cores"), says(2, 3, "10%")]
    assert tune.doubts(Result({"crowded": None}, rows[2:])) == []
    fast, slow = ({"median_s": t} for t in (1.0, 2.0))
    assert quieter(fast, slow) is quieter(slow, fast) is fast
    refused = {"median_s": None}
    assert quieter(refused, dict(refused)) is refused
    once, thrice = (swept(algorithms=("mpi", "ring"), passes=passes) for passes in (1, 3))
    assert [[row[key] for key in ("algorithm", "bytes", "wrong")] for row in thrice.rows] == [
        [row[key] for key in ("algorithm", "bytes", "wrong")] for row in once.rows
    ]
    assert thrice.header["protocol"]["passes"] == 3


def test_rows_of_a_choice_are_named_by_it_and_one_curve(tmp_path):
    table = known(star=(1.0, 1.0), ring=(2.0, 2.0))
    result = swept(algorithms=("auto", "star", "mpi"), dtypes=("float32", "bfloat16"), sizes=(KIB,), tuning=table)
    for row in (result.rows[0], result.rows[3]):
        assert row["algorithm"] == "auto:star" and (row["status"], row["wrong"]) == ("ok", 0)
        assert row["wire_bytes"] > 0
    assert result.rows[0]["reason"] == "measured 1 s; ring 2 s"
    assert "as for float32 sum" in result.rows[3]["reason"]
    (usual,) = swept(algorithms=("auto",), sizes=(KIB,), ops=("mean",)).rows
    assert (usual["algorithm"], usual["placement"], usual["wrong"]) == ("auto:mapped", "in", 0)
    assert {name for group in result.header["fits"] for name in group["models"]} <= {"star", "mpi"}
    whole = swept(algorithms=("auto",), sizes=(KIB,), dtypes=("int32",), ops=("mean",)).rows
    assert [(row["algorithm"], row["status"]) for row in whole] == [("auto", "refused")]
    result = swept(algorithms=("mpi", "auto"), sizes=(64, 1 << 18))
    assert [label(row) for row in result.rows] == ["mpi", "auto:mapped", "mpi", "auto:mapped"]
    steady = [{**row, "samples_s": [9.0, 9.01, 9.02]} for row in result.rows]  # however loaded the machine is
    earlier = [{**row, "algorithm": row["algorithm"].replace("auto:mapped", "auto:ring")} for row in steady]
    faster = [{**row, "samples_s": [time / 9 for time in row["samples_s"]]} for row in earlier[3:]]
    (slower,) = gates.regressions(faster, steady, 0.05)
    assert slower.startswith("auto:mapped 262,144 B float32 sum in place: 9.00 times the earlier time")
    complaints = gates.too_slow(result.rows, 1e99)
    assert [line.partition(":")[0] for line in complaints] == ["mpi", "auto"]
    pytest.importorskip("matplotlib")
    picture = drawn(lambda: sweep_figure(result.header, result.rows), "svg")
    assert b"<!-- auto -->" in picture and b"auto:" not in picture
