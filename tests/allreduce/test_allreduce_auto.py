"""What `auto` takes: by measured rows, between and beyond them, without any; and which tuning files are believed."""

import re

import numpy as np
import pytest

from ringtrain.allreduce import machine as machines
from ringtrain.allreduce.auto import NEAR, SMALL_BYTES, Candidates, estimate, select_algorithm
from ringtrain.allreduce.catalogue import (
    ALGORITHMS,
    agree_on_algorithm,
    find_candidates,
    make_allreduce,
    static_candidates,
)
from ringtrain.allreduce.machine import RankLayout, cpu_model, differences, inspect_machine, machine_digest, rank_layout
from ringtrain.allreduce.tuning_file import VARIABLE, find_tuning, read_tuning, tuning_source
from ringtrain.allreduce.tuning_table import Table, TimeModel, Tuning, TuningRow
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.config.record import OptimizerConfig
from ringtrain.errors import UsageError
from ringtrain.humanize import format_bytes, format_seconds
from ringtrain.memory.arena import Arena
from ringtrain.nn.base import Fill, Parameter
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.catalogue import make_optimizer
from tests.fakes.strategies import AllReduce
from tests.loopback.world import LoopbackWorld
from tests.says import says

PAIR = RankLayout("1x2", 2, 1)
HERE = Candidates(PAIR, ("mpi", "ring", "star"), {"mapped": "no shared windows"})
KIB, MIB = 1 << 10, 1 << 20


def rows(name, times, dtype="float32", op="sum", wrong_at=None):
    return [TuningRow(name, dtype, op, nbytes, seconds, nbytes != wrong_at) for nbytes, seconds in times.items()]


def model(name, alpha_s, beta):
    return TimeModel(name, "float32", "sum", 0.0, 2 * alpha_s, beta)


def table(*groups, models=(), layout=PAIR):
    measured = tuple(row for group in groups for row in group)
    return Table(layout.ranks, layout.nodes, "then", measured, tuple(models), layout.name)


MEASURED = table(
    rows("mpi", {KIB: 10e-6, MIB: 4e-3}), rows("ring", {KIB: 40e-6, MIB: 1e-3}), rows("star", {KIB: 80e-6, MIB: 2e-3})
)


def taken(nbytes, known=MEASURED, candidates=HERE, dtype="float32", op="sum"):
    return select_algorithm(nbytes, dtype, op, candidates, known)


def ring_messages(ranks):
    return says(f"{2 * (ranks - 1) / ranks:.3g}", 2 * (ranks - 1))


# ── choosing ──────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_fastest_at_a_measured_size_and_between_sizes_on_a_line_of_logarithms():
    small, large = taken(KIB), taken(MIB)
    assert (small.algorithm, small.basis, small.why) == ("mpi", "measured", says("measured", "10 µs", "ring", "40 µs"))
    assert (large.algorithm, large.why) == ("ring", "measured 1 ms; star 2 ms")
    assert large.times_s == {"ring": 1e-3, "mpi": 4e-3, "star": 2e-3}
    choice = taken(32 * KIB)
    assert choice.basis == "interpolated"
    assert choice.times_s == pytest.approx({"mpi": 200e-6, "ring": 200e-6, "star": 400e-6})
    assert taken(16 * KIB).algorithm == "mpi" and taken(40 * KIB).algorithm == "ring"


def test_beyond_the_sizes_the_model_goes_on_and_does_not_win_against_what_was_measured():
    points, far = [(KIB, 10e-6), (MIB, 4e-3)], [model("mpi", 0.0, 1e-9)]
    assert estimate(points, far, 8 * MIB) == (pytest.approx(32e-3), "modelled")
    assert estimate(points, [model("mpi", 1.0, 0.0)], 1) == (pytest.approx(10e-6), "modelled")
    assert estimate(points, None, 8 * MIB) is None and estimate([], far, MIB) is None and estimate(None, far, 8) is None
    assert estimate(points, [model("mpi", 0.0, 0.0)], 8 * MIB) is None
    flat = table(MEASURED.rows, models=[model("mpi", 1e-3, 0.0), model("ring", 0.0, 1e-9)])
    choice = taken(64 * MIB, flat)
    assert (choice.algorithm, choice.basis) == ("mpi", "modelled")  # 4 ms stay 4 ms, 1 ms becomes 64 ms
    assert choice.why == says("modelled", "4 ms", "ring", "64 ms")
    known = table(rows("ring", {KIB: 1e-3, MIB: 1e-2}), rows("star", {KIB: 1e-6}), models=[model("star", 1e-6, 0.0)])
    assert taken(MIB, known).times_s == {"ring": 1e-2}


def test_of_equals_the_usual_one_and_other_types_go_by_the_nearest_measured():
    near = table(rows("star", {MIB: 1.0}), rows("ring", {MIB: 1 + NEAR}))
    assert taken(MIB, near).algorithm == "ring"
    assert taken(MIB, near).why == says("measured", "1.03 s") + says("3%", "star", "1 s")
    assert taken(MIB, table(rows("star", {MIB: 1.0}), rows("ring", {MIB: 1.031}))).algorithm == "star"
    known = table(rows("mpi", {MIB: 1.0}, op="max"), rows("ring", {MIB: 1.0}), rows("star", {MIB: 0.5}, op="max"))
    assert taken(MIB, known).algorithm == "ring" and taken(MIB, known, op="max").algorithm == "star"
    other = taken(MIB, known, dtype="float64")
    assert (other.algorithm, other.why) == ("ring", says("measured", "float32 sum", "1 s"))
    as_for = says("measured", "float32 max", "500 ms", "mpi", "1 s")
    assert taken(MIB, known, op="min").why == as_for + ring_messages(2)


def test_one_wrong_row_bars_a_candidate_at_every_size_and_what_does_not_run_here_is_none():
    known = table(rows("mpi", {KIB: 1e-6, MIB: 1e-6}, wrong_at=KIB), rows("ring", {KIB: 1e-3, MIB: 1e-3}))
    assert [taken(nbytes, known).algorithm for nbytes in (KIB, 32 * KIB, MIB)] == ["ring"] * 3
    alone = taken(MIB, table(rows("ring", {MIB: 1e-3}, wrong_at=MIB)))
    assert alone.basis == "usual" and says("tuning", "can").matches(alone.why)
    unfit = table(rows("mapped", {MIB: 1e-9}), rows("ring", {MIB: 1e-3}))  # what does not run here is no candidate
    assert taken(MIB, unfit).algorithm == "ring"
    one = select_algorithm(MIB, "float32", "sum", Candidates(RankLayout("1x1", 1, 1), ("ring",), {}), MEASURED)
    assert (one.algorithm, one.why) == ("ring", says("nothing", "exchange"))


def test_without_a_tuning_file_a_stated_order():
    def usual(nbytes, nodes, *candidates):
        eligible = Candidates(RankLayout("", 4, nodes), candidates, {})
        return select_algorithm(nbytes, "float32", "sum", eligible, None).algorithm

    everything = ("star", "ring", "hierarchical", "mpi", "sliced", "stream", "mapped", "routed")
    assert usual(SMALL_BYTES, 2, *everything) == "mpi" and usual(SMALL_BYTES + 1, 2, *everything) == "routed"
    for nbytes in (4, SMALL_BYTES, MIB):
        left = list(everything)
        for name in ("mapped", "stream", "sliced", "ring"):
            assert usual(nbytes, 1, *left) == name
            left.remove(name)
    assert usual(MIB, 1, "star", "ring", "mpi") == "ring" and usual(MIB, 2, "ring", "hierarchical") == "hierarchical"
    assert usual(MIB, 2, "star", "tree") == "star"
    not_mapped = says("mapped", "no shared windows")
    on_one_node = says("tuning", "file", "2 ranks on 1 node")
    assert taken(MIB, None).why == taken(KIB, None).why == on_one_node + not_mapped
    apart = Candidates(RankLayout("1x2", 2, 2), ("mpi", "ring"), {})
    where = says("tuning", "file", "default", "32 KiB", "2 ranks on 2 nodes")
    assert taken(MIB, None, apart).why == where + says("above")
    assert taken(KIB, None, apart).why == where + says("up", "least", "latency") + ring_messages(2)


def test_the_reason_says_what_the_ring_costs():
    """Its time where there is one, else its messages: what the schedule sends, and in how many rounds."""

    def why(known, *candidates, ranks=4, nodes=1):
        eligible = Candidates(RankLayout(f"{nodes}x{ranks // nodes}", ranks, nodes), candidates, {})
        return select_algorithm(MIB, "float32", "sum", eligible, known).why

    three = table(rows("mpi", {MIB: 2.0}), rows("mapped", {MIB: 1.0}), rows("ring", {MIB: 3.0}))
    assert why(three, "mpi", "mapped", "ring") == says("measured", "1 s", "mpi", "2 s") + says("ring", "3 s")
    near = table(rows("mapped", {MIB: 1.01}), rows("star", {MIB: 1.0}), rows("ring", {MIB: 3.0}))
    assert says("ring", "3 s").matches(why(near, "mapped", "star", "ring"))
    assert why(table(rows("mapped", {MIB: 1.0})), "mapped", "ring") == says("measured", "1 s") + ring_messages(4)
    assert why(three, "ring") == says("measured", "3 s")
    for name in ("mapped", "stream"):
        assert (says("sends", "messages") + ring_messages(4)).matches(why(None, name, "ring"))
    assert (says("fewest", "between") + ring_messages(4)).matches(why(None, "hierarchical", "ring", nodes=2))
    for ranks in (2, 3, 8):
        ring = make_schedule("ring", ranks)
        steps = ring.steps(0)
        sent = sum(move.stop - move.start for step in steps for move in step.sends) / ring.chunks
        assert ring_messages(ranks) == says(f"{sent:.3g}", len(steps))
        assert (says("rounds", "messages") + ring_messages(ranks)).matches(why(None, "sliced", "ring", ranks=ranks))


# ── all ranks ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_rank_0_decides_for_all_and_the_reduction_says_so():
    """The others hold nothing, or something else: they follow."""
    other = table(rows("star", {MIB: 1e-9}))

    def body(t):
        return agree_on_algorithm(t, np.zeros(1, "f4"), MIB, "float32", "sum", [MEASURED, None, other][t.rank])

    choices = LoopbackWorld(3).run(body)
    assert [choice.algorithm for choice in choices] == ["ring"] * 3 and choices[0] == choices[2]

    def body(t):
        buffer = np.full(MIB // 4, t.rank + 1.0, "f4")
        run = make_allreduce(t, buffer, "auto", np.add, tuning=MEASURED)
        run.run(20.0)
        return run.algorithm, run.why, buffer[0]

    assert LoopbackWorld(2).run(body) == [("auto:ring", "measured 1 ms; star 2 ms", 3.0)] * 2


def test_between_nodes_small_buffers_go_to_the_mpi_and_types_it_lacks_do_not():
    def body(t):
        whole = make_allreduce(t, np.ones(4, "i8"), "auto", np.add)
        kept_in_uint16 = make_allreduce(t, np.ones(4, "u2"), "auto", np.add, dtype="bfloat16")
        return whole.algorithm, kept_in_uint16.algorithm, kept_in_uint16.why

    ((whole, half, why), _) = LoopbackWorld(2, nodes=2).run(body)
    assert (whole, half) == ("auto:mpi", "auto:routed")
    assert says("mpi", "bfloat16").matches(why)
    ((whole, half, why), _) = LoopbackWorld(2).run(body)
    assert (whole, half) == ("auto:stream", "auto:stream")
    assert says("mapped", "buffer", "share").matches(why)


def test_training_says_which_buckets_were_given_what():
    layers = [(f"{n}.weight", Parameter("weight", (n,), Fill("constant"))) for n in (128, 262144, 100_000, 524288)]

    def body(t, **options):
        arena = Arena(t.allocate, layers, "float32")
        exchange = AllReduce(t, ReferenceOps("float32"), bucket_bytes=1, **options)
        exchange.bind(arena, make_optimizer("sgd", arena.spans, OptimizerConfig(momentum=0.9, weight_decay=0.0)))
        return list(exchange.facts.notes)

    known = table(MEASURED.rows, models=[model("ring", 0.0, 1e-9), model("mpi", 1.0, 0.0)])
    remarks = LoopbackWorld(2).run(lambda t: body(t, algorithm="auto", tuning=known))[1]
    assert remarks == [
        "auto: ring for 390.6 KiB, 1 MiB, 2 MiB (at 2 MiB: modelled 2 ms; mpi 4 ms)",
        "auto: mpi for 512 B (modelled 10 µs; ring 20 µs)",
    ]
    assert LoopbackWorld(2).run(lambda t: body(t, algorithm="ring"))[0] == []
    assert LoopbackWorld(1).run(lambda t: body(t, algorithm="auto"))[0] == []


def considered(size, nodes=1, allocate=lambda t: t.allocate(1, "float32"), **more):
    return LoopbackWorld(size, nodes).run(lambda t: find_candidates(t, allocate(t), "float32", **more))[0]


def test_nodes_memory_and_wires_decide_what_is_considered():
    flat, deep, alone = considered(4), considered(4, 2), considered(1)
    nodeless = dict.fromkeys(("routed", "hierarchical"), says("there", "node"))
    assert flat.refused == nodeless and "mapped" in flat.candidates
    assert deep.refused == dict.fromkeys(("mapped", "stream"), says(2, "there", "nodes"))
    assert "stream" in flat.candidates and "routed" in deep.candidates
    assert all(alone.refused[name] == says("one rank") for name in ("mpi", "mapped", "routed", "stream"))
    for eligible in (flat, deep, alone):
        assert static_candidates(eligible.layout, "float32") == eligible
        assert {*eligible.candidates, *eligible.refused} == set(ALGORITHMS)
    private = considered(4, allocate=lambda t: np.zeros(1, "f4"))
    assert says("buffer", "share").matches(private.refused["mapped"])
    assert "routed" in considered(4, 2, allocate=lambda t: np.zeros(1, "f4")).refused
    one_apart = considered(4, allocate=lambda t: t.allocate(1, "float32") if t.rank else t.allocate(1, "f4").copy())
    assert one_apart.refused["mapped"].endswith("on rank 0")
    packed = considered(4, 2, wired=True)
    assert packed.refused["mpi"] == says("'mpi'") and "routed" in packed.candidates
    assert "mapped" in considered(4, wired=True).refused


def test_a_devices_memory_has_an_order_of_its_own_and_no_table():
    """The MPI is not taken, however small the buffer; what was measured in host memory says nothing of it."""
    known = table(rows("ring", {MIB: 1e-9, 64: 1e-9}))
    eligible = Candidates(PAIR, ("mpi", "mapped", "ring"), {}, on_device=True)
    small, large = (select_algorithm(nbytes, "float32", "sum", eligible, known) for nbytes in (4, MIB))
    assert (small.algorithm, large.algorithm) == ("mapped", "mapped") and small.basis == large.basis == "usual"
    assert says("tuning", "host", "2 ranks on 1 node").matches(small.why)
    apart = Candidates(PAIR, ("mpi", "sliced", "ring"), {"mapped": "apart"}, on_device=True)
    assert select_algorithm(64, "float32", "sum", apart, None).algorithm == "sliced"
    assert (says("mapped", "apart") + ring_messages(2)).matches(select_algorithm(64, "float32", "sum", apart, None).why)
    assert not considered(2).on_device


# ── the machine ───────────────────────────────────────────────────────────────────────────────────────────────
def test_the_machine_and_its_layout(tmp_path):
    names = [rank_layout(nodes).name for nodes in ([0], [0, 0], [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1, 1])]
    assert names == ["1x1", "1x2", "2x2", "2x2 scattered", "3+2"]
    assert rank_layout([0, 0, 1, 1]).words() == "4 ranks on 2 nodes"
    assert (format_bytes(1536), format_bytes(3 << 30), format_seconds(0.00123)) == ("1.5 KiB", "3 GiB", "1.23 ms")
    looks = LoopbackWorld(4, nodes=2).run(inspect_machine)
    assert all(look == looks[0] for look in looks)
    machine, layout = looks[0]
    assert (tuple(machine), machine["transport"]) == (machines.FIELDS, "threadtransport")
    assert layout == RankLayout("2x2", 4, 2)
    assert len(machine_digest(machine)) == 8 and machine_digest(machine) != machine_digest(machine | {"cores": "0"})
    assert differences(machine, machine) == []
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Some CPU @ 2 GHz"
    assert cpu_model(tmp_path / "none") != ""


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────
MACHINE = {"cpu": "A", "cores": "2", "library": "Some MPI 1", "transport": "loopback"}


def test_where_the_file_is_looked_for_and_it_keeps_other_layouts(tmp_path):
    home = {"HOME": "/home/me"}
    assert str(tuning_source(None, home).path) == "/home/me/.config/ringtrain/tuning.json"
    assert tuning_source(None, home).asked_by == ""
    assert str(tuning_source(None, home | {"XDG_CONFIG_HOME": "/x"}).path) == "/x/ringtrain/tuning.json"
    assert tuning_source(None, home | {VARIABLE: "v.json"}).asked_by == VARIABLE
    assert str(tuning_source("f.json", home | {VARIABLE: "v.json"}).path) == "f.json"
    four = table(rows("ring", {KIB: 1.0}), layout=RankLayout("1x4", 4, 1))
    tuning = Tuning(MACHINE).with_table(MEASURED).with_table(four)
    (tmp_path / "t.json").write_text(tuning.text())
    assert read_tuning(tuning_source(str(tmp_path / "t.json"), {})) == tuning
    fresh = table(rows("star", {KIB: 2.0}), rows("ring", {KIB: 1.0}, op="max"), models=[model("star", 1.0, 1.0)])
    merged = tuning.with_table(fresh)
    assert merged.tables["1x2"] == fresh and merged.tables["1x4"] == four
    both = merged.with_table(table(rows("star", {KIB: 3.0}, dtype="float64")))
    assert set(both.tables["1x2"].groups()) == {("float32", "sum"), ("float32", "max"), ("float64", "sum")}
    assert both.tables["1x2"].models == fresh.models


@pytest.fixture
def usual_file(tmp_path, monkeypatch):
    """usual_file(tuning): writes the usual file, in an empty home, and returns its path."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def write(tuning):
        path = tmp_path / "ringtrain" / "tuning.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(tuning if isinstance(tuning, str) else tuning.text())
        return path

    return write


def tunings(size=2, path=None):
    return LoopbackWorld(size).run(lambda t: find_tuning(t, path))


def own_machine(size=2):
    return LoopbackWorld(size).run(inspect_machine)[0][0]


def test_the_usual_file_is_used_where_it_fits_and_left_aside_elsewhere(usual_file, monkeypatch):
    assert [result.table for result in tunings()] == [None, None] and tunings()[0].remark == ""
    usual_file(Tuning(own_machine()).with_table(MEASURED))
    assert [result.table for result in tunings()] == [MEASURED, MEASURED] and tunings()[0].remark == ""
    for content in (Tuning(own_machine() | {"cpu": "another"}).with_table(MEASURED), Tuning(own_machine()), "{"):
        usual_file(content)
        assert [result.table for result in tunings()] == [None, None]
        assert re.match(says("tuning", "file"), tunings()[0].remark)
    monkeypatch.setenv("XDG_CONFIG_HOME", "x" * 300)  # for root too, who may look into any folder
    assert [result.table for result in tunings()] == [None, None]

    assert says("x" * 300 + "/ringtrain/tuning.json", "File name too long").matches(tunings()[1].remark)
    with pytest.raises(UsageError, match=says("y" * 300, "File name too long")):
        tunings(path="y" * 300)


def test_a_file_that_was_asked_for_must_fit_and_one_rank_reads_it_too(usual_file, monkeypatch):
    other = {"cpu": "another", "cores": "0"}
    path = usual_file(Tuning(own_machine() | other).with_table(MEASURED))
    machine = own_machine()
    lines = [says(name, value, machine[name]) for name, value in other.items()]
    with pytest.raises(UsageError, match=says("--tuning", "--fresh", path, *lines)) as error:
        tunings(path=str(path))
    assert error.value.everywhere
    path = usual_file(Tuning(own_machine(3)).with_table(MEASURED))
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(UsageError, match=says("--tuning", path, VARIABLE, "1x3", "3 ranks on 1 node", "1x2")):
        tunings(3)
    with pytest.raises(UsageError, match=r"none\.json .*No such file"):
        tunings(path="none.json")
    path = usual_file(Tuning(MACHINE).with_table(MEASURED))
    assert tunings(1, str(path))[0].table is None
    usual_file("{")
    with pytest.raises(UsageError, match=f"^tuning file {path} .*ringtrain tune"):
        tunings(1, str(path))
