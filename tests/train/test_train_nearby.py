"""--stage: the data set's file is copied to each node before it is opened, by one rank, and then opened there."""

import os

import pytest
from small_runs import on_ranks

from ringtrain.cli.main import run
from ringtrain.config import TrainConfig
from ringtrain.data import nearby as room
from ringtrain.data.dataset import DIGITS
from ringtrain.errors import ConfigError, DataError
from ringtrain.nn import spec
from ringtrain.train import nearby
from ringtrain.train.assemble import read_data
from ringtrain.transport.loopback import LoopbackWorld

OWN = f"ringtrain-data-{os.getuid()}"


def read_on(size, data, **flags):
    """The data sets of all ranks, or the errors that they raised."""
    config, model = TrainConfig(data=data, **flags), spec.load("digits")
    return on_ranks(size, lambda transport: read_data(config, model, transport))


def test_all_ranks_open_the_copy_that_one_of_a_node_makes(tmp_path, monkeypatch):
    made, opened = [], []
    real, real_open = nearby.nearby, read_data.__globals__["open_dataset"]
    monkeypatch.setattr(nearby, "nearby", lambda *given: made.append(given[:3]) or real(*given))
    monkeypatch.setitem(
        read_data.__globals__, "open_dataset", lambda path, *rest: opened.append(path) or real_open(path, *rest)
    )
    plain = read_on(1, "digits")
    opened.clear()
    found = read_on(3, "digits", stage=str(tmp_path))
    assert {data.checksum for data in found} == {plain[0].checksum}
    assert made == [(DIGITS, tmp_path, False)]
    assert len(opened) == 3 and all(str(tmp_path / OWN) in path for path in opened)
    assert not (tmp_path / OWN).exists()


def test_a_large_file_is_copied_in_stages_that_get_on(tmp_path, monkeypatch):
    """One rank copies, and the others wait: it has a deadline for a block, and not for the file."""
    monkeypatch.setattr(room, "BLOCK_BYTES", 1 << 16)
    seen, real = [], room._blocks

    def blocks(path, what, progress):
        for block in real(path, what, progress):
            yield block
            seen.append((what, transports[0].activity.stage, transports[0].activity.renewed))

    monkeypatch.setattr(room, "_blocks", blocks)
    transports, config = {}, TrainConfig(data="digits", stage=str(tmp_path))

    def body(transport):
        transports[transport.rank] = transport
        with nearby.staged(config, transport):
            return transport.activity.renewed, transport.activity.stage

    (renewed, after), (others, _) = on_ranks(2, body)
    count = -(-DIGITS.stat().st_size // (1 << 16))
    assert renewed == len(seen) == 2 * count > 2 and others == 0 and not after.limited
    assert all(stage.text == f"copying {DIGITS} to {tmp_path}" and stage.limited for _, stage, _ in seen)
    assert [number for *_, number in seen] == list(range(2 * count))


def test_leaving_a_copy_may_not_stand_still_either(tmp_path, monkeypatch):
    seen, transport = [], LoopbackWorld(1).transport(0)
    monkeypatch.setattr(room, "_remove_unused", lambda copy: seen.append(transport.activity.stage))
    with nearby.staged(TrainConfig(data="digits", stage=str(tmp_path)), transport):
        pass
    (stage,) = seen
    assert stage.limited and stage.text == f"leaving the copy of {DIGITS} in {tmp_path}"


def test_what_is_wrong_is_said_by_all(tmp_path):
    (tmp_path / "file").write_text("")
    found = read_on(2, "digits", stage=str(tmp_path / "file"))
    assert all(isinstance(error, DataError) and "--stage" in str(error) for error in found)
    found = read_on(2, str(tmp_path / "none.h5"), stage=str(tmp_path))
    assert all("there is no data set" in str(error) for error in found)


def test_what_makes_no_sense_is_refused(tmp_path):
    (error,) = read_on(1, None, stage="auto", synthetic=True)
    assert isinstance(error, ConfigError) and "--synthetic has none: leave one of them out" in str(error)
    (error,) = read_on(1, "digits", stage_keep=True)
    assert isinstance(error, ConfigError) and "--stage-keep is of a copy that --stage makes" in str(error)


def test_a_copy_serves_training_evaluating_and_predicting(tmp_path, monkeypatch, capsys):
    """One that is kept, and is not that of the checkpoint's configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path / "node"))
    for name in ("node", "other"):
        (tmp_path / name).mkdir()
    given = ["--iterations", "2", "--ops", "reference", "--out", "run"]
    assert run(["train", *given, "--stage", "--stage-keep"]) == 0
    copies = list((tmp_path / "node" / OWN).glob("*-digits.h5"))
    assert len(copies) == 1
    monkeypatch.delenv("SLURM_TMPDIR")
    monkeypatch.setattr(nearby, "folder_of", None)
    assert run(["evaluate", "run", "--json"]) == 0  # without --stage nothing is copied
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run(["evaluate", "run", "--stage", "other", "--json"]) == 0
    assert run(["predict", "run", "--stage", "other", "--stage-keep", "-o", "out.csv"]) == 0
    assert len(list((tmp_path / "other" / OWN).glob("*-digits.h5"))) == 1
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert len(told) == 2 and told[0] == told[1]


@pytest.mark.parametrize("words", [["--stage", "--iterations", "1"], ["--iterations", "1", "--stage"]])
def test_the_folder_may_be_left_out(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "own"))
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    assert run(["train", "--ops", "reference", "--out", "run", "--stage-keep", *words]) == 0
    assert len(list((tmp_path / "own" / OWN).glob("*-digits.h5"))) == 1
