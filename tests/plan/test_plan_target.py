"""The time to a target, from curves whose iterations are known and a link whose rate is: which strategy is the first
where, when, and what no curve says."""

import csv
import json
from dataclasses import replace

import pytest
from plan_files import layers_file, sweep_file

from ringtrain.cli.plan import plan
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import UsageError
from ringtrain.plan.exchange_times import ExchangeTimes
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.prediction import PlanSettings, predict
from ringtrain.plan.target_times import PLAN_ERROR, at_ranks, read_curves, target_rows
from ringtrain.report.comparison.logs import read_run
from ringtrain.report.comparison.target import parse_target
from tests.cli_calls import call
from tests.report.conftest import ENDED, EPOCH, ITERATION, RUN
from tests.run_folders import make_run
from tests.says import says

EVERY = 10  # iterations between two tests
LOSS = parse_target("loss 1.0")


def events(losses, tested=True, **start):
    """The events of a run with these losses, one every EVERY iterations."""
    changed = {"model": "mlp", "ranks": 2, "nodes": 2, **start}
    iterations = [EVERY * (k + 1) for k in range(len(losses))]
    trained = [replace(ITERATION, iteration=at, loss=loss) for at, loss in zip(iterations, losses, strict=True)]
    tests = [replace(EPOCH, iteration=at, test_loss=loss) for at, loss in zip(iterations, losses, strict=True)]
    return [replace(RUN, **changed), *trained, *(tests if tested else []), replace(ENDED, iterations=iterations[-1])]


@pytest.fixture
def runs(tmp_path):
    """All-reduce gets there in 20 iterations (10 and 20 by seed); averaging in 40; delayed never does."""
    top = tmp_path / "runs"
    for seed, losses in ((1, [2.0, 0.9, 0.5]), (2, [1.0, 0.8, 0.5]), (3, [2.0, 1.0, 1.5])):
        make_run(top / f"sum-seed-{seed}", events(losses, seed=seed), model="mlp", seed=seed)
    averaging = {"model": "mlp", "sync": "averaging", "average_every": 16}
    make_run(top / "mean", events([2.0, 1.5, 1.25, 0.75], exact=False), **averaging)
    make_run(top / "late", events([2.0, 2.5], exact=False), model="mlp", sync="delayed")
    make_run(top / "free", events([0.5], exact=False), model="mlp", sync="server", staleness=3)
    make_run(top / "turns", events([0.5]), model="mlp", compress="top-k", compress_from=20)
    return top


@pytest.fixture
def files(tmp_path):
    """Of a link of about a gigabyte a second."""
    slow = sweep_file(tmp_path, ("n1", "n2"), lambda name, nbytes: 1e-9 * nbytes)
    return ["--layers", layers_file(tmp_path), "--fabric", slow]


def test_a_score_by_its_name_and_the_first_iteration_with_it(tmp_path):
    run = read_run(make_run(tmp_path / "run", events([2.0, 1.0, 0.5])), "run")
    untested = read_run(make_run(tmp_path / "untested", events([2.0, 0.75], tested=False)), "untested")
    reached = [
        (text, parse_target(text).reached(run)) for text in ("loss 1.5", "test-loss 0.5", "train_loss 2", "loss 0")
    ]
    assert reached == [("loss 1.5", 20), ("test-loss 0.5", 30), ("train_loss 2", 10), ("loss 0", None)]
    assert parse_target("accuracy 87.5%").reached(run) == 10 and parse_target("accuracy 0.9").reached(run) is None
    assert (
        LOSS.reached(untested) == 20
        and LOSS.best(untested) == 0.75
        and parse_target("test_loss 9").best(untested) is None
    )
    assert parse_target("perplexity 3").is_falling and not parse_target("mean_iou 0.3").is_falling
    for text, words in (
        ("lose 1", ("lose", "loss")),
        ("loss", ("loss", "number")),
        ("accuracy 90", ("fraction", "95%")),
    ):
        with pytest.raises(UsageError, match=says("--target", text, *words)):
            parse_target(text)


def test_curves_over_seeds_and_runs_that_cannot_be_repeated(runs):
    curves, notes = read_curves(runs, "mlp", LOSS)
    iterations = {curve.name: curve.iterations for curve in curves}
    assert iterations == {"sum": (20, 10, 20), "mean": (40,), "late": (float("inf"),)}
    assert next(curve.config for curve in curves if curve.name == "mean").average_every == 16
    assert notes == [says("free", "left out", "3 iterations"), says("turns", "left out", "--compress-from")]


def test_seconds_are_iterations_times_the_step_of_the_plan_over_each_link(runs, files):
    layers, exchanges = LayerTimes([files[1]]), ExchangeTimes(files[3])
    links = {"5gbit": exchanges.at_rate(5e9), "10mbit": exchanges.at_rate(1e7)}
    rows = target_rows(layers, links, read_curves(runs, "mlp", LOSS)[0], 2, per_node=1)
    assert [(row["link"], row["strategy"]) for row in rows if row["is_first"]] == [("5gbit", "sum"), ("10mbit", "mean")]
    for row in rows:
        config = {"sum": ExchangeConfig(), "late": ExchangeConfig(sync="delayed")}.get(
            row["strategy"], ExchangeConfig(sync="averaging", average_every=16)
        )
        (step,) = predict(layers, links[row["link"]], [2], [config], [], PlanSettings(64))
        assert row["step_s"] == step.step_s
        if row["strategy"] == "late":
            assert row["seconds"] is row["iterations"] is None
            continue
        assert row["seconds"] == row["iterations"] * step.step_s
        assert row["seconds_low"] == row["iterations_low"] * step.step_s / (1 + PLAN_ERROR)
        assert row["seconds_high"] == row["iterations_high"] * step.step_s / (1 - PLAN_ERROR)


def test_exact_curves_hold_for_any_number_of_ranks(runs):
    curves, _ = read_curves(runs, "mlp", LOSS)
    assert at_ranks(curves, None) == (2, curves, [])
    ranks, fitting, notes = at_ranks(curves, 8)
    assert ranks == 8 and [curve.name for curve in fitting] == ["sum"]
    assert sorted(notes) == [says("late", "2 ranks"), says("mean", "2 ranks")]
    others = [replace(curve, exact=False) for curve in curves]
    with pytest.raises(UsageError, match=says("-n", 2)):
        at_ranks(others, 8)
    others[0] = replace(others[0], ranks=4)
    with pytest.raises(UsageError, match=says("-n", "2, 4")):
        at_ranks(others, None)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"batch": 32}, ("batches", "64", "32")),
        ({"model": "lenet"}, ("models", "lenet")),
        ({"data": "other"}, ("data", "other")),
    ],
)
def test_runs_of_one_network_data_set_and_batch_are_wanted(runs, changed, words):
    make_run(runs / "other", events([0.5], **changed))
    with pytest.raises(UsageError, match=says("--curves", *words)):
        read_curves(runs, "mlp", LOSS)


def test_a_folder_without_such_runs_and_a_target_out_of_reach(runs, tmp_path):
    with pytest.raises(UsageError, match=says("--curves", "lenet", "mlp")):
        read_curves(runs, "lenet", LOSS)
    with pytest.raises(UsageError, match=says("loss 0.1", "sum-seed-1 0.5", "late 2")):
        read_curves(runs, "mlp", parse_target("loss 0.1"))
    for name in "none", "empty":
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(UsageError, match=says(tmp_path / name)):
            read_curves(tmp_path / name, "mlp", LOSS)


def test_the_command_shows_a_map_and_writes_it(runs, files, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    paths = [str(tmp_path / name) for name in ("target.json", "target.csv", "target.svg")]
    asked = ["--curves", str(runs), "--target", "loss 1.0", "--rates", "10mbit,5gbit"]
    code, said = call(plan, "mlp", *files, *asked, "--json", paths[0], "--csv", paths[1], "-o", paths[2])
    assert code == 0, said
    for line in (
        says("10mbit: mean is the first"),
        says("5gbit: sum is the first"),
        says("free", "left out"),
        says("never"),
    ):
        assert line.matches(said)
    content = json.loads((tmp_path / "target.json").read_text())
    assert content["first"] == {"10mbit": "mean", "5gbit": "sum"} and content["plan_error"] == PLAN_ERROR
    lines = list(csv.DictReader((tmp_path / "target.csv").read_text().splitlines()))
    assert [line["strategy"] for line in lines] == ["late", "mean", "sum"] * 2 and lines[0]["seconds"] == ""
    assert (tmp_path / "target.svg").read_text().startswith("<?xml")
    code, said = call(plan, "mlp", *files, *asked[:4])
    assert code == 0 and says("the sweep's").matches(said)
    for more, words in (
        (["--sync", "allreduce"], ("--sync", "--curves")),
        (["-n", "2,4"], ("-n", "2,4")),
        (["--rates", "fast"], ("fast", "100mbit")),
        (["--rates", "100gbit"], ("100,000 Mbit/s",)),
    ):
        assert call(plan, "mlp", *files, *asked[:4], *more) == (2, says(*words))
    assert call(plan, "mlp", *files, *asked[:2]) == (2, says("--curves", "--target"))
