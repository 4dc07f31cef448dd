"""Flags and names that are empty, as a variable of the shell is that was not set."""

import pytest

from ringtrain.cli.main import run
from ringtrain.config.option import kind_of
from ringtrain.config.record import config_fields
from ringtrain.config.resolve import resolve
from ringtrain.errors import ConfigError
from ringtrain.parsing import UNSET
from tests.says import says

TEXTS = [name for name, spec in config_fields().items() if kind_of(spec) is str]


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_of_a_run_is_empty(name, capfd):
    flag = f"--{name.replace('_', '-')}"
    for option in ([flag, ""], [f"{flag}="]):
        assert run(["train", *option]) == 2
        assert capfd.readouterr().err == says("ringtrain: ", flag, UNSET)
    with pytest.raises(ConfigError, match=says(f"run file a.toml: {name}", UNSET)):
        resolve(("run file a.toml", {name: ""}))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", "--config", ""], "--config"),
        (["train", "-m", ""], "-m"),
        (["evaluate", ""], "argument 2"),
        (["data", "make", "a.npz", "-o", ""], "-o"),
        (["data", "check", ""], "argument 3"),
        (["bench-allreduce", "--json", ""], "--json"),
        (["slurm", "train", "--", "--data", ""], "--data"),
        (["slurm", "train", "--", ""], "argument 4"),
        ([""], "argument 1"),
        (["train", "--no-augment", "--data="], "--data"),
    ],
)
def test_no_argument_of_a_command_is_empty(arguments, named, capfd):
    assert run(arguments) == 2
    assert capfd.readouterr().err == says("ringtrain: ", named, UNSET)


def test_an_empty_option_of_sbatch_is_no_mistake(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for option in (["--sbatch", "--comment="], ["--sbatch=--comment="]):
        assert run(["slurm", *option]) == 0
        assert "#SBATCH --comment=\n" in capfd.readouterr().out
    assert run(["slurm", "--sbatch", ""]) == 2
    assert capfd.readouterr().err == says("--sbatch", "--constraint", "''")
