"""Files of plans: what is read, which row is of a run, and what is said where none is."""

import json
import re
import shlex
from dataclasses import replace

import click
import pytest
from plan_files import layers_file, sweep_file

from ringtrain.cli.main import ringtrain
from ringtrain.cli.plan import plan
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.record import make_config
from ringtrain.plan.plan_file import SoughtRun, find_rates, find_row, missing_note, read_plan
from tests.cli_calls import call
from tests.plan_rows import plan_row, plan_text
from tests.says import says

RING, SLICED = plan_row(4, step_s=0.2), plan_row(4, step_s=0.1, algorithm="sliced")
ROWS = plan_row(), plan_row(2), RING, SLICED, plan_row(4, step_s=0.05, strategy="sharded"), plan_row(4, batch=256)


@pytest.fixture
def plans(tmp_path):
    (tmp_path / "plan.json").write_text(plan_text(*ROWS))
    return [read_plan(tmp_path / "plan.json")]


def sought(ranks=4, nodes=1, batch=64, model="mlp", **flags):
    return SoughtRun(make_config(**flags), model, ranks, nodes, batch)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_what_the_command_writes_is_read(tmp_path):
    path = tmp_path / "plan.json"
    files = "--layers", layers_file(tmp_path), "--fabric", sweep_file(tmp_path)
    assert call(plan, "mlp", *files, "--per-node", "4", "-n", "1,4", "--json", str(path))[0] == 0
    plan_read, content = read_plan(path), json.loads(path.read_text())
    assert (plan_read.model, plan_read.settings.per_node, len(plan_read.rows)) == ("mlp", 4, 8)
    assert plan_read.rows[-1].step_s == content["rows"][-1]["step_s"] and plan_read.rows[-1].ranks == 4


# ── the row of a run ──────────────────────────────────────────────────────────────────────────────────────────
def test_auto_has_the_fastest_row_one_rank_exchanges_nothing_and_averages_come_as_often(plans):
    assert find_row(plans, sought()) == SLICED
    assert find_row(plans, sought(algorithm="ring")) == RING
    assert find_row(plans, sought(sync="sharded")).step_s == 0.05
    assert find_row(plans, sought(batch=256)).batch == 256
    assert find_row(plans, sought(1, algorithm="tree", overlap="none", bucket_bytes=1)) == ROWS[0]
    row = plan_row(4, strategy="averaging")
    every = [replace(plans[0], rows=(row,), settings=replace(plans[0].settings, average_every=4))]
    assert find_row(every, sought(sync="averaging", average_every=4)) == row
    run = sought(sync="averaging")
    assert find_row(every, run) is None
    assert says("--average-every", "4", 8).matches(missing_note(every, run, "x", [4]))


@pytest.mark.parametrize(
    ("run", "name", "known", "value"),
    [
        (sought(model="lenet"), "model", "mlp", "lenet"),
        (sought(3), "ranks", "1, 2, 4", 3),
        (sought(nodes=2), "nodes", "1", 2),
        (sought(2, sync="sharded"), "--sync", "allreduce", "sharded"),
        (sought(batch=128), "--batch", "64, 256", 128),
        (sought(overlap="none"), "--overlap", "backward", "none"),
        (sought(bucket_bytes=100), "--bucket-bytes", str(4 << 20), 100),
        (sought(algorithm="tree"), "--algorithm", "ring, sliced", "tree"),
    ],
)
def test_a_run_that_differs_has_no_row_and_the_first_difference_is_said(plans, run, name, known, value):
    assert find_row(plans, run) is None
    reason = says(name, known, value)
    assert says(plans[0].path, "x", reason).matches(missing_note(plans, run, "x", [run.ranks]))


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ({"sync": "gossip"}, "--sync gossip"),
        ({"overlap": "forward"}, "--overlap forward"),
        ({"batch_norm": "sync"}, "--batch-norm sync"),
        ({"sync": "server", "servers": 2, "dedicated": True}, "--servers 2 --dedicated"),
        ({"wire": "float16", "accumulate": 4}, "--accumulate 4 --wire float16"),
    ],
)
def test_a_run_of_which_there_are_no_plans_is_told_so_without_a_command(plans, flags, options):
    run = sought(**flags)
    assert find_row(plans, run) is None
    reason = says(options)
    assert missing_note(plans, run, "x", [4]) == says(plans[0].path, "x", reason)


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize(
    "flags",
    [{}, {"overlap": "none", "bucket_bytes": 4096, "algorithm": "ring"}, {"sync": "averaging", "average_every": 2}],
)
def test_the_command_that_is_named_makes_the_row(tmp_path, plans, weak, flags):
    """It is run as it is told, with files in place of the words in capitals."""
    run = sought(8, batch=512, **flags)
    assert find_row(plans, run) is None
    command = shlex.split(re.search("`(.*)`", missing_note(plans, run, "x", [2, 8], weak))[1])
    files = {"LAYERS.json": layers_file(tmp_path), "SWEEP.json": sweep_file(tmp_path), "PLAN.json": tmp_path / "p.json"}
    code, said = call(ringtrain, *(str(files.get(word, word)) for word in command[1:]))
    assert code == 0, said
    assert find_row([read_plan(tmp_path / "p.json")], run).batch == 512


# ── rows of a scaling ─────────────────────────────────────────────────────────────────────────────────────────
def test_rates_of_a_scaling_what_lacks_and_several_plans(plans, tmp_path):
    strong = {("strong", ranks): sought(ranks) for ranks in (1, 2, 4)}
    weak = {("weak", ranks): sought(ranks, batch=64 * ranks) for ranks in (1, 2, 4)}
    rates, notes = find_rates(plans, strong | weak)
    assert rates == {
        ("strong", 1): 640, ("strong", 2): 640, ("strong", 4): 640, ("weak", 1): 640, ("weak", 4): 2560
    }  # fmt: skip
    what = says("weak", "2")
    reason = says("--batch", "64", 128)
    command = says("--layers", "--fabric", "--json", "mlp", "-n 1,2,4 --per-node 2 --sync allreduce -b 64 --weak")
    assert notes == [says(plans[0].path, what, reason, command)]
    (tmp_path / "weak.json").write_text(plan_text(plan_row(2, batch=128), weak=True))
    both = [*plans, read_plan(tmp_path / "weak.json")]
    assert find_rates(both, {("weak", 2): sought(2, batch=128)}) == ({("weak", 2): 1280.0}, [])


# ── defaults ──────────────────────────────────────────────────────────────────────────────────────────────────
def test_what_a_plan_takes_for_granted_is_what_training_does():
    defaults = {each.name: each.default for each in plan.params if isinstance(each, click.Option)}
    config = ExchangeConfig()
    for name in ("overlap", "average_every", "bucket_bytes"):
        assert defaults[name] == getattr(config, name)
