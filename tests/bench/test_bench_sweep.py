"""Sweeps of a world in one process: rows, refusals, files, gates."""

import csv
import json
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ringtrain.allreduce import catalogue
from ringtrain.allreduce.catalogue import ALGORITHMS
from ringtrain.bench.measure.rows import COLUMNS
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.sweep import files, gates, tables
from ringtrain.bench.sweep.plots import sweep_figure
from ringtrain.bench.sweep.sweep import Watcher
from ringtrain.collectives import catalogue as schedules
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.errors import ScheduleError, TransportError, UsageError
from ringtrain.show.figures import check_picture, write_picture
from ringtrain.storage.files import check_writable
from tests.bench.sweeps import QUICK, by, swept
from tests.loopback.world import ThreadHandle, ThreadTransport
from tests.says import says

pytestmark = pytest.mark.usefixtures("short_streams")
OVER = {"mpi": "mpi", "mapped": "mapped", "routed": "mapped", "stream": "streamed"}  # on one node


@pytest.fixture(scope="module")
def result():
    return swept(3, pairs=True, sizes=(4, 100, 2000, 20_000))


def children() -> set[str]:
    pids = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended since
            pids.update((task / "children").read_text().split())
    return pids


def test_busy_processes_run_beside_what_is_measured_and_end_with_it():
    before, seen = children(), []

    def measured(rows):
        seen.append([Path(f"/proc/{pid}/cmdline").read_text() for pid in children() - before])

    header = swept(watcher=Watcher(measured=measured), protocol=replace(QUICK, beside=2), algorithms=["mpi"]).header
    assert [len(busy) for busy in seen] == [2, 2] and all("getppid" in line for busy in seen for line in busy)
    assert not children() - before
    assert says("2 busy processes").matches(tables.header_lines(header))


def test_every_row_has_every_column_and_figures_that_agree_and_the_header_says_how_and_where(result):
    assert len(result.rows) == len(ALGORITHMS) * 4
    for row in result.rows:
        assert tuple(row) == COLUMNS
        assert (row["status"], row["wrong"], row["ranks"]) == ("ok", 0, 3)
        assert row["transport"] == OVER.get(row["algorithm"], "messages")
        assert row["min_s"] <= row["p5_s"] <= row["median_s"] <= row["p95_s"] <= row["p99_s"]
        assert len(row["samples_s"]) == row["repeats"] == 3
        assert row["algbw_bytes_per_s"] == row["bytes"] / row["median_s"]
        assert row["busbw_bytes_per_s"] == pytest.approx(4 / 3 * row["algbw_bytes_per_s"])
        assert row["bound_share"] == row["bound_s"] / row["median_s"] > 0
        assert row["same_on_ranks"] and row["same_over_repeats"]
        assert (row["speedup"] is None) == (row["algorithm"] == "mpi")
    ring, star, mpi = (by(result.rows, algorithm=a, bytes=20_000)[0]["wire_bytes"] for a in ("ring", "star", "mpi"))
    assert abs(ring - 4 / 3 * 20_000) < 20 and star == 2 * 20_000 and mpi is None
    header = json.loads(json.dumps(result.header))
    assert (header["ranks"], header["nodes"], header["start"]) == (3, 1, "barrier")
    assert header["library"] == "3 threads of one process, no MPI"
    assert sum(header["hosts"].values()) == len(header["binding"]) == 3
    assert list(header["calibration"]["links"]) == ["inside a node"]
    assert {(row["first"], row["second"]) for row in header["pairs"]} == {(0, 1), (0, 2), (1, 2)}
    assert [set(group["models"]) for group in header["fits"]] == [set(ALGORITHMS)]
    assert header["transport"] == "threadtransport" and len(set(header["host_by_rank"])) == 1
    assert header["finished"] is True
    text = "\n".join(tables.header_lines(result.header))
    assert re.search(says("worst", "bandwidth"), text) and re.search(says("barrier"), text)


def test_links_are_calibrated_by_their_class_and_models_are_of_several_nodes():
    links = swept(4, nodes=2, sizes=(64,)).header["calibration"]["links"]
    assert list(links) == ["inside a node", "between nodes"]
    assert all(value > 0 for link in links.values() for value in link.values())
    alone = swept(1)
    assert alone.header["calibration"]["links"] == {} and {row["bound_share"] for row in alone.rows} == {0.0}
    assert tables.fit_lines(alone.header["fits"]) == []
    sizes = (4, 100, 2000, 20_000)
    (group,) = swept(4, nodes=2, algorithms=("mpi", "ring", "hierarchical"), sizes=sizes).header["fits"]
    work = {name: model["work"] for name, model in group["models"].items()}
    rounds = {name: (each["rounds"], each["rounds_between"]) for name, each in work.items()}
    assert rounds == {"mpi": (1, 1), "ring": (0, 6), "hierarchical": (2, 2)}
    text = "\n".join(tables.fit_lines([group]))
    assert "hierarchical: 2 x alpha " in text and " + 2 x local_alpha " in text
    assert re.search(says("1 size"), text)


def test_refusals_are_rows_with_a_reason():
    result = swept(2, dtypes=("bfloat16", "int32"), ops=("sum", "mean"), sizes=(64,))
    refused = by(result.rows, status="refused")
    assert {(row["algorithm"], row["dtype"], row["op"]) for row in refused} == {
        *(("mpi", "bfloat16", op) for op in ("sum", "mean")),
        *((name, "int32", "mean") for name in ALGORITHMS),
    }
    assert says("bits", "integers").matches(by(refused, dtype="bfloat16")[0]["reason"])
    assert by(refused, dtype="int32")[0]["reason"] == says("integers", "sum")
    assert all(tuple(row) == COLUMNS and row["median_s"] is row["transport"] is None for row in refused)
    assert tables.row_line(refused[0]).endswith("refused: " + refused[0]["reason"])
    assert all(row["wrong"] == 0 for row in by(result.rows, status="ok"))


def test_a_schedule_joins_by_being_in_the_catalogue_and_what_cannot_be_done_is_refused(monkeypatch):
    def fussy(topology):
        raise ScheduleError(f"fussy has no schedule for {topology.size} ranks")

    def unknown(self, span, op="sum"):
        raise KeyError("e")

    monkeypatch.setitem(schedules.SCHEDULES, "fussy", fussy)
    monkeypatch.setitem(schedules.SCHEDULES, "another", lambda topology: make_schedule("ring", topology))
    monkeypatch.setattr("tests.loopback.world.ThreadTransport.native_allreduce", unknown)
    rows = swept(2, algorithms=("mpi", "fussy", "another"), dtypes=("float16",), sizes=(64,)).rows
    assert [(row["algorithm"], row["status"], row["wrong"]) for row in rows] == [
        ("mpi", "refused", None), ("fussy", "refused", None), ("another", "ok", 0)
    ]  # fmt: skip
    assert rows[0]["reason"] == "MPI does not reduce float16 by sum: 'e'"
    assert rows[1]["reason"] == "fussy has no schedule for 2 ranks"
    assert rows[2]["speedup"] is None


def test_what_is_no_schedule_has_a_row_a_model_and_a_transport_of_its_own_and_a_rival_too(monkeypatch):
    class Shared(catalogue.NativeAllReduce):
        """Nobody tells what it sends."""

        algorithm = transport = "shared"

    def prepare(transport, buffer, algorithm, combine, **how):
        if algorithm == "shared":
            return Shared(transport, buffer, how["op"])
        if algorithm == "windows":
            raise TransportError("shared memory cannot be had here")
        return make(transport, buffer, algorithm, combine, **how)

    make = catalogue.make_allreduce
    monkeypatch.setattr(catalogue, "make_allreduce", prepare)
    result = swept(4, algorithms=("mpi", "ring", "shared", "windows"), sizes=(64, 2000))
    shared, windows = (by(result.rows, algorithm=name)[0] for name in ("shared", "windows"))
    assert (shared["status"], shared["transport"], shared["wire_bytes"]) == ("ok", "shared", None)
    assert (windows["status"], windows["reason"]) == ("refused", "shared memory cannot be had here")
    assert result.header["fits"][0]["models"]["shared"]["work"]["sent"] == 1.5
    assert " shared " in tables.row_line(shared)

    def by_the_transport(job):
        return lambda: job.transport.native_allreduce(job.target, "sum")

    asked = {"algorithms": ("ring", "rival"), "ops": ("mean",)}
    for row in by(swept(2, baselines={"rival": by_the_transport}, **asked).rows, algorithm="rival"):
        assert (row["status"], row["wrong"], row["wire_bytes"]) == ("ok", 0, None)
        assert row["transport"] == "rival"


def test_a_spent_budget_leaves_three_repetitions():
    protocol = Protocol(repeats=50, warm_up=0, budget_s=0.0, cold_bytes=1 << 16)
    rows = swept(2, sizes=(64,), protocol=protocol, checked=False).rows
    assert {(row["repeats"], row["wrong"], row["same_on_ranks"]) for row in rows} == {(3, None, None)}
    (column,) = (column for column in tables.COLUMNS if column.title == "#wrong")
    assert column.text(rows[0]) == "-"


def test_rows_are_told_as_they_come():
    measured, progress = [], []
    watcher = Watcher(measured=measured.append, progress=lambda *at: progress.append(at))
    result = swept(2, watcher=watcher, sizes=(4, 20_000))
    assert measured == [result.rows[: len(ALGORITHMS)], result.rows[len(ALGORITHMS) :]]
    assert ("20,000 bytes of float32", 2, 3) in progress


def test_wrong_rows_are_marked_and_complained_of(monkeypatch):
    def silent(self, span, op="sum"):
        """Leaves every rank with its own contribution."""

    monkeypatch.setattr("tests.loopback.world.ThreadTransport.native_allreduce", silent)
    rows = swept(2, sizes=(4000,)).rows
    (row,) = by(rows, algorithm="mpi")
    assert row["status"] == "wrong" and row["wrong"] > 5000 and not row["same_on_ranks"]
    assert gates.wrong(rows) == [f"mpi 4,000 B float32 sum in place: {row['wrong']:,} wrong elements"]


def test_what_is_beyond_memory_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr("ringtrain.bench.model.bounds.calibrate", None)  # nothing may have begun
    with pytest.raises(UsageError, match=says("1.074e+09 GiB", "1 rank")):
        swept(1, sizes=(1 << 60,))


def test_files_hold_what_was_measured_and_are_written_whole(result, tmp_path):
    files.write_json(tmp_path / "a.json", result.header, result.rows)
    assert files.read_json(tmp_path / "a.json")["rows"] == result.rows
    files.write_csv(tmp_path / "a.csv", result.rows)
    with open(tmp_path / "a.csv") as file:
        lines = list(csv.DictReader(file))
    assert [line["algorithm"] for line in lines] == [row["algorithm"] for row in result.rows]
    assert float(lines[1]["median_s"]) == result.rows[1]["median_s"]
    assert "samples_s" not in lines[0]
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("")
    link.symlink_to(real)
    files.write_json(link, {}, [])
    with pytest.raises(TypeError):
        files.write_json(link, {"a": object()}, [])
    assert link.is_symlink() and files.read_json(real) == {"header": {}, "rows": []}
    assert sorted(tmp_path.iterdir())[2:] == [link, real]
    files.write_csv("/dev/null", [])
    assert not Path("/dev/null").is_file()


def test_a_path_is_tried_and_left_as_it_was(tmp_path):
    (tmp_path / "old.json").write_text("kept")
    (tmp_path / "link.json").symlink_to("later.json")
    for name in ("new.json", "old.json", "link.json"):
        check_writable(tmp_path / name)
    assert {each.name for each in tmp_path.iterdir()} == {"old.json", "link.json"}
    assert (tmp_path / "old.json").read_text() == "kept" and (tmp_path / "link.json").is_symlink()
    with pytest.raises(UsageError, match=says("written", "folder")):
        check_writable(tmp_path / "none" / "a.json")
    for path, problem in ((tmp_path, "Is a directory"), (tmp_path / ("n" * 300), "File name too long")):
        with pytest.raises(UsageError, match=problem):
            check_writable(path)
    with pytest.raises(UsageError, match=r"none\.json .*No such file or directory"):
        files.read_json(tmp_path / "none.json")


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plot(result, tmp_path, ending):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"a.{ending}"
    check_picture(path)
    write_picture(partial(sweep_figure, result.header, result.rows), path)
    assert path.stat().st_size > 5000
    with pytest.raises(UsageError, match=says("--plot", "'pmg'", "did you mean 'png'?")):
        check_picture(tmp_path / "a.pmg")
    for rows in ([], by(result.rows, algorithm="ring") + by(result.rows, algorithm="tree")):
        write_picture(partial(sweep_figure, result.header, rows), path)


def slower(rows, factor):
    return [{**row, "samples_s": [factor * s for s in row["samples_s"]]} for row in rows]


def test_what_is_slower_or_too_slow_beyond_doubt_is_told(result):
    ring = by(result.rows, algorithm="ring")
    assert gates.regressions(ring, ring, 0.05) == []
    steady = [{**row, "samples_s": [1.0, 1.01, 1.02]} for row in ring]
    assert gates.regressions(steady, slower(steady, 1.04), 0.05) == []
    regressions = gates.regressions(steady, slower(steady, 1.2), 0.05)
    assert len(regressions) == len(ring) and re.search(says("1.20"), regressions[0])
    noisy = [{**row, "samples_s": [0.1, 1.2, 9.0]} for row in ring]
    assert gates.regressions(noisy, [{**row, "samples_s": [0.1, 1.3, 9.0]} for row in ring], 0.05) == []
    gone = {**ring[0], "transport": None, "status": "refused", "reason": "there is no window"}
    assert gates.regressions(ring[:1], [gone], 0.05) == [
        "ring 4 B float32 sum in place: was ok, is refused: there is no window"
    ]
    with pytest.raises(UsageError, match=says(1, "Compare", "placements")):  # nothing to compare
        gates.regressions(result.rows[:1], result.rows[1:2], 0.05)
    ring = by(result.rows, algorithm="ring")
    best = max(row["busbw_bytes_per_s"] for row in ring)
    assert gates.too_slow(ring, best) == []
    assert gates.too_slow(ring, 2 * best)[0].startswith("ring: busbw of at most ")
    assert gates.too_slow([{**ring[0], "status": "refused", "busbw_bytes_per_s": None}], 1.0) != []


@pytest.mark.parametrize("passes", [1, 2])
def test_what_was_prepared_is_given_back(monkeypatch, passes):
    """Large sweeps hold the messages of one size at a time."""
    prepared, freed, recvs = [], [], ThreadTransport.recvs

    def noted(self, moves, tag):
        prepared.append(recvs(self, moves, tag))
        return prepared[-1]

    monkeypatch.setattr(ThreadTransport, "recvs", noted)
    monkeypatch.setattr(ThreadHandle, "free", lambda handle: freed.append(handle))
    names = ("mpi", "auto", "ring", "routed")
    assert {row["status"] for row in swept(4, nodes=2, algorithms=names, passes=passes).rows} == {"ok"}
    calibrating = len(names)  # its tag
    trials = {handle for handle in prepared if handle._tag != calibrating}
    assert trials and trials <= set(freed) and len(freed) == len(set(freed))
