import pytest

from ringtrain.config import texts
from ringtrain.config.record import FORMER_KEYS, TrainConfig, config_fields
from ringtrain.config.resolve import for_continuation, parse_run_file, read_run_file, recipe_layer, resolve, to_table
from ringtrain.errors import ConfigError


def test_later_layers_win():
    config = resolve(("recipe", {"batch": 64, "lr": 0.1}), ("run file", {"lr": 0.2}), ("flags", {"seed": 3}))
    assert (config.batch, config.lr, config.seed) == (64, 0.2, 3)


def test_iterations_in_a_later_layer_set_epochs_aside():
    config = resolve(("recipe", {"epochs": 10}), ("flags", {"iterations": 7}))
    assert (config.epochs, config.iterations) == (None, 7)
    config = resolve(("recipe", {"iterations": 10}), ("flags", {"epochs": 7}))
    assert (config.epochs, config.iterations) == (7, None)


def refused(flag, value, wanted):
    return texts.REFUSED_FLAG(name=flag, value=value, wanted=texts.WANTS(wanted=wanted))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"btch": 3}, texts.UNKNOWN_KEY(source="flags", key="btch", hint="did you mean 'batch'?")),
        ({"batch": 0}, refused("--batch", 0, texts.AT_LEAST(bound=1))),
        ({"batch": "many"}, refused("--batch", "many", texts.A_WHOLE_NUMBER)),
        ({"batch": True}, refused("--batch", True, texts.A_WHOLE_NUMBER)),
        ({"batch": 1.5}, refused("--batch", 1.5, texts.A_WHOLE_NUMBER)),
        ({"lr": float("nan")}, refused("--lr", "nan", texts.A_FINITE_NUMBER)),
        ({"lr": 0}, refused("--lr", 0.0, texts.MORE_THAN(bound=0))),
        ({"momentum": 1.0}, refused("--momentum", 1.0, texts.LESS_THAN(bound=1))),
        ({"seed": 2**63}, texts.TOO_LONG(name="--seed", digits=19, wanted=texts.AT_MOST(bound=2**63 - 1))),
        ({"synthetic": 1}, refused("--synthetic", 1, texts.TRUE_OR_FALSE)),
        ({"model": 3}, refused("--model", 3, texts.A_TEXT)),
        ({"lr_steps": 3}, refused("--lr-steps", 3, texts.LIST_OF_EPOCHS)),
        ({"lr_steps": "30ep"}, refused("--lr-steps", "30ep", texts.LIST_OF_EPOCHS)),
        ({"lr_steps": ["2ep", 3.5]}, refused("--lr-steps", 3.5, texts.IN_EPOCHS)),
        ({"warmup": True}, refused("--warmup", True, texts.IN_EPOCHS)),
        ({"lr_steps": [0]}, refused("--lr-steps", 0, texts.AT_LEAST(bound=1))),
        ({"lr_steps": ["30ep", "0ep"]}, refused("--lr-steps", "0ep", texts.MORE_THAN_NO_EPOCH)),
        ({"warmup": "5 epochs"}, refused("--warmup", "'5 epochs'", texts.IN_EPOCHS)),
        ({"warmup": "-1ep"}, refused("--warmup", "-1ep", texts.IN_EPOCHS)),
        ({"warmup": "1e3ep"}, refused("--warmup", "1e3ep", texts.IN_EPOCHS)),
        ({"warmup": 0.5}, refused("--warmup", 0.5, texts.IN_EPOCHS)),
        ({"warmup": -1}, refused("--warmup", -1, texts.AT_LEAST(bound=0))),
        ({"batch": "5ep"}, refused("--batch", "5ep", texts.A_WHOLE_NUMBER)),
        (
            {"optimizer": "sdg"},
            texts.REFUSED_FLAG(name="--optimizer", value="sdg", wanted="did you mean 'sgd'? known: adam, adamw"),
        ),
        (
            {"epochs": 3, "iterations": 4},
            texts.BOTH_LENGTHS(epochs_name="--epochs", epochs=3, iterations_name="--iterations", iterations=4),
        ),
    ],
)
def test_refusals(given, message):
    with pytest.raises(ConfigError) as error:
        resolve(("flags", given))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        *((key, 0, texts.AT_LEAST(bound=1)) for key in ("average_every", "servers", "server_levels", "compress_rank")),
        *((key, 0, texts.AT_LEAST(bound=1)) for key in ("fc_ranks", "fc_in_flight")),
        *((key, -1, texts.AT_LEAST(bound=0)) for key in ("average_from", "staleness", "gossip_max_lag")),
        ("compress_from", -1, texts.AT_LEAST(bound=0)),
        ("outer_momentum", 1.0, texts.LESS_THAN(bound=1)),
        *(
            (key, 0.0, texts.MORE_THAN(bound=0))
            for key in ("outer_lr", "compress_ratio", "trust_coefficient", "trust_limit")
        ),
        ("compress_ratio", 1.5, texts.AT_MOST(bound=1)),
        ("server_levels", 3, texts.AT_MOST(bound=2)),
        ("accumulate", 100_000, texts.AT_MOST(bound=65536)),
    ],
)
def test_an_option_out_of_its_bounds_is_refused(key, value, wanted):
    with pytest.raises(ConfigError) as error:
        resolve(("flags", {key: value}))
    assert str(error.value) == refused(f"--{key.replace('_', '-')}", value, wanted)


@pytest.mark.parametrize(
    ("key", "near", "choice"),
    [
        ("fc", "pipelin", "pipeline"),
        ("fc_update", "microbatch", "micro-batch"),
        ("average_momentum", "keeep", "keep"),
        ("compress", "topk", "top-k"),
        ("overlap", "forwards", "forward"),
        ("wire", "float8", "float16"),
    ],
)
def test_a_choice_that_is_not_there_names_the_nearest(key, near, choice):
    with pytest.raises(ConfigError, match=f"{near}: did you mean '{choice}'"):
        resolve(("flags", {key: near}))


def test_a_file_is_named_with_its_key():
    name, wanted = "run file r.toml: epochs", texts.WANTS(wanted=texts.AT_LEAST(bound=1))
    with pytest.raises(ConfigError) as error:
        resolve(("run file r.toml", {"epochs": 0}))
    assert str(error.value) == texts.REFUSED_KEY(name=name, value=0, wanted=wanted)
    names = {"epochs_name": name, "iterations_name": "run file r.toml: iterations"}
    with pytest.raises(ConfigError) as error:
        resolve(("run file r.toml", {"epochs": 3, "iterations": 4}))
    assert str(error.value) == texts.BOTH_LENGTHS(epochs=3, iterations=4, **names)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("epochs: 3\n", "epochs", "3"),
        ("# a run\nmodel: resnet20  # small\nlr: 0.1\n", "model", '"resnet20"'),
        ("lr_steps: [10, 20]\n", "lr_steps", "[10, 20]"),
    ],
)
def test_a_run_file_in_yaml_is_told_what_to_write(tmp_path, text, key, value):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_run_file(path)
    assert str(error.value).endswith(texts.WRITE_TOML(error="", key=key, value=value))


def test_every_field_has_help():
    assert all(spec.metadata["help"].endswith((".", "]")) for spec in config_fields().values())


def test_a_written_config_reads_back():
    import tomli_w

    given = {"batch": 100, "lr": 1e-3, "lr_steps": [4000, "9.5ep"], "warmup": "0.5ep", "model": 'a"b\\c'}
    config = resolve(("flags", {**given, "augment": False}))
    assert resolve(("file", parse_run_file(tomli_w.dumps(to_table(config)), "file"))) == config


def test_keys_of_earlier_versions_that_change_no_result_are_passed_over():
    gone = "".join(f'{key} = "a value"\n' for key, now in FORMER_KEYS.items() if now is None)
    assert resolve(("run file r.toml", parse_run_file(f"batch = 3\n{gone}", "r.toml"))) == TrainConfig(batch=3)


def test_keys_and_values_of_earlier_versions_are_read_by_their_names_now():
    former = 'guard = false\nslow = "1:2"\ntrust = 0.5\ngossip_window = 3\nfc_update = "each"\n'
    config = resolve(("run file r.toml", parse_run_file(former, "r.toml")))
    assert config == TrainConfig(
        check_collectives=False, inject_slowdown="1:2", trust_coefficient=0.5, gossip_max_lag=3, fc_update="micro-batch"
    )
    assert set(FORMER_KEYS.values()) - {None} <= set(config_fields())


def test_a_recipe_of_an_earlier_version_is_read_by_the_names_now():
    assert recipe_layer("m", {"trust": 0.5})[1] == {"trust_coefficient": 0.5}
    with pytest.raises(ConfigError, match=texts.NOT_OF_A_RECIPE.pattern(key="guard")):
        recipe_layer("m", {"guard": False})


def test_a_continuation_does_not_inherit_where_it_was_started():
    table = to_table(TrainConfig(out="runs/a", resume="auto", batch=3))
    assert for_continuation(table) == to_table(TrainConfig(batch=3))


def test_run_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=texts.UNREADABLE.pattern(path=tmp_path / "none.toml")):
        read_run_file(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("batch = = 3")
    with pytest.raises(ConfigError, match=texts.NOT_TOML.pattern(source=texts.RUN_FILE(path=bad))):
        read_run_file(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=texts.UNREADABLE.pattern(path=bad)):
        read_run_file(bad)
