"""Small runs inside one process: the real assembly and loop over threads, for tests that compare runs."""

import math
import threading
from dataclasses import replace

import numpy as np
import pytest

from ringtrain.config.resolve import resolve
from ringtrain.errors import DivergedError
from ringtrain.nn import spec
from ringtrain.ops.catalogue import make_ops
from ringtrain.train.assembly.assemble import assemble
from ringtrain.train.assembly.data import open_data
from ringtrain.train.assembly.initial_weights import find_initial
from ringtrain.train.checkpoints.state import Progress, capture, common_facts, restore
from ringtrain.train.run.driver import make_driver
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.host_cuda import HostRuntime
from tests.fakes.transports import DeviceTransport
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import lasting

LOWER_THE_RATE = says("--lr", "--warmup", "--clip-norm", "--resume")  # the advice of DivergedError

# A net with everything that is drawn at random (crops, flips, dropout), of layers that see one example at a time.
DROPOUT_NET = """
summary = "for tests"
input = { shape = [8, 8, 1], mean = "image", std = "channel", pad = 1, flip = true }
layers = [
  { name = "conv1", kind = "Conv2D", channels = 6, kernel = 3, pad = 1 },
  { name = "relu1", kind = "ReLU" },
  { name = "pool1", kind = "MaxPool", kernel = 2, stride = 2 },
  { name = "drop", kind = "Dropout", rate = 0.3 },
  { name = "flat", kind = "Flatten" },
  { name = "fc", kind = "Linear", units = 10 },
]
[recipe]
batch = 30
lr = 0.05
momentum = 0.9
weight_decay = 0.001
"""

POOL = '  { name = "pool1",'
BATCH_NORM_NET = DROPOUT_NET.replace(POOL, f'  {{ name = "norm1", kind = "BatchNorm", ghost = 8 }},\n{POOL}')

# A net of layers that see one example at a time, and one with ghost batch norm.
NETS = {"dropout": DROPOUT_NET, "ghost": BATCH_NORM_NET}
# Optimizers that need norms of whole parameters; of lars with a learning rate that moves.
LAYERWISE = {
    "lars": {"optimizer": "lars", "lr": 0.2, "trust_coefficient": 0.05, "lr_policy": "inv"},
    "clipped lamb": {"optimizer": "lamb", "lr": 0.01, "clip_norm": 0.5},
}


DIGITS = {"model": "net.toml", "data": "digits", "ops": "reference"}  # flags of a run in a folder
FEW = 297  # examples: with batches of 30, the tenth and the twentieth are tails of 27
ITERATIONS = lasting(22, 50)  # over both
OVER_RANKS = lasting(22, 100)
PAST_A_TAIL = lasting(12, 50)  # where the bits are compared: one difference stays


def run_of(transport, model_text, ops=None, examples=FEW, **flags):
    """The assembly of a run on the first of the shipped digits; without ``examples``, on all of its data. ``ops``:
    operations, or their name."""
    model = spec.parse_model(model_text, "small")
    flags = {"check_collectives": False, "ops": "reference", "model": "small", "data": "digits", **flags}
    config = resolve(("recipe", model.recipe), ("flags", flags))
    ops = make_ops(ops or config.device.ops, config.device.dtype) if isinstance(ops, str | None) else ops
    data = open_data(config, model, transport)
    if examples is not None:
        train = replace(data.train, images=data.train.images[:examples], labels=data.train.labels[:examples])
        data = replace(data, train=train)
    initial = find_initial(transport, config.model, model)
    return assemble(config, model, data, transport, ops, lambda: False, initial=initial), ops


def iterate(run, transport, start, stop, after=lambda batch: None):
    """Run iterations ``start`` up to ``stop``, and ``after(batch)`` after each; the outcomes that iterations return."""
    outcomes = []
    with run.batches(transport, start, stop) as batches:
        for batch in batches:
            outcomes.append(run.worker.iterate(batch, batches.peek))
            after(batch)
    return list(filter(None, outcomes))


def fake_gpu(transport, device=True, dtype="float32", precision="float32", mapped=False, **options):
    """(transport, operations) of a device that is not there; without ``device``, of the host. ``options``: of its
    :class:`HostRuntime`."""
    ops = FakeGpuOps(HostRuntime(**options), dtype, precision) if device else None
    return (DeviceTransport(transport, ops, mapped) if device else transport), ops


def diverges(run, transport, iterations, *words):
    """Train up to a loss that is not finite, which may be found at the next meeting; whether the error is everywhere's.
    It holds ``words``."""
    with pytest.raises(DivergedError, match=LOWER_THE_RATE + says(f"{math.nan:g}", *words)) as error:
        iterate(run, transport, 0, iterations)
        run.exchange.serving.drain_peers()
        run.worker.drain()
    return error.value.everywhere


def means(outcomes):
    """The loss of each iteration."""
    return [outcome.loss_sum / outcome.valid for outcome in outcomes]


def losses(transport, model_text, iterations, start=0, ops=None, **flags):
    """(loss of each iteration, weights as bytes-hash, host weights) of the first ``iterations`` iterations."""
    run, ops = run_of(transport, model_text, ops, iterations=iterations, **flags)
    outcomes = iterate(run, transport, start, iterations) + run.worker.drain()
    return means(outcomes), run.arena.hash(ops), ops.to_host(run.arena.weights)


def begun(transport, model_text, ops=None, checkpoint=None, **flags):
    """As :func:`run_of`, of a run that goes on from a checkpoint, if there is one."""
    run, ops = run_of(transport, model_text, ops, **flags)
    if checkpoint is not None:
        restore(run, common_facts(checkpoint), checkpoint if transport.rank == 0 else None)
    return run, ops


def trained(transport, model_text, iterations, start=0, checkpoint=None, settle_at=(), ops=None, **flags):
    """Train from iteration ``start`` of a checkpoint. Returns (losses, host weights, the checkpoint at the end); no
    weights on a rank that holds a part of the network."""
    run, ops = begun(transport, model_text, ops, checkpoint, iterations=iterations, **flags)
    settled = []

    def settle(batch):
        if batch.iteration + 1 in settle_at:
            run.exchange.serving.drain_peers()
            settled.extend(run.worker.drain())
            capture(run, Progress(iteration=batch.iteration + 1))

    outcomes = iterate(run, transport, start, iterations, settle)
    run.exchange.serving.drain_peers()
    outcomes += settled + run.worker.drain()
    outcomes.sort(key=lambda outcome: outcome.iteration)
    state = capture(run, Progress(iteration=iterations))
    weights = None if transport.rank in run.roles.parts else ops.to_host(run.arena.weights)
    return means(outcomes), weights, state


def paced(transport, model_text, iterations, **flags):
    """Losses, weights and lag of ranks that go at the pace of the strategy, with two meetings."""
    run, ops = run_of(transport, model_text, examples=None, iterations=iterations, **flags)
    outcomes = []
    pace = make_driver(run, 0, outcomes.append, lambda *_: None)
    for first, stop in ((0, iterations // 2), (iterations // 2, iterations)):
        assert not pace.train(first, stop)
    pace.close()
    run.exchange.synchronize()
    weights = None if transport.rank in run.roles.parts else ops.to_host(run.arena.weights)
    return means(outcomes), weights, run.exchange.serving.lag()


def apart(ranks, expected):
    """How far the weights of all ranks are from the expected ones, by the largest of those."""
    return max(np.max(np.abs(weights - expected)) for _, weights, _ in ranks) / np.max(np.abs(expected))


def assert_equal(ranks, expected):
    """All ranks have the weights of the expected run at the end, and its losses on the way, up to rounding."""
    assert same_weights(ranks)
    assert apart(ranks, expected[1]) <= 1e-12
    for losses, *_ in ranks:
        np.testing.assert_allclose(losses, expected[0][-len(losses) :], rtol=1e-11)


def same_weights(ranks):
    return len({weights.tobytes() for _, weights, *_ in ranks}) == 1


def everywhere(size, function, **options):
    """``function(transport)`` on ``size`` threads; the values in rank order."""
    return LoopbackWorld(size, **options).run(function)


def on_ranks(size, work):
    """``work(transport)`` on each rank of a loopback world; what each returned, or the error it raised."""
    world, outcomes = LoopbackWorld(size), [None] * size

    def rank(number):
        transport = world.transport(number)
        try:
            outcomes[number] = work(transport)
        except Exception as error:
            outcomes[number] = error
        finally:
            transport.abandon()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return outcomes


_results: dict = {}


def results(size, net, iterations, nodes=1, checkpoint=None, **flags):
    """What :func:`trained` returns on each rank, of a world of hosts, that holds the whole network. Each run is made
    once in a session."""
    options = sorted((name, str(value)) for name, value in flags.items())
    key = (size, net, iterations, str(nodes), id(checkpoint), *options)
    if key not in _results:  # with the checkpoint, whose id is then no other's
        ranks = everywhere(size, lambda t: trained(t, net, iterations, checkpoint=checkpoint, **flags), nodes=nodes)
        _results[key] = checkpoint, [each for each in ranks if each[1] is not None]
    return _results[key][1]
