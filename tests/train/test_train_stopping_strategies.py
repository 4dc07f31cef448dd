"""One rank of three is told to stop, under ways of training where ranks are apart: all stop."""

import json

import pytest
from small_runs import DROPOUT_NET

from ringtrain.errors import Interrupted
from ringtrain.train.options import read_options
from ringtrain.train.start import open_run, start
from ringtrain.train.stopping.reasons import JobEnd
from ringtrain.train.stopping.signals import StopFlag
from tests.fakes.turns import OneAtATime

SERVER = {"sync": "server", "algorithm": "auto"}
WAYS = {
    "delayed": {"sync": "delayed"},
    "asynchronous averaging": {"sync": "averaging", "algorithm": "auto", "asynchronous": True},
    "gossip": {"sync": "gossip"},
    "stale server": {**SERVER, "staleness": 2},
    "asynchronous server": {**SERVER, "asynchronous": True},
    "dedicated server": {**SERVER, "dedicated": True},  # of which the one that serves is told below
    "pipeline": {"fc": "pipeline", "algorithm": "auto"},
}


def train(monkeypatch, victim, **flags):
    """The errors of three ranks, of which ``victim`` is told to stop when it has asked itself so often."""

    def end_of(transport, *given):
        asked = iter(range(10**9))
        return JobEnd(30.0 if transport.rank == victim else None, 1.0, lambda: float(next(asked)))

    monkeypatch.setattr(open_run, "find_job_end", end_of)
    flags = {"model": "net.toml", "data": "digits", "ops": "reference", "guard": False, "deadline_s": 60.0, **flags}

    def ends(transport):
        try:
            start.train(transport, read_options(None, flags), StopFlag())
        except Exception as error:
            return error
        return None

    return OneAtATime(3, monkeypatch).run(ends)  # else the others might have done all before the victim has asked


@pytest.mark.timing
@pytest.mark.parametrize("way", WAYS)
def test_all_stop_with_a_checkpoint(monkeypatch, tmp_path, way):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.toml").write_text(DROPOUT_NET)
    given = {"out": "run", "iterations": 400, "evaluate_every": 10**6, "checkpoint_every": 10**6, **WAYS[way]}
    found = train(monkeypatch, 0 if "dedicated" in way else 2, **given)
    assert [type(error) for error in found] == [Interrupted] * 3, found
    assert "s before the end of the job after iteration" in str(found[0])
    end = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()][-1]
    assert end["reason"] == "interrupted" and 1 <= end["iterations"] < 400
    assert (tmp_path / f"run/checkpoints/iteration-{end['iterations']:08}.h5").exists()
