"""scripts/reference writes all commands, strategies, algorithms, layers, models, errors and records."""

import subprocess
import sys
from dataclasses import fields

import click
import pytest

from ringtrain.cli.main import ringtrain as program
from ringtrain.collectives.catalogue import FLAT
from ringtrain.exchange.catalogue import STRATEGIES
from ringtrain.exchange.parts import HYBRID, PIPELINE
from ringtrain.nn.catalogue import LAYERS
from ringtrain.nn.spec import available
from ringtrain.report.events import KINDS, Evaluated
from tests.docs.playing import ROOT


@pytest.fixture(scope="module")
def page() -> str:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "reference"], capture_output=True, text=True, check=True)
    return done.stdout


def commands(command=program, name="ringtrain"):
    yield name, command
    if isinstance(command, click.Group):
        for inner in command.list_commands(None):
            yield from commands(command.get_command(None, inner), f"{name} {inner}")


def test_every_command_is_there_with_every_option(page):
    for name, command in commands():
        section = page.split(f"### `{name}`\n")[1].split("\n#")[0]
        missing = [option for parameter in command.params for option in parameter.opts if option not in section]
        assert [option for option in missing if option.startswith("-")] == []


def test_every_name_of_a_catalogue_every_model_and_error_is_there(page):
    names = [*STRATEGIES, HYBRID, PIPELINE, *FLAT, *LAYERS, *KINDS.values()]
    assert [name for name in names if f"\n### `{name}`\n" not in page] == []
    assert [name for name in available() if f"| `{name}` |" not in page] == [] and "DeviceFullError" in page


def test_every_event_has_a_kind_of_its_own_and_a_word_for_each_field(page):
    assert len(set(KINDS.values())) == len(KINDS)
    for event, kind in KINDS.items():
        section = page.split(f"### `{'epoch' if event is Evaluated else kind}`\n")[1].split("\n#")[0]
        assert [field.name for field in fields(event) if f"`{field.name}`" not in section] == [], kind


def test_it_writes_to_a_file(tmp_path, page):
    subprocess.run([sys.executable, ROOT / "scripts" / "reference", "-o", tmp_path / "r.md"], check=True)
    assert (tmp_path / "r.md").read_text() == page
