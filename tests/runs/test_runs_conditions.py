"""Conditions on runs, and their order."""

import pytest

from ringtrain.config.record import config_fields
from ringtrain.errors import UsageError
from ringtrain.runs.conditions import parse_condition, sort_runs
from ringtrain.runs.summary import RESULTS, RunSummary
from tests.says import says

OPTIONS = {
    "lr": 0.1, "batch": 64, "model": "lenet", "augment": True, "clip_norm": None, "compress": "none",
    "lr_steps": ["30ep", 40], "warmup": "5ep",
}  # fmt: skip


def run(name="a", **values):
    results = dict.fromkeys(RESULTS) | {"name": name, "test_accuracy": 0.975, "date": "2026-01-31 23:59:00+01:00"}
    results |= {key: value for key, value in values.items() if key in RESULTS}
    return RunSummary(name, results, OPTIONS | {key: value for key, value in values.items() if key not in RESULTS})


def test_no_option_has_the_name_of_a_result():
    assert not set(RESULTS) & set(config_fields())


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("lr=0.1", True), ("lr!=0.1", False), ("lr<0.1", False), ("lr<=0.1", True), ("lr>0.1", False),
        ("lr>=1e-1", True), (" lr  >  0.09 ", True), ("batch=64", True), ("batch>63.5", True),
        ("model=lenet", True), ("model!=lenet", False), ("model=le net", False), ("model>alexnet", True),
        ("augment=true", True), ("augment=No", False), ("augment!=no", True),
        ("clip_norm=none", True), ("clip-norm!=none", False), ("clip_norm>0", False), ("clip_norm!=1", True),
        ("compress=none", True), ("lr_steps=30ep,40", True), ("lr-steps!=30ep", True),
        ("warmup=5ep", True), ("warmup>100", False), ("warmup!=100", True),
        ("test_accuracy>0.97", True), ("test_accuracy>=97.5%", True), ("test_loss<1", False), ("test_loss=none", True),
        ("date>=2026-01-31", True), ("date>2026-02", False), ("name=a", True),
    ],
)  # fmt: skip
def test_a_condition(text, holds):
    assert parse_condition(text).holds(run()) is holds


def test_a_run_without_options_is_unequal_to_all():
    assert not parse_condition("lr=0.1").holds(RunSummary("a", run().results))
    assert parse_condition("lr!=0.1").holds(RunSummary("a", run().results))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, says("--where", f"{text!r}")) for text in ("lr", "lr>", ">3", "lr~3", "", "lr=>3 ")),
        ("lrr>3", says("--where", "'lrr'") + "did you mean 'lr'"),
        ("lr>fast", says("--where", "lr", "number")),
        ("test_accuracy>97", says("--where", "test_accuracy", "fraction", "such")),
        ("augment=maybe", says("--where", "augment", "true", "false")),
        ("augment>true", says("--where", "augment")),
        ("lr_steps<3", says("--where", "lr_steps")),
        ("lr<none", says("--where", "none")),
    ],
)
def test_a_condition_that_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_condition(text)


def names(runs, key):
    return "".join(run.value("name") for run in sort_runs(runs, key))


def test_the_order():
    runs = [run("a", lr=0.3), run("b", lr=0.1), run("c", lr=None), run("d", lr=0.2)]
    assert (names(runs, "lr"), names(runs, "-lr"), names(runs, "-name")) == ("bdac", "adbc", "dcba")
    dated = [run("a", date="2026-02"), run("b", date=None), run("c", date="2026-01")]
    assert (names(dated, None), names(dated, "-date")) == ("bca", "acb")
    mixed = [run("a", warmup="5ep"), run("b", warmup=100), run("c", warmup=20)]
    assert names(mixed, "warmup") == "cba"
    assert names([run("a", augment=True), run("b", augment=False)], "augment") == "ba"
    with pytest.raises(UsageError, match=says("--sort", "'lrr'")):
        sort_runs(runs, "-lrr")
