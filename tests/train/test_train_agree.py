"""What ranks do together: one error for all, one value for all, turns in compiling."""

from pathlib import Path

import pytest
from small_runs import DROPOUT_NET, everywhere, run_of

from ringtrain.errors import DataError, UsageError
from ringtrain.template import Lines
from ringtrain.transport.agree import agree, keep_on_root, on_root, take_turns, together, together_json
from tests.loopback.world import LoopbackWorld


def raised(size, function):
    """The error that every rank raised, which must be the same on all."""

    def caught(transport):
        with pytest.raises(UsageError) as error:
            function(transport)
        assert error.value.everywhere
        return type(error.value), str(error.value)

    (values,) = set(everywhere(size, caught))
    return values


def test_values_where_nothing_fails():
    assert everywhere(3, lambda t: together(t, lambda: t.rank**2)) == [0, 1, 4]
    assert everywhere(3, lambda t: together_json(t, lambda: [t.rank])) == [[[0], [1], [2]]] * 3
    assert everywhere(3, lambda t: on_root(t, lambda: f"of {t.rank}")) == ["of 0"] * 3
    kept = everywhere(3, lambda t: keep_on_root(t, lambda: ({t.rank}, t.rank)))
    assert kept == [({0}, 0), (None, 0), (None, 0)]


def test_an_error_of_some_ranks_is_every_ranks():
    """And keeps its lines; what the system refuses is an error of use."""

    def missing(transport):
        if transport.rank in (1, 2):
            raise DataError("there is no data set x.h5")

    def refused():
        raise UsageError(Lines("of another machine:\n  cpu"))

    fails = raised(4, lambda t: together(t, lambda: missing(t)))
    assert fails == (DataError, "ranks 1, 2: there is no data set x.h5")
    assert raised(2, lambda t: on_root(t, refused)) == (UsageError, "rank 0: of another machine:\n  cpu")
    kind, message = raised(2, lambda t: on_root(t, lambda: Path("/" + 300 * "x").read_text()))
    assert kind is UsageError and "File name too long" in message


def test_ranks_that_disagree():
    def disagree(transport):
        agree(transport, {"seed": min(transport.rank, 1), "batch": 64})

    many = ", ".join(map(str, range(1, 9)))
    assert (
        raised(12, disagree)[1]
        == f"the ranks do not agree on the run:\n  seed: 0 on rank 0; 1 on ranks {many} and 3 more"
    )
    everywhere(3, lambda t: agree(t, {"seed": 1}))


def test_one_rank_a_node_compiles_first():
    order = []  # appending is atomic

    def rehearse(transport):
        return take_turns(transport, lambda: order.append((transport.node, transport.local_rank)))

    everywhere(6, rehearse, nodes=2)
    for node in (0, 1):
        ranks = [local for n, local in order if n == node]
        assert ranks[0] == 0 and sorted(ranks) == [0, 1, 2]


def test_other_ranks_may_write_into_gradients_and_not_into_weights():

    def body(transport):
        run, _ = run_of(transport, DROPOUT_NET, iterations=1)
        transport.barrier()
        return transport.peer_views(run.arena.weights) is None, transport.peer_views(run.arena.grads) is not None

    assert LoopbackWorld(2).run(body) == [(True, True)] * 2
