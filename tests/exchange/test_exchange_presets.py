"""Presets of ``--sync``: each is its strategy with values of options, and a user's own values win."""

from dataclasses import replace

import click
import pytest

from ringtrain.cli.python_script import exchange_of
from ringtrain.config.presets import PRESETS
from ringtrain.config.resolve import FLAGS, resolve, to_table
from ringtrain.errors import ConfigError
from ringtrain.exchange.catalogue import STRATEGIES
from ringtrain.exchange.compatibility import check_options, used_by, without_former
from ringtrain.exchange.parts import parts_of
from tests.docs.playing import ROOT
from tests.says import says


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_strategy_with_these_flags(name):
    preset = PRESETS[name]
    config = resolve((FLAGS, {"sync": name}))
    same = resolve((FLAGS, {"sync": preset.strategy, **preset.options}))
    assert config.changed(sync=preset.strategy) == same and config.exchange.sync == name
    check_options(config)
    assert preset.strategy in STRATEGIES and parts_of(config.exchange) == parts_of(same.exchange)
    assert preset.flags.split()[::2] == ["--sync", *(f"--{each.replace('_', '-')}" for each in preset.options)]
    assert exchange_of(("parallel()", {"sync": name})) == config.exchange  # of scripts of PyTorch
    assert preset.source and preset.summary


@pytest.mark.parametrize("layers", [[("file", {"outer_lr": 0.5}), (FLAGS, {"sync": "diloco"})],
                                    [("file", {"sync": "diloco"}), (FLAGS, {"outer_lr": 0.5})]])  # fmt: skip
def test_values_of_flags_and_files_win(layers):
    exchange = resolve(*layers).exchange
    assert (exchange.outer_lr, exchange.average_every) == (0.5, PRESETS["diloco"].options["average_every"])
    assert exchange == replace(resolve((FLAGS, {"sync": "diloco"})).exchange, outer_lr=0.5)


def test_a_run_that_goes_on_keeps_its_values_and_leaves_them_with_the_preset():
    before = to_table(resolve((FLAGS, {"sync": "diloco", "average_every": 7, "batch": 9})))
    same = resolve(("before", without_former(before, {"sync": "diloco"})), (FLAGS, {"sync": "diloco"}))
    assert same.exchange.average_every == 7
    for sync in ("averaging", "allreduce", "post-local"):
        after = resolve(("before", without_former(before, {"sync": sync})), (FLAGS, {"sync": sync}))
        assert after == resolve((FLAGS, {"sync": sync, "batch": 9}))
    assert resolve(("before", without_former(before, {}))) == same


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"sync": "diloko"}, ["'diloko'", "did you mean 'diloco'?"]),
        ({"sync": "diloco", "asynchronous": True}, ["--outer-momentum 0.9 of --sync diloco", "--asynchronous"]),
        ({"sync": "diloco", "fc": "hybrid"}, ["--fc hybrid", "--sync diloco", "Use --sync allreduce"]),
        ({"sync": "diloco", "staleness": 2}, ["--staleness 2", "--sync diloco", "--sync server"]),
    ],
)
def test_a_refusal_names_what_was_typed(flags, words):
    with pytest.raises(ConfigError, match=says(*words)):
        check_options(resolve((FLAGS, flags)))
    assert used_by()["staleness"] == ("sync", ("server",))


def test_another_compression_leaves_the_options_of_the_presets_own():
    whole = resolve((FLAGS, {"sync": "streaming-diloco", "compress": "none"}))
    assert whole.exchange.fragments == 4 and whole.exchange.compress_bits is None
    check_options(whole)
    rounded = resolve((FLAGS, {"sync": "sparseloco", "compress": "quantise"}))
    assert (rounded.exchange.compress_ratio, rounded.exchange.compress_bits) == (0.01, 2)
    check_options(rounded)
    assert resolve((FLAGS, to_table(whole))) == whole


def test_help_lists_them():
    from ringtrain.cli.main import ringtrain

    train = ringtrain.get_command(None, "train")
    text = " ".join(train.get_help(click.Context(train, info_name="train")).split())
    for name, preset in PRESETS.items():
        assert f"{name}, {preset.summary}: {preset.flags}" in text.replace("- ", "-")


def test_the_table_of_the_docs_has_their_flags_and_sources():
    page = (ROOT / "docs" / "strategies.md").read_text()
    for name, preset in PRESETS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert f"| `{preset.flags}` | {preset.source} |" in row
