"""Optimizers against their formulas, and LARS and LAMB against the algorithms of their papers, written out in NumPy for
each parameter. Learning rates at iterations where they are known."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ringtrain.config.record import OptimizerConfig
from ringtrain.errors import ConfigError
from ringtrain.memory.arena import lay_out
from ringtrain.memory.spans import Fill, Parameter
from ringtrain.ops.catalogue import make_ops
from ringtrain.optim.catalogue import OPTIMIZERS, make_optimizer
from ringtrain.optim.lr import POLICIES, LearningRate, iterations_in
from ringtrain.optim.muon import hidden_matrices
from ringtrain.optim.optimizers import AdamW, UpdateRange, make_squares, update_ranges
from tests.says import says
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
HYPER = OptimizerConfig(momentum=0.8, weight_decay=0.03, beta2=0.95, eps=1e-6, trust_coefficient=0.02)


# ── formulas: (w, g, state, lr, decay, hyper, whether norms scale the update, step) → (w, state) ──────────────────────
def sgd(w, g, state, lr, decay, hyper, adapts, step):
    v = hyper.momentum * state["momentum"] + g + decay * w
    return w - lr * v, {"momentum": v}


def nesterov(w, g, state, lr, decay, hyper, adapts, step):
    g = g + decay * w
    v = hyper.momentum * state["momentum"] + g
    return w - lr * (g + hyper.momentum * v), {"momentum": v}


def moments(g, state, hyper, step):
    """Adam's state, and its step without the rate."""
    b1, b2 = hyper.momentum, hyper.beta2
    m, v = b1 * state["mean"] + (1 - b1) * g, b2 * state["square"] + (1 - b2) * g * g
    return {"mean": m, "square": v}, (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + hyper.eps)


def adamw(w, g, state, lr, decay, hyper, adapts, step):
    state, direction = moments(g, state, hyper, step)
    return w - lr * decay * w - lr * direction, state


def adam(w, g, state, lr, decay, hyper, adapts, step):
    return adamw(w, g + decay * w, state, lr, 0.0, hyper, adapts, step)


def rmsprop(w, g, state, lr, decay, hyper, adapts, step):
    g = g + decay * w
    s = hyper.beta2 * state["square"] + (1 - hyper.beta2) * g * g
    v = hyper.momentum * state["momentum"] + g / (np.sqrt(s) + hyper.eps)
    return w - lr * v, {"square": s, "momentum": v}


def lars(w, g, state, lr, decay, hyper, adapts, step):
    """You, Gitman & Ginsburg 2017, algorithm 1: "local LR" of equation 6, momentum over global and local rate."""
    local = hyper.trust_coefficient * np.linalg.norm(w) / (np.linalg.norm(g) + decay * np.linalg.norm(w))
    v = hyper.momentum * state["velocity"] + lr * (local if adapts else 1.0) * (g + decay * w)
    return w - v, {"velocity": v}


def lamb(w, g, state, lr, decay, hyper, adapts, step):
    """You et al. 2020, algorithm 2, with phi(z) = z."""
    state, r = moments(g, state, hyper, step)
    ratio = np.linalg.norm(w) / np.linalg.norm(r + decay * w) if adapts else 1.0
    return w - lr * ratio * (r + decay * w), state


ELEMENTWISE = {"sgd": sgd, "nesterov": nesterov, "adamw": adamw, "adam": adam, "rmsprop": rmsprop}
PAPERS = {"lars": lars, "lamb": lamb}
FORMULAS = ELEMENTWISE | PAPERS


def flat(draw_of):
    """One draw a parameter, of very different sizes, in an arena whose padding is zero."""
    array = np.zeros(COUNT)
    for number, span in enumerate(SPANS):
        array[span.start : span.start + span.count] = draw_of(span.count) * 4.0**number
    return array


def gradients(step):
    return flat(np.random.default_rng(step).standard_normal)


def expected(name, hyper):
    """Weights and slots by parameter name; slots as ``name.slot``."""
    start, arrays = gradients(0), {}
    for span in SPANS:
        part, p = slice(span.start, span.start + span.count), span.parameter
        w, state = start[part], {slot: np.zeros(span.count) for slot in OPTIMIZERS[name].slots}
        plain = p.role in ("bias", "norm")
        decay = 0.0 if plain and not hyper.decay_bias_norm else hyper.weight_decay * p.decay
        for step, lr in enumerate(LRS, 1):
            g = gradients(step)[part]
            if p.role == "statistic":
                w = w + p.rate * (g - w)
            else:
                w, state = FORMULAS[name](w, g, state, lr * p.lr, decay, hyper, not plain, step)
        arrays[span.name] = w
        arrays |= {f"{span.name}.{slot}": array for slot, array in state.items()}
    return arrays


def optimizer_of(name, hyper=HYPER, spans=SPANS):
    return make_ops("reference", "float64"), make_optimizer(name, spans, hyper)


def measured(name, hyper=HYPER, cuts=(0, COUNT), ops=None):
    """(weights, slots) of updates of parts, one after the other."""
    return trained(make_optimizer(name, SPANS, hyper), ops or make_ops("reference", "float64"), gradients, LRS, cuts)


def measured_apart(name, cuts):
    """Any parts, as of ranks that keep the state of their own parts alone and sum squares; rank 0 has every other."""
    ops, optimizer = optimizer_of(name)
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
    arrays, padding = {}, np.ones(COUNT, bool)
    for span in SPANS:
        part = slice(span.start, span.start + span.count)
        padding[part] = False
        arrays[span.name] = w[part]
        arrays |= {f"{span.name}.{slot}": array[part] for slot, array in slots.items()}
    assert not any(array[padding].any() for array in (w, *slots.values()))  # padding stays zero
    return arrays


def assert_same(arrays, wanted):
    assert arrays.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_allclose(arrays[name], wanted[name], rtol=1e-12, atol=1e-15, err_msg=name)


# ── updates ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("decay_bias_norm", [True, False])
@pytest.mark.parametrize("name", FORMULAS)
def test_updates_follow_the_formula(name, decay_bias_norm):
    hyper = replace(HYPER, decay_bias_norm=decay_bias_norm, trust_coefficient=0.9)
    assert_same(by_parameter(*measured(name, hyper)), expected(name, hyper))


@pytest.mark.parametrize(
    ("name", "cuts"),
    [
        *((name, cuts) for name in ELEMENTWISE for cuts in ((0, 5, 37, 61, 70, COUNT), tuple(range(COUNT + 1)))),
        *((name, cuts) for name in PAPERS for cuts in ((0, 32, 48, COUNT), (0, *(span.stop for span in SPANS)))),
    ],
    ids=lambda value: value if isinstance(value, str) else len(value),
)
def test_slices_add_up_to_the_whole(name, cuts):
    """Sharded optimizers update any range of elements, also within a parameter, unless its norm scales the update."""
    whole, parts = measured(name), measured(name, cuts=cuts)
    np.testing.assert_array_equal(parts[0], whole[0])
    for slot in whole[1]:
        np.testing.assert_array_equal(parts[1][slot], whole[1][slot])


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_state_may_begin_where_a_slice_does(name):
    ops, optimizer = optimizer_of(name)
    ends = []
    for first in (0, 40):
        w, slots = gradients(0), {slot: np.zeros(COUNT - first) for slot in optimizer.slots}
        for step in (1, 2):
            apply(optimizer, ops, w, gradients(step), slots, 0.1, step, 40, COUNT, first)
        ends.append(w)
    np.testing.assert_array_equal(ends[0], ends[1])
    assert np.abs(ends[0] - gradients(0)).max() > 0.01


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_average_moves_towards_the_weights_after_each_update(name):
    """It begins at those of the first update, and has running statistics too."""
    ops, optimizer = optimizer_of(name, replace(HYPER, ema=0.75))
    assert optimizer.slots == (*OPTIMIZERS[name].slots, "ema")
    w, average = gradients(0), None
    slots = {slot: np.zeros(COUNT - 16) for slot in optimizer.slots}
    for step in (1, 2, 3):
        for start, stop in ((16, 37), (37, COUNT)):
            apply(optimizer, ops, w, gradients(step), slots, 0.1, step, start, stop, first=16)
        average = w.copy() if average is None else 0.75 * average + 0.25 * w
    np.testing.assert_allclose(slots["ema"], average[16:], rtol=1e-12, atol=1e-15)


def test_neighbours_with_equal_multipliers_are_one_run_unless_norms_scale_them():
    hyper = OptimizerConfig(weight_decay=0.5)
    assert update_ranges(SPANS, hyper) == (
        UpdateRange(0, 32, 1, 0.5, 0),
        UpdateRange(32, 48, 2, 0.25, 0),
        UpdateRange(48, 128, 0.5, 1.5, 0),
        UpdateRange(128, 144, 1, 0.5, 0),
        UpdateRange(144, 160, 0, 0, 0.25),
        UpdateRange(160, COUNT, 1, 0.5, 0),
    )
    undecayed = update_ranges(SPANS, replace(hyper, decay_bias_norm=False))
    assert [run.decay for run in undecayed] == [0.5, 0, 1.5, 0, 0, 0.5]
    assert len(update_ranges((SPANS[0], SPANS[4]), hyper)) == 2  # which are apart
    assert [(run.start, run.norm) for run in update_ranges(SPANS, hyper, layerwise=True)] == [
        (0, 0), (32, None), (48, 1), (96, 2), (128, None), (144, None), (160, 3),
    ]  # fmt: skip


def test_names():
    assert isinstance(make_optimizer("adamw", SPANS, OptimizerConfig()), AdamW)
    hint = "did you mean 'adam'? known: adam, adamw, lamb, lars, muon, nesterov, rmsprop, sgd"
    with pytest.raises(ConfigError, match=says("'adamv'", hint)):
        make_optimizer("adamv", SPANS, OptimizerConfig())


def test_which_updates_are_linear():
    """The mean of two ranks' updates is the update by the mean of their gradients, or it is not."""
    for name in OPTIMIZERS:
        ops, optimizer = optimizer_of(name)
        ends = []
        for g in (gradients(1), gradients(2), (gradients(1) + gradients(2)) / 2):
            w, slots = gradients(0), {slot: np.zeros(COUNT) for slot in optimizer.slots}
            apply(optimizer, ops, w, g, slots, 0.1, 1, 0, COUNT)
            ends.append(w)
        assert np.allclose((ends[0] + ends[1]) / 2, ends[2], rtol=1e-12, atol=0) == optimizer.linear, name


# ── norms ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", PAPERS)
def test_the_cpu_kernels_agree(name):
    reference, cpu = (measured(name, ops=make_ops(kind, "float32")) for kind in ("reference", "cpu"))
    np.testing.assert_allclose(cpu[0], reference[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("cuts", [(0, 5, 37, 61, 70, COUNT), tuple(range(0, COUNT + 1, 3)), (0, COUNT)])
def test_parts_of_parameters_give_the_same_where_squares_are_summed(name, cuts):
    cuts = (*cuts, COUNT) if cuts[-1] != COUNT else cuts
    assert_same(by_parameter(*measured_apart(name, cuts)), by_parameter(*measured(name)))


@pytest.mark.parametrize("name", PAPERS)
def test_a_part_of_a_parameter_alone_is_refused_and_an_empty_part_is_no_part(name):
    """Kernels are rehearsed on no elements, in the middle of a parameter."""
    with pytest.raises(ValueError, match=r"elements 5:176 cut the parameter at 0:32, .* or add the squares of all"):
        measured(name, cuts=(5, COUNT))
    np.testing.assert_array_equal(measured(name, cuts=(10, 10))[0], gradients(0))


@pytest.mark.parametrize("name", PAPERS)
def test_weights_of_zero_can_leave_it_and_no_gradient_divides_nothing(name):
    ops, optimizer = optimizer_of(name, OptimizerConfig(momentum=0.0), SPANS[:1])
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
    ops, optimizer = optimizer_of("lars", hyper, SPANS[:1])
    moved = []
    for size in (1e-3, 1e3):
        w, slots = ops.from_host(np.full(32, 2.0)), {"velocity": ops.zeros((32,))}
        apply(optimizer, ops, w, ops.from_host(np.full(32, size)), slots, 0.5, 1, 0, 32)
        moved.append(np.linalg.norm(w - 2))
    np.testing.assert_allclose(moved, 0.5 * 0.01 * np.linalg.norm(np.full(32, 2.0)))


# ── muon ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
MIXED = lay_out(
    (
        ("embed.weight", Parameter("weight", (6, 5), ZERO, table=True)),
        ("conv.weight", Parameter("weight", (3, 3, 2, 4), ZERO, lr=0.5, decay=3)),
        ("conv.bias", Parameter("bias", (4,), ZERO, "bias", lr=2)),
        ("norm.gamma", Parameter("gamma", (7,), ZERO, "norm")),
        ("norm.mean", Parameter("mean", (7,), ZERO, "statistic", rate=0.25)),
        ("wide.weight", Parameter("weight", (4, 9), ZERO)),
        ("kept.weight", Parameter("weight", (4, 4), ZERO, frozen=True)),
        ("square.weight", Parameter("weight", (5, 5), ZERO)),
        ("scale.weight", Parameter("weight", (5,), ZERO)),
        ("last.weight", Parameter("weight", (5, 3), ZERO)),
        ("last.bias", Parameter("bias", (3,), ZERO, "bias")),
    )
)
HIDDEN = {"conv.weight", "wide.weight", "square.weight"}
MUON = OptimizerConfig(optimizer="muon", weight_decay=0.03)


def muon(w, g, m, lr, decay, hyper):
    """The post of Jordan et al. with the momentum of torch.optim.Muon; the matrix is [in, out]."""
    mu = 0.95 if hyper.momentum is None else hyper.momentum
    m = mu * m + (1 - mu) * g
    x = (1 - mu) * g + mu * m
    x, (a, b, c) = x / max(np.linalg.norm(x), 1e-7), (3.4445, -4.7750, 2.0315)
    for _ in range(hyper.ns_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    rows, columns = x.shape
    factor = 0.2 * max(rows, columns) ** 0.5 if hyper.adjust_lr != "original" else max(1, columns / rows) ** 0.5
    return (1 - lr * decay) * w - lr * factor * x, m


def mixed(step):
    return np.random.default_rng(step).standard_normal(MIXED[-1].stop) * np.concatenate(
        [(np.arange(span.stop - span.start) < span.count) * 1.5**number for number, span in enumerate(MIXED)]
    )


@pytest.mark.parametrize("cuts", [(0, MIXED[-1].stop), (0, *(span.stop for span in MIXED))], ids=len)
@pytest.mark.parametrize(
    "options", [{}, {"adjust_lr": "original", "ns_steps": 3, "momentum": 0.8, "eps": 1e-6}, {"ema": 0.75}], ids=str
)
def test_muon_updates_hidden_matrices_and_adamw_the_rest(options, cuts):
    hyper, rates = replace(MUON, **options), [0.02 / (1 + step / 7) for step in range(20)]
    assert hidden_matrices((span.name, span.parameter) for span in MIXED) == HIDDEN
    optimizer = make_optimizer("muon", MIXED, hyper)
    weights, slots = trained(optimizer, make_ops("reference", "float64"), mixed, rates, cuts)
    for span in MIXED:
        part, p = slice(span.start, span.start + span.count), span.parameter
        w, state, m, average = mixed(0)[part], {"mean": 0.0, "square": 0.0}, 0.0, None
        for step, rate in enumerate(rates, 1):
            g, lr, decay = mixed(step)[part], rate * p.lr, hyper.weight_decay * p.decay
            if span.name in HIDDEN:
                shape = -1, span.shape[-1]
                w, m = (x.ravel() for x in muon(*(x.reshape(shape) for x in (w, g, m + 0 * g)), lr, decay, hyper))
            elif p.role == "statistic":
                w = w + p.rate * (g - w)
            elif not p.frozen:
                adam_hyper = replace(hyper, momentum=0.9, eps=hyper.eps or 1e-8)
                w, state = adamw(w, g, state, lr, decay, adam_hyper, False, step)
            average = w if average is None else 0.75 * average + 0.25 * w
        for array, wanted in ((weights, w), *([(slots["ema"], average)] if hyper.ema else [])):
            assert np.abs(array[part] - wanted).max() <= 1e-12 * np.abs(wanted).max(), span.name
        assert not weights[part.stop : span.stop].any()
    conv = next(span for span in MIXED if span.name == "conv.weight")
    assert slots["mean"][conv.start : conv.start + conv.count].any()
    assert not slots["square"][conv.start : conv.stop].any()
    with pytest.raises(ValueError, match="take whole parameters"):
        trained(optimizer, make_ops("reference", "float64"), mixed, rates, (0, conv.start + 3))


# PyTorch multiplies in bfloat16, of 8 bits, which 5 steps amplify.
@pytest.mark.parametrize("shape", [(16, 40), (40, 16)])
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_muon_is_that_of_torch_within_its_bfloat16(adjust, shape):
    torch = pytest.importorskip("torch", minversion="2.9")
    spans = lay_out((("a.weight", Parameter("weight", shape, ZERO)), ("b.weight", Parameter("weight", (1, 1), ZERO))))
    count = spans[0].count
    draws = [np.random.default_rng(step).standard_normal(spans[-1].stop) for step in range(4)]
    weight = torch.nn.Parameter(torch.tensor(draws[0][:count].reshape(shape).T.copy(), dtype=torch.float32))
    reference = torch.optim.Muon([weight], lr=0.02, weight_decay=0.1, adjust_lr_fn=adjust)
    for draw in draws[1:]:
        weight.grad = torch.tensor(draw[:count].reshape(shape).T.copy(), dtype=torch.float32)
        reference.step()
    optimizer = make_optimizer("muon", spans, replace(MUON, weight_decay=0.1, adjust_lr=adjust))
    ends = trained(optimizer, make_ops("cpu", "float32"), draws.__getitem__, [0.02] * 3, (0, spans[-1].stop))[0]
    moved, wanted = (x - draws[0][:count] for x in (ends[:count], weight.detach().numpy().T.ravel()))
    assert np.linalg.norm(moved - wanted) <= 0.02 * np.linalg.norm(wanted)


# ── learning rates ────────────────────────────────────────────────────────────────────────────────────────────────────
KNOWN = [
    (LearningRate(0.1), {0: 0.1, 10**6: 0.1}),
    (LearningRate(0.1, "step", (10,), gamma=0.5), {0: 0.1, 9: 0.1, 10: 0.05, 19: 0.05, 35: 0.0125}),
    (
        LearningRate(0.001, "multistep", (60000, 65000), gamma=0.1),
        {0: 1e-3, 59999: 1e-3, 60000: 1e-4, 64999: 1e-4, 65000: 1e-5},
    ),
    (LearningRate(1.0, "poly", power=2, total=10), {0: 1.0, 5: 0.25, 9: 0.01, 10: 0.0, 99: 0.0}),
    # Caffe's LeNet solver prints 0.00596843 at iteration 9,900.
    (LearningRate(0.01, "inv", gamma=1e-4, power=0.75), {0: 0.01, 9900: 0.00596843, 10000: 0.0059460}),
    (LearningRate(0.4, "cosine", total=100), {0: 0.4, 50: 0.2, 25: 0.2 * (1 + math.sqrt(0.5)), 100: 0.0, 200: 0.0}),
    (LearningRate(0.4, warmup=4), {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.4}),
    (LearningRate(0.4, "cosine", total=100, floor=0.1), {0: 0.4, 50: 0.25, 100: 0.1, 200: 0.1}),
    (LearningRate(1.0, "poly", power=2, total=10, floor=0.2), {0: 1.0, 5: 0.4, 10: 0.2, 99: 0.2}),
    (LearningRate(0.1, "step", (10,), gamma=0.5, floor=0.03), {0: 0.1, 10: 0.05, 20: 0.03, 90: 0.03}),
    (LearningRate(0.1, "multistep", (10,), gamma=0.1, floor=0.03, warmup=2), {0: 0.05, 9: 0.1, 10: 0.03}),
    (LearningRate(0.01, "inv", gamma=1e-4, power=0.75, floor=0.008), {0: 0.01, 9900: 0.008}),
    (LearningRate(0.4, "poly", total=10, warmup=2), {0: 0.2, 1: 0.36, 2: 0.32}),
]


@pytest.mark.parametrize(("schedule", "values"), KNOWN, ids=lambda x: getattr(x, "policy", None))
def test_known_values(schedule, values):
    assert {schedule.policy for schedule, _ in KNOWN} == set(POLICIES)
    for iteration, value in values.items():
        assert schedule.at(iteration) == pytest.approx(value, rel=1e-5, abs=1e-15)


@pytest.mark.parametrize("policy", ["step", "multistep", "poly", "inv", "cosine"])
def test_rates_never_rise_after_warm_up(policy):
    schedule = LearningRate(0.3, policy, (7,), gamma=0.5, total=50, warmup=5)
    rates = [schedule.at(i) for i in range(60)]
    assert rates[:5] == sorted(rates[:5])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[0] < rates[5] > rates[49]


@pytest.mark.parametrize(
    ("length", "per_epoch", "iterations"),
    [
        (400, 157, 400),
        (0, 157, 0),
        ("5ep", 157, 785),
        ("0ep", 157, 0),
        ("0.5ep", 157, 79),
        ("0.001ep", 157, 1),
        ("0.1ep", 10, 1),
        ("0.7ep", 10, 7),
        ("999999999ep", 3, 2_999_999_997),
    ],
)
def test_epochs_are_whole_iterations(length, per_epoch, iterations):
    """In decimals, not in binary fractions: a tenth of 10 is 1, and 7 tenths are 7."""
    assert iterations_in(length, per_epoch) == iterations


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "cosin"}, says("'cosin'", "did you mean 'cosine'")),
        ({"policy": "step"}, says("'step'", [])),
        ({"policy": "step", "steps": (0,)}, says("'step'", [0])),
        ({"policy": "step", "steps": (1, 2)}, says("'step'", [1, 2])),
        ({"policy": "multistep"}, says("'multistep'", [])),
        ({"policy": "multistep", "steps": (5, 5)}, says("'multistep'", [5, 5])),
        ({"policy": "multistep", "steps": (-5, 5)}, says("'multistep'", [-5, 5])),
        ({"policy": "poly"}, says("'poly'", 0)),
        ({"policy": "cosine", "total": -1}, says("'cosine'", -1)),
        ({"warmup": -1}, says(-1, "warmup", "iterations")),
        ({"policy": "cosine", "total": 10, "floor": 0.2}, says("0.1", "0.2")),  # above the rate
    ],
)
def test_unusable_numbers_are_explained(arguments, message):
    with pytest.raises(ConfigError, match=message):
        LearningRate(0.1, **arguments)
