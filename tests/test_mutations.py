"""scripts/mutations.toml fits the code: each mutation has one place, and tests that are there."""

import shlex
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = tomllib.loads((ROOT / "scripts" / "mutations.toml").read_text())
CASES = {breaks: (file, *mutation) for file, mutations in TABLE.items() for breaks, mutation in mutations.items()}


@pytest.mark.parametrize(("file", "old", "new", "tests"), CASES.values(), ids=CASES)
def test_a_mutation_has_one_place_and_tests(file, old, new, tests):
    assert (ROOT / file).read_text().count(old) == 1
    assert old != new
    files = [argument.partition("::")[0] for argument in shlex.split(tests)]
    assert any(name.startswith("tests/") for name in files)
    assert all((ROOT / name).exists() for name in files if name.startswith("tests/"))
