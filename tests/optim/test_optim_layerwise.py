"""LARS and LAMB against the algorithms of their papers, written out in NumPy parameter by parameter."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ringtrain.config.record import OptimizerConfig
from ringtrain.nn.arena import lay_out
from ringtrain.nn.base import Fill, Parameter
from ringtrain.ops.catalogue import make_ops
from ringtrain.optim.optimizers import OPTIMIZERS, make_optimizer, make_squares, update_ranges
from tests.updates import apply, trained, update_numbers

ZERO = Fill("constant")
TABLE = (
    ("a.weight", Parameter("weight", (5, 4), ZERO, "weight")),
    ("a.bias", Parameter("bias", (3,), ZERO, "bias", lr=2, decay=0.5)),
    ("b.weight", Parameter("weight", (33,), ZERO, "weight", lr=0.5, decay=3)),
    ("c.weight", Parameter("weight", (17,), ZERO, "weight", lr=0.5, decay=3)),
    ("n.gamma", Parameter("gamma", (7,), ZERO, "norm")),
    ("n.mean", Parameter("mean", (7,), ZERO, "statistic", rate=0.25)),
    ("d.weight", Parameter("weight", (2, 8), ZERO, "weight")),
)
SPANS = lay_out(TABLE)
COUNT = SPANS[-1].stop
LRS = [0.1, 0.05, 0.2]
LARS = OptimizerConfig(momentum=0.8, weight_decay=0.03, trust_coefficient=0.9)
HYPER = OptimizerConfig(momentum=0.8, weight_decay=0.03, beta2=0.95, eps=1e-6, trust_coefficient=0.02)
SLOTS = {"lars": ("velocity",), "lamb": ("mean", "square")}


def lars(w, g, state, lr, beta, hyper, adapts, step):
    """You, Gitman & Ginsburg 2017, algorithm 1: "local LR" of equation 6, momentum over global and local rate."""
    local = hyper.trust_coefficient * np.linalg.norm(w) / (np.linalg.norm(g) + beta * np.linalg.norm(w))
    local = min(local, hyper.trust_limit or np.inf) if adapts else 1.0
    v = hyper.momentum * state["velocity"] + lr * local * (g + beta * w)
    return w - v, {"velocity": v}


def lamb(w, g, state, lr, decay, hyper, adapts, step):
    """You et al. 2020, algorithm 2, with phi(z) = z."""
    b1, b2 = hyper.momentum, hyper.beta2
    m, v = b1 * state["mean"] + (1 - b1) * g, b2 * state["square"] + (1 - b2) * g**2
    r = (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + hyper.eps)
    ratio = min(np.linalg.norm(w) / np.linalg.norm(r + decay * w), hyper.trust_limit or np.inf) if adapts else 1.0
    return w - lr * ratio * (r + decay * w), {"mean": m, "square": v}


PAPERS = {"lars": lars, "lamb": lamb}


def flat(draw_of):
    """One draw a parameter, of very different sizes, in an arena whose padding is zero."""
    array = np.zeros(COUNT)
    for number, span in enumerate(SPANS):
        array[span.start : span.start + span.count] = draw_of(span.count) * 4.0**number
    return array


def gradients(step):
    return flat(np.random.default_rng(step).standard_normal)


def expected(name, hyper):
    """(weights, slots) by parameter name; slots as ``name.slot``."""
    start, arrays = gradients(0), {}
    for span in SPANS:
        part, p = slice(span.start, span.start + span.count), span.parameter
        w, state = start[part], {slot: np.zeros(span.count) for slot in SLOTS[name]}
        plain = p.role in ("bias", "norm")
        decay = 0.0 if plain and not hyper.decay_bias_norm else hyper.weight_decay * p.decay
        for step, lr in enumerate(LRS, 1):
            g = gradients(step)[part]
            if p.role == "statistic":
                w = w + p.rate * (g - w)
            else:
                w, state = PAPERS[name](w, g, state, lr * p.lr, decay, hyper, not plain, step)
        arrays[span.name] = w
        arrays |= {f"{span.name}.{slot}": array for slot, array in state.items()}
    return arrays


def measured(name, hyper, cuts=(0, COUNT), ops=None):
    """Parts of whole parameters, one after the other."""
    return trained(make_optimizer(name, SPANS, hyper), ops or make_ops("reference", "float64"), gradients, LRS, cuts)


def measured_apart(name, hyper, cuts):
    """Any parts, as of ranks that keep the state of their own parts alone and sum squares; rank 0 has every other."""
    ops, optimizer = make_ops("reference", "float64"), make_optimizer(name, SPANS, hyper)
    parts = list(pairwise(cuts))
    w, states = gradients(0), [{slot: ops.zeros((b - a,)) for slot in optimizer.slots} for a, b in parts]
    for step, lr in enumerate(LRS, 1):
        g, total, numbers = gradients(step), make_squares(optimizer, ops), update_numbers(ops, lr, step)
        for number, ((start, stop), slots) in enumerate(zip(parts, states, strict=True)):
            squares = make_squares(optimizer, ops) if number % 2 else total
            optimizer.add_squares(ops, w, g, slots, numbers, start, stop, squares, first=start)
            total += squares if number % 2 else 0
        for (start, stop), slots in zip(parts, states, strict=True):
            optimizer.apply(ops, w, g, slots, numbers, start, stop, start, total, summed=True)
    return w, {slot: np.concatenate([slots[slot] for slots in states]) for slot in optimizer.slots}


def by_parameter(w, slots):
    arrays = {}
    for span in SPANS:
        part = slice(span.start, span.start + span.count)
        arrays[span.name] = w[part]
        arrays |= {f"{span.name}.{slot}": array[part] for slot, array in slots.items()}
    return arrays


def assert_same(arrays, wanted):
    assert arrays.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_allclose(arrays[name], wanted[name], rtol=1e-12, atol=1e-15, err_msg=name)


@pytest.mark.parametrize("limit", [np.inf, 0.5])
@pytest.mark.parametrize("decay_bias_norm", [True, False])
@pytest.mark.parametrize("name", PAPERS)
def test_updates_are_the_papers(name, decay_bias_norm, limit):
    hyper = replace(LARS, decay_bias_norm=decay_bias_norm, beta2=0.95, eps=1e-6, trust_limit=limit)
    assert_same(by_parameter(*measured(name, hyper)), expected(name, hyper))


def test_momentum_correction_scales_what_was_gathered_by_the_new_rate_over_the_old():
    """Goyal et al. 2017, equation 10, beside the rate that is within v in LARS. Rates of the table halve, then grow."""
    corrected, plain = (by_parameter(*measured("lars", replace(LARS, momentum_correction=on))) for on in (True, False))
    hyper = LARS
    for span in (span for span in SPANS if span.parameter.role == "weight"):
        part, p = slice(span.start, span.start + span.count), span.parameter
        w, v = gradients(0)[part], np.zeros(span.count)
        for step, lr in enumerate(LRS, 1):
            before = LRS[max(0, step - 2)]
            state = {"velocity": lr / before * v}
            decay = hyper.weight_decay * p.decay
            w, state = lars(w, gradients(step)[part], state, lr * p.lr, decay, hyper, True, step)
            v = state["velocity"]
        np.testing.assert_allclose(corrected[span.name], w, rtol=1e-12)
        assert np.abs(plain[span.name] - w).max() > 1e-4


def test_with_a_constant_rate_momentum_correction_changes_nothing():
    ends = []
    for on in (True, False):
        optimizer = make_optimizer("lars", SPANS, replace(LARS, momentum_correction=on))
        ops, w, slots = make_ops("reference", "float64"), gradients(0), {"velocity": np.zeros(COUNT)}
        for step in (1, 2, 3):
            apply(optimizer, ops, w, gradients(step), slots, 0.1, step, 0, COUNT)
        ends.append(w)
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-12)


@pytest.mark.parametrize("name", PAPERS)
def test_the_cpu_kernels_agree(name):
    reference, cpu = (measured(name, HYPER, ops=make_ops(kind, "float32")) for kind in ("reference", "cpu"))
    np.testing.assert_allclose(cpu[0], reference[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PAPERS)
def test_buckets_of_whole_parameters_give_the_same_bits(name):
    whole = measured(name, HYPER)
    for cuts in ((0, 32, 48, COUNT), (0, *(span.stop for span in SPANS))):
        parts = measured(name, HYPER, cuts)
        np.testing.assert_array_equal(parts[0], whole[0])
        for slot in SLOTS[name]:
            np.testing.assert_array_equal(parts[1][slot], whole[1][slot])


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("cuts", [(0, 5, 37, 61, 70, COUNT), tuple(range(0, COUNT + 1, 3)), (0, COUNT)])
def test_parts_of_parameters_give_the_same_where_squares_are_summed(name, cuts):
    cuts = (*cuts, COUNT) if cuts[-1] != COUNT else cuts
    assert_same(by_parameter(*measured_apart(name, HYPER, cuts)), by_parameter(*measured(name, HYPER)))


@pytest.mark.parametrize("name", PAPERS)
def test_a_part_of_a_parameter_alone_is_refused(name):
    with pytest.raises(ValueError, match=r"elements 5:176 cut the parameter at 0:32, .* or add the squares of all"):
        measured(name, HYPER, (5, COUNT))


def test_which_updates_are_linear():
    """The mean of two ranks' updates is the update by the mean of their gradients, or it is not."""
    for name in OPTIMIZERS:
        ops, optimizer = make_ops("reference", "float64"), make_optimizer(name, SPANS, HYPER)
        ends = []
        for g in (gradients(1), gradients(2), (gradients(1) + gradients(2)) / 2):
            w, slots = gradients(0), {slot: np.zeros(COUNT) for slot in optimizer.slots}
            apply(optimizer, ops, w, g, slots, 0.1, 1, 0, COUNT)
            ends.append(w)
        assert np.allclose((ends[0] + ends[1]) / 2, ends[2], rtol=1e-12, atol=0) == optimizer.linear, name


@pytest.mark.parametrize("name", PAPERS)
def test_an_empty_part_is_no_part(name):
    """Kernels are rehearsed on no elements, in the middle of a parameter."""
    before, _ = measured(name, HYPER, (10, 10))
    np.testing.assert_array_equal(before, gradients(0))


@pytest.mark.parametrize("name", PAPERS)
def test_weights_of_zero_can_leave_it_and_no_gradient_divides_nothing(name):
    ops, optimizer = make_ops("reference", "float64"), make_optimizer(name, SPANS[:1], OptimizerConfig(momentum=0.0))
    slots = {slot: ops.zeros((32,)) for slot in optimizer.slots}
    w, g = ops.zeros((32,)), ops.from_host(np.ones(32))
    apply(optimizer, ops, w, g, slots, 0.1, 1, 0, 32)
    np.testing.assert_allclose(w, -0.1, rtol=1e-5)
    before, nothing = w.copy(), {slot: ops.zeros((32,)) for slot in optimizer.slots}
    apply(optimizer, ops, w, ops.zeros((32,)), nothing, 0.1, 1, 0, 32)
    np.testing.assert_array_equal(w, before)


def test_the_step_of_lars_does_not_hang_on_the_gradients_scale():
    """What it is for: without decay, a layer moves by lr · trust · |w|, whatever the gradient."""
    hyper = OptimizerConfig(momentum=0.0, weight_decay=0.0, trust_coefficient=0.01)
    ops, optimizer = make_ops("reference", "float64"), make_optimizer("lars", SPANS[:1], hyper)
    moved = []
    for size in (1e-3, 1e3):
        w, slots = ops.from_host(np.full(32, 2.0)), {"velocity": ops.zeros((32,))}
        apply(optimizer, ops, w, ops.from_host(np.full(32, size)), slots, 0.5, 1, 0, 32)
        moved.append(np.linalg.norm(w - 2))
    np.testing.assert_allclose(moved, 0.5 * 0.01 * np.linalg.norm(np.full(32, 2.0)))


def test_each_weight_is_a_run_of_its_own_and_the_rest_is_merged():
    ranges = update_ranges(SPANS, HYPER, layerwise=True)
    assert [(run.start, run.norm) for run in ranges] == [
        (0, 0), (32, None), (48, 1), (96, 2), (128, None), (144, None), (160, 3),
    ]  # fmt: skip
    assert [run.start for run in update_ranges(SPANS, HYPER)] == [0, 32, 48, 128, 144, 160]
