"""What `scripts/bench pytorch` calls the same work, and what it refuses; without PyTorch."""

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ringtrain.memory.arena import lay_out
from ringtrain.nn import spec
from tests.conftest import BENCHMARKS


@pytest.fixture
def same_work(benchmarks):
    return benchmarks("same_work")


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def work(same_work, outputs=(), loss=2.0, gradients=()):
    """Of a net of two convolutions and a fully connected layer; what is given replaces what it computes."""
    names = ("conv1", "conv2", "fc")
    arrays = {name: random(2, 4, 4, 8, seed=i) for i, name in enumerate(names)} | dict(outputs)
    grads = {f"{name}.weight": random(3, 3, 8, 8, seed=9 + i) for i, name in enumerate(names)} | dict(gradients)
    return same_work.Work(arrays, loss, grads)


def test_a_difference_is_relative_to_the_peer(same_work):
    assert same_work.apart(np.array([3.0, 4.0]), np.array([3.0, 0.0])) == pytest.approx(4 / 3)
    assert same_work.apart(np.array([1e-9]), np.zeros(1)) == math.inf
    assert same_work.apart(np.array([1e-9]), np.zeros(1), least=1e-6) == pytest.approx(1e-3)
    assert same_work.apart(np.zeros(2), np.zeros(2)) == 0
    assert same_work.apart(np.zeros(2), np.zeros(3)) == math.inf
    for pair in ([np.nan, 1], [np.inf, 1], [1, np.nan], [1, np.inf]):
        assert same_work.apart(*np.array(pair).reshape(2, 1)) == math.inf


def test_equal_work_is_accepted_and_told(same_work):
    ours, peer = work(same_work), work(same_work)
    assert same_work.refusal(ours, peer, "float64") == ""
    summary = same_work.summary(ours, peer)
    assert (summary["gradient_apart"], summary["loss"], summary["loss_of_torch"]) == (0, 2.0, 2.0)
    assert same_work.summary_text(summary).startswith("same: loss 2 and 2, outputs at most 0.0e+00 apart")


ALL_OFF = {f"{name}.weight": 1.2 * random(3, 3, 8, 8, seed=9 + i) for i, name in enumerate(("conv1", "conv2", "fc"))}
ROUNDED = {"conv2": (1 + 1e-3) * random(2, 4, 4, 8, seed=1)}
TWO_WRONG = {name: random(2, 4, 4, 8, seed=7) for name in ("conv2", "fc")}


@pytest.mark.parametrize(
    ("ours", "precision", "refusal"),
    [
        ({"outputs": ROUNDED}, "bfloat16", ""),
        ({"outputs": ROUNDED}, "float32", "the output of layer 'conv2' is 0.001 apart"),
        ({"outputs": TWO_WRONG}, "bfloat16", "the output of layer 'conv2' is "),
        ({"loss": 2.001}, "float32", "the loss is 2.001, PyTorch's is 2 (float32: at most 0.0001 apart)"),
        ({"loss": math.nan}, "bfloat16", "the loss is nan"),
        (  # the last wrong gradient, to which backward comes first
            {"gradients": {f"{name}.weight": random(3, 3, 8, 8, seed=5) for name in ("conv1", "conv2")}},
            "bfloat16",
            "the gradient of 'conv2.weight' is ",
        ),
        # Each of them is within what one may be off by.
        ({"gradients": ALL_OFF}, "bfloat16", "the gradient is 0.2 apart (bfloat16: 0.1)"),
        ({"gradients": {"extra.weight": random(2)}}, "float32", "one of them alone has extra.weight"),
    ],
)
def test_work_that_differs_is_refused_by_its_first_difference(same_work, ours, precision, refusal):
    said = same_work.refusal(work(same_work, **ours), work(same_work), precision)
    assert said.startswith(refusal) and bool(said) == bool(refusal)


def test_a_gradient_that_is_rounding_alone_is_held_against_the_others(same_work):
    peer = work(same_work, gradients={"bias": 1e-7 * random(8, seed=1)})
    refusals = [
        same_work.refusal(work(same_work, gradients={"bias": scale * random(8)}), peer, "float32")
        for scale in (1e-7, 1)
    ]
    assert refusals[0] == "" and "'bias'" in refusals[1]


def test_where_rounding_alone_is_more_than_allowed_the_peers_own_is_the_measure(same_work):
    """PyTorch's gradients are a tenth from those of float64: so may these be, and three times that; not half of it
    all."""
    exact = work(same_work)

    def rounded(share, seed):
        noise = {n: share * random(*v.shape, seed=seed) for n, v in exact.gradients.items()}
        return work(same_work, gradients={n: v + noise[n] for n, v in exact.gradients.items()})

    ours, peer = rounded(0.12, 5), rounded(0.1, 6)
    assert same_work.refusal(ours, peer, "float32").startswith("the gradient of 'fc.weight' is 0.1")
    assert same_work.refusal(ours, peer, "float32", exact) == ""
    assert "'fc.weight' is 0.5" in same_work.refusal(rounded(0.5, 5), peer, "float32", exact)
    zero = work(same_work, gradients={"conv2.weight": np.zeros((3, 3, 8, 8))})
    far = rounded(0.8, 6)
    assert "'conv2.weight' is 1 apart" in same_work.refusal(zero, far, "bfloat16", exact)


LARGE = {"large.weight": 100 * random(3, 3, 64, 64, seed=30)}  # most of the whole gradient


def scaled(same_work, times, noise=0.0, gradients=()):
    """conv2's gradient as rounding leaves it, and then multiplied; the others are right."""
    wrong = times * (random(3, 3, 8, 8, seed=10) + noise * random(3, 3, 8, 8, seed=20))
    return work(same_work, gradients={"conv2.weight": wrong, **LARGE, **dict(gradients)})


@pytest.mark.parametrize(
    ("precision", "noise", "times"), [("bfloat16", 0.3, 0.3), ("float16", 0.1, 0.8), ("float32", 5e-3, 0.981)]
)
def test_a_gradient_that_is_scaled_is_refused_where_rounding_is_as_large(same_work, precision, noise, times):
    """By its distance it is right."""
    peer = work(same_work, gradients=LARGE)
    most, wrong = same_work.TOLERANCES[precision], scaled(same_work, times, noise)
    assert same_work.gradients_apart(wrong, peer)["conv2.weight"] < most.parameter
    assert same_work.whole_apart(wrong, peer) < most.gradient
    assert same_work.refusal(scaled(same_work, 1, noise), peer, precision) == ""
    refusal = same_work.refusal(wrong, peer, precision)
    assert refusal.startswith("the gradient of 'conv2.weight' is ") and " times PyTorch's" in refusal
    assert float(refusal.split()[5]) == pytest.approx(times, rel=0.02)


def test_a_share_may_be_as_far_off_as_the_peers_own_and_half_of_it_at_most(same_work):
    exact = work(same_work, gradients=LARGE)

    def refused(ours, peer, precision):
        return same_work.refusal(scaled(same_work, ours), scaled(same_work, peer), precision, exact)

    assert refused(0.985, 1.006, "float32") == ""
    assert "1 ± 0.012 (float32)" in refused(0.985, 1.004, "float32")
    assert "is 0.4 times PyTorch's, the last that is not 1 ± 0.5 (bfloat16)" in refused(0.4, 0.7, "bfloat16")


def test_small_gradients_are_judged_with_others_of_their_kind(same_work):
    """Of 8 elements each: one may be far off, as rounding makes it, and all together may not."""
    gammas = {f"norm{i}.gamma": random(8, seed=40 + i) for i in range(10)}
    peer = work(same_work, gradients={**gammas, **LARGE})
    one = scaled(same_work, 1, gradients={**gammas, "norm3.gamma": 0.5 * gammas["norm3.gamma"]})
    assert same_work.refusal(one, peer, "bfloat16") == ""
    wrong = scaled(same_work, 1, gradients={name: 0.5 * each for name, each in gammas.items()})
    refusal = same_work.refusal(wrong, peer, "bfloat16")
    assert refusal.startswith("the gradient of each small gamma is 0.5 times PyTorch's")


# ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def own_side(benchmarks):
    return benchmarks("own_side")


@pytest.mark.parametrize("model", ["resnet20", "resnet50", "lenet"])
def test_no_drawn_weight_switches_a_branch_off(own_side, model):
    spans = lay_out(spec.load_model(model).graph().parameters())
    for span in spans:
        values = own_side.drawn(span)
        if span.parameter.role == "statistic":
            assert values is None
        elif span.parameter.name == "gamma":
            assert values.min() >= 0.5 and values.max() <= 1.5
        else:
            assert values.size == span.count and np.abs(values).max() > 0


def test_both_sides_are_told_the_same_threads_and_one_ghost_batch(own_side):
    options = SimpleNamespace(device="cpu", precision="float64", batch=12, ranks=2, threads=3)
    _, config = own_side.config_of(options, "resnet20")
    assert (config.device.threads, config.device.dtype) == (3, "float64")
    assert (config.model.batch_norm, config.optimizer.optimizer) == ("ghost:12", "nesterov")
    assert config.run.batch == 24
    _, config = own_side.config_of(options, "lenet")
    assert (config.model.batch_norm, config.optimizer.optimizer) == ("model", "sgd")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--device", "cuda", "--precision", "bfloat16"], 1, "bench pytorch: "),
        (["--precision", "bfloat16"], 2, "--precision bfloat16 is not of --device cpu"),
    ],
)
def test_a_device_without_torch_or_driver_and_its_precision_are_told(flags, code, words):
    command = [sys.executable, BENCHMARKS / "pytorch.py", "lenet", *flags]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=hidden)
    assert done.returncode == code and words in done.stderr, done.stderr
    assert code == 2 or (done.stderr.startswith(words) and len(done.stderr.splitlines()) == 1)
