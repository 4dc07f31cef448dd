"""Times of iterations without an exchange of gradients."""

from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from small_runs import BATCH_NORM_NET, DROPOUT_NET, everywhere, fake_gpu

from ringtrain.config.resolve import resolve
from ringtrain.nn import spec
from ringtrain.ops.catalogue import make_ops
from ringtrain.train.assembly.assemble import assemble
from ringtrain.train.assembly.data import open_data
from ringtrain.train.run import iteration_times as module
from ringtrain.train.run.iteration_times import iteration_times, without_exchange


def training(transport, iterations, ops=None, net=DROPOUT_NET, **flags):
    model, ops = spec.parse_model(net, "small"), ops or make_ops("reference")
    flags = {"model": "small", "epochs": 3, "warmup": "1ep", "batch": 7, "check_collectives": False, **flags}
    config = resolve(("recipe", model.recipe), ("flags", flags))
    config = without_exchange(config, model.graph(), transport.size, iterations)
    return assemble(config, model, open_data(config, model, transport), transport, ops, stop=lambda: False)


def timed(transport, iterations, ops=None, **flags):
    """(times, whether weights have moved, bytes sent, iterations of this rank)"""
    run = training(transport, iterations, ops, **flags)
    ops = run.ops
    before = ops.to_host(run.arena.weights).copy()
    times = iteration_times(run)
    sent = run.exchange.reducers.traffic().bytes_sent
    run.exchange.reducers.close()
    moved = np.abs(ops.to_host(run.arena.weights) - before).max() > 1e-15
    return times, moved, sent, run.worker.updates


def test_every_iteration_is_timed_to_its_end(monkeypatch):
    moments = (2.0**n for n in count())
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    # Stamps are 1, 2, 4, and 16: the last iteration ends when its loss is there, after the stamp 8.
    assert everywhere(1, lambda t: timed(t, 3)) == [([1.0, 2.0, 12.0], False, 0, 3)]


def test_ranks_have_the_mean_of_all_and_exchange_no_gradients():
    (times, *done), *others = everywhere(3, lambda t: timed(t, 2))
    assert done == [False, 0, 2] and others == [(times, *done)] * 2
    assert len(times) == 2 and min(times) > 0


def test_a_batch_of_fewer_ghost_batches_than_ranks_is_divided_all_the_same():
    """Its 7 examples are one ghost batch of 8."""
    every = everywhere(2, lambda t: timed(t, 2, net=BATCH_NORM_NET))
    assert [done for _, *done in every] == [[True, 0, 2]] * 2  # running statistics move


def test_the_schedule_of_a_recipe_and_a_device_do_not_matter():
    """A device has its kernels before."""
    schedule = {"lr_policy": "multistep", "lr_steps": ("1ep", "2ep"), "min_lr": 0.001, "base_batch": 8}

    def on_device(transport):
        end, ops = fake_gpu(transport)
        return timed(end, 2, ops)

    for body in (lambda t: timed(t, 2, **schedule), on_device):
        ((times, *done),) = everywhere(1, body)
        assert len(times) == 2 and done == [False, 0, 2]


@pytest.mark.parametrize("size", [1, 2])
def test_one_rank_records_its_iterations_and_several_scale_no_loss(size):
    def made(transport):
        end, ops = fake_gpu(transport, precision="float16")
        run = training(end, 2, ops, precision="float16", device="cuda")
        return run.worker._recordable is not None, run.config.device.loss_scale

    assert everywhere(size, made) == [(size == 1, None if size == 1 else 1.0)] * size
