"""What survivors of a death go on from, and who decides: without any death."""

import gc
import json
import os
import shutil
import signal
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from small_runs import DIGITS, DROPOUT_NET, everywhere, iterate, on_ranks, run_of

from ringtrain.config.record import TrainConfig, make_config
from ringtrain.errors import CheckpointError, ConfigError, Interrupted, RankLostError, StalledError, UsageError
from ringtrain.report.events import CheckpointSaved, Evaluated, Iteration, RanksLost, record
from ringtrain.report.screen.words import ranks_lost
from ringtrain.report.sinks import JsonLines, truncate_log
from ringtrain.storage.checkpoint.store import Checkpoint
from ringtrain.storage.run_folder import lock, outcome
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train.checkpoints.resume import Origin, restart_origin
from ringtrain.train.checkpoints.state import Progress, checkpoint_of
from ringtrain.train.options import read_options
from ringtrain.train.run.run import RecoverableState, Run
from ringtrain.train.start.open_run import tuning_of
from ringtrain.train.start.recover import ElasticRun, newest_first
from ringtrain.train.start.recovery_state import OutcomeWriter, RecoveryState, check_elastic, for_devices
from ringtrain.train.start.run_folder import make_folder, make_sinks
from ringtrain.train.start.start import run_training
from ringtrain.train.stopping.signals import StopFlag, watching
from ringtrain.transport.loopback import Loopback
from tests.loopback.world import LoopbackWorld
from tests.runs import start
from tests.says import says

ELASTIC = make_config(elastic="shrink")


def test_who_has_finished_most_is_first_and_then_the_lowest():
    facts = [{"rank": 1, "done": 6}, {"rank": 2, "done": 7}, {"rank": 3, "done": -1}, {"rank": 4, "done": 7}]
    assert [other["rank"] for other in sorted(facts, key=newest_first)] == [2, 4, 1, 3]


def survivor(transport, flags):
    return ElasticRun(SimpleNamespace(transport=transport), read_options(None, flags), (), StopFlag())


def test_what_a_survivor_goes_on_from_is_told_to_the_others():
    """All of it but the state itself, which is broadcast."""

    def body(transport):
        run, _ = trained(transport, elastic="shrink")
        progress = Progress(iteration=3, best=0.5)
        elastic = survivor(transport, {"elastic": "shrink"})
        elastic._state.recoverable = RecoverableState(3, True, lambda: checkpoint_of(run, progress))
        return elastic._origin("run")

    ((origin, source),) = everywhere(1, body)
    assert source == "memory" and origin.stored.checkpoint.iteration == 3
    assert Origin(**json.loads(json.dumps(origin.as_json()))) == origin
    assert (origin.iteration, origin.facts["due"], origin.folder, origin.continues) == (3, True, "run", True)


@pytest.fixture
def begun(folder):
    """Flags of a run that has finished three iterations of nine."""
    flags = {**DIGITS, "out": "run", "resume": "auto"}
    start(Loopback(), None, {**flags, "iterations": 3}, StopFlag())
    return {**flags, "iterations": 9}


def recovered(flags, checkpoint):
    """The state of a survivor that holds that, and enters a new world."""
    elastic = survivor(Loopback(), flags)
    elastic._state.recoverable = RecoverableState(checkpoint.iteration, False, lambda: checkpoint)
    origin, source = elastic._origin("run")
    ranks_lost = RanksLost(lost=[1], ranks=1, replaced=0, resumed_at=checkpoint.iteration, source=source, seconds=0)
    return RecoveryState(folder="run", lost=(1,), origin=origin, ranks_lost=ranks_lost)


def test_a_stop_while_survivors_recover_is_heeded_when_what_they_hold_is_on_the_disk(begun, tmp_path):
    """Of a state in memory alone there is no checkpoint to go on from later."""
    stored = RunFolder("run").latest().checkpoint
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with watching() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        with pytest.raises(Interrupted, match="^" + says("--out", "--resume", "by SIGUSR1", 4, "run")):
            run_training(Loopback(), read_options(None, begun), stop, recovered(begun, stored))
    assert RunFolder("run").latest().checkpoint.iteration == 4


def checkpoints() -> list[Checkpoint]:
    """All that this process holds."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Checkpoint]


def test_a_state_that_was_taken_up_is_not_kept_besides(begun, monkeypatch, tmp_path):
    """And after a death there is no trace, whose iterations or ranks are gone."""
    seen, others = [], checkpoints()  # those that other tests keep

    def go(run):
        seen.append([each.iteration for each in checkpoints() if not any(each is other for other in others)])

    monkeypatch.setattr(Run, "go", go)
    start(Loopback(), None, begun, StopFlag())
    state = recovered(begun, RunFolder("run").latest().checkpoint)
    run_training(Loopback(), read_options(None, {**begun, "trace": "t.json"}), StopFlag(), state)
    assert seen == [[], []] and state.origin is None and not (tmp_path / "run" / "t.json").exists()


def test_what_goes_wrong_where_survivors_meet_is_written_by_their_own_first_rank(tmp_path):
    """The one that wrote before is dead."""
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    folder.numbered(3).write_bytes(b"damaged")
    said = SimpleNamespace(facts=({"folder": str(folder.path)},), replaced=0)

    def body(transport):
        world = SimpleNamespace(transport=transport, survived=said, joined=True, enter=str, is_of_a_death=lambda _: 0)
        elastic = ElasticRun(world, read_options(None, {}), (), StopFlag())
        writer = OutcomeWriter(folder.path, False, 9, 3)
        writer.progress.iteration = 5
        elastic._state = RecoveryState(folder=str(folder.path), iterations=9, lost=(0,), outcome=writer)
        elastic.train()

    assert [type(error) for error in on_ranks(2, body)] == [CheckpointError] * 2
    end = outcome.read_outcome(folder.path)
    assert (end.outcome, end.exit_code, end.iteration, end.ranks, end.lost) == ("usage", 2, 5, 2, (0,))
    assert "no checkpoint of" in end.text


def test_what_goes_wrong_after_the_end_is_no_other_end(tmp_path):
    for writes in (True, False):
        state = RecoveryState(outcome=OutcomeWriter(tmp_path, writes, 9, 2))
        state.end()
        state.outcome.failed(StalledError("of a rank that is on its way out"))
    assert outcome.read_outcome(tmp_path).outcome == "done"


class Lost:
    """Sums that never arrive: another rank dies."""

    home, buckets = {}, ()

    def wait_all(self):
        raise RankLostError("gone")

    def arrivals(self):
        raise RankLostError("gone")
        yield


def trained(transport, **flags):
    run, ops = run_of(transport, DROPOUT_NET, iterations=3, **flags)
    iterate(run, transport, 0, 3)
    return run, ops


@pytest.mark.parametrize("overlap", ["none", "backward", "forward"])
def test_a_death_in_an_exchange_leaves_the_state_of_the_last_iteration(overlap):
    def body(transport):
        run, _ = trained(transport, elastic="shrink", overlap=overlap)
        assert run.exchange.facts.survives_rank_loss
        before = checkpoint_of(run, Progress(iteration=3))
        run.exchange._updates._sums = Lost()
        with pytest.raises(RankLostError):
            run.exchange.finish(3, 0.1)
        after = checkpoint_of(run, Progress(iteration=3))
        for name, array in before.weights.items():
            assert np.array_equal(after.weights[name], array)
        assert after.scalars["step"] == before.scalars["step"] == 3
        return transport.rank

    assert everywhere(2, body) == [0, 1]


def test_elastic_changes_no_weight_and_says_what_it_does():
    """State in parts does not outlive a rank, and --overlap forward is backward."""

    def weights(**flags):
        return everywhere(2, lambda t: trained(t, bucket_bytes=200, **flags)[0].arena.weights.tobytes())

    def facts(**flags):
        return everywhere(2, lambda t: run_of(t, DROPOUT_NET, elastic="shrink", **flags)[0].exchange.facts)[0]

    assert weights() == weights(elastic="shrink")
    for flags in ({"sync": "sharded"}, {"compress": "top-k"}, {"sync": "delayed"}, {"fc": "hybrid"}):
        assert not facts(**flags).survives_rank_loss
    assert says("--overlap", "--elastic").matches(facts(overlap="forward").notes)


def test_it_is_refused_in_a_comparison_and_where_nobody_survives():
    sound, frail = (SimpleNamespace(why_not_fault_tolerant=why) for why in ("", "they die together"))
    check_elastic(ELASTIC.exchange, sound, only_run=True)
    check_elastic(TrainConfig().exchange, sound, only_run=False)
    with pytest.raises(ConfigError, match=says("--elastic")):
        check_elastic(ELASTIC.exchange, sound, only_run=False)
    with pytest.raises(ConfigError, match=says("--elastic", "shrink", "they die together")):
        check_elastic(ELASTIC.exchange, frail, only_run=True)


def test_device_memory_is_staged():
    assert for_devices(ELASTIC.changed(device="cuda")).device.mpi_cuda == "staged"
    assert for_devices(ELASTIC).device.mpi_cuda == "auto"


def test_the_flag_is_known_before_ranks_meet(tmp_path):
    (tmp_path / "run.toml").write_text('elastic = "replace"\n')
    run_file, absent = str(tmp_path / "run.toml"), read_options(str(tmp_path / "none.toml"), {})
    assert absent.elastic is read_options(None, {}).elastic is None and read_options(run_file, {}).elastic == "replace"
    assert read_options(run_file, {"elastic": "shrink"}).elastic == "shrink"
    with pytest.raises(UsageError, match=r"none\.toml"):  # in the first step that ranks make together
        absent.checked()


def test_without_state_a_run_goes_on_in_its_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    origin = restart_origin(str(folder.path), read_options(None, {"resume": "auto", "out": str(folder.path)}))
    assert (origin.facts, origin.folder, origin.continues) == (None, str(folder.path), True)
    assert restart_origin(None, read_options(None, {})).folder is None


def test_after_a_death_a_tuning_file_need_not_fit(tmp_path):
    config = make_config(tuning=str(tmp_path / "absent.json"))

    def body(transport):
        with pytest.raises(UsageError):
            tuning_of(config.exchange, transport)
        return tuning_of(config.exchange, transport, after_death=True)

    (tuning, _) = everywhere(2, body)
    assert tuning.table is None and "without --tuning from here on" in tuning.remark


def test_a_death_is_reported_once_with_the_time_that_recovery_took():
    state = RecoveryState(
        lost=(3,), ranks_lost=RanksLost(lost=[3], ranks=3, replaced=0, resumed_at=5, source="memory", seconds=0)
    )
    report = state.take_report()
    assert report.seconds > 0 and state.reported == 1 and state.take_report() is None


@pytest.mark.timing
def test_a_folder_in_which_a_death_came_at_once_is_claimed_again(tmp_path, monkeypatch):
    transport = LoopbackWorld(1).transport(0, np.zeros)
    run, _ = run_of(transport, DROPOUT_NET, iterations=3)
    origin = Origin(folder=str(tmp_path / "out"))

    def dies(*_):
        raise RankLostError("gone")

    with monkeypatch.context() as patched:
        patched.setattr("ringtrain.train.start.run_folder._begin", dies)
        with pytest.raises(RankLostError), ExitStack() as stack:
            make_folder(run, origin, RecoveryState(), [], stack)
    origin = replace(origin, continues=True)
    waits = []
    monkeypatch.setattr(lock.take_lock, "__defaults__", (lock.PATIENCE_S, waits.append))
    with ExitStack() as stack:
        make_folder(run, origin, RecoveryState(), [], stack)
    assert not waits


def test_a_loss_in_words():
    event = RanksLost(lost=[1, 2], ranks=4, replaced=2, resumed_at=1200, source="anew", seconds=0.5)
    assert ranks_lost(event) == (
        "lost ranks 1, 2: 4 ranks, 2 of them new, on after iteration 1,200 anew, as no survivor holds the whole state "
        "and there is no checkpoint; it took 0.50 s"
    )


def iteration(number):
    return Iteration(
        iteration=number, epoch=1, loss=2.5, accuracy=0.1, lr=0.05, examples=60, images_per_s=1e3, seconds=1.5
    )


@pytest.mark.parametrize("written", [6, 7, 8, 9])
def test_what_a_dead_first_rank_had_not_written_is_written_by_the_next(tmp_path, written):
    """Iteration 7 and its evaluation were finished by all, and are in the log once, whatever the dead one wrote."""
    transport = Loopback()
    run = SimpleNamespace(transport=transport, config=TrainConfig())
    folder = RunFolder(tmp_path)
    evaluation = Evaluated(iteration=7, epoch=1, test_loss=2.5, test_accuracy=0.1, seconds=1.6)
    events = [*map(iteration, range(1, 8)), evaluation, iteration(8)]
    lines = [json.dumps(record(event)) + "\n" for event in events[:written]]
    folder.log.write_text("".join(lines))
    finished = (iteration(7), evaluation)
    state = RecoveryState(lost=(0,), recoverable=RecoverableState(7, False, lambda: None, finished))
    for sink in make_sinks(run, folder, state, 7, False):
        sink.close()
    logged = [json.loads(line) for line in folder.log.read_text().splitlines()]
    assert [each["iteration"] for each in logged] == [1, 2, 3, 4, 5, 6, 7, 7] and logged[-1]["event"] == "evaluation"


def test_a_meeting_that_is_held_again_is_cut_from_the_log(tmp_path):
    events = [
        iteration(4),
        Evaluated(iteration=4, epoch=1, test_loss=2.5, test_accuracy=0.1, seconds=1.6),
        CheckpointSaved(path="4.h5", iteration=4, seconds=0.1),
    ]
    lines = [json.dumps(record(event)) + "\n" for event in events]
    for again, kept in ((False, 3), (True, 1)):
        path = tmp_path / "log"
        path.write_text("".join(lines))
        truncate_log(path, 4, again)
        assert path.read_text() == "".join(lines[:kept])
    path.write_text("".join(lines))
    JsonLines(path, 4, again=True).close()
    assert path.read_text() == lines[0]
