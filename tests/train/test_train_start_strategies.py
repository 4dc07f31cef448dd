"""`ringtrain train --sync …` from flags to files: what the header says, where a run goes on, what is refused."""

from functools import partial

import pytest

from ringtrain.errors import ConfigError
from ringtrain.transport.loopback import Loopback
from tests.runs import records, start


@pytest.fixture
def train(train):
    return partial(train, algorithm="ring")


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        ({"sync": "sharded"}, "sharded by ring: a rank keeps "),
        ({"overlap": "forward", "clip_norm": 1.0}, "--overlap forward is backward here: the factor of"),
        (
            {"sync": "master", "algorithm": "auto"},
            "rank 0 reads all batches, computes the loss and keeps the optimizer's ",
        ),
    ],
)
def test_a_strategy_says_what_it_does(train, tmp_path, flags, note):
    train(out="run", iterations=1, **flags)
    assert records(tmp_path / "run", "note")[0]["text"].startswith(note)


def test_what_each_bucket_costs_is_in_the_log(train, tmp_path, capsys):
    train(out="run", iterations=4, overlap="forward", bucket_bytes=1)
    (exchange,) = records(tmp_path / "run", "exchange")
    assert (exchange["overlap"], exchange["iteration"]) == ("forward", 4)
    assert [bucket["spans"] for bucket in exchange["buckets"]] == ["fc.bias", "fc.weight", "conv1.bias", "conv1.weight"]
    assert sum(bucket["nbytes"] for bucket in exchange["buckets"]) == 4 * (96 * 10 + 16 + 64 + 16)
    assert all(bucket["total_s"] >= bucket["exposed_s"] > 0 for bucket in exchange["buckets"])
    assert "communication" not in capsys.readouterr().out  # of one rank
    waits = [entry["exposed_s"] for entry in records(tmp_path / "run", "iteration")]
    assert len(waits) == 4 and min(waits) > 0 and sum(waits) == pytest.approx(exchange["exposed_s"])


def test_a_run_goes_on_with_another_overlap(train, tmp_path):
    train(out="whole", iterations=10, checkpoint_every=5, overlap="none")
    train(out="changed", iterations=5, overlap="forward")
    train(out="changed", iterations=10, overlap="backward", resume="auto")
    ends = [records(tmp_path / out, "end")[-1] for out in ("whole", "changed")]
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"]


def test_factors_that_compress_nothing_are_refused(train):
    with pytest.raises(ConfigError, match="--compress-rank 40 compresses nothing"):
        train(compress="powersgd", compress_rank=40)


@pytest.mark.parametrize(
    ("former", "flags", "words"),
    [
        ({"sync": "server", "staleness": 2, "servers": 1, "algorithm": "auto"}, {"sync": "allreduce"}, ""),
        ({"sync": "averaging", "average_every": 3}, {"sync": "gossip", "gossip_max_lag": 2}, ""),
        ({"sync": "averaging", "asynchronous": True, "algorithm": "auto"}, {"sync": "server", "staleness": 1}, ""),
        ({"sync": "averaging", "average_every": 3}, {"sync": "averaging"}, "every 3"),
    ],
)
def test_a_run_goes_on_by_another_strategy_without_the_options_of_the_former(train, tmp_path, former, flags, words):
    """By its own strategy it keeps them."""
    train(out="run", batch=64, iterations=2, **former)
    start(Loopback(), None, {"out": "run", "resume": "auto", "iterations": 3, **flags})
    assert records(tmp_path / "run", "end")[-1]["iterations"] == 3
    assert words in records(tmp_path / "run", "start")[-1]["strategy"]
