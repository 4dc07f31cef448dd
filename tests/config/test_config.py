import pytest
import tomli_w

from ringtrain.config.record import ANY, FORMER_KEYS, REMOVED_VALUES, config_fields, make_config
from ringtrain.config.resolve import (
    for_continuation,
    parse_run_file,
    read_run_file,
    recipe_layer,
    resolve,
    to_table,
    without_removed,
)
from ringtrain.errors import ConfigError
from tests.says import says

GONE_KEYS = [key for key, now in FORMER_KEYS.items() if now is None and (key, ANY) not in REMOVED_VALUES]


def test_later_layers_win():
    config = resolve(("recipe", {"batch": 64, "lr": 0.1}), ("run file", {"lr": 0.2}), ("flags", {"seed": 3}))
    assert (config.run.batch, config.optimizer.lr, config.run.seed) == (64, 0.2, 3)
    config = resolve(("recipe", {"epochs": 10}), ("flags", {"iterations": 7}))
    assert (config.run.epochs, config.run.iterations) == (None, 7)
    assert resolve(("run file", {"bucket_bytes": "1.5M"})).exchange.bucket_bytes == 3 << 19
    config = resolve(("recipe", {"iterations": 10}), ("flags", {"epochs": 7}))
    assert (config.run.epochs, config.run.iterations) == (7, None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"btch": 3}, says("flags", "'btch'", "did you mean 'batch'?")),
        ({"batch": 0}, says("--batch", 0, "at least 1")),
        ({"batch": "many"}, says("--batch", "many", "whole", "number")),
        ({"batch": True}, says("--batch", True, "whole", "number")),
        ({"batch": 1.5}, says("--batch", 1.5, "whole", "number")),
        ({"lr": float("nan")}, says("--lr", "nan", "finite", "number")),
        ({"lr": 0}, says("--lr", 0.0, "more than 0")),
        ({"momentum": 1.0}, says("--momentum", 1.0, "less than 1")),
        ({"seed": 2**63}, says("--seed", 19, 2**63 - 1)),
        ({"synthetic": 1}, says("--synthetic", 1, "true", "false")),
        ({"model": 3}, says("--model", 3, "text")),
        ({"lr_steps": 3}, says("--lr-steps", 3, "list", "like")),
        ({"lr_steps": "30ep"}, says("--lr-steps", "30ep", "list", "like")),
        ({"lr_steps": ["2ep", 3.5]}, says("--lr-steps", 3.5, "epochs", "like")),
        ({"warmup": True}, says("--warmup", True, "epochs", "like")),
        ({"lr_steps": [0]}, says("--lr-steps", 0, "at least 1")),
        ({"lr_steps": ["30ep", "0ep"]}, says("--lr-steps", "0ep", "more", "than")),
        ({"warmup": "5 epochs"}, says("--warmup", "'5 epochs'", "epochs", "like")),
        ({"warmup": "-1ep"}, says("--warmup", "-1ep", "epochs", "like")),
        ({"warmup": "1e3ep"}, says("--warmup", "1e3ep", "epochs", "like")),
        ({"warmup": 0.5}, says("--warmup", 0.5, "epochs", "like")),
        ({"warmup": -1}, says("--warmup", -1, "at least 0")),
        ({"bucket_bytes": "4X"}, says("--bucket-bytes", "'4X'", "64K")),
        ({"bucket_bytes": "0K"}, says("--bucket-bytes", "least", 1)),
        ({"batch": "5ep"}, says("--batch", "5ep", "whole", "number")),
        ({"optimizer": "sdg"}, says("--optimizer", "sdg", "did you mean 'sgd'? known: adam, adamw")),
        ({"epochs": 3, "iterations": 4}, says("--epochs", 3, "--iterations", 4)),
    ],
)
def test_refusals(flags, message):
    with pytest.raises(ConfigError, match=message):
        resolve(("flags", flags))


@pytest.mark.parametrize(
    ("keys", "value", "wanted"),
    [
        ("average_every gossip_every servers compress_rank fc_ranks", 0, "at least 1"),
        ("average_from staleness gossip_max_lag compress_from", -1, "at least 0"),
        ("compress_bits", 1, "at least 2"),
        ("compress_bits", 9, "at most 8"),
        ("outer_momentum", 1.0, "less than 1"),
        ("outer_lr compress_ratio trust_coefficient", 0.0, "more than 0"),
        ("compress_ratio", 1.5, "at most 1"),
        ("accumulate", 100_000, "at most 65536"),
        ("fc", "pipelin", "pipelin: did you mean 'pipeline'"),
        ("average_momentum", "keeep", "keeep: did you mean 'keep'"),
        ("compress", "topk", "topk: did you mean 'top-k'"),
        ("overlap", "forwards", "forwards: did you mean 'forward'"),
        ("wire", "float8", "float8: did you mean 'float16'"),
    ],
)
def test_a_value_out_of_bounds_or_of_the_choices_is_refused(keys, value, wanted):
    for key in keys.split():
        with pytest.raises(ConfigError, match=says(f"--{key.replace('_', '-')}", value, wanted)):
            resolve(("flags", {key: value}))


def test_a_file_is_named_with_its_key():
    with pytest.raises(ConfigError, match=says("run file r.toml: epochs", 0, "at least 1")):
        resolve(("run file r.toml", {"epochs": 0}))
    with pytest.raises(ConfigError, match=says("run file r.toml: epochs (3)", "run file r.toml: iterations (4)")):
        resolve(("run file r.toml", {"epochs": 3, "iterations": 4}))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"epochs: 3\n", ["TOML", "epochs = 3"]),
        (b"# a run\nmodel: resnet20  # small\nlr: 0.1\n", ["TOML", 'model = "resnet20"']),
        (b"lr_steps: [10, 20]\n", ["TOML", "lr_steps = [10, 20]"]),
        (None, []),
        (b"batch = = 3", []),
        (b"\xff\xfe", []),
    ],
)
def test_a_run_file_that_cannot_be_read(tmp_path, content, words):
    """One in YAML is told what to write."""
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=says(path, *words)):
        read_run_file(path)


def test_every_field_has_help():
    assert all(spec.metadata["help"].endswith((".", "]")) for spec in config_fields().values())


def test_a_written_config_reads_back():
    values = {"batch": 100, "lr": 1e-3, "lr_steps": [4000, "9.5ep"], "warmup": "0.5ep", "model": 'a"b\\c'}
    config = resolve(("flags", {**values, "augment": False}))
    assert resolve(("file", parse_run_file(tomli_w.dumps(to_table(config)), "file"))) == config
    table = to_table(make_config(out="runs/a", resume="auto", batch=3))  # a run that goes on has its own
    assert for_continuation(table) == to_table(make_config(batch=3))


def test_keys_of_earlier_versions_are_read_by_their_names_now():
    former = 'guard = false\nslow = "1:2"\ntrust = 0.5\ngossip_window = 3\nfc_update = "accumulate"\n'
    config = resolve(("run file r.toml", parse_run_file(former, "r.toml")))
    assert config == make_config(
        check_collectives=False, inject_slowdown="1:2", trust_coefficient=0.5, gossip_max_lag=3
    )
    assert set(FORMER_KEYS.values()) - {None} <= set(config_fields())
    gone = "".join(f'{key} = "a value"\n' for key in GONE_KEYS)
    assert resolve(("run file r.toml", parse_run_file(f"batch = 3\n{gone}", "r.toml"))) == make_config(batch=3)
    assert recipe_layer("m", {"trust": 0.5, "momentum_correction": False})[1] == {"trust_coefficient": 0.5}
    with pytest.raises(ConfigError, match=says("recipe of model m", "'guard'")):
        recipe_layer("m", {"guard": False})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fc_update", "micro-batch"),
        ("fc_update", "each"),
        ("average_momentum", "reset"),
        ("trust_limit", "2.0"),
        ("gossip_graph", "matrix.npy"),
        ("algorithm", "hierarchical-leader"),
    ],
)
def test_a_value_of_an_earlier_version_that_would_change_a_run_is_refused_and_its_weights_are_read(key, value):
    table = parse_run_file(f'batch = 3\n{key} = "{value}"\n', "r.toml")
    with pytest.raises(ConfigError, match=f"{key} is '{value}'"):
        resolve(("run file r.toml", table))
    assert resolve(("checkpoint", without_removed(table))) == make_config(batch=3)
