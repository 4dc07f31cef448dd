import pytest

from ringtrain.config import FORMER_KEYS, TrainConfig, config_fields
from ringtrain.errors import ConfigError
from ringtrain.resolve import for_continuation, parse_toml, read_run_file, resolve, to_table


def test_later_layers_win():
    config = resolve(("recipe", {"batch": 64, "lr": 0.1}), ("run file", {"lr": 0.2}), ("flags", {"seed": 3}))
    assert (config.batch, config.lr, config.seed) == (64, 0.2, 3)


def test_iterations_in_a_later_layer_set_epochs_aside():
    config = resolve(("recipe", {"epochs": 10}), ("flags", {"iterations": 7}))
    assert (config.epochs, config.iterations) == (None, 7)
    config = resolve(("recipe", {"iterations": 10}), ("flags", {"epochs": 7}))
    assert (config.epochs, config.iterations) == (7, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"btch": 3}, "flags: unknown key 'btch'; did you mean 'batch'?"),
        ({"batch": 0}, "--batch 0: it wants at least 1"),
        ({"batch": "many"}, "--batch many: it wants a whole number"),
        ({"batch": True}, "it wants a whole number"),
        ({"batch": 1.5}, "it wants a whole number"),
        ({"lr": float("nan")}, "it wants a finite number"),
        ({"lr": 0}, "it wants more than 0"),
        ({"momentum": 1.0}, "it wants less than 1"),
        ({"seed": 2**63}, "it wants at most"),
        ({"synthetic": 1}, "it wants true or false"),
        ({"model": 3}, "it wants a text"),
        ({"lr_steps": 3}, 'it wants a list like [4000] or ["30ep", "60ep"]'),
        ({"lr_steps": "30ep"}, '--lr-steps 30ep: it wants a list like [4000] or ["30ep", "60ep"]'),
        ({"lr_steps": ["2ep", 3.5]}, "--lr-steps 3.5: it wants a whole number of iterations, or epochs like 5ep"),
        ({"warmup": True}, "--warmup True: it wants a whole number of iterations, or epochs like 5ep or 0.5ep"),
        ({"lr_steps": [0]}, "it wants at least 1"),
        ({"lr_steps": ["30ep", "0ep"]}, "--lr-steps 0ep: it wants more than 0ep"),
        ({"warmup": "5 epochs"}, "--warmup '5 epochs': it wants a whole number of iterations, or epochs like 5ep or"),
        ({"warmup": "-1ep"}, "--warmup -1ep: it wants a whole number of iterations, or epochs"),
        ({"warmup": "1e3ep"}, "--warmup 1e3ep: it wants a whole number of iterations, or epochs"),
        ({"warmup": 0.5}, "--warmup 0.5: it wants a whole number"),
        ({"warmup": -1}, "--warmup -1: it wants at least 0"),
        ({"batch": "5ep"}, "--batch 5ep: it wants a whole number"),
        ({"optimizer": "sdg"}, "did you mean 'sgd'?"),
        ({"epochs": 3, "iterations": 4}, "both --epochs (3) and --iterations (4) are given; give one"),
    ],
)
def test_refusals(given, message):
    with pytest.raises(ConfigError) as error:
        resolve(("flags", given))
    assert message in str(error.value)


def test_a_file_is_named_with_its_key():
    with pytest.raises(ConfigError, match=r"^run file r\.toml: epochs is 0; it wants at least 1$"):
        resolve(("run file r.toml", {"epochs": 0}))
    with pytest.raises(
        ConfigError, match=r"^both run file r\.toml: epochs \(3\) and run file r\.toml: iterations \(4\)"
    ):
        resolve(("run file r.toml", {"epochs": 3, "iterations": 4}))


@pytest.mark.parametrize(
    ("text", "write"),
    [
        ("epochs: 3\n", "write epochs = 3"),
        ("# a run\nmodel: resnet20  # small\nlr: 0.1\n", 'write model = "resnet20"'),
        ("lr_steps: [10, 20]\n", "write lr_steps = [10, 20]"),
    ],
)
def test_a_run_file_in_yaml_is_told_what_to_write(tmp_path, text, write):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_run_file(path)
    assert str(error.value).endswith(f". It looks like YAML, and a run file is TOML: {write}")


def test_every_field_has_help():
    assert all(spec.metadata["help"].endswith((".", "]")) for spec in config_fields().values())


def test_a_written_config_reads_back():
    import tomli_w

    given = {"batch": 100, "lr": 1e-3, "lr_steps": [4000, "9.5ep"], "warmup": "0.5ep", "model": 'a"b\\c'}
    config = resolve(("flags", {**given, "augment": False}))
    assert resolve(("file", parse_toml(tomli_w.dumps(to_table(config)), "file"))) == config


def test_keys_of_earlier_versions_that_change_no_result_are_passed_over():
    assert resolve(("run file r.toml", {"batch": 3, **dict.fromkeys(FORMER_KEYS, "a value")})) == TrainConfig(batch=3)


def test_a_continuation_does_not_inherit_where_it_was_started():
    table = to_table(TrainConfig(out="runs/a", resume="auto", batch=3))
    assert for_continuation(table) == to_table(TrainConfig(batch=3))


def test_run_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_run_file(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("batch = = 3")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        read_run_file(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_run_file(bad)
