"""The six parts of each strategy: what the rules of options and the plan ask in place of its name."""

import pytest

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange.catalogue import STRATEGIES
from ringtrain.exchange.parts import PARTS, Parts, parts_of

AVERAGED = {"travels": "weights", "every": 8, "then": "mean", "averages_state": True}
CHANGES = {"travels": "change", "partners": "owners", "owners": 1}
EXPECTED = [
    ({}, {}),
    ({"wire": "float16", "fc": "hybrid"}, {"how": "float16", "placement": "hybrid"}),
    ({"sync": "delayed", "compress": "top-k"}, {"delay": 1, "how": "top-k"}),
    ({"sync": "sharded"}, {"partners": "owners"}),
    ({"sync": "averaging", "average_from": 5}, {**AVERAGED, "begins": 5}),
    ({"sync": "averaging", "average_momentum": "keep"}, {**AVERAGED, "averages_state": False}),
    ({"sync": "averaging", "outer_lr": 0.7}, {**AVERAGED, "then": "outer step"}),
    ({"sync": "averaging", "wire": "float16"}, {**AVERAGED, "travels": "change", "how": "float16"}),
    ({"sync": "averaging", "asynchronous": True}, {**CHANGES, "every": 8, "then": "mean", "apart": None}),
    ({"sync": "gossip"}, {"travels": "weights", "partners": "partner", "then": "mean", "apart": 8}),
    ({"sync": "master"}, {"partners": "root", "owners": 1}),
    ({"sync": "server", "servers": 3}, {"partners": "owners", "owners": 3}),
    ({"sync": "server", "staleness": 2}, {**CHANGES, "then": "sum", "apart": 2}),
    ({"sync": "server", "asynchronous": True}, {**CHANGES, "then": "sum", "apart": None}),
]


@pytest.mark.parametrize(("flags", "parts"), EXPECTED, ids=lambda value: str(value))
def test_a_configuration_has_these_parts(flags, parts):
    assert parts_of(ExchangeConfig(**flags)) == Parts(**parts)


def test_every_strategy_has_parts():
    assert {name: strategy.parts for name, strategy in STRATEGIES.items()} == PARTS
