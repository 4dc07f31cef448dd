"""Sweeps over wires that round: rows, checks that know of it, refusals."""

import json
import re

import numpy as np
import pytest

from ringtrain.allreduce.catalogue import ALGORITHMS
from ringtrain.allreduce.dtypes import TYPES
from ringtrain.bench.measure.checks import KINDS, count_wrong, make_pattern
from ringtrain.bench.measure.links import BETWEEN, INSIDE, Calibration, LinkClass
from ringtrain.bench.measure.rows import COLUMNS, label
from ringtrain.bench.model.bounds import bound_s
from ringtrain.bench.sweep import files, gates, tables
from ringtrain.bench.sweep.plots import sweep_figure
from ringtrain.show.figures import drawn
from tests.bench.sweeps import by, spoil, swept
from tests.says import says
from tests.tiers import thorough

ALL = ("none", "float16", "bfloat16")
UNPACKED = ("mpi", "mapped", "stream", "routed", "recursive-doubling")  # on one node


@pytest.fixture(scope="module")
def result():
    return swept(3, sizes=(4, 100, 20_000), wires=ALL)


def test_every_algorithm_over_every_wire(result):
    assert len(result.rows) == len(ALGORITHMS) * 3 * 3
    assert all(tuple(row) == COLUMNS for row in result.rows)
    for row in result.rows:
        rounds = row["wire_dtype"] != "float32"
        refused = rounds and row["algorithm"] in UNPACKED
        assert row["status"] == ("refused" if refused else "ok")
        if row["algorithm"] != "mpi" and not refused:
            assert row["wrong"] == 0 and row["same_on_ranks"] and row["same_over_repeats"]
            assert row["speedup"] > 0  # beside the MPI's own, which sends float32


def test_half_the_bytes_of_messages_models_and_bounds(result):
    for name in ("ring", "star", "hierarchical"):
        whole, *halves = (by(result.rows, algorithm=name, bytes=20_000, wire_dtype=w)[0] for w in ("float32", *ALL[1:]))
        for half in halves:
            assert half["wire_bytes"] * 2 == whole["wire_bytes"]
            assert 0 < half["bound_s"] <= whole["bound_s"]
    for group in result.header["fits"]:
        packed = group["wire_dtype"] != "float32"
        assert group["models"]["ring"]["work"]["sent"] == pytest.approx(4 / 3 / (1 + packed))
        assert ("mapped" in group["models"]) == ("mpi" in group["models"]) == (not packed)
    links = {INSIDE: LinkClass(1e-6, 1e9, 1e9, 1e9), BETWEEN: LinkClass(1e-6, 1e8, 1e8, 1e8)}
    sending, adding = Calibration(links, 1e-12, 2), Calibration(links, 1.0, 2)
    assert bound_s(sending, 4, 2, 10**9, 0.5) == bound_s(sending, 4, 2, 10**9) / 2
    assert bound_s(adding, 4, 2, 10**9, 0.5) == bound_s(adding, 4, 2, 10**9)


def test_refusals_have_their_reason():
    asked = {"wires": ("bfloat16",), "sizes": (64,), "algorithms": ("mpi", "ring", "recursive-doubling", "rival")}
    baselines = {"rival": lambda job: lambda: None}
    native, unowned = says("mpi", "bfloat16"), "'recursive-doubling' cannot use a wire"
    for op, dtype, wanted in (
        ("sum", "float32", [native, None, unowned]),
        ("max", "float32", [native, "a wire of bfloat16 carries sums, and this is max", unowned]),
        ("sum", "bfloat16", [says("bfloat16")] * 4),
        ("mean", "int32", [says("bfloat16", "int32")] * 4),
    ):
        rows = swept(2, **asked, ops=(op,), dtypes=(dtype,), baselines=baselines).rows
        for row, reason in zip(rows, wanted, strict=False):
            assert (row["status"] == "refused") == bool(reason) and row["reason"] == (reason and says(reason))
        assert rows[3]["status"] == "refused" and rows[3]["wire_dtype"] == "bfloat16"
    plain, packed = swept(2, algorithms=("routed",), wires=("none", "float16"), sizes=(64,)).rows
    assert (plain["status"], packed["status"]) == ("ok", "refused")
    assert packed["reason"] == "routed sends no messages on one node: a wire of float16 would round nothing"


def test_auto_chooses_among_those_that_can():
    """Buffers go to shared memory, but for those that are to be rounded."""
    rows = swept(3, algorithms=("auto",), wires=("none", "bfloat16"), sizes=(64, 1 << 18)).rows
    assert sorted(map(label, rows)) == 2 * ["auto:mapped"] + 2 * ["auto:sliced (bfloat16)"]
    packed = by(rows, wire_dtype="bfloat16", bytes=64)[0]
    assert "stream" in packed["reason"] and packed["wrong"] == 0


@pytest.mark.parametrize("size", [1, 2, 5])
def test_means_too(size):
    for row in swept(size, ops=("mean",), algorithms=("ring", "sliced", "star"), sizes=(4, 10_000), wires=ALL).rows:
        assert (row["status"], row["wrong"]) == ("ok", 0)


KINDS_OF_SUMS = [(size, op, wire) for size in (1, 2, 5, 32) for op in ("sum", "mean") for wire in ALL[1:]]
MOST_RANKS = [case for case in KINDS_OF_SUMS if case[0] == 32 and case != (32, "sum", "bfloat16")]


@pytest.mark.parametrize("size, op, wire", [*(c for c in KINDS_OF_SUMS if c not in MOST_RANKS), *thorough(*MOST_RANKS)])
def test_the_check_allows_what_a_wire_rounds_and_no_more(wire, op, size):
    """A ring's sums by hand, which round most often; and what no wire explains."""
    numbers, narrow = TYPES["float32"], TYPES[wire]
    for kind in KINDS:
        patterns = [make_pattern(kind, numbers, op, rank, size, 7, wire) for rank in range(size)]
        total = patterns[0].input.copy()
        for pattern in patterns[1:]:
            total = pattern.input + narrow.decode(narrow.encode(total)).astype("f4")
        total = narrow.decode(narrow.encode(total)).astype("f4")
        if op == "mean":
            numbers.divide(total, size)
        assert count_wrong(numbers, total, patterns[0]) == 0
        off = total + np.float32(1.5) * patterns[0].allowed.astype("f4") + np.float32(0.5)
        assert count_wrong(numbers, off, patterns[0]) > 0.9 * total.size
        for element in (5, 17, 4000):
            spoil(total, element)
        assert count_wrong(numbers, total, patterns[0]) == 3


def test_without_a_wire_nothing_more_is_allowed():
    plain, packed = (make_pattern("random", TYPES["float32"], "sum", 0, 3, 7, wire) for wire in ALL[:2])
    assert (plain.allowed < packed.allowed / 100).all()


def test_tables_and_pictures_tell_them_apart(result):
    (refused,) = by(result.rows, algorithm="mpi", bytes=100, wire_dtype="bfloat16")
    assert tables.row_line(refused).split()[:4] == ["100", "mpi", "(bfloat16)", "refused:"]
    fits = tables.fit_lines(result.header["fits"])
    assert any(re.search(says("float32 sum over a wire of float16, in place"), line) for line in fits)
    labels = [label(row) for row in by(result.rows, algorithm="tree", bytes=100)]
    assert labels == ["tree", "tree (float16)", "tree (bfloat16)"]
    pytest.importorskip("matplotlib")
    assert b"ring (bfloat16)" in drawn(lambda: sweep_figure(result.header, result.rows), "svg")


def test_files_and_limits_tell_them_apart(result, tmp_path):
    files.write_json(tmp_path / "a.json", result.header, result.rows)
    ring = by(files.read_json(tmp_path / "a.json")["rows"], algorithm="ring", bytes=100)
    steady = [{**row, "samples_s": [1.0, 1.01, 1.02]} for row in ring]
    slower = [{**row, "samples_s": [3.0]} if row["wire_dtype"] == "float16" else row for row in steady]
    (regression,) = gates.regressions(steady, slower, 0.05)
    assert regression.startswith("ring (float16) 100 B float32 sum in place: ")
    # Files of earlier versions know of no wires.
    rows = [{name: value for name, value in row.items() if name != "wire_dtype"} for row in result.rows[:3]]
    (tmp_path / "old.json").write_text(json.dumps({"header": {}, "rows": rows}))
    assert {row["wire_dtype"] for row in files.read_json(tmp_path / "old.json")["rows"]} == {"float32"}
