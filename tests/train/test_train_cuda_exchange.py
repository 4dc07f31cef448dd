"""Exchanges over the operations of a GPU and the transport of its memory, on a device that is not there, whose
streams are done as late as they may or run ahead, so that what marks do not order shows; or on a real one."""

import json

import numpy as np
import pytest
from small_runs import BATCH_NORM_NET, DROPOUT_NET, everywhere, iterate, run_of, trained

from ringtrain.ops.cuda import CudaOps
from ringtrain.report.trace import DEVICE
from ringtrain.train.run.tracing import Tracer
from ringtrain.transport.device.wrapper import STAGED, DeviceTransport
from tests.ops.cuda_support import REAL, cuda_ops, device_runtime, needs_compiler

pytestmark = [needs_compiler, pytest.mark.device]


def on_device(transport, hasty=False):
    """(transport, operations)"""
    runtime = device_runtime(hasty)
    return DeviceTransport(transport, runtime, STAGED, 1 << 12), cuda_ops(runtime=runtime)


@pytest.mark.parametrize("flags", [{"fc": "pipeline"}, {"fc": "pipeline", "fc_ranks": 2}, {"sync": "sharded"}], ids=str)
def test_training_over_messages_that_are_staged_in_small_pieces_is_that_of_the_host(flags):
    def staged(transport):
        runtime = device_runtime()
        end = DeviceTransport(transport, runtime, STAGED, segment_bytes=256)
        return trained(end, DROPOUT_NET, 4, ops=CudaOps(runtime, "float32", "float32"), **flags)

    ranks = 1 + flags.get("fc_ranks", 1)
    host = everywhere(ranks, lambda t: trained(t, DROPOUT_NET, 4, **flags))
    device = everywhere(ranks, staged)
    for (_, expected, _), (_, weights, _) in list(zip(host, device, strict=True))[: 1 if "fc" in flags else 2]:
        assert np.abs(weights - expected).max() < (1e-5 if REAL else 1e-6)  # a device fuses a·b + c


@pytest.mark.parametrize("hasty", [False, True], ids=["late", "ahead"])
@pytest.mark.parametrize(
    "flags",
    [
        {"algorithm": "ring", "overlap": "forward"},
        {"sync": "sharded"},
        {"sync": "delayed", "check_collectives": True, "algorithm": "sliced", "compress": "top-k"},
        {"sync": "gossip"},
    ],
    ids=lambda flags: flags.get("sync", "all-reduce"),
)
def test_what_is_learnt_is_what_hosts_learn(flags, hasty):
    def body(transport):
        end, ops = on_device(transport, hasty)
        return trained(end, BATCH_NORM_NET, 3, ops=ops, bucket_bytes=500, **flags)[1]

    host = everywhere(2, lambda t: trained(t, BATCH_NORM_NET, 3, bucket_bytes=500, **flags)[1])
    first, second = everywhere(2, body)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, host[0], atol=1e-5 if REAL else 1e-6)  # a device fuses a·b + c


@pytest.mark.parametrize("hasty", [False, True], ids=["late", "ahead"])
def test_a_reproducible_run_has_the_same_bits_at_any_number_of_ranks(hasty):
    """By kernels that are chosen by size: none was timed. 31 examples in shards of 3 and 4."""
    flags = {"device": "cuda", "reproducible": True, "batch": 31, "bucket_bytes": 500}

    def body(transport):
        runtime = device_runtime(hasty)
        ops = CudaOps(runtime, fixed=True)
        end = DeviceTransport(transport, runtime, STAGED, 1 << 12)
        learnt = trained(end, BATCH_NORM_NET, 2, ops=ops, **flags)[:2]
        return learnt, [(chosen.name, chosen.seconds) for chosen in ops.choices.table.values()]

    ((losses, weights), chosen) = everywhere(1, body)[0]
    assert chosen and all(not seconds and name not in ("cuBLAS", "cuDNN") for name, seconds in chosen)
    for size in (2, 3):
        for (rank_losses, rank_weights), _ in everywhere(size, body):
            assert rank_losses == losses
            np.testing.assert_array_equal(rank_weights, weights)


def test_a_trace_has_the_times_of_its_stream(tmp_path):
    def body(transport):
        end, ops = on_device(transport)
        run, _ = run_of(end, BATCH_NORM_NET, ops, iterations=3)
        path = tmp_path / "trace.json" if transport.rank == 0 else None
        tracing = Tracer(run.worker, end, range(1, 3), path)
        tracing.align()
        iterate(run, end, 0, 3)
        tracing.write_all()

    everywhere(2, body)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (track,) = {e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == DEVICE}
    names = {e["name"].split()[0] for e in events if e["ph"] == "X" and e["tid"] == track}
    assert {"forward", "backward"} <= names
