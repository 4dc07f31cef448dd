"""The command line of `python -m ringtrain.torch`: nothing here needs PyTorch."""

import pytest

from ringtrain.cli.python_script import parse_script_command
from ringtrain.errors import UsageError
from ringtrain.launch.python_script import ScriptCommand
from tests.says import says


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["a.py"], ScriptCommand("a.py")),
        (["a.py", "--help", "-m", "x"], ScriptCommand("a.py", ("--help", "-m", "x"))),
        (["-m", "pack.age", "--deadline-s", "3"], ScriptCommand("pack.age", ("--deadline-s", "3"), is_module=True)),
        (["--deadline-s", "3", "--algorithm=ring", "a.py"], ScriptCommand("a.py", deadline_s=3.0, algorithm="ring")),
        (["--no-check-collectives", "-m", "m"], ScriptCommand("m", is_module=True, check_collectives=False)),
        (["a.py", "--", "-x"], ScriptCommand("a.py", ("--", "-x"))),
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
        (["--deadline", "3", "a.py"], "No such option '--deadline'"),
        (["--deadline-s"], "Option '--deadline-s' requires an argument"),
        (["--deadline-s", "0", "a.py"], "Invalid value for '--deadline-s': 0.0 is not in the range"),
        (["--deadline-s", "soon", "a.py"], "Invalid value for '--deadline-s': 'soon' is not a valid float"),
    ],
)
def test_wrong_options_are_named(arguments, text):
    with pytest.raises(UsageError, match=says(text)):
        parse_script_command(arguments)


@pytest.mark.parametrize("arguments", [["--help"], ["--deadline-s", "3", "-h", "a.py"]])
def test_help_is_returned_and_not_printed(arguments, capsys):
    shown = parse_script_command(arguments)
    assert isinstance(shown, str) and "--no-check-collectives" in shown and "train.py --epochs 3" in shown
    assert capsys.readouterr().out == ""
