"""A run whose exchange blocks it for long says at its end which all-reduce would be faster."""

import re
import threading
from itertools import cycle
from types import SimpleNamespace

import pytest
from small_runs import everywhere

from ringtrain.errors import StalledError
from ringtrain.train.run import faster_algorithm, records
from ringtrain.train.stopping.signals import StopFlag
from tests.runs import records as records_of
from tests.runs import start
from tests.says import says

MEASURED = ("mapped", "mpi", "stream", "sliced", "ring")  # after the run's own, which comes first


@pytest.fixture
def ended(monkeypatch, folder):
    """ended(seconds, **flags): the notes of a run of two ranks that measures all-reduces at its end, and how many it
    measures. ``seconds``: of those that take other than 2 s, by name.
    """

    def run(seconds, worth_s=0.0, rounds=5, first_s=0.05, failing=False, **flags):
        local, counts = threading.local(), []
        algorithm = flags.get("algorithm", "auto")
        chosen = "mapped" if algorithm == "auto" else algorithm
        names = list(dict.fromkeys([chosen, *MEASURED]))

        def clock():
            """Called before each all-reduce and after it. The first round does not count."""
            if not hasattr(local, "steps"):
                taken = [seconds.get(name, 2.0) for name in names]
                local.now, local.calls = 0.0, 0
                local.steps = cycle(step for each in taken for step in (0.0, each))
            if failing and local.calls == 5:
                raise StalledError("a rank does not come")
            local.now += first_s if local.calls < 2 * len(names) else next(local.steps)
            local.calls += 1
            counts.append(1)
            return local.now

        options = {"model": "net.toml", "data": "digits", "batch": 30, "iterations": 4, "out": "run", **flags}
        monkeypatch.setattr(faster_algorithm, "time", SimpleNamespace(perf_counter=clock))
        monkeypatch.setattr(records, "WORTH_S", worth_s)
        monkeypatch.setattr(records, "WORTH_SHARE", 0.0)
        everywhere(2, lambda transport: start(transport, None, dict(options), StopFlag()))
        entries = records_of(folder / "run", "note")
        measured = len(counts) // (2 * 2 * (1 + rounds))
        return [note["text"] for note in entries if "--algorithm" in note["text"]], measured

    return run


@pytest.mark.parametrize(
    ("seconds", "algorithm", "wanted"),
    [
        ({"mpi": 1.0}, "auto", ("mapped", "2 s", "mpi", "1 s")),
        ({"ring": 3.0}, "ring", ("ring", "3 s", "mpi", "2 s")),
        ({"mpi": 1.9}, "auto", None),
        ({"mapped": 1.0}, "auto", None),
    ],
)
def test_the_fastest_is_named_if_it_is_worth_it(ended, seconds, algorithm, wanted):
    notes, measured = ended(seconds, algorithm=algorithm)
    assert measured == len(MEASURED)
    if wanted is None:
        assert not notes
        return
    fields = dict(zip(("algorithm", "seconds", "other", "other_seconds"), wanted, strict=True))
    (note,) = notes
    assert re.fullmatch(says("--algorithm", *fields.values()), note)


@pytest.mark.parametrize(
    "flags",
    [{"wire": "float16"}, {"compress": "top-k"}, {"reproducible": True}, {"sync": "sharded"}, {"worth_s": 1e9}],
)
def test_a_run_that_no_other_algorithm_suits_or_that_hardly_blocks_measures_none(ended, flags):
    assert ended({"mpi": 1.0}, **flags) == ([], 0)


def test_on_a_slow_machine_one_round_counts(ended):
    notes, measured = ended({"mpi": 1.0}, rounds=1, first_s=1.0)
    assert len(notes) == 1 and measured == len(MEASURED)


def test_a_measurement_that_stalls_leaves_a_run_that_is_done(ended, tmp_path):
    assert ended({"mpi": 1.0}, failing=True)[0] == []
    assert records_of(tmp_path / "run", "end")[0]["reason"] == "done"
