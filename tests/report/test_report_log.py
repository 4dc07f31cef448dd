import json
import math
import os
import resource
from dataclasses import asdict

import pytest

from ringtrain.errors import RingtrainError
from ringtrain.report.events import CheckpointSaved, Failed, record
from ringtrain.report.records import parse_record
from ringtrain.report.sinks import JsonLines, Sink, SinkGroup, is_log
from tests.report.conftest import OTHERS, RANKS, ended, epoch, exchanged, iteration, logged, run
from tests.says import says


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_record_is_the_kind_and_all_fields():
    for kind, event in (("iteration", iteration()), ("end", ended())):
        assert record(event) == {"event": kind, **asdict(event)}


def test_what_is_not_finite_is_null(tmp_path):
    logged(tmp_path / "log", *(iteration(loss=loss) for loss in (math.nan, math.inf, -math.inf)))
    assert (tmp_path / "log").read_text().count('"loss": null') == 3


def test_a_name_in_any_script_in_a_log_that_others_may_read(tmp_path):
    before = os.umask(0o022)
    logged(tmp_path / "log", run(model="größer\n二"))
    os.umask(before)
    assert lines(tmp_path / "log")[0]["model"] == "größer\n二"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o644


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────
def test_each_event_is_in_the_file_at_once(tmp_path):
    log = JsonLines(tmp_path / "log")
    for count, event in enumerate([run(), iteration(), *OTHERS, ended()], start=1):
        log.handle(event)
        assert len(lines(tmp_path / "log")) == count
    log.close()
    log.close()
    kinds = [line["event"] for line in lines(tmp_path / "log")]
    assert kinds == ["start", "iteration", "compiled", "evaluation", "note", "end"]


@pytest.mark.parametrize(("resumed_at", "kept"), [(4, 7), (3, 6), (2, 5), (1, 2), (0, 1), (9, 7)])
def test_a_resumed_log_has_no_record_twice(tmp_path, resumed_at, kept):
    path = tmp_path / "log"
    one, two, three, four = (iteration(iteration=k) for k in range(1, 5))
    saved = CheckpointSaved(path="a.h5", iteration=2, seconds=0.1)
    ends = (exchanged(iteration=4), RANKS, Failed(error="DivergedError", text=""), ended())
    logged(path, run(), one, two, epoch(iteration=2), saved, three, four, *ends)
    before = lines(path)
    logged(path, run(resumed_at=resumed_at), iteration(iteration=resumed_at + 1), resumed_at=resumed_at)
    after = lines(path)
    assert after[:kept] == before[:kept]
    assert [line["event"] for line in after[kept:]] == ["start", "iteration"]


@pytest.mark.parametrize(
    "torn", [b'{"event": "iterat', b'{"event": "note", "text": "x"}', b"\xff\xfe\n", b"[1]\n", b"{}\n"]
)
def test_a_resumed_log_leaves_out_a_torn_line(tmp_path, torn):
    path = tmp_path / "log"
    logged(path, iteration(iteration=1))
    with open(path, "ab") as log:
        log.write(torn)
    logged(path, iteration(iteration=2), resumed_at=1)
    assert [line["iteration"] for line in lines(path)] == [1, 2]


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(
    "spoil",
    [
        lambda line: line.replace(b'"iteration": ', b'"iteration": 9'),
        lambda line: line.replace(b'"iteration": ', b'"iterbtion": '),
        lambda line: line.replace(b"\n", b" "),
        lambda line: b"\0" * len(line),
        lambda line: b"[" * 100_000 + b"\n",
    ],
)
def test_a_line_that_a_disk_has_changed_costs_no_other(tmp_path, place, spoil):
    path = tmp_path / "log"
    logged(path, *(iteration(iteration=k) for k in range(1, 9)))
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(spoil(line) if k == place else line for k, line in enumerate(whole)))
    logged(path, iteration(iteration=6), resumed_at=5)
    left = [line for line in path.read_bytes().splitlines(keepends=True) if line in whole]
    assert len(left) >= 4 and left[-1] == whole[5] and whole[6] not in left


def test_records_of_lists_are_looked_into():
    whole = record(exchanged())
    assert whole["buckets"][1] == asdict(exchanged().buckets[1])
    assert parse_record(json.dumps(whole).encode() + b"\n")
    whole["buckets"][0]["nbytes"] = "many"
    assert parse_record(json.dumps(whole, default=str).encode() + b"\n") is None


def test_a_file_of_something_else_is_no_log(tmp_path):
    path = tmp_path / "log"
    assert is_log(path)
    for text, answer in (("", True), ("mine\n", False)):
        path.write_text(text)
        assert is_log(path) == answer
    logged(path, iteration())
    assert is_log(path)


def test_a_new_run_and_one_that_is_resumed_elsewhere_have_a_new_log(tmp_path):
    logged(tmp_path / "log", iteration(iteration=8), resumed_at=7)
    assert len(lines(tmp_path / "log")) == 1
    logged(tmp_path / "log", iteration(), iteration())
    logged(tmp_path / "log", iteration())
    assert len(lines(tmp_path / "log")) == 1


def test_a_full_disk_is_told_once_and_what_is_missing_is_noted_when_there_is_room(tmp_path):
    warnings, path = [], tmp_path / "log"
    log = JsonLines(path, warn=warnings.append)
    log.handle(iteration(iteration=1))
    whole = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 20, hard))  # room for a part of a line
    for k in (2, 3):
        log.handle(iteration(iteration=k))
        assert path.read_bytes() == whole
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert warnings == [says(path, "No space left on device")]
    log.handle(iteration(iteration=4))
    log.close()
    assert [line["event"] for line in lines(path)] == ["iteration", "note", "iteration"]
    assert lines(path)[1]["text"] == says("2 records")
    assert len(warnings) == 1


def test_a_disk_that_is_full_to_the_end_is_told_of_at_the_end(tmp_path, monkeypatch):
    warnings, path = [], tmp_path / "log"
    log = JsonLines(path, warn=warnings.append)
    monkeypatch.setattr(os, "write", lambda file, piece: 0)  # there is room for nothing
    log.handle(iteration())
    log.handle(iteration())
    log.close()
    log.close()
    assert warnings[1:] == [says(path, "2 records")]


def test_a_log_that_cannot_be_opened(tmp_path):
    path = tmp_path / "none" / "log"
    with pytest.raises(RingtrainError, match=says("--resume", path, "No such file or directory")):
        JsonLines(path)


# ── several ───────────────────────────────────────────────────────────────────────────────────────────────────
class Notebook(Sink):
    def __init__(self, fails=False):
        self.seen, self.closed, self._fails = [], 0, fails

    def handle(self, event):
        self.seen.append(event)

    def close(self):
        self.closed += 1
        if self._fails:
            raise OSError("broken")


def test_all_sinks_see_the_same_and_are_closed_where_one_fails():
    one, other = Notebook(), Notebook(fails=True)
    many = SinkGroup([one, other])
    many.handle(iteration())
    with pytest.raises(OSError, match="broken"):
        many.close()
    assert one.seen == other.seen == [iteration()]
    assert one.closed == other.closed == 1
    none = SinkGroup([])
    none.handle(iteration())
    none.close()
