"""The reference against PyTorch in float64: a second opinion on every formula. Runs where torch is installed."""

import inspect

import numpy as np
import pytest

from ringtrain.config.record import OptimizerConfig
from ringtrain.memory.arena import lay_out
from ringtrain.nn.base import Fill, Parameter
from ringtrain.ops.base import ConvGeometry, PoolGeometry
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.optimizers import SGD
from tests.ops.cases import forward_and_back
from tests.updates import apply

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
F = torch.nn.functional
OPS = ReferenceOps("float64")


def draw(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def close(results, expected):
    np.testing.assert_allclose(results, expected, rtol=1e-10, atol=1e-12)


AXES = {"NHWC": (0, 3, 1, 2), "NPQC": (0, 3, 1, 2), "NPQK": (0, 3, 1, 2), "RSCK": (3, 2, 0, 1)}


def axes(name, x):
    """Those of an array of this name in torch's order."""
    return AXES.get(name.partition("_")[2], tuple(range(x.ndim)))


def check(name, wanted, inputs, y, kept=(), **options):
    """An operation and its gradients beside ``wanted``, of the same inputs as tensors."""
    tensors = [torch.tensor(x.transpose(axes(key, x)).copy(), requires_grad=True) for key, x in inputs.items()]
    ty, dy = wanted(*tensors), draw(*y[1], seed=1)
    ty.backward(torch.tensor(dy.transpose(axes(y[0], dy)).copy()))
    results, gradients = forward_and_back(OPS, name, inputs, y, kept, dy, **options)
    expected = [ty.detach(), *(each.grad for each in tensors)]
    for key, ours, theirs in zip((y[0], *inputs), (results, *gradients), expected, strict=True):
        close(ours, theirs.numpy().transpose(np.argsort(axes(key, ours))))


@pytest.mark.parametrize(
    ("stride", "pad", "groups", "kernel"), [(1, 1, 1, 3), (2, 1, 1, 3), (1, 0, 2, 3), (2, 2, 2, 5), (1, 0, 1, 1)]
)
def test_conv2d(stride, pad, groups, kernel):
    geometry = ConvGeometry(kernel, stride, pad, groups)
    inputs = {"x_NHWC": draw(2, 7, 6, 4), "w_RSCK": draw(kernel, kernel, 4 // groups, 6), "b_K": draw(6)}
    y = "y_NPQK", (2, geometry.output(7), geometry.output(6), 6)
    check("conv2d", lambda x, w, b: F.conv2d(x, w, b, stride, pad, 1, groups), inputs, y, geometry=geometry)


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "ceil"), [(3, 2, 0, True), (2, 2, 0, False), (3, 2, 1, False), (3, 2, 1, True)]
)
def test_pools(kernel, stride, pad, ceil):
    geometry, window = PoolGeometry(kernel, stride, pad, ceil), {"ceil_mode": ceil}
    y = "y_NPQC", (2, geometry.output(8), geometry.output(7), 3)
    inputs, where = {"x_NHWC": draw(2, 8, 7, 3)}, {"where_NPQC": np.empty(y[1], np.uint8)}
    check("max_pool", lambda x: F.max_pool2d(x, kernel, stride, pad, **window), inputs, y, where, geometry=geometry)
    if not (ceil and pad):  # torch's divisor counts no padding of a window that is cut
        check("avg_pool", lambda x: F.avg_pool2d(x, kernel, stride, pad, **window), inputs, y, geometry=geometry)


RESPONSES = {
    "lrn_across": (
        lambda x: F.local_response_norm(x, 5, alpha=0.2, beta=0.75, k=1.5),
        {"size": 5, "alpha": 0.2, "k": 1.5},
    ),
    "lrn_within": (lambda x: x * (1 + 0.3 * F.avg_pool2d(x * x, 3, 1, 1)).pow(-0.75), {"size": 3, "alpha": 0.3}),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_local_responses(name):
    (wanted, options), x = RESPONSES[name], 3 * draw(2, 4, 3, 7)
    check(name, wanted, {"x_NHWC": x}, ("y_NHWC", x.shape), {"scale_NHWC": np.empty_like(x)}, beta=0.75, **options)


def test_batch_norm_and_its_running_statistics():
    x, moments = draw(4, 3, 5, 2), {"mean_GC": np.empty((1, 2)), "var_GC": np.empty((1, 2))}
    running = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)

    def wanted(x, *weights):
        return F.batch_norm(x, *running, *weights, training=True, momentum=0.1, eps=1e-5)

    inputs = {"x_NHWC": x, "gamma_C": draw(2), "beta_C": draw(2, seed=2)}
    check("batch_norm", wanted, inputs, ("y_NHWC", x.shape), moments, ghost=4, eps=1e-5)
    shares, ours = (np.empty(2), np.empty(2)), (np.zeros(2), np.ones(2))
    OPS.batch_norm_shares(x, *moments.values(), 4, 4, *shares)
    for statistic, share, theirs in zip(ours, shares, running, strict=True):
        OPS.approach(statistic, share, 0.1)
        close(statistic, theirs.numpy())


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("sigmoid", torch.sigmoid),
        ("tanh", torch.tanh),
        ("silu", F.silu),
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    ],
)
def test_activations(kind, wanted):
    check("activation", wanted, {"x_N": 4 * draw(7, 9)}, ("y_N", (7, 9)), in_place=True, kind=kind)


@pytest.mark.parametrize(
    "shape, groups, wanted",
    [
        *(((4, 10, 6), groups, lambda x, *w, n=groups: F.group_norm(x.mT, n, *w, 1e-5).mT) for groups in (1, 3)),
        ((7, 1, 12), 1, lambda x, *w: F.layer_norm(x, (12,), *w, 1e-5)),  # a group norm of one pixel
    ],
)
def test_group_norm(shape, groups, wanted):
    inputs = {"x_NSC": draw(*shape), "gamma_C": draw(shape[2]), "beta_C": draw(shape[2], seed=1)}
    moments = {name: np.empty((shape[0], groups)) for name in ("mean_NG", "inverse_NG")}
    check("group_norm", wanted, inputs, ("y_NSC", shape), moments, eps=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    def wanted(x):
        q, k, v = (each.reshape(3, 7, 2, 4).transpose(1, 2) for each in x.split(8, dim=2))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(3, 7, 8)

    shares = {"y_NHLL": np.empty((3, 2, 7, 7))}
    check("attention", wanted, {"x_NLE": draw(3, 7, 24)}, ("y_NLD", (3, 7, 8)), shares, causal=causal)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_cross_entropy(smoothing):
    x, labels = 4 * draw(6, 5), np.array([0, 4, -1, 2, 2, 1], np.int32)
    tx = torch.tensor(x, requires_grad=True)
    loss = F.cross_entropy(tx, torch.tensor(labels).long(), ignore_index=-1, label_smoothing=smoothing, reduction="sum")
    dx, totals = np.empty_like(x), np.zeros(3)
    OPS.softmax_cross_entropy(x, labels, dx, totals, 0.25, smoothing, -1)
    (0.25 * loss).backward()
    close(totals[0], loss.item())
    close(dx, tx.grad.numpy())
    assert totals[2] == 5


def steps(make_torch, apply):
    """Weights after three steps of a torch optimizer and of ours, from the same gradients."""
    w = draw(11)
    tw = torch.tensor(w.copy(), requires_grad=True)
    optimizer = make_torch([tw])
    for step in range(1, 4):
        g = draw(11, seed=step)
        tw.grad = torch.tensor(g)
        optimizer.step()
        apply(w, g, step)
    return w, tw.detach().numpy()


ADAM = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.02}
RULES = [
    *(("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02, "nesterov": each}) for each in (False, True)),
    ("AdamW", ADAM),
    ("Adam", ADAM),
    *(
        ("RMSprop", {"lr": 0.1, "alpha": 0.95, "eps": 1e-3, "weight_decay": 0.02, "momentum": each})
        for each in (0.0, 0.9)
    ),
]


@pytest.mark.parametrize(("name", "options"), RULES)
def test_rules_of_updates(name, options):
    beta1, beta2 = options.get("betas", (0, 0))
    arrays = {**options, "beta1": beta1, "beta2": beta2, "decay": options["weight_decay"]}
    arrays |= {each: np.zeros(11) for each in ("m", "s", "v")}
    rule = getattr(OPS, name.lower())

    def update(w, g, step):
        arguments = {**arrays, "w": w, "g": g, "step": step}
        rule(**{each: arguments[each] for each in inspect.signature(rule).parameters})

    close(*steps(lambda parameters: getattr(torch.optim, name)(parameters, **options), update))


def test_averaged_weights():
    """Of each update, begun at the first: torch's AveragedModel."""
    parameter = Parameter("weight", (11,), Fill("constant"), "weight")
    optimizer = SGD(lay_out((("fc.weight", parameter),)), OptimizerConfig(momentum=0.9, weight_decay=0.02, ema=0.8))
    slots = {name: np.zeros(16) for name in optimizer.slots}
    results = []

    class Net(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = torch.nn.Parameter(weight.detach())

    def ours(parameters):
        (weight,) = parameters
        kept = torch.optim.swa_utils.AveragedModel(
            Net(weight), multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8), use_buffers=True
        )
        sgd = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.02)

        def update(*_):
            kept.update_parameters(Net(weight))
            results.append(kept.module.weight.detach().numpy().copy())

        sgd.register_step_post_hook(update)
        return sgd

    def step(w, g, number):
        padded = [np.zeros(16), np.zeros(16)]
        padded[0][:11], padded[1][:11] = w, g
        apply(optimizer, OPS, *padded, slots, 0.1, number, 0, 16)
        w[...] = padded[0][:11]

    close(*steps(ours, step))
    close(slots["ema"][:11], results[-1])
