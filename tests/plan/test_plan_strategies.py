"""The iteration of every strategy, from its parts: bytes, messages, what hides them, arrays that are moved. Two ranks
on two nodes, of mlp, whose times are known."""

import pytest
from plan_files import UPDATE_S, layers_file, spans_count, sweep_file

from ringtrain.bench.measure.links import BETWEEN
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.option import as_flag
from ringtrain.config.presets import PRESETS
from ringtrain.errors import UsageError
from ringtrain.exchange.catalogue import STRATEGIES
from ringtrain.exchange.compression.powersgd import PowerSGD
from ringtrain.exchange.compression.topk import TopK
from ringtrain.plan.exchange_times import PAYLOAD, ExchangeTimes, placed
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.prediction import PlanRow, PlanSettings, predict
from ringtrain.plan.strategies import OUTER_MOVES, PAIR_MOVES, PENDING_MOVES, PUSH_MOVES, of_strategy
from tests.says import says

NBYTES, BYTE_S = 4 * spans_count("mlp"), 1e-6
MOVE_S = UPDATE_S / 5  # weights, gradients and one array of state
WHOLE_S = NBYTES * BYTE_S


@pytest.fixture
def exchanges(tmp_path):
    """A link that takes far longer for a byte than layers compute, but for its latency."""
    links = {BETWEEN: {"busy_bytes_per_s": 1 / BYTE_S}}
    return ExchangeTimes(sweep_file(tmp_path, ("n1", "n2"), lambda name, nbytes: BYTE_S * nbytes, links=links))


@pytest.fixture
def row(tmp_path, exchanges):
    """row(options...) → the prediction of a strategy on so many nodes of one rank."""
    layers = LayerTimes([layers_file(tmp_path, 32), layers_file(tmp_path, 64)])

    def of(ranks=2, overlap="none", per_node=1, **options) -> PlanRow:
        settings = PlanSettings(64, per_node=per_node, overlap=overlap)
        (one,) = predict(layers, exchanges, [ranks], [ExchangeConfig(**options)], [], settings)
        return one

    return of


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_a_row_and_on_one_rank_exchanges_nothing(row, name):
    several, one = row(sync=name), row(1, sync=name)
    assert several.strategy == name and several.exposed_s > 0 and one.exposed_s == 0
    assert one.step_s == one.compute_s + UPDATE_S


@pytest.mark.parametrize(
    ("how", "share"),
    [
        ({"wire": "bfloat16"}, 0.5),
        ({"compress": "top-k", "compress_ratio": 0.02}, None),
        ({"compress": "powersgd", "compress_rank": 2}, None),
    ],
)
def test_bytes_are_those_of_the_formula_of_how_they_are_coded(row, tmp_path, how, share):
    if share is None:
        method = TopK(0.02) if "compress_ratio" in how else PowerSGD(2)
        spans = LayerTimes([layers_file(tmp_path)]).spans
        sent = [method.least_bytes(s, 4, 2) if method.compresses(s) else 4 * (s.stop - s.start) for s in spans]
        share = sum(sent) / NBYTES  # of two ranks each sends as many bytes as it has
    exact = row()
    assert exact.exposed_s == pytest.approx(WHOLE_S, rel=0.01)
    coded = row(**how)
    assert coded.exposed_s == pytest.approx(share * WHOLE_S, abs=20 * MOVE_S)
    flags = " ".join(f"{as_flag(name)} {value}" for name, value in how.items())
    assert coded.strategy == f"allreduce {flags}"


def test_a_delayed_sum_travels_beside_a_whole_iteration(row, tmp_path):
    late, exact = row(sync="delayed", overlap="backward"), row(overlap="backward")
    assert late.exposed_s == pytest.approx(WHOLE_S - late.compute_s + PENDING_MOVES * MOVE_S, rel=0.02)
    assert late.step_s < exact.step_s
    assert late.memory_bytes - exact.memory_bytes == pytest.approx(NBYTES, rel=0.01)  # gradients that wait


def test_a_partner_costs_one_message_for_any_number_of_ranks(row):
    two, eight = row(sync="gossip"), row(8, sync="gossip")
    assert two.algorithm == ""
    for one in two, eight:
        hidden = one.exposed_s + one.compute_s - PAIR_MOVES * MOVE_S
        assert hidden == pytest.approx(WHOLE_S, rel=0.02)


def test_ranks_that_wait_for_no_other_push_and_pull_no_faster_than_the_servers_link(row):
    for apart in {"staleness": 2}, {"asynchronous": True}:
        two, eight = row(sync="server", **apart), row(8, sync="server", **apart)
        assert two.exposed_s - PUSH_MOVES * MOVE_S == pytest.approx(2 * WHOLE_S, rel=0.02)
        assert eight.step_s - PUSH_MOVES * MOVE_S == pytest.approx(7 * WHOLE_S, rel=0.02)  # of the others' changes
    four = row(8, sync="averaging", asynchronous=True, average_every=4)
    assert four.step_s == pytest.approx(7 * WHOLE_S / 4, rel=0.02)
    assert row(8, sync="server", staleness=2, servers=4).step_s < eight.step_s / 2


def test_servers_share_the_messages_and_the_root_sends_the_examples(row):
    one, four = row(8, sync="server"), row(8, sync="server", servers=4)
    assert four.exposed_s < 0.55 * one.exposed_s and four.update_s == UPDATE_S / 4
    apart = row(8, sync="server", servers=4, dedicated=True)
    assert apart.compute_s == pytest.approx(2 * four.compute_s, rel=0.01) and apart.exposed_s < four.exposed_s
    with pytest.raises(UsageError, match=says("--dedicated", 4, "ranks")):
        row(4, sync="server", servers=4, dedicated=True)
    root = row(8, sync="master").exposed_s - one.exposed_s
    assert root == pytest.approx(BYTE_S * 7 * (64 / 8) * (784 + 2 * 40), rel=0.05)


def test_servers_of_one_node_share_its_link(row):
    one, two = (row(4, sync="server", servers=number, per_node=2) for number in (1, 2))
    assert two.exposed_s == pytest.approx(one.exposed_s)
    assert row(4, sync="server", servers=4, per_node=2).exposed_s == pytest.approx(one.exposed_s / 2, rel=0.1)


def test_averages_of_weights_changes_and_state_once_a_period(row):
    plain = row(sync="averaging", average_every=4, average_momentum="keep")
    assert plain.exposed_s == pytest.approx((WHOLE_S + 6 * MOVE_S) / 4, rel=0.01)
    outer = row(sync="averaging", average_every=4, average_momentum="keep", outer_momentum=0.9)
    assert outer.exposed_s - plain.exposed_s == pytest.approx(OUTER_MOVES * MOVE_S / 4)
    halved = row(sync="averaging", average_every=4, wire="float16")  # whole arrays of state beside it
    assert halved.exposed_s == pytest.approx(1.5 * WHOLE_S / 4, rel=0.02)
    assert halved.memory_bytes > plain.memory_bytes


def test_another_rate_of_the_link_and_what_a_sweep_does_not_say(exchanges, tmp_path):
    times = exchanges.at_rate(1e6)  # an eighth of a byte a microsecond
    for algorithm in "ring", "star":
        between = times.time(algorithm, placed(2, 1), 1 << 20).between_s
        assert between == pytest.approx((1 << 20) * 8e-6 / PAYLOAD, rel=0.01)
    assert times.message(placed(4, 2), 1 << 20).seconds == pytest.approx(2 * (1 << 20) * 8e-6 / PAYLOAD, rel=0.01)
    with pytest.raises(UsageError, match=says("sweep.json", "Mbit/s", "9 Mbit/s")):
        exchanges.at_rate(9.3e6)
    one_node = ExchangeTimes(sweep_file(tmp_path))
    with pytest.raises(UsageError, match=says("sweep.json", "--map-by")):
        one_node.message(placed(4, 2), 100)


def test_a_strategy_is_named_as_typed():
    assert of_strategy(ExchangeConfig(check_collectives=False, overlap="none", segment_bytes=5)) == "allreduce"
    config = ExchangeConfig(sync="server", servers=2, dedicated=True)
    assert of_strategy(config) == "server --servers 2 --dedicated"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_row_of_its_options(row, name):
    preset = PRESETS[name]
    one, other = row(sync=name, **preset.options), row(sync=preset.strategy, **preset.options)
    assert one == other and one.strategy == of_strategy(ExchangeConfig(preset.strategy, **preset.options))
    assert one.strategy.startswith(f"{preset.strategy} --")
