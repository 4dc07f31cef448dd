"""The loss, running statistics and the rules of updates of the reference against PyTorch in float64; layers are in
tests/nn/test_nn_torch.py. Runs where torch is installed."""

import inspect

import numpy as np
import pytest

from ringtrain.config.record import OptimizerConfig
from ringtrain.memory.arena import lay_out
from ringtrain.nn.base import Fill, Parameter
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.optimizers import SGD
from tests.updates import apply

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
F = torch.nn.functional
OPS = ReferenceOps("float64")


def draw(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def close(results, expected):
    np.testing.assert_allclose(results, expected, rtol=1e-10, atol=1e-12)


def test_running_statistics_of_a_batch():
    x, moments, shares = draw(4, 3, 5, 2), np.empty((2, 1, 2)), np.empty((2, 2))
    running, ours = (torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)), (np.zeros(2), np.ones(2))
    F.batch_norm(torch.tensor(x.transpose(0, 3, 1, 2)), *running, training=True, momentum=0.1)
    OPS.batch_norm(x, np.ones(2), np.zeros(2), np.empty_like(x), *moments, 4, 1e-5)
    OPS.batch_norm_shares(x, *moments, 4, 4, *shares)
    for statistic, share, theirs in zip(ours, shares, running, strict=True):
        OPS.approach(statistic, share, 0.1)
        close(statistic, theirs.numpy())


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
