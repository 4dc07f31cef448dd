"""``--trace``: what is seen of an iteration, in which order, and that nothing is in the way outside of the window."""

import itertools
import json
from functools import partial

import click
import pytest
from click.testing import CliRunner
from small_runs import BATCH_NORM_NET, everywhere, fake_gpu, iterate, run_of

from ringtrain.cli.options import explicit_flags, train_flags
from ringtrain.config.resolve import resolve
from ringtrain.errors import ConfigError, DivergedError, UsageError
from ringtrain.report.trace import DEVICE, LOOP, path_of
from ringtrain.train.run import tracing
from ringtrain.train.run.tracing import Tracer, window_of
from tests.says import says

COUNT = 5


def traced(tmp_path, size=2, device=False, first=2, stop=4, **flags):
    """The document that rank 0 writes of iterations ``first:stop``; and what it had written before ranks met."""
    path = tmp_path / "trace.json"

    def body(t):
        end, ops = fake_gpu(t, device)
        run, _ = run_of(end, BATCH_NORM_NET, ops, iterations=COUNT, bucket_bytes=500, **flags)
        tracing = Tracer(run.worker, end, range(first, stop), path if t.rank == 0 else None)
        tracing.align()
        iterate(run, end, 0, COUNT)
        run.exchange.synchronize()
        alone = json.loads(path.read_text()) if t.rank == 0 and stop < COUNT else None
        tracing.write_all()
        hooks = run.worker.hooks
        assert hooks.perform == run.worker.run and hooks.grad_ready == run.exchange.grad_ready
        return alone

    alone = everywhere(size, body)[0]
    return json.loads(path.read_text()), alone


def slices(document, rank=0, track=None):
    """(name, start, stop) of a rank, of one track or all."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    return [
        (e["name"], e["ts"], e["ts"] + e["dur"])
        for e in document["traceEvents"]
        if e["ph"] == "X" and e["pid"] == rank and track in (None, names[rank, e["tid"]])
    ]


def named(slices, name):
    return [(start, stop) for other, start, stop in slices if other == name]


def test_buckets_travel_while_backward_runs(tmp_path):
    document, _ = traced(tmp_path, algorithm="ring")
    for rank in (0, 1):
        loop = slices(document, rank, LOOP)
        (backward, _), (update, _) = named(loop, "backward"), named(loop, "update")
        assert [name for name, *_ in loop if name.startswith("iteration")] == ["iteration 3", "iteration 4"]
        starts = [named(slices(document, rank), f"gradients {place}")[0][0] for place in range(2)]
        assert backward[0] < starts[0] < starts[1] < backward[1] < update[0]
        (conv1, _), (fc, _) = named(loop, "backward conv1"), named(loop, "backward fc")
        assert fc[1] < starts[0] < conv1[0] < starts[-1]  # fc's left before conv1 was computed
    about = next(e["args"] for e in document["traceEvents"] if e["name"] == "gradients 0" and e["ph"] == "X")
    assert about["algorithm"] == "ring" and about["bytes"] >= 500 and about["sent"] == about["bytes"]
    assert (about["first"], about["last"]) == ("fc.weight", "fc.bias")
    document, _ = traced(tmp_path, algorithm="ring", overlap="none")  # without overlap they travel in the update
    (update, _) = named(slices(document, 0, LOOP), "update")
    started = named(slices(document), "gradients 0")[0][0]
    assert update[0] < started < update[1]


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize(
    "flags", [{"overlap": "forward"}, {"sync": "sharded"}, {"sync": "delayed", "accumulate": 2}, {"sync": "gossip"}]
)
def test_on_a_track_times_nest(tmp_path, flags, device):
    document, _ = traced(tmp_path, device=device, **flags)
    tracks = {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["ph"] == "X"}
    assert tracks
    for pid, tid in tracks:
        events = [e for e in document["traceEvents"] if e["ph"] == "X" and (e["pid"], e["tid"]) == (pid, tid)]
        assert all(e["dur"] > 0 for e in events)
        for a, b in itertools.combinations([(e["ts"], e["ts"] + e["dur"]) for e in events], 2):
            apart, within = a[1] <= b[0] + 0.01, b[1] <= a[1] + 0.01
            assert apart or within, (a, b)  # events are in the order of their starts


def test_a_device_has_times_of_its_own(tmp_path):
    document, _ = traced(tmp_path, device=True)
    values = slices(document, 1, DEVICE)
    names = {name for name, *_ in values}
    assert {"load", "forward fc", "backward fc", "backward norm1", "update"} <= names
    in_order = [named(values, name)[0] for name in ("forward fc", "backward fc", "backward norm1")]
    for before, after in itertools.pairwise(in_order):
        assert before[1] <= after[0] + 0.01  # an end is a sum of two rounded numbers of microseconds
    assert DEVICE not in {e["args"].get("name") for e in traced(tmp_path)[0]["traceEvents"]}


def test_rank_0_has_written_its_own_before_ranks_meet(tmp_path):
    document, alone = traced(tmp_path, first=1, stop=3)
    assert {e["pid"] for e in alone["traceEvents"]} == {0}
    assert slices(alone) == slices(document) and {e["pid"] for e in document["traceEvents"]} == {0, 1}
    document, _ = traced(tmp_path, first=50, stop=60)  # which the run does not reach
    assert not slices(document) and not slices(document, 1)


@pytest.mark.parametrize("flags", [{"sync": "server", "asynchronous": True}, {"fc": "pipeline"}])
def test_other_ways_to_train_are_traced_as_far_as_they_are_seen(tmp_path, flags):
    document, _ = traced(tmp_path, size=2 if "fc" in flags else 1, **flags)
    assert {name for name, *_ in slices(document, 0, LOOP)} >= {"iteration 3", "update"}


@pytest.mark.parametrize("alone", [False, True], ids=["ranks of hosts", "a device alone, which replays the others"])
def test_a_traced_run_learns_the_same(alone):
    def body(t, window):
        t, ops = fake_gpu(t, alone)
        run, ops = run_of(t, BATCH_NORM_NET, ops, iterations=COUNT, overlap="forward")
        tracing = Tracer(run.worker, t, range(*window), None)
        tracing.align()
        iterate(run, t, 0, COUNT)
        run.exchange.synchronize()
        return run.arena.hash(ops)

    size = 1 if alone else 2
    assert everywhere(size, lambda t: body(t, (1, 4))) == everywhere(size, lambda t: body(t, (9, 9)))


# ── what is asked for ─────────────────────────────────────────────────────────────────────────────────────────────────
def config(**flags):
    return resolve(("flags", flags))


def test_windows(tmp_path):
    assert window_of(config(trace="t.json").run, 0) == range(5, 8) and window_of(config().run, 100) == range(105, 108)
    assert path_of("t.json", tmp_path) == tmp_path / "t.json"
    assert str(path_of("./t.json", tmp_path)) in ("t.json", str(tmp_path / "t.json"))
    assert str(path_of("a/t.json", tmp_path)) == "a/t.json"
    for name in (".", "..", "a/.."):
        with pytest.raises(ConfigError, match=says("--trace")):
            window_of(config(trace=name).run, 0)


def test_a_flag_without_a_value_is_a_file_in_the_run_folder():
    seen = {}
    command = click.command()(train_flags(lambda **flags: seen.update(explicit_flags(flags))))
    for arguments in (["--trace", "--batch", "3"], ["--trace", "x/y.json"]):
        done = CliRunner().invoke(command, arguments)
        assert done.exit_code == 0, done.output
        values = seen["trace"]
        assert values == ("trace.json" if "--batch" in arguments else "x/y.json")


# ── a run ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def train(train, folder):
    (folder / "net.toml").write_text(BATCH_NORM_NET)
    return partial(train, out="run")


def test_a_run_leaves_its_trace_and_says_so(train, tmp_path, capsys):
    """Or that it ended before; a file that cannot be written is told before the run."""
    train(iterations=9, trace="trace.json")
    path = tmp_path / "run" / "trace.json"
    names = [name for name, *_ in slices(json.loads(path.read_text()), 0, LOOP)]
    assert [name for name in names if "iteration" in name] == ["iteration 6", "iteration 7", "iteration 8"]
    output = "".join(capsys.readouterr().out.split())
    assert "thetraceisin" in output and "openitathttps://ui.perfetto.dev" in output
    train(out="short", iterations=2, trace="trace.json")
    assert says(6, "traced", "asked").matches(capsys.readouterr().out)
    with pytest.raises(UsageError, match=r"nowhere/trace\.json\.part: No such file or directory"):
        train(out="none", iterations=2, trace=str(tmp_path / "nowhere" / "trace.json"))


def test_a_run_that_fails_leaves_what_was_traced(train, tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "WINDOW", (1, 30))
    with pytest.raises(DivergedError):
        train(iterations=30, trace="trace.json", lr=1e9)
    values = json.loads((tmp_path / "run" / "trace.json").read_text())
    assert "backward" in {name for name, *_ in slices(values, 0, LOOP)}
