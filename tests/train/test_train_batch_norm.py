"""``--batch-norm``: statistics of the whole batch are those of one rank that has all of it as one ghost batch."""

import numpy as np
import pytest
from small_runs import BATCH_NORM_NET, DROPOUT_NET, PAST_A_TAIL, apart, everywhere, iterate, results, run_of, trained

from ringtrain.errors import ConfigError, DivergedError
from ringtrain.ops.catalogue import make_ops
from tests.says import says

ONE_GHOST = BATCH_NORM_NET.replace("ghost = 8", "ghost = 1000")


def serial(iterations, net=ONE_GHOST, **flags):
    return results(1, net, iterations, dtype="float64", **flags)[0][1]


def test_without_it_the_ghosts_of_the_model_file_are_others():
    assert np.abs(serial(PAST_A_TAIL, BATCH_NORM_NET) - serial(PAST_A_TAIL)).max() > 1e-3


def test_by_compiled_kernels():
    """A rank without examples among them."""

    def body(t):
        return trained(t, BATCH_NORM_NET, 6, ops=make_ops("cpu", "float64"), batch_norm="sync", batch=74)

    assert apart(everywhere(4, body), serial(6, batch=74)) <= 1e-11


def test_delayed_gradients_do_not_depend_on_the_number_of_ranks():
    flags = {"iterations": 10, "sync": "delayed", "batch_norm": "sync", "dtype": "float64"}
    assert apart(results(3, BATCH_NORM_NET, **flags), results(1, BATCH_NORM_NET, **flags)[0][1]) <= 1e-12


def test_a_loss_that_overflows_names_the_layer_on_every_rank():
    def body(t):
        with pytest.raises(DivergedError, match=says("non-finite", "value")):
            trained(t, BATCH_NORM_NET, 30, batch_norm="sync", lr=1e30)
        return True

    assert everywhere(3, body) == [True] * 3


@pytest.mark.parametrize("nonfinite", [("fc", "conv1"), ("conv1", "fc"), (None, "conv1")])
def test_of_micro_batches_that_overflow_in_several_layers_the_first_is_named(nonfinite):
    def body(t):
        run, ops = run_of(t, DROPOUT_NET, accumulate=2)
        ops.fill(run.arena.weights, np.nan)
        layers = iter(nonfinite)
        run.worker.passes.graph.first_nonfinite = lambda ctx, tapes: next(layers)
        with pytest.raises(DivergedError, match=says("'conv1'")):
            iterate(run, t, 0, 1)
            run.worker.drain()

    everywhere(1, body)


# ── ghosts ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_ghosts_of_a_size_of_their_own():
    want = serial(20, BATCH_NORM_NET.replace("ghost = 8", "ghost = 5"))
    for size in (1, 3):
        ranks = everywhere(size, lambda t: trained(t, BATCH_NORM_NET, 20, dtype="float64", batch_norm="ghost:5"))
        assert apart(ranks, want) <= 1e-12
    with pytest.raises(ConfigError, match=says("--batch", "--batch-norm ghost:10", 30, 2, 16, 3, 33)):
        everywhere(3, lambda t: run_of(t, BATCH_NORM_NET, batch_norm="ghost:16"))  # too few for the ranks
    everywhere(3, lambda t: run_of(t, BATCH_NORM_NET, batch_norm="ghost:10"))
