"""What a wrong command line is answered with, and the sections of the help."""

import re

import click
import pytest
from click.testing import CliRunner

from ringtrain.cli import hints
from ringtrain.cli.main import COMMANDS, ringtrain, run
from ringtrain.cli.slurm import slurm
from ringtrain.cli.train import USUAL, train
from ringtrain.config.option import SECTIONS
from ringtrain.config.record import config_fields
from tests.says import says


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --learning-rate 0.1", says("--learning-rate", "use --lr")),
        ("train -lr 0.1", says("-l", "use --lr")),
        ("train --batch-size=32", says("--batch-size", "use --batch")),
        ("train --batch_size 3", says("--batch_size", "use --batch")),
        ("train --gpu 0", says("--gpu", "use --device cuda")),
        ("train --workers 4", says("--workers", "No", "option") + "there are none: the data set lies in memory"),
        ("train -np 2", says("-n", "train")),
        ("bench-allreduce -g 2", says("-g", "mpirun -np 2 ringtrain bench-allreduce")),
        ("report -n 2", r"No such option:? '?-n'?\.?\n"),
        ("report -j 2", r"No such option:? '?-j'?\.?\n"),
        ("slurm --nnodes 2", says("--nnodes", "use --nodes")),
        ("slurm -- --learning-rate 3", says("--learning-rate", "use --lr")),
        ("evaluate r --batch-size 3", says("--batch-size", "No such option")),
        ("train --lrr 3", says("--lrr", "No such option")),
        ("data shwo digits", says("'shwo'", "known: check, info, make")),
        ("models info", says("'info'", "known: copy, list, show")),
        ("schedule prove ring", says("'prove'", "known: cost, draw, list, show, verify")),
        ("train -b x", says("--help", "Invalid value for '--batch' / '-b': 'x' is not a valid integer.")),
        ("train -bx", says("--help", "Invalid value for '--batch' / '-b': 'x' is not a valid integer.")),
    ],
)
def test_options_of_other_tools_are_known(words, message, capsys):
    assert run(words.split()) == 2
    said = capsys.readouterr().err
    assert re.match(f"ringtrain: {message}", said) and "\nTry 'ringtrain " in said


def test_what_is_named_in_their_place_is_there():
    options = {name: param for command in (train, slurm) for param in command.params for name in param.opts}
    for name in hints.NAMES:
        option, *values = name.split()
        assert all(options[option].type.convert(value, options[option], None) == value for value in values)


def shown(columns: int, *section: str) -> str:
    return CliRunner().invoke(ringtrain, ["train", "--help", *section], terminal_width=columns).output


def test_the_short_help_is_a_screen_of_true_lines_and_names_the_sections(capsys):
    text = shown(80)
    assert len(text.splitlines()) <= 49 and "[SECTION" not in text
    for param in train.params:
        line = re.search(rf"^  (-\w, )?{param.opts[0]} +(\S.*)$", text, re.MULTILINE)
        assert bool(line) == (param.name in USUAL)
    assert "\n  --lr                  Learning rate [0.01]\n" in text
    *_, last = text.partition("SECTION, one of ")
    sections = last.rstrip(".\n").replace("\n", " ").split(", ")
    parts = [re.findall(r"(?m)^(\S[\w ]*):$", shown(80, section)) for section in sections]
    assert parts == [[title] for title in SECTIONS]
    assert run(["train", "--help", "stratgy"]) == 2 and "'strategy'" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_has_its_options_in_sections(columns):
    text = shown(columns, "all")
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles == [*SECTIONS, "Other options"]
    assert max(map(len, text.splitlines())) <= columns
    for param in train.params:
        assert len(re.findall(rf"^ .*{param.opts[0]}\b(?!-)", text, re.MULTILINE)) >= 1
    assert re.findall("--[a-z]+", text.partition("Other options:\n")[2]) == ["--help"]
    starts = {line.index(line.split(maxsplit=2)[-1]) for line in text.splitlines() if line.startswith(" " * 20)}
    assert min(starts) >= 34


def test_every_default_is_in_the_help_and_a_recipe_is_said_once_to_come_first():
    for param in train.params:
        spec = config_fields().get(param.name)
        if spec is not None and spec.default not in (None, ()):
            assert re.search(r" \[default: [^]]+\]$", param.help)
    text = " ".join(shown(80, "all").split())
    assert text.count("recipe") == 1
    assert "Learning rate. [default: 0.01]" in text and "Trust coefficient of lars. [default: 0.001]" in text
    assert "Approximate gradient bytes of a bucket, which are exchanged together. [default: 4M]" in text
    assert "Random crops and flips, if the model's input has them. [default: on]" in text


def test_every_command_has_a_help_and_every_option_of_data():
    for name in COMMANDS:
        command = ringtrain.get_command(None, name)
        assert command.help and isinstance(command, click.Command)
    for command in ringtrain.get_command(None, "data").commands.values():
        assert all(option.help for option in command.params if option.param_type_name == "option")
    text = CliRunner().invoke(ringtrain, ["slurm", "--help"]).output
    assert re.search(r"\n\nOther options:\n  -h, --help .*\n$", text)


@pytest.mark.parametrize("words", [[], ["data"]])
def test_a_command_without_its_own_command_shows_its_help_line_by_line(capsys, words):
    assert run(words) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Usage: ringtrain") and "Commands:" in lines
