"""Warm-up and drops of the rate in epochs: what they are in iterations, what is said of them, and what is refused."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from small_runs import DIGITS, DROPOUT_NET

from ringtrain.config.resolve import recipe_layer, resolve
from ringtrain.data.batches.sampler import Sampler
from ringtrain.data.batches.synthetic import synthetic
from ringtrain.errors import ConfigError
from ringtrain.nn import spec
from ringtrain.ops.catalogue import make_ops
from ringtrain.report.screen import words
from ringtrain.train.assembly.assemble import assemble
from ringtrain.train.assembly.recipe import iterations_of, rate_of, schedule_notes, schedule_words
from ringtrain.train.checkpoints.resume import Origin
from ringtrain.train.start.header import header
from ringtrain.train.start.variants import Variant, check_variants
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.loopback import Loopback
from tests.loopback.world import LoopbackWorld
from tests.runs import records, start
from tests.says import says

IMAGENET, CIFAR = 1_281_167, 50_000
NO_LAYERS = """
summary = "for tests"
input = { shape = [224, 224, 3] }
layers = [{ name = "pool", kind = "GlobalAvgPool" }, { name = "fc", kind = "Linear", units = 1000 }]
"""


def planned(name, examples, **flags):
    """(configuration, rate) of a model's recipe on so many examples."""
    config = resolve(recipe_layer(name, spec.load_model(name).recipe), ("flags", flags))
    sampler = Sampler(examples, config.run.batch)
    return config, rate_of(config, iterations_of(config.run, sampler), sampler.iterations_per_epoch)


def peak(rate):
    rates = [rate.at(iteration) for iteration in range(rate.total)]
    return max(rates), rates.index(max(rates))


# ── recipes ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("batch", "base", "warmup"), [(256, 0.1, 25_025), (1024, 0.4, 6_260), (8192, 3.2, 785), (32_768, 12.8, 200)]
)
def test_resnet50_warms_up_for_five_epochs_of_any_batch(batch, base, warmup):
    config, rate = planned("resnet50", IMAGENET, batch=batch)
    assert (rate.lr, rate.warmup, rate.total) == (pytest.approx(base), warmup, 18 * warmup)
    highest, where = peak(rate)
    assert 0.99 * base < highest <= base and warmup - 20 <= where < warmup  # the cosine has begun to fall by then
    assert schedule_notes(config.optimizer, rate) == []


def test_the_header_of_resnet50_at_a_batch_of_8192():
    """All of a run is put together but the layers, on images of which there is but one."""
    model = replace(spec.parse_model(NO_LAYERS, "resnet50"), recipe=spec.load_model("resnet50").recipe)
    flags = {"batch": 8192, "ops": "reference", "check_collectives": False, "data": "imagenet.h5"}
    config = resolve(recipe_layer("resnet50", model.recipe), ("flags", flags))
    one = synthetic((224, 224, 3), 1000, 1, seed=0)
    many = (np.broadcast_to(array, (IMAGENET, *array.shape[1:])) for array in (one.train.images, one.train.labels))
    data = replace(one, train=replace(one.train, **dict(zip(("images", "labels"), many, strict=True))))
    transport, ops = Loopback(), make_ops("reference", "float32")
    run = assemble(config, model, data, transport, ops, lambda: False)
    lines = words.run_header(header(run, Origin(), None))
    assert "  batch      8,192 over all ranks, 157 iterations an epoch" in lines
    assert (
        "  rate       3.2, cosine, of --lr 0.1 for a batch of --base-batch 256, warm-up 5 epochs = 785 iterations"
        in lines
    )
    assert "  length     90 epochs, 14,130 iterations" in lines
    assert f"{IMAGENET:,} examples to train on" in "".join(lines)


@pytest.mark.parametrize(
    ("name", "examples", "drops", "total"),
    [
        ("alexnet", IMAGENET, (100_100,), 450_450),  # Caffe's: 100,000 of 450,000
        ("cifar10_quick", CIFAR, (4_000,), 5_000),  # Caffe's to the iteration
    ],
)
def test_drops_are_where_the_first_solvers_have_them(name, examples, drops, total):
    _, rate = planned(name, examples)
    assert (rate.steps, rate.total) == (drops, total)


@pytest.mark.parametrize("name", ["alexnet", "cifar10_quick", "resnet18", "resnet20"])
def test_drops_and_warm_up_keep_their_epochs_at_another_batch(name):
    def in_epochs(batch):
        _, rate = planned(name, CIFAR, batch=batch)
        each = -(-CIFAR // batch)
        return [*(step / each for step in rate.steps), -(-rate.warmup // each), rate.total / each]

    assert in_epochs(100) == in_epochs(5000)


# ── what is said ──────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "constant"),
        ({"warmup": 400}, "constant, warm-up 400 iterations"),
        ({"warmup": "0.5ep", "lr_policy": "cosine"}, "cosine, warm-up 0.5 epochs = 12 iterations"),
        ({"warmup": "1ep"}, "constant, warm-up 1 epoch = 23 iterations"),
        ({"lr_policy": "step", "lr_steps": ["2ep"]}, "step every 2 epochs = 46 iterations"),
        ({"lr_policy": "poly", "lr_steps": ["2ep"], "warmup": 1}, "poly, warm-up 1 iteration"),
        (
            {"lr_policy": "multistep", "lr_steps": [10, "1.5ep"], "warmup": 1},
            "multistep at 10 iterations, 1.5 epochs = 35 iterations, warm-up 1 iteration",
        ),
    ],
)
def test_the_words_of_a_schedule(flags, message):
    config = resolve(("flags", flags))
    assert schedule_words(config.optimizer, rate_of(config, 230, 23)) == message


@pytest.mark.parametrize(
    ("policy", "steps", "message"),
    [
        ("multistep", ["0.01ep", "0.02ep"], says(["0.01ep", "0.02ep"], "fall", "equal")),
        ("multistep", ["1ep", 5], says(["1ep", 5], "fall", "equal")),
        ("multistep", [5, 5], says([5, 5])),
        ("step", ["1ep", "2ep"], says(["1ep", "2ep"])),
    ],
)
def test_an_error_names_the_steps_that_were_given(policy, steps, message):
    config = resolve(("flags", {"lr_policy": policy, "lr_steps": steps}))
    with pytest.raises(ConfigError) as error:
        rate_of(config, 230, 23)
    assert message == str(error.value)


def test_what_lies_beyond_the_end_is_noted():
    def notes(total, **flags):
        config = resolve(("flags", flags))
        return schedule_notes(config.optimizer, rate_of(config, total, 23))

    drops = {"lr_policy": "multistep", "lr_steps": ["1ep", 46, "2.5ep"]}
    assert notes(59, **drops) == []
    assert notes(46, **drops) == [says("--lr-steps", "46 iterations, 2.5 epochs = 58 iterations", "46 iterations")]
    owners = "step and multistep"
    assert notes(46, lr_steps=["2.5ep"]) == [says("--lr-steps", "--lr-policy", owners, "constant")]
    assert notes(59, lr_steps=[10], lr_policy="cosine") == [says("--lr-steps", "--lr-policy", owners, "cosine")]
    assert notes(24, warmup="1ep", lr=0.1) == []
    assert notes(10, warmup="1ep", lr=0.23) == [
        says("--warmup", "1 epoch = 23 iterations", "10 iterations", "0.1", "0.23")
    ]


# ── what is refused, and going on ─────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def train(train):
    """As elsewhere, with few iterations an epoch."""
    return partial(train, batch=300)


def rates(folder):
    return [record["lr"] for record in records(folder, "iteration")]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"warmup": 100000, "epochs": 1}, says("--warmup 100000", "100,000 iterations")),
        ({"warmup": "2ep", "epochs": 2}, says("--warmup 2ep", "10", "--epochs 2", "0.05")),
        ({"warmup": 4, "iterations": 4}, says("--warmup 4", "4", "--iterations 4")),
        ({"run_file": "run.toml", "epochs": 2}, says("run file run.toml: warmup is '2ep'", "10 iterations")),
    ],
)
def test_a_warm_up_as_long_as_the_run_is_refused(train, tmp_path, flags, message):
    """A comparison does so before it trains."""
    (tmp_path / "run.toml").write_text('warmup = "2ep"\n')
    with pytest.raises(ConfigError, match=message) as error:
        train(out="run", **flags)
    assert error.value.exit_code == 2 and error.value.everywhere
    variant = Variant("a", flags.get("run_file"), {**DIGITS, "batch": 300, **flags})
    variant.flags.pop("run_file", None)
    with pytest.raises(ConfigError, match=says("'a'") + message):
        check_variants(Loopback, [variant])
    assert not (tmp_path / "run").exists()


def test_the_warm_up_of_a_recipe_may_be_longer_than_a_trial(train, tmp_path, capsys):
    """Which is a note."""
    (tmp_path / "net.toml").write_text(DROPOUT_NET + 'warmup = "1ep"\n')
    train(out="run", iterations=2)
    said = capsys.readouterr().out
    assert re.search(says("note") + says("--warmup", "1 epoch = 5 iterations", "2 iterations"), said)
    assert rates(tmp_path / "run") == pytest.approx([0.01, 0.02])


def test_a_run_goes_on_in_its_warm_up_on_other_ranks(train, tmp_path):
    flags = {"lr_policy": "multistep", "lr_steps": ["2ep", 12], "warmup": "1.5ep", "lr": 0.8, "epochs": 3}
    train(out="whole", **flags)
    train(out="parts", resume="auto", **{**flags, "epochs": None, "iterations": 9})
    again = {**DIGITS, "out": "parts", "resume": "auto", "epochs": 3}
    LoopbackWorld(2).run(lambda transport: start(transport, None, again, StopFlag()))
    whole = rates(tmp_path / "whole")
    assert whole == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.08, 0.08, *[0.008] * 3])
    assert rates(tmp_path / "parts") == whole
