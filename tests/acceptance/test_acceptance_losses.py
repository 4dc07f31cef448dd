"""Losses on a GPU beside the CPU's: what is run, and what is made of runs that fail on either side."""

import json
from pathlib import Path

import pytest

from ringtrain.ops.cpu.library import open_library


@pytest.fixture
def losses(acceptance):
    return acceptance("losses")


KEPT = {"lenet 1": [2.0, 1.0], "lenet 2 --sync delayed": [2.0, 1.0]}


def make_runs(losses, folder, answer, notes=()):
    """Runs that answer, and say notes; each command is kept."""
    commands = []

    def run(command):
        commands.append(command)
        out = Path(command[command.index("--out") + 1])
        if isinstance(answer, str):
            return 1, answer
        out.mkdir(exist_ok=True)
        records = [{"event": "iteration", "loss": loss} for loss in answer]
        records += [{"event": "note", "text": text} for text in notes]
        (out / "log.jsonl").write_text("\n".join(map(json.dumps, records)))
        return 0, ""

    return losses.Runs(folder, run, KEPT), commands


def test_a_run_that_fails_leaves_the_others(losses, tmp_path):
    runs, commands = make_runs(losses, tmp_path, "out of memory")
    rows = [runs.row(*each) for each in losses.by_ranks(["lenet"])]
    assert [row["ranks"] for row in rows] == [1, 2, 4] and len(commands) == 3
    assert all(row["apart"] == float("inf") and "out of memory" in row["said"] for row in rows)


def test_what_was_done_otherwise_on_the_gpu_is_told_and_losses_that_are_not_kept_are_infinitely_apart(losses, tmp_path):
    notes = ["cuDNN is left out 3×: no engine", "mapped cannot run here", "2 ranks"]
    runs, _ = make_runs(losses, tmp_path, [2.0, 1.0], notes)
    row = runs.row(*next(losses.by_ranks(["lenet"])))
    assert row["said"] == "cuDNN is left out 3×: no engine; mapped cannot run here" and row["apart"] == 0
    assert runs.row("mlp", "mlp", 1, losses.Strategy((), losses.ONE))["apart"] == float("inf")


@pytest.mark.parametrize(
    ("strategy", "losses_of_run", "apart"),
    [
        ("sharded", [2.0, 1.0], 0.0),
        ("sharded", [2.0, 1.5], 0.5),
        ("sharded", [2.0], float("inf")),
        ("sharded", [2.0, float("nan")], float("inf")),
        ("delayed", [2.0, 1.0], 0.0),
        ("staleness 2", [2.5, 1.2], 0.0),
        ("staleness 2", [1.0, 1.2], float("inf")),
    ],
)
def test_a_strategy_is_held_against_what_it_should_give(losses, tmp_path, strategy, losses_of_run, apart):
    runs, _ = make_runs(losses, tmp_path, losses_of_run)
    assert runs.row(strategy, "lenet", 2, losses.STRATEGIES[strategy])["apart"] == apart


def test_all_that_runs_are_held_against_is_kept(losses, acceptance):
    kept = acceptance("files").read_json(losses.KEPT)
    runs = losses.Runs(None, None, kept)
    every = [*losses.FIRST, *losses.by_ranks(["lenet", "resnet20"]), *losses.by_strategy()]
    wanted = {runs.wanted(*rest) for _, *rest in every} - {None}
    small = losses.Runs(None, None, kept, *losses.SMALL)
    assert set(kept) == wanted | {small.wanted(losses.TINY, *rest) for _, _, *rest in losses.FIRST}
    assert {len(each) for each in kept.values()} == {losses.ITERATIONS, losses.SMALL[0]}


@pytest.mark.mpi
def test_the_losses_that_are_kept_are_those_of_any_cpu_to_the_bit(losses, acceptance, tmp_path):
    """That has fused multiply-adds."""
    if open_library()[1] == "x86-64-v2":
        pytest.skip("this CPU has no fused multiply-adds")
    kept = acceptance("files").read_json(losses.KEPT)
    runs = losses.Runs(tmp_path, losses.run, kept, *losses.SMALL)
    wanted = kept[runs.wanted(losses.TINY, 1, losses.Strategy((), losses.ONE))]
    assert runs.losses("cpu", losses.TINY, 1, ())[0] == wanted


@pytest.mark.mpi
@pytest.mark.thorough
def test_the_losses_that_are_kept_are_those_of_todays_defaults(losses, acceptance, tmp_path):
    kept, today = acceptance("files").read_json(losses.KEPT), losses.make(tmp_path)
    assert today.keys() == kept.keys()
    for name, values in today.items():
        assert values == pytest.approx(kept[name], abs=losses.ALLOWED / 10), name
