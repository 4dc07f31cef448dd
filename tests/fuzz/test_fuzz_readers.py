"""Every reader that scripts/bench fuzz knows, with a few inputs each: valid ones, spoiled; none of them breaks
a rule. The fuzzer itself is shown to see a reader that does."""

import gc
import os
import pickle
import runpy
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringtrain.errors import DataError
from scripts.fuzz.catalogue import READERS
from scripts.fuzz.mutation import bundle, parts_of
from scripts.fuzz.reader import Reader, written
from scripts.fuzz.rules import Broken, judged
from scripts.fuzz.worker import Ledger, Lines, keep, place_of

INPUTS = {
    "data-set": 25,
    "checkpoint": 20,
    "log": 25,
    "model-file": 20,
    "idx": 20,
    "cifar": 15,
    "npz": 20,
    "images": 20,
}
USUALLY = 40
USUAL = settings(
    derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "room").mkdir()
    monkeypatch.chdir(tmp_path / "room")
    return tmp_path / "room"


@pytest.mark.parametrize("name", READERS)
def test_spoiled_inputs_break_no_rule(name, folder):
    reader, seeds = READERS[name], READERS[name].seeds()
    for data in seeds:
        reader.judge(data, folder)

    @settings(USUAL, max_examples=INPUTS.get(name, USUALLY))
    @given(st.sampled_from(seeds), st.integers(0, 2**32))
    def spoiled(data, seed):
        reader.judge(reader.mutate(Random(seed), data), folder)

    spoiled()


@pytest.mark.parametrize("name", READERS)
@settings(USUAL, max_examples=10)
@given(data=st.binary(max_size=200))
def test_bytes_of_no_meaning_break_no_rule(name, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("room")
    READERS[name].judge(data, folder)


VALID = [name for name in READERS if name not in ("environment", "command-line", "archive", "tuning", "checkpoint")]


@pytest.mark.parametrize("name", VALID)
def test_the_seeds_are_read(name, folder):
    assert [READERS[name].judge(data, folder) for data in READERS[name].seeds()] == [""] * len(READERS[name].seeds())


@pytest.mark.parametrize("name", READERS)
def test_the_same_seed_makes_the_same_input(name):
    reader = READERS[name]
    made = [reader.mutate(Random(7), reader.seeds()[0]) for _ in range(2)]
    assert made[0] == made[1]


# ── the rules can say no ──────────────────────────────────────────────────────────────────────────────────────
def _raises(error):
    def read():
        raise error

    return read


@pytest.mark.parametrize(
    ("read", "kind", "message"),
    [
        (_raises(KeyError("x")), KeyError, "x"),
        (_raises(DataError("  ")), Broken, "without a message"),
        (_raises(DataError("it is bad")), Broken, "names none of"),
        (lambda: Path("left").write_text("x"), Broken, "files"),
        (lambda: Path("a").unlink(), Broken, "files"),
        (lambda: Path("a").write_text("y"), Broken, "other bytes"),
        (lambda: os.open("a", os.O_RDONLY), Broken, "descriptors"),
    ],
)
def test_a_broken_rule_is_seen(folder, read, kind, message):
    written(folder, "a", b"x")
    with pytest.raises(kind, match=message):
        judged(read, folder, ("bad.toml",))


def test_a_message_that_garbles_is_seen(folder):
    error = DataError("x")
    error.args = ("bad.toml: \x1b[2J",)  # as it cannot be made
    with pytest.raises(Broken, match="x1b"):
        judged(_raises(error), folder)
    error.args = ("bad.toml" * 3000,)
    with pytest.raises(Broken, match="24000 characters"):
        judged(_raises(error), folder)


def test_a_bundle_is_as_many_parts_as_are_asked_for():
    assert parts_of(bundle([b"a", b"", b"bcd"]), 3) == [b"a", b"", b"bcd"]
    assert parts_of(b"\xff\xff\xff\xffab", 2) == [b"ab", b""]


def test_what_is_found_is_kept_once_for_a_place(tmp_path):
    try:
        pickle.loads(b"?")
    except Exception as error:
        place = place_of(error)
    assert place.startswith("UnpicklingError ")
    path = keep(tmp_path, b"input", place, "told")
    assert path.read_bytes() == b"input" and path.with_suffix(".txt").read_text() == "told"
    assert keep(tmp_path, b"other", place, "told") is None


def test_the_ledger_tells_others_what_is_read(tmp_path):
    own = Ledger(tmp_path / "ledger")
    own.begin(b"one input")
    own.begin(b"another")
    assert (Ledger(tmp_path / "ledger").count, Ledger(tmp_path / "ledger").data) == (2, b"another")


@pytest.mark.timing
def test_lines_of_ringtrain_that_are_new_are_seen(folder):
    reader, lines = READERS["tuning"], Lines()
    good = reader.seeds()[0]
    assert lines.fresh(lambda: reader.judge(good, folder))
    assert not lines.fresh(lambda: reader.judge(good, folder))
    assert lines.fresh(lambda: reader.judge(b"[]", folder))


@pytest.mark.timing
def test_lines_outside_of_the_package_are_not_seen(tmp_path):
    """Of a clone that is itself called ringtrain, its tests and libraries."""
    path = tmp_path / "ringtrain" / "tests" / "other.py"
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    lines = Lines()
    assert not lines.fresh(lambda: runpy.run_path(str(path))) and not lines.seen


@pytest.mark.timing
def test_nothing_is_collected_while_lines_are_traced():
    collecting, seen = gc.isenabled(), []
    Lines().fresh(lambda: seen.append(gc.isenabled()))
    assert seen == [False] and gc.isenabled() == collecting


def test_a_reader_that_breaks_is_reported(folder):
    broken = Reader("x", "x", lambda: [b""], lambda random, data: data, lambda data, room: _raises(ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        broken.judge(b"", folder)
    assert not list(folder.iterdir())
