"""The command line of `python -m ringtrain.torch`: nothing here needs PyTorch."""

import os
import subprocess
import sys

import pytest

from ringtrain.cli.python_script import parse_script_command
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import RingtrainError, UsageError
from ringtrain.launch.python_script import ScriptCommand, is_plain
from tests.says import says


def command(is_module=False, **options) -> ScriptCommand:
    return ScriptCommand("a.py", (), is_module, options.get("deadline_s"), ExchangeConfig(**options))


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["a.py"], ScriptCommand("a.py")),
        (["a.py", "--help", "-m", "x"], ScriptCommand("a.py", ("--help", "-m", "x"))),
        (["-m", "pack.age", "--deadline-s", "3"], ScriptCommand("pack.age", ("--deadline-s", "3"), is_module=True)),
        (["--deadline-s", "3", "--algorithm=ring", "a.py"], command(deadline_s=3.0, algorithm="ring")),
        (["--no-check-collectives", "-m", "a.py"], command(is_module=True, check_collectives=False)),
        (["--sync", "gossip", "--gossip-max-lag", "2", "a.py"], command(sync="gossip", gossip_max_lag=2)),
        (["a.py", "--", "-x"], ScriptCommand("a.py", ("--", "-x"))),
        (["--elastic", "a.py"], command(elastic="shrink")),
        (["--elastic", "replace", "a.py"], command(elastic="replace")),
        (["--wire", "none", "a.py", "--elastic", "2"], ScriptCommand("a.py", ("--elastic", "2"))),
    ],
)
def test_options_come_before_the_script_and_its_own_behind(arguments, wanted):
    assert parse_script_command(arguments) == wanted


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], says("no script", "--help")),
        (["-m"], says("no script", "--help")),
        (["--algorithm", "ring"], says("no script", "--help")),
        (["--algorithm", "ringg", "a.py"], "ringg"),
        (["--deadline", "3", "a.py"], says("--deadline", "No such option")),
        (["--deadline-s"], "Option '--deadline-s' requires an argument"),
        (["--deadline-s", "0", "a.py"], says("--deadline-s", "more than 0")),
        (["--sync", "serv", "a.py"], says("'serv'", "server")),
        (["--sync", "master", "a.py"], says("--sync master", "--sync server")),
        (["--fc", "hybrid", "a.py"], says("--fc", "script")),
        (["--elastic", "--sync", "gossip", "a.py"], says("--elastic shrink", "--sync gossip")),
        (["--elastic", "replace", "--overlap", "forward", "a.py"], says("--elastic replace", "--overlap forward")),
        (["--reproducible", "--sync", "gossip", "a.py"], says("--reproducible", "--sync gossip")),
        (["--reproducible-isa", "lowest", "a.py"], says("--reproducible-isa lowest", "--reproducible")),
        (["--shards", "4", "a.py"], says("--shards 4", "--reproducible")),
        (["--exact-order", "a.py"], says("--exact-order", "--global-batch")),
        (["--wire", "float16", "--sync", "gossip", "a.py"], says("--wire float16", "--sync gossip")),
        (["--servers", "2", "a.py"], says("--servers 2", "--sync")),
        (["--deadline-s", "soon", "a.py"], "Invalid value for '--deadline-s': 'soon' is not a valid float"),
    ],
)
def test_wrong_options_are_named(arguments, text):
    with pytest.raises(RingtrainError, match=says(text)) as raised:
        parse_script_command(arguments)
    assert raised.value.exit_code == 2


def test_a_run_file_has_the_options_of_an_exchange_alone(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('sync = "averaging"\naverage_every = 4\n')
    parsed = parse_script_command(["--config", str(path), "--average-every", "2", "a.py"])
    assert parsed == command(sync="averaging", average_every=2)
    path.write_text("batch = 60\n")
    with pytest.raises(UsageError, match=says(str(path), "batch", "train")):
        parse_script_command(["--config", str(path), "a.py"])
    path.write_text("average_evry = 8")
    with pytest.raises(RingtrainError, match=says("unknown key 'average_evry'", "'average_every'")):
        parse_script_command(["--config", str(path), "a.py"])


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({}, True),
        ({"algorithm": "ring", "deadline_s": 3.0, "check_collectives": False}, True),
        ({"sync": "gossip"}, False),
        ({"wire": "float16"}, False),
        ({"overlap": "none"}, False),
    ],
)
def test_ddps_own_reducer_does_what_is_not_asked_of_a_strategy(options, plain):
    assert is_plain(ExchangeConfig(**options)) == plain


@pytest.mark.parametrize("arguments", [["--help"], ["--deadline-s", "3", "-h", "a.py"]])
def test_help_is_returned_and_not_printed(arguments, capsys):
    shown = parse_script_command(arguments)
    assert isinstance(shown, str) and "--no-check-collectives" in shown and "train.py --epochs 3" in shown
    assert capsys.readouterr().out == ""


def test_without_pytorch_the_launcher_says_so_in_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    command = [sys.executable, "-m", "ringtrain.torch", "a.py"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and says("torch", "pip install").matches(done.stderr)
