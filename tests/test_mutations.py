"""scripts/mutations.toml fits the code: each mutation has one place, and tests that are there."""

import shlex
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = tomllib.loads((ROOT / "scripts" / "mutations.toml").read_text())["mutation"]


@pytest.mark.parametrize("mutation", TABLE, ids=[each["breaks"] for each in TABLE])
def test_a_mutation_has_one_place_and_tests(mutation):
    assert (ROOT / mutation["file"]).read_text().count(mutation["old"]) == 1
    assert mutation["old"] != mutation["new"]
    files = [argument.partition("::")[0] for argument in shlex.split(mutation["tests"])]
    assert any(name.startswith("tests/") for name in files)
    assert all((ROOT / name).exists() for name in files if name.startswith("tests/"))
