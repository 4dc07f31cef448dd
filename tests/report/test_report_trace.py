"""Traces in Chrome's format: what viewers rely on."""

import json

from ringtrain.report.trace import DEVICE, LOOP, Slice, trace_document, write_trace


def slices():
    return [
        Slice("gradients 0", "gradients 0", 4000, 9000, {"bytes": 64}),
        Slice(LOOP, "inner", 2000, 3000),
        Slice(DEVICE, "forward", 2500, 5500),
        Slice(LOOP, "outer", 2000, 8000),
    ]


def test_every_rank_is_a_process_whose_tracks_have_names():
    events = trace_document({0: slices(), 3: [Slice(LOOP, "load", 0, 1500)]})["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(0, 0): LOOP, (0, 1): DEVICE, (0, 2): "gradients 0", (3, 0): LOOP}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["rank 0", "rank 3"]


def test_times_are_microseconds_and_what_is_within_comes_later():
    events = [e for e in trace_document({1: slices()})["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in events] == [
        ("outer", 2, 6, 0), ("inner", 2, 1, 0), ("forward", 2.5, 3, 1), ("gradients 0", 4, 5, 2),
    ]  # fmt: skip
    assert events[-1]["args"] == {"bytes": 64} and {e["pid"] for e in events} == {1}


def test_a_file_is_whole_or_the_one_before(tmp_path):
    path = tmp_path / "trace.json"
    write_trace(path, {})
    assert json.loads(path.read_text())["traceEvents"] == []
    write_trace(path, {0: slices()})
    assert len(json.loads(path.read_text())["traceEvents"]) == 2 + 2 * 3 + 4
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
