"""Training on a device that is not there: the loop reads nothing early and computes nothing outside of ops."""

import pytest
from small_runs import BATCH_NORM_NET, DROPOUT_NET, everywhere, losses, run_of
from strategies import trained

from tests.fakes.device import FakeDeviceOps
from tests.fakes.transports import DeviceTransport


def on_device(transport, model_text, iterations, **flags):
    ops = FakeDeviceOps(flags.get("dtype", "float32"))
    return losses(DeviceTransport(transport, ops), model_text, iterations, ops=ops, **flags)


@pytest.mark.parametrize("model_text", [DROPOUT_NET, BATCH_NORM_NET], ids=["dropout", "batch norm"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_training_is_that_of_the_host_bit_by_bit(size, model_text):
    host = everywhere(size, lambda t: losses(t, model_text, 12))
    device = everywhere(size, lambda t: on_device(t, model_text, 12))
    assert [found[:2] for found in device] == [found[:2] for found in host]


@pytest.mark.parametrize(
    "flags",
    [
        {"optimizer": "adamw"},
        {"optimizer": "nesterov", "clip_norm": 0.5},
        {"optimizer": "lars", "trust": 0.1},
        {"optimizer": "lamb", "lr": 0.01, "clip_norm": 1.0},
        {"accumulate": 3},
    ],
)
def test_optimizers_clipping_and_accumulation(flags):
    host = everywhere(2, lambda t: losses(t, DROPOUT_NET, 6, **flags))
    device = everywhere(2, lambda t: on_device(t, DROPOUT_NET, 6, **flags))
    assert [found[:2] for found in device] == [found[:2] for found in host]


def test_evaluation():
    def scored(transport, device: bool):
        ops = FakeDeviceOps() if device else None
        transport = DeviceTransport(transport, ops) if device else transport
        run, _ = run_of(transport, BATCH_NORM_NET, ops)
        return run.evaluator.score(run.data.test, 100)

    assert everywhere(3, lambda t: scored(t, True)) == everywhere(3, lambda t: scored(t, False))


# ── every strategy ────────────────────────────────────────────────────────────────────────────────────────────────────
STRATEGIES = {
    **{
        f"all-reduce by {name}": {"algorithm": name}
        for name in (
            "ring", "tree", "double-tree", "butterfly", "circulant", "recursive-doubling", "star", "sliced",
            "hierarchical", "hierarchical-leader", "mpi", "auto",
        )
    },
    "none overlaps": {"overlap": "none"},
    "forward": {"overlap": "forward", "bucket_bytes": 500},
    "clipped": {"clip_norm": 0.5},
    "a wire": {"wire": "bfloat16", "algorithm": "ring"},
    "another wire": {"wire": "float16", "algorithm": "tree"},
    "top-k": {"compress": "top-k", "compress_ratio": 0.2, "compress_from": 2},
    "powersgd": {"compress": "powersgd", "compress_rank": 1},
    "delayed": {"sync": "delayed", "clip_norm": 0.5},
    "delayed top-k": {"sync": "delayed", "compress": "top-k"},
    "sharded": {"sync": "sharded", "overlap": "forward", "algorithm": "butterfly"},
    "sharded lamb": {"sync": "sharded", "optimizer": "lamb", "lr": 0.01, "algorithm": "ring"},
    "averaging": {"sync": "averaging", "average_every": 2, "average_from": 2},
    "averaging, its momentum kept": {"sync": "averaging", "average_every": 2, "average_momentum": "keep"},
    "averaging, begun anew": {"sync": "averaging", "average_every": 2, "average_momentum": "reset"},
    "averaging, an outer step": {"sync": "averaging", "average_every": 2, "outer_momentum": 0.5, "outer_lr": 0.7},
    "gossip": {"sync": "gossip", "clip_norm": 0.5},
    "master": {"sync": "master", "accumulate": 2},
    "server": {"sync": "server", "servers": 2},
    "server, forward": {"sync": "server", "overlap": "forward", "dedicated": True},
    "server, clipped, of two levels": {"sync": "server", "server_levels": 2, "clip_norm": 0.5},
    "hybrid": {"fc": "hybrid", "clip_norm": 0.5},
    "hybrid, sharded": {"fc": "hybrid", "sync": "sharded", "algorithm": "sliced"},
    "pipeline": {"fc": "pipeline", "accumulate": 2, "algorithm": "ring"},
    "whole-batch norm": {"batch_norm": "sync"},
}  # fmt: skip


def gives_the_bits_of_hosts(size, flags, mapped=False, nodes=1):
    """Whether losses and weights of all ranks are the same on devices, whose operations beside are done late, or early,
    as on hosts."""

    def body(transport, ops):
        end = DeviceTransport(transport, ops, mapped) if ops else transport
        found, weights, _ = trained(end, BATCH_NORM_NET, 4, ops=ops, settle_at=(3,), **flags)
        return found, weights.tobytes()

    def run(make_ops):
        return everywhere(size, lambda t: body(t, make_ops()), nodes=nodes)

    host, late, early = (run(make) for make in (lambda: None, FakeDeviceOps, lambda: FakeDeviceOps(early=True)))
    return host == late and host == early


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy(name):
    flags = {"bucket_bytes": 2000, "segment_bytes": 256, **STRATEGIES[name]}
    assert gives_the_bits_of_hosts(4, flags, nodes=[0, 0, 1, 1])


GUARDED = [
    {},
    {"algorithm": "ring", "batch_norm": "sync", "overlap": "forward"},
    {"algorithm": "mpi", "batch_norm": "sync"},
    {"sync": "delayed", "algorithm": "tree"},
    {"sync": "sharded", "overlap": "forward"},
    {"sync": "server"},
    {"compress": "top-k", "compress_from": 2},
    {"fc": "hybrid"},
]


@pytest.mark.parametrize("flags", GUARDED, ids=str)
def test_ranks_whose_devices_are_not_alike_do_all_in_one_order(flags):
    """One is done whenever it is asked, the other is not: the guard compares what ranks do together, number by
    number."""
    flags = {"guard": True, "bucket_bytes": 500, **flags}

    def body(transport, ops):
        end = DeviceTransport(transport, ops) if ops else transport
        return trained(end, BATCH_NORM_NET, 4, ops=ops, **flags)[1].tobytes()

    host = everywhere(2, lambda t: body(t, None))
    assert everywhere(2, lambda t: body(t, FakeDeviceOps(quick=t.rank == 0))) == host


@pytest.mark.parametrize("flags", [{"staleness": 1}, {"staleness": 2, "overlap": "forward", "clip_norm": 0.5}])
def test_a_server_of_ranks_that_are_apart(flags):
    """One rank trains and one serves: else sums hang on who comes first."""
    assert gives_the_bits_of_hosts(2, {"sync": "server", "dedicated": True, **flags})


@pytest.mark.parametrize("size, nodes, algorithm", [(2, 1, "mapped"), (3, 1, "mapped"), (4, [0, 0, 1, 1], "routed")])
def test_in_memory_that_devices_share(size, nodes, algorithm):
    """Up to three ranks a node, whose contributions hosts add one after another, too."""
    flags = {"algorithm": algorithm, "bucket_bytes": 2000}
    assert gives_the_bits_of_hosts(size, flags, mapped=True, nodes=nodes)
