"""Where a run begins that ended before its first checkpoint: where it began, whatever it is told then."""

import tomllib

import pytest

from ringtrain.errors import CheckpointError, UsageError
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train.checkpoints.resume import restart_origin
from ringtrain.train.options import read_options
from tests.runs import records, start
from tests.says import says


@pytest.fixture
def train(alone, folder):
    """train(flag=value...): (the iteration that a run began after, its iterations in all, its weights' hash)."""

    def run(run_file=None, out="run", **flags):
        start(alone, run_file, {"data": "digits", "ops": "reference", "out": out, **flags})
        begun, end = (records(folder / out, kind)[-1] for kind in ("start", "end"))
        return begun["resumed_at"], end["iterations"], end["weights_sha256"]

    return run


@pytest.fixture
def first(train):
    """A run of three iterations that others begin with."""
    train(model="net.toml", out="first", iterations=3)
    return "first"


def strip(out="run"):
    """As if it had been stopped before its first checkpoint."""
    for path in RunFolder(out).checkpoints.iterdir():
        path.unlink()


def begun_with(out="run"):
    return tomllib.loads(RunFolder(out).config.read_text())["resume"]


def test_the_same_start_again_goes_on_and_so_does_auto(train, first):
    """Again and again, and keeps what the first was told besides; a checkpoint of its own is newer."""
    whole = train(resume=first, iterations=5, lr=0.125)
    assert whole[:2] == (3, 5)
    strip()
    assert train(resume=f"./{first}/") == whole
    strip()
    assert train(resume=first) == whole and begun_with() == first
    for _ in range(2):
        strip()
        assert train(resume="auto") == whole and begun_with() == first
    assert train(resume="auto", iterations=6)[:2] == (5, 6) and begun_with() == first


def test_a_note_says_that_the_rate_jumps_where_the_length_is_another(train, tmp_path):
    train(model="net.toml", out="run", iterations=4, lr=0.5, lr_policy="cosine")
    train(resume="run", iterations=4)
    train(resume="run", iterations=8, lr=0.25)  # another rate was asked for
    train(resume="run", iterations=9)
    (note,) = [record["text"] for record in records(tmp_path / "run", "note") if "rate" in record["text"]]
    assert says("cosine", "iteration 8", "0.00952 of a run of 8", "of 9").matches(note)


def test_auto_does_not_hide_what_the_run_file_names(train, first, tmp_path):
    (tmp_path / "run.toml").write_text(f'resume = "{first}"\nlr = 0.125\n')
    whole = train("run.toml", resume="auto", iterations=5)
    assert whole[:2] == (3, 5) and begun_with() == first
    strip()
    assert train("run.toml", resume="auto") == whole
    strip()
    assert train(resume="auto") == whole
    assert train("run.toml", resume="auto", iterations=6)[:2] == (5, 6)


def test_the_run_file_counts_more_than_what_is_found(train, first, tmp_path):
    train(model="net.toml", out="second", iterations=2)
    train(resume=first, iterations=5)
    strip()
    (tmp_path / "run.toml").write_text('resume = "second"\n')
    assert train("run.toml", resume="auto", iterations=4)[:2] == (2, 4)
    assert begun_with() == "second"
    (tmp_path / "run.toml").write_text('resume = "auto"\n')
    strip()
    assert train("run.toml")[:2] == (2, 4)


def test_another_start_in_its_folder_is_refused_and_what_it_began_with_may_be_gone(train, first, tmp_path):
    train(model="net.toml", out="second", iterations=2)
    train(resume=first, iterations=5)
    for other in (first, "second"):  # the same, where there is a checkpoint; another, where there is none
        with pytest.raises(UsageError, match=says("--resume", "--out", "run")):
            train(resume=other)
        strip()
    (tmp_path / first).rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=says("run", "first")):
        train(resume="auto")


def test_one_that_went_on_in_its_own_folder_begins_anew_by_auto_alone(train):
    train(model="net.toml", iterations=3)
    train(resume="run", iterations=4)
    strip()
    with pytest.raises(CheckpointError, match="run holds no checkpoint"):
        train(resume="run")
    assert train(resume="auto", iterations=4)[:2] == (0, 4)


def test_after_a_death_before_the_first_checkpoint_it_begins_as_it_began(train, first, tmp_path):
    train(resume=first, iterations=5, lr=0.125)
    strip()
    (tmp_path / "run.toml").write_text(f'resume = "{first}"\n')
    for run_file, flags in ((None, {"resume": "auto"}), ("run.toml", {"resume": "auto"}), (None, {"resume": first})):
        origin = restart_origin("run", read_options(run_file, {"out": "run", **flags}))
        assert (origin.iteration, origin.folder, origin.continues) == (3, "run", True)
        assert tomllib.loads(origin.config)["lr"] == 0.125
    RunFolder("run").config.unlink()  # it died before there was one
    for run_file, flags in (("run.toml", {"resume": "auto"}), (None, {"resume": first})):
        origin = restart_origin("run", read_options(run_file, {"out": "run", **flags}))
        assert (origin.iteration, origin.folder, origin.continues) == (3, "run", True)
    assert restart_origin("run", read_options(None, {"out": "run"})).iteration is None
