"""A run by a preset: the bits of its strategy with these flags, also over a stop, and its name in all files."""

import tomllib

from small_runs import DIGITS, DROPOUT_NET

from ringtrain.train.stopping.signals import StopFlag
from tests.loopback.world import LoopbackWorld
from tests.runs import records, start


def trained(folder, **flags):
    flags = {**DIGITS, "check_collectives": False, "evaluate_every": 1000, "seed": 3, "out": folder, **flags}
    LoopbackWorld(3).run(lambda transport: start(transport, None, flags, StopFlag()))


def test_a_run_by_a_preset_is_that_of_its_flags(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ringtrain.train.start.start.has_iterations", lambda log: False)  # curves take a second
    (tmp_path / "net.toml").write_text(DROPOUT_NET)
    momentum = {"average_momentum": "keep", "outer_momentum": 0.9, "outer_lr": 0.7}
    trained("flags", sync="averaging", average_every=3, iterations=8, **momentum)
    trained("preset", sync="diloco", average_every=3, iterations=5)
    trained("preset", resume="auto", iterations=8)
    losses = [[record["loss"] for record in records(tmp_path / name, "iteration")] for name in ("flags", "preset")]
    assert losses[0] == losses[1]
    first = records(tmp_path / "preset", "start")[0]["strategy"]
    assert first.startswith("diloco: averaging every 3, momentum: keep, outer momentum 0.9, rate 0.7")
    assert {record["strategy"] for record in records(tmp_path / "preset", "start")} == {first}
    config = tomllib.loads((tmp_path / "preset" / "config.toml").read_text())
    assert {key: config[key] for key in ("sync", "outer_lr", "average_every")} == {
        "sync": "diloco", "outer_lr": 0.7, "average_every": 3
    }  # fmt: skip
