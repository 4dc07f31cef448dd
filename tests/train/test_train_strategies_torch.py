"""The contract for modules of PyTorch: each strategy of strategies.py that a script may have gives them the losses and
weights that it gives the same network of ringtrain's own layers. Runs where torch is installed.
"""

from contextlib import contextmanager

import numpy as np
import pytest
from small_runs import everywhere, means, run_of
from strategies import STRATEGIES, by_default

from ringtrain.cli.python_script import exchange_of
from ringtrain.errors import ConfigError, UsageError
from ringtrain.exchange import catalogue
from ringtrain.exchange.parts import PARTS
from ringtrain.transport.loopback import Loopback
from ringtrain.transport.waiting import wait_for
from tests.runs import FC_NET
from tests.says import says

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
from ringtrain.torch.engine import Engine  # noqa: E402
from ringtrain.torch.strategy_ddp import make_step  # noqa: E402

STEPS = 18
SHAPE = {"dtype": "float64", "batch": 36, "examples": 180, "iterations": STEPS}  # ranks have equal parts, as DDP's
RECIPES = {  # flags, and PyTorch's optimizer
    "sgd": ({"momentum": 0.9}, lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9)),
    "adamw": (
        {"optimizer": "adamw", "lr": 0.004, "weight_decay": 0.01},
        lambda weights: torch.optim.AdamW(weights, 0.004, weight_decay=0.01),
    ),
}
TURNS = (0, 0, 1, 2, 1, 2) * (STEPS // 2)  # of ranks that are apart
OF_SCRIPTS = {"fc", "dedicated", "batch_norm"}  # flags of what a script has itself
MORE = {  # flags of further cases
    "allreduce": {"algorithm": "butterfly", "bucket_bytes": 500},
    "averaging": {"average_from": 5, "overlap": "none"},
    "averaging, an outer step": {"average_from": 5, "overlap": "forward"},
    "delayed": {"overlap": "forward", "bucket_bytes": 500},
    "gossip": {"gossip_max_lag": 1},
    "top-k": {"compress_from": 4, "overlap": "none"},
    "powersgd": {"compress_from": 4, "overlap": "none"},
    "server": {"servers": 3, "check_replicas": 4, "check_collectives": True},
    "stale server": {"overlap": "forward"},
    "asynchronous server": {"overlap": "forward"},
    "asynchronous averaging": {"overlap": "forward"},
    "averaging by a quorum": {"overlap": "forward"},
}


def may_have(flags):
    """Whether a script may have this strategy."""
    try:
        return bool(exchange_of(("a row", flags)))
    except ConfigError:
        return False


ROWS = {name: row for name, row in STRATEGIES.items() if may_have(row.flags)}


def cases():
    """Of each row: its own flags with both optimizers; the worlds of the contract of ringtrain's layers, and more."""
    for name, row in ROWS.items():
        yield from (pytest.param(name, 3, 1, {}, recipe, id=f"{name}, {recipe}") for recipe in RECIPES)
        worlds = {(each.ranks, each.nodes, str(each.flags)): each.flags for each in row.worlds if row.lockstep}
        worlds |= {(3, 1, str(MORE[name])): MORE[name]} if name in MORE else {}
        for (ranks, nodes, words), flags in worlds.items():
            if may_have(row.flags | flags):
                named = {"id": f"{name} on {ranks}, {words}", "marks": pytest.mark.thorough}
                yield pytest.param(name, ranks, nodes, flags, "sgd", **named)


class Affine(torch.nn.Module):
    """A fully connected layer whose matrix lies as ringtrain's: PowerSGD tells rows from columns."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(torch.tensor(each)) for each in (weight, bias))

    def forward(self, x):
        return x @ self.weight + self.bias


@contextmanager
def turn(turns, transport, exchange, arena):
    """An iteration when it is this rank's turn, if there are turns. Its update has arrived before the next turn."""

    def has_come():
        exchange.serving.poll()
        return turns[:1] in ([], [transport.rank])

    wait_for(has_come, 60.0, lambda: "its turn", patience=transport.patience)
    yield
    for span in arena.spans if turns else ():
        exchange.before_read(span)
    del turns[:1]


def by_layers(run, transport, turns):
    """The losses of ringtrain's trainer, and the numbers of this rank's examples."""
    units = ((number, transport.rank) for number in range(STEPS)) if run.exchange.facts.dynamic_batches else None
    outcomes, examples = [], []
    with run.batches(transport, 0, STEPS, units) as batches:
        for batch in batches:
            examples.append(batch.examples.copy())
            with turn(turns, transport, run.exchange, run.arena):
                outcomes.append(run.worker.iterate(batch, batches.peek))
    run.exchange.serving.drain_peers()
    outcomes += run.worker.drain()
    run.exchange.synchronize()
    return means(filter(None, outcomes)), examples


def by_module(net, optimizer, batches, config, transport, turns):
    """The losses of a script's loop, with the calls that DDP and the optimizer make of an engine."""
    engine, losses = Engine(net, [*net.named_parameters()], config, transport, None), []
    for x, labels in batches:
        with turn(turns, transport, engine.arenas[0].exchange, engine.arenas[0].arena):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), labels)
            engine.expect_backward()
            loss.backward()
            engine.attach(optimizer)
            optimizer.step() if engine.in_backward else make_step(optimizer, [engine])
            losses.append(loss.item())
    engine.synchronize()
    engine.close()
    return losses


def assert_alike(row, ranks=3, nodes=1, more=None, recipe="sgd"):
    """A module of the same network has the losses and the weights of ringtrain's layers, up to rounding."""
    (options, make_optimizer), flags = RECIPES[recipe], row.flags | (more or {})
    turns = [[*TURNS] if not row.lockstep else [] for _ in range(2)]

    def body(transport):
        run, _ = run_of(transport, FC_NET, **SHAPE, **options, **flags)
        weights = [run.arena.weight(span) for span in run.arena.spans]
        hidden, head = Affine(*weights[:2]), Affine(*weights[2:])
        losses, examples = by_layers(run, transport, turns[0])
        net, data = torch.nn.Sequential(torch.nn.Flatten(), hidden, torch.nn.ReLU(), head), run.data
        split, mean = data.train, data.mean_image.astype(np.float64)
        batches = [
            (torch.tensor((split.images[each] - mean) / data.std), torch.tensor(split.labels[each]).long())
            for each in examples
        ]
        config, optimizer = exchange_of(("a row", flags)), make_optimizer(net.parameters())
        others = by_module(net, optimizer, batches, config, transport, turns[1])
        return (losses, others), weights, [each.detach().numpy() for each in net.parameters()]

    results = everywhere(ranks, body, nodes=nodes)
    wanted, losses = np.mean([both for both, *_ in results], axis=0)
    np.testing.assert_allclose(losses, wanted, rtol=1e-12)
    for _, weights, others in results:
        assert max(np.max(np.abs(a - b)) for a, b in zip(weights, others, strict=True)) <= 1e-12


def test_every_row_is_asked_but_those_that_a_script_may_not_have():
    refused = {name for name, row in STRATEGIES.items() if name == "master" or OF_SCRIPTS & row.flags.keys()}
    assert STRATEGIES.keys() - ROWS.keys() == refused


@pytest.mark.parametrize(("name", "ranks", "nodes", "more", "recipe"), list(cases()))
def test_a_module_has_the_losses_and_weights_of_ringtrains_layers(name, ranks, nodes, more, recipe):
    assert_alike(ROWS[name], ranks, nodes, more, recipe)


def test_a_strategy_of_a_plug_in_is_a_row_too(monkeypatch):
    """Under another name than any that the engine knows."""
    monkeypatch.setitem(catalogue.STRATEGIES, "own", catalogue.STRATEGIES["allreduce"])
    monkeypatch.setitem(PARTS, "own", PARTS["allreduce"])
    assert_alike(by_default("own", catalogue.STRATEGIES["own"]))


def test_a_quorum_is_of_one_exchange():
    """Else a rank could wait in one for a rank that waits in another."""

    def engine(quorum, *types):
        net = torch.nn.ParameterList([torch.zeros(2, dtype=each) for each in types])
        config = exchange_of(("flags", {"sync": "averaging", "quorum": quorum}))
        return Engine(net, [*net.named_parameters()], config, Loopback(), None)

    engine(2, torch.float32).close()
    engine(1, torch.float32, torch.float64).close()
    with pytest.raises(UsageError, match=says("--quorum 2", "one type", "--quorum 1")):
        engine(2, torch.float32, torch.float64)
