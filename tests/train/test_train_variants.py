"""Several trainings in one process, one after another: nothing of one is left in the next."""

import os
import signal
import threading
from pathlib import Path

import pytest
from small_runs import DIGITS

from ringtrain.errors import ConfigError, DataError, DivergedError, TransportError, UsageError, everywhere
from ringtrain.template import Lines
from ringtrain.train.options import read_options
from ringtrain.train.start import variants as room
from ringtrain.train.start.variants import Variant, check_variants, run_variants
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.loopback import Loopback
from tests import runs
from tests.loopback.world import LoopbackWorld
from tests.runs import start
from tests.says import says

pytestmark = pytest.mark.usefixtures("folder")


def variant(name, **flags):
    return Variant(name, None, {**DIGITS, "iterations": 4, "out": name, **flags})


def run(*variants, begun=id, ended=id):
    return run_variants(Loopback(), Loopback, variants, begun, ended)


def records(name, kind):
    return runs.records(Path(name), kind)


def digest(name):
    return records(name, "end")[0]["weights_sha256"]


# ── running ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_each_variant_is_as_if_it_were_alone():
    """And the seed decides what it learns."""
    calls, variants = [], (variant("a"), variant("b", seed=3), variant("c", dtype="float64"), variant("d"))
    ran = run(*variants, ended=lambda ran: calls.append(len(ran)))
    assert [each.problem for each in ran] == [None] * 4 and calls == [1, 2, 3, 4]
    start(Loopback(), None, variant("alone").flags)
    assert digest("a") == digest("d") == digest("alone") and len({*map(digest, "abc")}) == 3


def test_one_that_diverges_does_not_stop_the_others(heard):
    before, handler = threading.active_count(), signal.getsignal(signal.SIGTERM)
    ran = run(variant("a"), variant("hot", lr=1e30), variant("b"))
    assert (threading.active_count(), signal.getsignal(signal.SIGTERM)) == (before, handler)
    assert [each.problem is None for each in ran] == [True, False, True]
    assert ran[1].problem.startswith("the loss is")
    assert digest("a") == digest("b")
    (failed,) = records("hot", "failed")
    assert (failed["error"], failed["text"]) == ("DivergedError", ran[1].problem)
    assert records("hot", "end") == []


def test_a_signal_ends_all():
    """While one begins, or between two."""

    def begun(variant):
        if variant.name == "b":
            os.kill(os.getpid(), signal.SIGUSR1)

    ran = run(variant("a"), variant("b"), variant("c"), begun=begun)
    assert [each.variant.name for each in ran] == ["a", "b"]
    assert "stopped by SIGUSR1 before the first iteration; there is no checkpoint of it yet" in ran[1].problem
    ran = run(variant("d"), variant("e"), ended=lambda ran: os.kill(os.getpid(), signal.SIGUSR1))
    assert [each.variant.name for each in ran] == ["d"]


def test_an_error_of_one_rank_alone_is_not_lived_through(monkeypatch):
    def broken(*args):
        raise TransportError("the cable is out")

    monkeypatch.setattr(room, "run_training", broken)
    message = says("the cable is out", "'a'")
    with pytest.raises(TransportError, match=f"^{message}$"):
        run(variant("a"), variant("b"))


# ── what runs record for it ───────────────────────────────────────────────────────────────────────────────────────────
def test_ranks_are_recorded():
    run(variant("a", iterations=50))
    (ranks,) = records("a", "ranks")
    assert ranks["updates"] == [50]
    assert ranks["bytes_sent"] == ranks["between_bytes"] == [0]
    assert ranks["weights_bytes"] == ranks["gradient_bytes"] == ranks["state_bytes"]
    assert ranks["peak_bytes"][0] > 10_000_000
    assert [each["bytes_sent"] for each in records("a", "epoch")] == [0]
    images = sum(each["examples"] for each in records("a", "iteration"))
    assert ranks["images"] == [images]


# ── before anything is run ────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        (
            {"average_every": 3},
            ConfigError,
            says("variant 'bad'", "--average-every 3", "--sync averaging", "--sync allreduce", "used", "uses"),
        ),
        ({"data": "none.h5"}, DataError, "variant 'bad': there is no data set none.h5"),
        ({"batch": 5000}, ConfigError, "variant 'bad': --batch 5000 is more than the 1437 training examples"),
        ({"sync": "sharded", "algorithm": "star", "wire": "float16"}, ConfigError, "variant 'bad': --wire float16"),
    ],
)
def test_what_is_wrong_with_one_is_said_before_any_is_run(folder, flags, error, message):
    with pytest.raises(error) as raised:
        check_variants(Loopback, [variant("a"), variant("bad", **flags)])
    assert says(message).matches(str(raised.value)) and raised.value.everywhere
    assert [path.name for path in folder.iterdir()] == ["net.toml"]


def test_an_error_of_one_keeps_its_lines(monkeypatch):
    def refuses(*_):
        raise everywhere(UsageError(Lines("of another machine:\n  cpu")))

    monkeypatch.setattr(room, "_check", refuses)
    with pytest.raises(UsageError, match=r"^variant 'bad': of another machine:\n  cpu$"):
        check_variants(Loopback, [variant("bad")])


def test_good_ones_are_checked_on_data_that_are_read_once(monkeypatch):
    opened = []
    real = room.open_data
    monkeypatch.setattr(room, "open_data", lambda *args: opened.append(args[0].data.data) or real(*args))
    check_variants(Loopback, [variant("a"), variant("b", sync="sharded"), variant("c", synthetic=True, data=None)])
    assert opened == ["digits", None]


@pytest.mark.parametrize("flags", [{"sync": "server", "dedicated": True}, {"sync": "averaging", "average_every": 2}])
def test_ranks_that_are_apart_end_together_where_one_diverges(flags):
    options = variant(
        "hot", lr=1e30, batch=60, iterations=40, asynchronous=True, check_collectives=False, **flags
    ).flags

    def end(transport):
        with pytest.raises(DivergedError, match="the loss is") as error:
            room.run_training(transport, read_options(None, options), StopFlag())
        return error.value.everywhere, str(error.value)

    (first, *others) = LoopbackWorld(3).run(end)
    assert first[0] and all(other == first for other in others)
    assert [record["text"] for record in records("hot", "failed")] == [first[1]]
