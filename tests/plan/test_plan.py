"""Predictions from files whose times are known. Files of plans: what is read, which row is of a run, and what is said
where none is."""

import json
import re
from dataclasses import replace

import click
import pytest
from plan_files import BACKWARD_S, BESIDE_S, FORWARD_S, UPDATE_S, layers_file, sweep_file

from ringtrain.bench.model.work import work_of
from ringtrain.cli.plan import plan
from ringtrain.collectives.catalogue import SCHEDULES, make_schedule
from ringtrain.collectives.schedule import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from ringtrain.collectives.topology import even
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import UsageError
from ringtrain.exchange.catalogue import STRATEGIES
from ringtrain.plan.exchange_times import ExchangeTime, ExchangeTimes, placed, work_on
from ringtrain.plan.iteration import BackwardTimes, exposed_s
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.prediction import PlanSettings, last_that_pays, predict
from tests.cli_calls import call
from tests.says import says


def planned(tmp_path, counts=(1, 2, 4), strategies=("allreduce",), algorithms=("ring",), sweep=None, **settings):
    layers, exchanges = LayerTimes([layers_file(tmp_path)]), ExchangeTimes(sweep or sweep_file(tmp_path))
    plan_settings = PlanSettings(**{"batch": 64, "per_node": 4, **settings})
    configs = [config if isinstance(config, ExchangeConfig) else ExchangeConfig(sync=config) for config in strategies]
    return predict(layers, exchanges, counts, configs, algorithms, plan_settings)


# ── layers ────────────────────────────────────────────────────────────────────────────────────────────────────
def compute_s(images, layers):
    return layers * images * (FORWARD_S + BACKWARD_S) + BESIDE_S


def test_layers_are_on_a_line_between_two_batches_and_else_in_proportion(tmp_path):
    """The work beside layers is the same in both files, and so between them."""
    times = LayerTimes([layers_file(tmp_path, 64), layers_file(tmp_path, 128)])
    layers = len(times.names)
    assert times.of_rank(64, 1).compute_s == pytest.approx(compute_s(64, layers))  # as measured
    assert times.of_rank(80, 1).compute_s == pytest.approx(compute_s(80, layers))
    assert times.of_rank(32, 1).compute_s == pytest.approx(compute_s(64, layers) / 2)
    assert times.of_rank(32, 1).update_s == UPDATE_S and not times.notes
    times = LayerTimes([layers_file(tmp_path, 64)])
    assert times.of_rank(16, 1).compute_s == pytest.approx(compute_s(64, len(times.names)) / 4)
    assert list(times.notes) == [says("64")]
    other = layers_file(tmp_path, 32, model="lenet")
    with pytest.raises(UsageError, match=says(other, "lenet", "mlp")):
        LayerTimes([layers_file(tmp_path), other])


def test_ranks_that_share_cores_take_turns(tmp_path):
    files = [layers_file(tmp_path, 64, 1, cores=2), layers_file(tmp_path, 64, 2, factor=1.25, cores=2)]
    times = LayerTimes(files)
    two, four = times.of_rank(32, 2), times.of_rank(32, 4)
    assert two.layers[0].forward_s == pytest.approx(1.25 * 32 * FORWARD_S)  # they share memory, as measured
    assert four.compute_s == pytest.approx(2 * two.compute_s) and four.update_s == 2 * UPDATE_S
    assert list(times.notes) == [says("4 ranks", 2), says("4 ranks", "2 cores", "2.0")]
    times = LayerTimes([layers_file(tmp_path, 64, cores=2, records=True)])  # of devices, whose ranks wait for no core
    assert times.of_rank(64, 8).compute_s == pytest.approx(compute_s(64, len(times.names)))
    assert list(times.notes) == [says("8 ranks", 1)]


# ── all-reduces ───────────────────────────────────────────────────────────────────────────────────────────────
def test_on_the_ranks_of_the_sweep_an_all_reduce_takes_what_was_measured(tmp_path):
    def measured_s(name, nbytes):
        return 1e-3 + 1e-9 * nbytes * (1 + (nbytes > 1e5))

    times = ExchangeTimes(sweep_file(tmp_path, seconds=measured_s))
    for nbytes in (1 << 13, 1 << 16, 3 << 20):
        assert times.time("ring", even(2), nbytes).seconds == pytest.approx(measured_s("ring", nbytes), rel=0.1)
    halves = [times.time("ring", even(2), 1 << 20, goal).seconds for goal in (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER)]
    assert halves[1] + halves[2] == pytest.approx(halves[0])


def test_more_ranks_take_the_rounds_and_bytes_of_the_schedule(tmp_path):
    """ring of p ranks: 2(p - 1) rounds, 2(p - 1)/p of the bytes, and (p - 1)/p of them added."""
    times = ExchangeTimes(sweep_file(tmp_path))
    alpha, beyond = 1e-3 / 2, 1e-9 - 0.5e-10  # of two ranks: 2 rounds, all bytes, half of them added
    for ranks in (4, 8):
        wanted = 2 * (ranks - 1) * alpha + (1 << 20) * (ranks - 1) / ranks * (2 * beyond + 1e-10)
        assert times.time("ring", even(ranks), 1 << 20).seconds == pytest.approx(wanted)
    assert times.time("ring", even(8), 1 << 20).between_s == 0
    times = ExchangeTimes(sweep_file(tmp_path, hosts=("n1", "n2")))
    exchange = times.time("ring", placed(4, 2), 1 << 20)
    assert (exchange.beside, exchange.core_s) == (1.0, 0.0)  # no messages beside computing were measured
    assert exchange.rounds == 6 and exchange.between_s > 6 * 1e-3 / 2 and exchange.busy_s < exchange.between_s


def test_the_core_works_for_what_its_rank_sends_and_a_sweep_of_one_node_says_nothing_of_several(tmp_path):
    """A ring of 2 x 2: rank 1 sends 6 quarters, and rank 0 receives them."""
    times = ExchangeTimes(sweep_file(tmp_path, ("n1", "n2"), core_s_per_byte=1e-9, beside_s_per_byte=1.75e-9))
    exchange = times.time("ring", placed(4, 2), 1 << 20)
    assert exchange.core_s == pytest.approx(1e-9 * (1 << 20) * 1.5 / 2)
    assert exchange.beside == pytest.approx(0.75)  # a byte takes 1 ns alone
    assert times.time("ring", even(4), 1 << 20).core_s == 0
    path = sweep_file(tmp_path)
    with pytest.raises(UsageError, match=says("--map-by", "--json", 2, path)):
        ExchangeTimes(path).time("ring", placed(4, 2), 100)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_work_on_many_nodes_is_that_of_some_of_them(name):
    """But for rounds within a node, of which the second root of a double tree has two more."""
    topology = even(36, 18)
    some, every = work_on(name, topology), work_of(make_schedule(name, topology), topology)
    assert replace(some, rounds=0) == replace(every, rounds=0) and every.rounds - 2 <= some.rounds <= every.rounds


# ── the iteration ─────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "between_s, rounds, overlaps, exposed",
    [
        (1.0, 1, True, 0.0),  # seen after the second layer
        (2.0, 1, True, 0.0),  # as long as the layers after it
        (2.5, 1, True, 0.5),
        (1.5, 3, True, 0.0 + 0.5),  # rounds of 0.5 end at 1.5, 2.5 and, after backward, 3.5: each begins at a look
        (1.5, 3, False, 1.5),
    ],
)
def test_rounds_go_on_when_the_core_looks(between_s, rounds, overlaps, exposed):
    backward = BackwardTimes((1.0, 2.0, 3.0), (1.0,), 3.0)
    assert exposed_s(backward, [ExchangeTime(0.0, between_s, rounds)], overlaps) == pytest.approx(exposed)


@pytest.mark.parametrize(
    "beside, core_s, overlaps, exposed",
    [
        (1.0, 0.0, True, 0.5),  # two of two and a half seconds
        (0.5, 1.0, True, 1.0),  # faster than the layers, which they hold up
        (2.0, 1.0, True, 1.5 + 0.4),  # slower than alone: a second travels in the two seconds of the layers
        (0.0, 3.0, True, 3.0),  # the layers stand still
        (2.0, 1.0, False, 2.5),
    ],
)
def test_messages_and_layers_slow_each_other(beside, core_s, overlaps, exposed):
    """Messages that take 2.5 s alone, in a round that begins 2 s before the end of backward."""
    backward = BackwardTimes((1.0, 3.0), (1.0,), 3.0)
    exchange = ExchangeTime(0.125, 2.5, 1, beside, core_s)
    assert exposed_s(backward, [exchange], overlaps) == pytest.approx(0.125 + exposed)


@pytest.mark.parametrize(
    ("ready", "exchanges", "streams", "exposed"),
    [
        ((1.0, 3.0), [ExchangeTime(0.25), ExchangeTime(0.5)], False, 0.75),  # what keeps the core busy, always
        ((1.0, 2.0), [ExchangeTime(0.0, 1.75, 1), ExchangeTime(0.0, 1.0, 1)], False, 0.75),  # until 2.75, then 3.75
        ((1.0,), [ExchangeTime(0.5, 1.5, 3)], True, 0.0),  # a device needs no look
    ],
)
def test_buckets_take_turns_on_the_core_and_the_link(ready, exchanges, streams, exposed):
    backward = BackwardTimes((1.0, 2.0, 3.0), ready, 3.0)
    assert exposed_s(backward, exchanges, overlaps=True, streams=streams) == pytest.approx(exposed)


def test_weights_come_back_while_other_sums_are_sent():
    """Sums arrive at 2 and 3; the first weights leave after backward, at 3, the second behind them or beside sums."""
    backward = BackwardTimes((1.0, 2.0, 3.0), (1.0, 2.0), 3.0)
    sums, weights = [ExchangeTime(0.0, 1.0, 1)] * 2, [ExchangeTime(0.25, 2.0, 1)] * 2
    for directions, overlaps, streams, exposed in (
        (("in", "out"), True, False, 2 * 0.25 + 4.0),
        (("in", "out"), False, False, 2 * 0.25 + 1.0 + 4.0),  # sums at 4 and 5, weights from 4 on
        (("", ""), False, False, 2 * 0.25 + 2.0 + 4.0),
        (("in", "out"), True, True, 2 * 2.25),
    ):
        assert exposed_s(backward, sums, overlaps, streams, weights, directions) == exposed


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────
def test_strategies_and_a_server_that_receives_and_sends_at_once(tmp_path):
    every_fourth = ExchangeConfig(sync="averaging", average_every=4)
    rows = planned(tmp_path, (2,), ("allreduce", "sharded", every_fourth))
    allreduce, sharded, averaging = rows
    assert planned(tmp_path, (1,), ("averaging",))[0].exposed_s == 0  # one rank averages nothing
    assert allreduce.step_s == pytest.approx(allreduce.compute_s + UPDATE_S + allreduce.exposed_s)
    assert sharded.exposed_s == pytest.approx(allreduce.exposed_s) and sharded.update_s == UPDATE_S / 2
    moved = 6 / 5 * UPDATE_S  # of an average: 6 moves of an array, where the update makes 5
    assert averaging.exposed_s == pytest.approx(2 * (allreduce.exposed_s + moved) / 4)  # weights, and one of state
    state = allreduce.memory_bytes - (1 << 20)
    assert sharded.memory_bytes - (1 << 20) == pytest.approx(state * 2.5 / 3)  # one array of state, by two
    # All-reduces by star are measured whole; of mlp's two buckets the second arrives while the first is sent back.
    sweep = sweep_file(tmp_path, hosts=("n1", "n2"), seconds=lambda name, nbytes: 1e-7 * nbytes)
    (server,) = planned(tmp_path, (2,), ("server",), ("star",), sweep=sweep, per_node=1)
    first, second = (1e-7 * 4 * size for size in (1024 * 1024 + 1024 + 10250, 784 * 1024 + 1024))
    assert server.exposed_s == pytest.approx(2 * first + second, rel=0.05)


def test_batches_of_a_rank_and_algorithms_that_a_strategy_lacks(tmp_path):
    rows = planned(tmp_path, (2,), ("allreduce", "server"), ("ring", "sliced"))
    assert [(row.strategy, row.algorithm) for row in rows] == [("allreduce", "ring"), ("allreduce", "sliced")]
    for sweep in (None, sweep_file(tmp_path, algorithms=("ring", "sliced"))):
        with pytest.raises(UsageError, match=says("server", "ring", "--algorithm all")):
            planned(tmp_path, (2,), ("server",), ("ring",), sweep=sweep)
    one, four = planned(tmp_path, (1, 4), weak=True)
    assert (one.batch, four.batch) == (64, 256) and four.compute_s == one.compute_s
    assert four.images_per_s == pytest.approx(256 / four.step_s)
    assert four.efficiency == pytest.approx(one.step_s / four.step_s)
    slow = sweep_file(tmp_path, seconds=lambda name, nbytes: 4e-3 + 1e-12 * nbytes)
    assert last_that_pays(planned(tmp_path, (1, 2, 4, 8, 16), sweep=slow, per_node=64)) in (1, 2)
    assert last_that_pays(planned(tmp_path, (16,), sweep=slow, per_node=64)) == 1
    free = sweep_file(tmp_path, seconds=lambda name, nbytes: 1e-9 + 1e-16 * nbytes)
    assert last_that_pays(planned(tmp_path, (1, 2), sweep=free, per_node=64)) is None


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────
def test_the_command_shows_draws_and_writes_what_is_read(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    files = "--layers", layers_file(tmp_path), "--fabric", sweep_file(tmp_path)
    paths = str(tmp_path / "plan.json"), str(tmp_path / "plan.svg")
    options = "--per-node", "4", "-n", "1,2,4", "--price", "3", "--json", paths[0], "-o", paths[1]
    code, said = call(plan, "mlp", *files, *options)
    assert code == 0, said
    lines = said.splitlines()
    assert lines[0] == says("mlp", "64", 4, "backward")
    assert [line.split()[0] for line in lines[2:23]] == [n for n in "124" for _ in STRATEGIES]
    assert (tmp_path / "plan.svg").read_text().startswith("<?xml")
    content = json.loads((tmp_path / "plan.json").read_text())
    assert (content["model"], content["settings"]["per_node"], len(content["rows"])) == ("mlp", 4, 21)
    assert content["rows"][-1]["ranks"] == 4 and content["rows"][-1]["step_s"] > 0


def test_strategies_that_the_sweep_lacks_are_left_out_and_a_sweep_of_one_node_plans_one(tmp_path):
    layers, fabric = layers_file(tmp_path), sweep_file(tmp_path, algorithms=("ring", "sliced"))
    code, said = call(plan, "mlp", "--layers", layers, "--fabric", fabric, "--json", str(tmp_path / "plan.json"))
    rows = json.loads((tmp_path / "plan.json").read_text())["rows"]
    assert (code, {row["ranks"] for row in rows}) == (0, {1, 2})
    assert {row["strategy"] for row in rows} == {*STRATEGIES} - {"master", "server"}
    assert re.search(says("# left out: master, server", "ring, sliced"), said)
    code, said = call(plan, "mlp", "--layers", layers, "--fabric", fabric, "-n", "4")
    assert (code, said) == (2, says("--per-node 4", fabric))


def test_the_command_says_what_is_wrong(tmp_path):
    layers, fabric = layers_file(tmp_path), sweep_file(tmp_path)
    for arguments, words in (
        (["lenet"], says("--json", layers, "mlp", "lenet")),
        (["mlp", "--sync", "gosip"], says("gosip", "gossip")),
        (["mlp", "--sync", "sharded --wire float16"], says("--wire", "float16")),
        (["mlp", "-n", "0"], says(0, "counted", "from")),
    ):
        assert call(plan, arguments[0], "--layers", layers, "--fabric", fabric, *arguments[1:]) == (2, words)


# ── defaults ──────────────────────────────────────────────────────────────────────────────────────────────────
def test_what_a_plan_takes_for_granted_is_what_training_does():
    defaults = {each.name: each.default for each in plan.params if isinstance(each, click.Option)}
    config = ExchangeConfig()
    for name in ("overlap", "bucket_bytes"):
        assert defaults[name] == getattr(config, name)
