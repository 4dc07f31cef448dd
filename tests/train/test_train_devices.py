"""Training on a device that is not there: the loop reads nothing early and computes nothing outside of ops."""

from itertools import pairwise

import numpy as np
import pytest
from small_runs import BATCH_NORM_NET, NETS, everywhere, fake_gpu, iterate, losses, run_of, trained

from ringtrain.exchange.update.loss_scale import NAMES
from ringtrain.ops.update import FACTOR
from ringtrain.transport.device.wrapper import STAGED, DeviceTransport
from tests.ops.cuda_support import cuda_ops, needs_compiler
from tests.says import says
from tests.tiers import daily, thorough


def on_device(transport, model_text, iterations, early=False, **flags):
    end, ops = fake_gpu(transport, hasty=early)
    device_losses = losses(end, model_text, iterations, ops=ops, **flags)
    assert ops.replays > 0
    return device_losses


TRAINED = [
    {"optimizer": "adamw"},
    {"optimizer": "adam", "ema": 0.9},
    {"optimizer": "rmsprop", "eps": 1e-6, "ema": 0.9},
    {"optimizer": "nesterov", "clip_norm": 0.5},
    {"optimizer": "lars", "trust_coefficient": 0.1},
    {"optimizer": "lamb", "lr": 0.01, "clip_norm": 1.0},
    {"optimizer": "muon", "lr": 0.01, "ema": 0.9},
    {"accumulate": 3},
    {"bucket_bytes": 1},
    {"wire": "bfloat16"},
]
FROZEN = [{"freeze": "conv1,norm1"}, {"freeze": "norm1,fc.bias"}]


@pytest.mark.parametrize(
    ("net", "size", "early", "iterations", "flags"),
    [
        *((net, size, early, 12, {}) for net in NETS for size, early in ((1, False), (2, True))),
        *(("dropout", 2, False, 6, flags) for flags in TRAINED),
        *(("ghost", 2, False, 6, flags) for flags in FROZEN),
    ],
    ids=str,
)
def test_training_is_that_of_the_host_bit_by_bit(net, size, early, iterations, flags):
    host = everywhere(size, lambda t: losses(t, NETS[net], iterations, **flags))
    device = everywhere(size, lambda t: on_device(t, NETS[net], iterations, early, **flags))
    assert [rank[:2] for rank in device] == [rank[:2] for rank in host]


def of_precision(transport, precision, iterations=20, **flags):
    end, ops = fake_gpu(transport, precision=precision)
    return trained(end, BATCH_NORM_NET, iterations, ops=ops, device="cuda", precision=precision, **flags)


@pytest.mark.parametrize(
    ("precision", "sync"), [("tf32", "sharded"), *((name, "allreduce") for name in ("tf32", "bfloat16", "float16"))]
)
def test_a_lower_precision_learns_alike_and_weights_stay_float32(precision, sync):
    if precision == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    host = everywhere(2, lambda t: losses(t, BATCH_NORM_NET, 20)[0])[0]
    device = everywhere(2, lambda t: of_precision(t, precision, sync=sync))
    assert {weights.dtype.name for _, weights, _ in device} == {"float32"}
    assert device[0][0] == device[1][0]
    assert device[0][0] == pytest.approx(host, abs=0.02 if precision == "bfloat16" else 0.005)
    assert (device[0][0] == host) == (precision == "tf32")  # which the fake has not


@pytest.mark.parametrize("flags", [{}, {"clip_norm": 0.5}, {"sync": "sharded"}, {"overlap": "forward"}], ids=str)
def test_updates_of_gradients_that_overflow_are_left_out_on_all_ranks(flags):
    """2^24 is too large for this net: some updates are left out, all ranks agree, and training goes on."""

    @np.errstate(all="ignore")
    def body(t):
        end, ops = fake_gpu(t, precision="float16")
        run, _ = run_of(end, BATCH_NORM_NET, ops, device="cuda", precision="float16", iterations=14, **flags)
        run.scale.restore(dict.fromkeys(NAMES, 0) | {NAMES[FACTOR]: 2.0**24})
        scales, hashes = [], []

        def note(batch):
            factor, _, skipped = ops.to_host(run.scale.numbers).tolist()
            scales.append((factor, skipped))
            hashes.append(run.arena.hash(ops))

        iterate(run, t, 0, 14, note)
        if flags.get("overlap") == "forward" and flags.get("sync") is None:
            assert any(says("--precision").matches(note) for note in run.exchange.facts.notes)
        step = run.exchange.owned_state.state()["step"]
        return scales, hashes, step

    every = everywhere(2, body)
    scales, hashes, step = every[0]
    assert every[1] == every[0]
    assert scales[0] == (2.0**23, 1)  # left out, and halved
    skipped = scales[-1][1]
    assert 1 <= skipped < 14 and step == 14 - skipped
    assert scales[-1][0] == 2.0 ** (24 - skipped)
    changes = [a != b for a, b in pairwise(hashes)]
    assert sum(changes) == 14 - skipped  # the first was left out: all others changed weights, or were left out


def test_the_factor_goes_on_from_a_checkpoint():
    def body(t, checkpoint=None, start=0):
        options = {"start": start, "checkpoint": checkpoint, "examples": None}
        return of_precision(t, "float16", start + 3, **options)[2]

    first = everywhere(1, body)[0]
    assert (first.scalars["loss_scale"], first.scalars["loss_scale_good"]) == (65536, 3)
    second = everywhere(1, lambda t: body(t, first, 3))[0]
    assert second.scalars["loss_scale_good"] == 6


@pytest.mark.device
@needs_compiler
def test_of_weights_that_are_updated_as_forward_reads_them_none_is_rounded_before():
    """Forward runs in pieces, since layers sum statistics."""
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

    def body(t, overlap):
        ops = cuda_ops(precision="bfloat16")
        options = {"precision": "bfloat16", "batch_norm": "sync", "overlap": overlap, "bucket_bytes": 1}
        return losses(DeviceTransport(t, ops.runtime, STAGED), BATCH_NORM_NET, 3, ops=ops, **options)[0]

    assert everywhere(1, lambda t: body(t, "forward")) == everywhere(1, lambda t: body(t, "backward"))


def test_an_epoch_with_its_tail_and_an_evaluation_between():
    """297 examples in batches of 100: arrays grow at the evaluation, and a tail is recorded by itself."""

    def body(transport, device):
        transport, ops = fake_gpu(transport, device)
        run, ops = run_of(transport, BATCH_NORM_NET, ops, batch=100, iterations=11)
        scores = [run.evaluator.score(run.data.test, 100)]

        def score(batch):
            if batch.iteration in (1, 6):
                scores.append(run.evaluator.score(run.data.test, 520))

        outcomes = iterate(run, transport, 0, 11, score)
        return [(each.loss_sum, each.examples) for each in outcomes], scores, run.arena.hash(ops)

    host, device = (everywhere(2, lambda t, d=d: body(t, d)) for d in (False, True))
    assert host == device


# ── algorithms and wires ──────────────────────────────────────────────────────────────────────────────────────────────
ALGORITHMS = {
    **{
        name: {"algorithm": name}
        for name in (
            "ring", "tree", "double-tree", "butterfly", "circulant", "recursive-doubling", "star", "sliced",
            "hierarchical", "hierarchical:tree:ring", "mpi",
        )
    },
    "a wire": {"wire": "bfloat16", "algorithm": "ring"},
    "another wire": {"wire": "float16", "algorithm": "tree"},
}  # fmt: skip


def by_one_algorithm(flags):
    """``auto`` takes another on a device, and so another order of additions: strategies that have a use for one get it
    named."""
    return {} if flags.get("sync") in ("master", "server") else {"algorithm": "ring"}


def gives_the_bits_of_hosts(size, flags, mapped=False, nodes=1):
    """Whether losses and weights of all ranks are the same on devices, whose operations beside are done late, or early,
    as on hosts."""
    flags = {**by_one_algorithm(flags), **flags}

    def body(transport, device, hasty=False):
        end, ops = fake_gpu(transport, device, mapped=mapped, hasty=hasty)
        values, weights, _ = trained(end, BATCH_NORM_NET, 4, ops=ops, settle_at=(3,), **flags)
        return values, weights.tobytes()

    ways = ((False,), (True,), (True, True))
    host, late, early = (everywhere(size, lambda t, way=way: body(t, *way), nodes=nodes) for way in ways)
    return host == late and host == early


@pytest.mark.parametrize("name", daily(ALGORITHMS, "ring", "mpi", "recursive-doubling", "hierarchical", "a wire"))
def test_an_algorithm(name):
    flags = {"bucket_bytes": 2000, "segment_bytes": 256, **ALGORITHMS[name]}
    ranks, nodes = (4, [0, 0, 1, 1]) if "hierarchical" in name else (3, 1)
    assert gives_the_bits_of_hosts(ranks, flags, nodes=nodes)


def test_what_auto_takes_on_a_device_trains_alike():
    def body(transport, device):
        end, ops = fake_gpu(transport, device)
        return trained(end, BATCH_NORM_NET, 4, ops=ops)[1]

    host, device = (everywhere(3, lambda t, d=d: body(t, d)) for d in (False, True))
    assert max(abs(a - b).max() for a, b in zip(host, device, strict=True)) < 1e-6


GUARDED = [
    {},
    {"batch_norm": "sync", "overlap": "forward"},
    {"sync": "sharded", "overlap": "forward"},
    {"sync": "server"},
    {"sync": "server", "batch_norm": "sync", "overlap": "forward"},
    {"compress": "powersgd", "batch_norm": "sync", "compress_rank": 1},
    *thorough(
        {"algorithm": "mpi", "batch_norm": "sync"},
        {"sync": "delayed", "algorithm": "tree"},
        {"compress": "top-k", "compress_from": 2},
        {"compress": "top-k", "batch_norm": "sync"},
        {"fc": "hybrid"},
    ),
]


@pytest.mark.parametrize("flags", GUARDED, ids=str)
def test_ranks_whose_devices_are_not_alike_do_all_in_one_order(flags):
    """One is done whenever it is asked, the other is not: the guard compares what ranks do together, number by
    number."""
    flags = {"check_collectives": True, "bucket_bytes": 500, **by_one_algorithm(flags), **flags}

    def body(transport, device):
        end, ops = fake_gpu(transport, device, quick=transport.rank == 0)
        return trained(end, BATCH_NORM_NET, 4, ops=ops, **flags)[1].tobytes()

    host, device = (everywhere(2, lambda t, d=d: body(t, d)) for d in (False, True))
    assert host == device


@pytest.mark.parametrize("flags", [{"staleness": 1}, {"staleness": 2, "overlap": "forward", "clip_norm": 0.5}])
def test_a_server_of_ranks_that_are_apart(flags):
    """One rank trains and one serves: else sums hang on who comes first."""
    assert gives_the_bits_of_hosts(2, {"sync": "server", "dedicated": True, **flags})


@pytest.mark.parametrize("size, nodes, algorithm", [(2, 1, "mapped"), (3, 1, "mapped"), (4, [0, 0, 1, 1], "routed")])
def test_in_memory_that_devices_share(size, nodes, algorithm):
    """Up to three ranks a node, whose contributions hosts add one after another, too."""
    flags = {"algorithm": algorithm, "bucket_bytes": 2000}
    assert gives_the_bits_of_hosts(size, flags, mapped=True, nodes=nodes)
