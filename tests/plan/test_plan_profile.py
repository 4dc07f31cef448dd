"""Profiles of scripts as input of plans."""

import json

import pytest

from ringtrain.cli.plan import plan
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.plan.exchange_times import ExchangeTimes
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.prediction import PlanSettings, predict
from ringtrain.train.start.script_profile import PROFILE, StepTimes, profile_of
from tests.cli_calls import call
from tests.plan.plan_files import sweep_file
from tests.says import says

SHAPES = {"module.update.weight": (1024, 1024), "module.b.weight": (1024, 512), "module.b.bias": (8,)}
FACTS = {"batch": 32, "ranks": 1, "host_by_rank": ["n1"], "host_cores": 2, "peak_bytes": 1 << 25}
BUCKETS = [(4 * (1024 * 512 + 8), ["module.b.bias", "module.b.weight"]), (1 << 22, ["module.update.weight"])]


def module(model="Net", **header):
    """A module with the optimizer's state of one array."""
    held_bytes = 3 * 4 * (1024 * 1024 + 1024 * 512 + 16)
    header = {"model": model, "dtype": "float32", "threads": 1, "move_s": 1e-4, "held_bytes": held_bytes} | header
    buckets = [{"bytes": nbytes, "parameters": names} for nbytes, names in BUCKETS]
    return {"header": header, "parameters": SHAPES, "buckets": buckets}


def steps(count, slow=1.0, waits=0.0):
    """Steps of 1 s input, 2 s forward, 3 s to layer b, 5 s to the first, 1 s of the script's own, 4 s update, in ms."""
    now = [0.0]
    times = StepTimes(3, lambda: now[0])

    def after(seconds):
        now[0] += 1e-3 * slow * seconds

    for number in range(1 + count):
        after(1.0 if number > 5 else 50.0)  # steps before the median are slow
        times.forward()
        after(2.0)
        times.backward()
        after(2.0)
        times.ready(2)
        after(1.0)
        times.ready(1)
        after(5.0)
        times.ready(0)
        after(1.0)
        now[0] += waits
        times.update()
        after(4.0)
        times.updated()
        times.step((number + 1) * waits)
    return times


def profile(folder, *of_ranks, described=None, **facts):
    folder.mkdir(exist_ok=True)
    content = profile_of(described or module(), [each.medians() for each in of_ranks], FACTS | facts)
    (folder / PROFILE).write_text(json.dumps(content))
    return str(folder / PROFILE)


def test_a_step_is_divided_at_its_moments_and_waits_are_left_out():
    for waits in (0.0, 0.25):
        medians = steps(20, waits=waits).medians()
        assert medians["steps"] == 10
        assert medians["ready_s"] == pytest.approx([8e-3, 3e-3, 2e-3])
        assert [medians[f"{name}_s"] for name in ("iteration", "input", "forward", "update")] == pytest.approx(
            [16e-3, 1e-3, 2e-3, 4e-3]
        )
    assert steps(0).medians() is None and steps(1).medians()["steps"] == 1


def test_several_backward_passes_of_a_step_and_a_parameter_that_none_reaches():
    now = [0.0]
    times = StepTimes(2, lambda: now[0])
    for _ in range(2):
        for moment in (times.forward, times.backward, lambda: times.ready(0)) * 2:
            now[0] += 1.0
            moment()
        times.step(0.0)
    medians = times.medians()
    assert (medians["input_s"], medians["forward_s"], medians["ready_s"]) == (1.0, 4.0, [1.0, 1.0])


def test_a_plan_has_the_parts_of_the_slowest_rank_and_its_buckets(tmp_path):
    path = profile(tmp_path, steps(20), steps(20, slow=2.0), ranks=2, host_by_rank=["n1", "n1"], batch=64)
    layers = LayerTimes([path])
    times = layers.of_rank(32, 2)
    assert [(each.name, each.forward_s + each.backward_s) for each in times.layers] == [
        ("forward", pytest.approx(4e-3)),
        ("module.update", pytest.approx(10e-3)),
        ("module.b", pytest.approx(6e-3)),
    ]
    assert (times.update_s, times.beside_s) == (pytest.approx(8e-3), pytest.approx(4e-3))
    assert layers.state_arrays == 1 and layers.itemsize == 4
    plain, engine = ExchangeConfig(), ExchangeConfig(sync="averaging")
    buckets = layers.buckets(plain, plain.bucket_bytes)
    assert [[span.name for span in bucket.spans] for bucket in buckets] == [
        ["module.b.bias", "module.b.weight"],
        ["module.update.weight"],
    ]
    assert buckets[0].nbytes == 4 * (1024 * 512 + 8)
    assert len(layers.buckets(engine, plain.bucket_bytes)) == 1 and len(layers.buckets(plain, 1 << 21)) == 2


def test_a_plan_of_a_profile_predicts_each_strategy(tmp_path):
    """One all-reduce takes 1 ms and a second a GB; the first bucket's travels beside backward, the second's waits."""
    layers = LayerTimes([profile(tmp_path, steps(20))])
    exchanges = ExchangeTimes(sweep_file(tmp_path))
    names = "allreduce", "sharded", "averaging", "gossip"
    configs = [ExchangeConfig(sync=name, average_every=2) for name in names]
    settings = PlanSettings(32, weak=True, per_node=2)
    rows = predict(layers, exchanges, [1, 2], configs, [], settings)
    alone, plain = rows[0], rows[4]
    assert alone.step_s == pytest.approx(16e-3) and plain.compute_s + plain.update_s == pytest.approx(16e-3)
    assert 0.004 < plain.exposed_s < 0.010
    assert [row.strategy.split()[0] for row in rows[4:]] == list(names)
    assert rows[5].algorithm == "star" and rows[5].update_s == pytest.approx(2e-3)  # owners of whole parameters


def test_threads_of_a_rank_take_cores(tmp_path):
    layers = LayerTimes([profile(tmp_path, steps(20), described=module(threads=2))])
    assert layers.of_rank(32, 2).update_s == pytest.approx(8e-3)
    assert any("2 threads" in note for note in layers.notes)


def test_the_command_reads_run_folders_and_refuses_what_is_none(tmp_path):
    profile(tmp_path / "run", steps(20))
    sweep = sweep_file(tmp_path)
    asked = ("--fabric", sweep, "-n", "1,2", "--weak")
    code, output = call(plan, "--profile", tmp_path / "run", *asked, "--json", tmp_path / "p.json")
    assert code == 0, output
    rows = json.loads((tmp_path / "p.json").read_text())["rows"]
    assert "Net, batch 32" in output and {row["strategy"] for row in rows} >= {"allreduce", "sharded", "server"}
    for arguments, message in (
        (("--profile", tmp_path / "no"), says("profile.json", "--profile")),
        (("mlp", "--profile", tmp_path / "run"), says("MODEL", "--profile")),
        ((), says("--layers", "--profile")),
        (("--profile", tmp_path / "run", "--sync", "master"), says("--sync master", "script")),
        (("--profile", tmp_path / "run", "--profile", profile_of_other(tmp_path)), says("Other")),
    ):
        assert call(plan, *arguments, *asked) == (2, message)


def profile_of_other(folder):
    profile(folder / "other", steps(20), described=module("Other"))
    return folder / "other"
