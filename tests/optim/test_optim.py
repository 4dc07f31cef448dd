"""Optimizers against their formulas, written out in NumPy for each parameter."""

from dataclasses import replace

import numpy as np
import pytest

from ringtrain.config.record import OptimizerConfig
from ringtrain.errors import ConfigError
from ringtrain.nn.arena import lay_out
from ringtrain.nn.base import Fill, Parameter
from ringtrain.ops.catalogue import make_ops
from ringtrain.optim.optimizers import OPTIMIZERS, AdamW, UpdateRange, make_optimizer, update_ranges
from tests.says import says
from tests.updates import apply, trained

DECAYED = OptimizerConfig(momentum=0.9, weight_decay=0.1)
ZERO = Fill("constant")
TABLE = (
    ("a.weight", Parameter("weight", (5, 4), ZERO, "weight", lr=1, decay=1)),
    ("a.bias", Parameter("bias", (3,), ZERO, "bias", lr=2, decay=0.5)),
    ("n.gamma", Parameter("gamma", (7,), ZERO, "norm")),
    ("n.beta", Parameter("beta", (7,), ZERO, "norm")),
    ("n.mean", Parameter("mean", (7,), ZERO, "statistic", rate=0.25)),
    ("b.weight", Parameter("weight", (33,), ZERO, "weight", lr=0.5, decay=250)),
)
SPANS = lay_out(TABLE)
COUNT = SPANS[-1].stop
LRS = [0.1, 0.05, 0.2]


def sgd(w, g, slots, lr, decay, step, hyper):
    g = g + decay * w
    v = slots["momentum"] = hyper.momentum * slots["momentum"] + g
    return w - lr * v


def nesterov(w, g, slots, lr, decay, step, hyper):
    g = g + decay * w
    v = slots["momentum"] = hyper.momentum * slots["momentum"] + g
    return w - lr * (g + hyper.momentum * v)


def adamw(w, g, slots, lr, decay, step, hyper):
    b1, b2 = hyper.momentum, hyper.beta2
    m = slots["mean"] = b1 * slots["mean"] + (1 - b1) * g
    v = slots["square"] = b2 * slots["square"] + (1 - b2) * g * g
    w = w - lr * decay * w
    return w - lr * (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + hyper.eps)


def adam(w, g, slots, lr, decay, step, hyper):
    return adamw(w, g + decay * w, slots, lr, 0.0, step, hyper)


def rmsprop(w, g, slots, lr, decay, step, hyper):
    g = g + decay * w
    s = slots["square"] = hyper.beta2 * slots["square"] + (1 - hyper.beta2) * g * g
    v = slots["momentum"] = hyper.momentum * slots["momentum"] + g / (np.sqrt(s) + hyper.eps)
    return w - lr * v


# Of each element; the others are in test_optim_layerwise.
FORMULAS = {"sgd": sgd, "nesterov": nesterov, "adamw": adamw, "adam": adam, "rmsprop": rmsprop}


def gradients(step):
    return np.random.default_rng(step).standard_normal(COUNT) * padding_mask()


def padding_mask():
    mask = np.zeros(COUNT)
    for span in SPANS:
        mask[span.start : span.start + span.count] = 1
    return mask


def expected(name, hyper):
    w = gradients(0)
    slots = {slot: np.zeros(COUNT) for slot in OPTIMIZERS[name].slots}
    for step, lr in enumerate(LRS, 1):
        g = gradients(step)
        for span in SPANS:
            part, p = slice(span.start, span.stop), span.parameter
            if p.role == "statistic":
                w[part] += p.rate * (g[part] - w[part])
                continue
            off = p.role in ("bias", "norm") and not hyper.decay_bias_norm
            decay = 0 if off else hyper.weight_decay * p.decay
            state = {slot: array[part] for slot, array in slots.items()}
            w[part] = FORMULAS[name](w[part], g[part], state, lr * p.lr, decay, step, hyper)
            for slot in slots:
                slots[slot][part] = state[slot]
    return w, slots


def measured(name, hyper, cuts=(0, COUNT)):
    return trained(make_optimizer(name, SPANS, hyper), make_ops("reference", "float64"), gradients, LRS, cuts)


@pytest.mark.parametrize("decay_bias_norm", [True, False])
@pytest.mark.parametrize("name", FORMULAS)
def test_updates_follow_the_formula(name, decay_bias_norm):
    hyper = OptimizerConfig(momentum=0.8, weight_decay=0.03, decay_bias_norm=decay_bias_norm, beta2=0.95, eps=1e-6)
    (w, slots), (w_expected, slots_expected) = measured(name, hyper), expected(name, hyper)
    np.testing.assert_allclose(w, w_expected, rtol=1e-12, atol=1e-15)
    for slot in slots:
        np.testing.assert_allclose(slots[slot], slots_expected[slot], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_padding_stays_zero(name):
    w, slots = measured(name, DECAYED)
    for array in (w, *slots.values()):
        assert not array[padding_mask() == 0].any()


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("cuts", [(0, 16, 48, COUNT), (0, 5, 37, 61, 70, COUNT), tuple(range(COUNT + 1))])
def test_slices_add_up_to_the_whole(name, cuts):
    """Sharded optimizers update any range of elements, also within a parameter."""
    whole, parts = measured(name, DECAYED), measured(name, DECAYED, cuts)
    np.testing.assert_array_equal(parts[0], whole[0])
    for slot in whole[1]:
        np.testing.assert_array_equal(parts[1][slot], whole[1][slot])


@pytest.mark.parametrize("name", FORMULAS)
def test_state_may_begin_where_a_slice_does(name):
    ops, optimizer = make_ops("reference", "float64"), make_optimizer(name, SPANS, DECAYED)
    ends = []
    for first in (0, 40):
        w, slots = gradients(0), {slot: np.zeros(COUNT - first) for slot in optimizer.slots}
        for step in (1, 2):
            apply(optimizer, ops, w, gradients(step), slots, 0.1, step, 40, COUNT, first)
        ends.append(w)
    np.testing.assert_array_equal(ends[0], ends[1])
    assert np.abs(ends[0] - gradients(0)).max() > 0.01


@pytest.mark.parametrize("name", FORMULAS)
def test_the_average_moves_towards_the_weights_after_each_update(name):
    """It begins at those of the first update, and has running statistics too."""
    ops, optimizer = make_ops("reference", "float64"), make_optimizer(name, SPANS, replace(DECAYED, ema=0.75))
    assert optimizer.slots == (*OPTIMIZERS[name].slots, "ema")
    w, average = gradients(0), None
    slots = {slot: np.zeros(COUNT - 16) for slot in optimizer.slots}
    for step in (1, 2, 3):
        for start, stop in ((16, 37), (37, COUNT)):
            apply(optimizer, ops, w, gradients(step), slots, 0.1, step, start, stop, first=16)
        average = w.copy() if average is None else 0.75 * average + 0.25 * w
    np.testing.assert_allclose(slots["ema"], average[16:], rtol=1e-12, atol=1e-15)


def test_neighbours_with_equal_multipliers_are_one_run():
    assert update_ranges(SPANS, OptimizerConfig(weight_decay=0.1)) == (
        UpdateRange(0, 32, 1, 0.1, 0),
        UpdateRange(32, 48, 2, 0.05, 0),
        UpdateRange(48, 80, 1, 0.1, 0),
        UpdateRange(80, 96, 0, 0, 0.25),
        UpdateRange(96, COUNT, 0.5, 25, 0),
    )
    undecayed = update_ranges(SPANS, OptimizerConfig(weight_decay=0.1, decay_bias_norm=False))
    assert [run.decay for run in undecayed] == [0.1, 0, 0, 0, 25]


def test_spans_apart_are_not_merged():
    assert len(update_ranges((SPANS[2], SPANS[3]), OptimizerConfig())) == 1
    assert len(update_ranges((SPANS[0], SPANS[2]), OptimizerConfig())) == 2


def test_names():
    assert isinstance(make_optimizer("adamw", SPANS, OptimizerConfig()), AdamW)
    hint = "did you mean 'adam'? known: adam, adamw, lamb, lars, nesterov, rmsprop, sgd"
    with pytest.raises(ConfigError, match=says("'adamv'", hint)):
        make_optimizer("adamv", SPANS, OptimizerConfig())
