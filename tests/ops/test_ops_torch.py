"""The reference against PyTorch in float64: a second opinion on every formula. Runs where torch is installed."""

import numpy as np
import pytest

from ringtrain.nn.arena import lay_out
from ringtrain.nn.base import Fill, Parameter
from ringtrain.ops.base import ConvGeometry, PoolGeometry
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.optimizers import SGD, Hyper
from tests.updates import apply

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
F = torch.nn.functional
OPS = ReferenceOps("float64")


def draw(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def images(x_NHWC):
    """To torch's NCHW, ready for gradients."""
    return torch.tensor(x_NHWC.transpose(0, 3, 1, 2).copy(), requires_grad=True)


def back(t_NCHW):
    return t_NCHW.detach().numpy().transpose(0, 2, 3, 1)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("stride", "pad", "groups", "kernel"), [(1, 1, 1, 3), (2, 1, 1, 3), (1, 0, 2, 3), (2, 2, 2, 5), (1, 0, 1, 1)]
)
def test_conv2d(stride, pad, groups, kernel):
    geometry = ConvGeometry(kernel, stride, pad, groups)
    x, w, b = draw(2, 7, 6, 4), draw(kernel, kernel, 4 // groups, 6), draw(6)
    tx, tw, tb = (
        images(x),
        torch.tensor(w.transpose(3, 2, 0, 1).copy(), requires_grad=True),
        torch.tensor(b, requires_grad=True),
    )
    ty = F.conv2d(tx, tw, tb, stride, pad, 1, groups)
    y = np.empty((2, geometry.output(7), geometry.output(6), 6))
    OPS.conv2d(x, w, b, y, geometry)
    close(y, back(ty))
    dy = draw(*y.shape, seed=1)
    ty.backward(images(dy).detach())
    dw, db, dx = np.empty_like(w), np.empty_like(b), np.empty_like(x)
    OPS.conv2d_back(x, w, y, dy, dw, db, dx, geometry)
    close(dw, tw.grad.numpy().transpose(2, 3, 1, 0))
    close(db, tb.grad.numpy())
    close(dx, back(tx.grad))


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "ceil"), [(3, 2, 0, True), (2, 2, 0, False), (3, 2, 1, False), (3, 2, 1, True)]
)
def test_max_pool(kernel, stride, pad, ceil):
    geometry, x = PoolGeometry(kernel, stride, pad, ceil), draw(2, 8, 7, 3)
    tx = images(x)
    ty = F.max_pool2d(tx, kernel, stride, pad, ceil_mode=ceil)
    y = np.empty((2, geometry.output(8), geometry.output(7), 3))
    where = np.empty(y.shape, np.uint8)
    OPS.max_pool(x, y, where, geometry)
    close(y, back(ty))
    dy, dx = draw(*y.shape, seed=1), np.empty_like(x)
    ty.backward(images(dy).detach())
    OPS.max_pool_back(dy, where, dx, geometry)
    close(dx, back(tx.grad))


@pytest.mark.parametrize(("kernel", "stride", "pad", "ceil"), [(3, 2, 0, True), (2, 2, 0, False), (3, 2, 1, False)])
def test_avg_pool(kernel, stride, pad, ceil):
    geometry, x = PoolGeometry(kernel, stride, pad, ceil), draw(2, 8, 7, 3)
    tx = images(x)
    ty = F.avg_pool2d(tx, kernel, stride, pad, ceil_mode=ceil, count_include_pad=True)
    y = np.empty((2, geometry.output(8), geometry.output(7), 3))
    OPS.avg_pool(x, y, geometry)
    close(y, back(ty))
    dy, dx = draw(*y.shape, seed=1), np.empty_like(x)
    ty.backward(images(dy).detach())
    OPS.avg_pool_back(dy, dx, geometry)
    close(dx, back(tx.grad))


def test_lrn_across():
    x = 3 * draw(2, 4, 3, 7)
    tx = images(x)
    ty = F.local_response_norm(tx, 5, alpha=0.2, beta=0.75, k=1.5)
    y, scale = np.empty_like(x), np.empty_like(x)
    OPS.lrn_across(x, y, scale, 5, 0.2, 0.75, 1.5)
    close(y, back(ty))
    dy, dx = draw(*x.shape, seed=1), np.empty_like(x)
    ty.backward(images(dy).detach())
    OPS.lrn_across_back(x, y, scale, dy, dx, 5, 0.2, 0.75)
    close(dx, back(tx.grad))


def test_lrn_within():
    x = 3 * draw(2, 5, 4, 3)
    tx = images(x)
    ty = tx * (1 + 0.3 * F.avg_pool2d(tx * tx, 3, 1, 1)).pow(-0.75)
    y, scale = np.empty_like(x), np.empty_like(x)
    OPS.lrn_within(x, y, scale, 3, 0.3, 0.75)
    close(y, back(ty))
    dy, dx = draw(*x.shape, seed=1), np.empty_like(x)
    ty.backward(images(dy).detach())
    OPS.lrn_within_back(x, y, scale, dy, dx, 3, 0.3, 0.75)
    close(dx, back(tx.grad))


def test_batch_norm_and_its_running_statistics():
    x, gamma, beta = draw(4, 3, 5, 2), draw(2), draw(2)
    tx, norm = images(x), torch.nn.BatchNorm2d(2, eps=1e-5, momentum=0.1).double()
    norm.weight.data, norm.bias.data = torch.tensor(gamma), torch.tensor(beta)
    ty = norm(tx)
    y, mean, var = np.empty_like(x), np.empty((1, 2)), np.empty((1, 2))
    OPS.batch_norm(x, gamma, beta, y, mean, var, 4, 1e-5)
    close(y, back(ty))
    share_mean, share_var = np.empty(2), np.empty(2)
    OPS.batch_norm_shares(x, mean, var, 4, 4, share_mean, share_var)
    running_mean, running_var = np.zeros(2), np.ones(2)
    OPS.approach(running_mean, share_mean, 0.1)
    OPS.approach(running_var, share_var, 0.1)
    close(running_mean, norm.running_mean.numpy())
    close(running_var, norm.running_var.numpy())
    dy, dx, dgamma, dbeta = draw(*x.shape, seed=1), np.empty_like(x), np.empty(2), np.empty(2)
    ty.backward(images(dy).detach())
    OPS.batch_norm_back(x, gamma, y, mean, var, dy, dgamma, dbeta, dx, 4, 1e-5)
    close(dx, back(tx.grad))
    close(dgamma, norm.weight.grad.numpy())
    close(dbeta, norm.bias.grad.numpy())


def gradient(tensor):
    return tensor.grad.numpy()


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
    x = 4 * draw(7, 9)
    tx, y, dy = torch.tensor(x, requires_grad=True), np.empty_like(x), draw(7, 9, seed=1)
    ty = wanted(tx)
    OPS.activation(kind, x, y)
    close(y, ty.detach().numpy())
    ty.backward(torch.tensor(dy))
    OPS.activation_back(kind, x, y, dy, dy)
    close(dy, gradient(tx))


@pytest.mark.parametrize("groups", [1, 3])
def test_group_norm(groups):
    x, gamma, beta = draw(4, 5, 2, 6), draw(6), draw(6, seed=1)
    tx, norm = images(x), torch.nn.GroupNorm(groups, 6, eps=1e-4).double()
    norm.weight.data, norm.bias.data = torch.tensor(gamma), torch.tensor(beta)
    ty, moments = norm(tx), (np.empty((4, groups)), np.empty((4, groups)))
    y, dy, dx, dgamma, dbeta = np.empty((4, 10, 6)), draw(*x.shape, seed=2), np.empty((4, 10, 6)), gamma * 0, beta * 0
    OPS.group_norm(x.reshape(y.shape), gamma, beta, y, *moments, 1e-4)
    close(y.reshape(x.shape), back(ty))
    ty.backward(images(dy).detach())
    OPS.group_norm_back(x.reshape(y.shape), gamma, *moments, dy.reshape(y.shape), dgamma, dbeta, dx)
    close(dx.reshape(x.shape), back(tx.grad))
    close(dgamma, gradient(norm.weight))
    close(dbeta, gradient(norm.bias))


def test_layer_norm_is_a_group_norm_of_one_pixel():
    x, gamma, beta = draw(7, 12), draw(12), draw(12, seed=1)
    tx, tgamma, tbeta = (torch.tensor(each, requires_grad=True) for each in (x, gamma, beta))
    ty, dy, moments = F.layer_norm(tx, (12,), tgamma, tbeta, 1e-5), draw(7, 12, seed=2), np.empty((2, 7, 1))
    y, dx, dgamma, dbeta = np.empty((7, 1, 12)), np.empty((7, 1, 12)), gamma * 0, beta * 0
    OPS.group_norm(x[:, None], gamma, beta, y, *moments, 1e-5)
    close(y[:, 0], ty.detach().numpy())
    ty.backward(torch.tensor(dy))
    OPS.group_norm_back(x[:, None], gamma, *moments, dy[:, None], dgamma, dbeta, dx)
    for found, expected in ((dx[:, 0], tx), (dgamma, tgamma), (dbeta, tbeta)):
        close(found, gradient(expected))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    x = draw(3, 7, 24)
    tx = torch.tensor(x, requires_grad=True)
    q, k, v = (each.reshape(3, 7, 2, 4).transpose(1, 2) for each in tx.split(8, dim=2))
    ty = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(3, 7, 8)
    y, shares, dy, dx = np.empty((3, 7, 8)), np.empty((3, 2, 7, 7)), draw(3, 7, 8, seed=1), np.empty_like(x)
    OPS.attention(x, y, shares, causal)
    close(y, ty.detach().numpy())
    ty.backward(torch.tensor(dy))
    OPS.attention_back(x, shares, dy, dx)
    close(dx, gradient(tx))


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


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(nesterov):
    v = np.zeros(11)
    close(
        *steps(
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.02, nesterov=nesterov),
            lambda w, g, step: OPS.sgd(w, g, v, 0.1, 0.9, 0.02, nesterov),
        )
    )


def test_adamw():
    m, v = np.zeros(11), np.zeros(11)
    close(
        *steps(
            lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.02),
            lambda w, g, step: OPS.adamw(w, g, m, v, 0.1, 0.9, 0.99, 1e-8, 0.02, step),
        )
    )


def test_adam():
    m, v = np.zeros(11), np.zeros(11)
    close(
        *steps(
            lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.02),
            lambda w, g, step: OPS.adam(w, g, m, v, 0.1, 0.9, 0.99, 1e-8, 0.02, step),
        )
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop(momentum):
    s, v = np.zeros(11), np.zeros(11)
    close(
        *steps(
            lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=0.95, eps=1e-3, weight_decay=0.02, momentum=momentum),
            lambda w, g, step: OPS.rmsprop(w, g, s, v, 0.1, momentum, 0.95, 1e-3, 0.02),
        )
    )


def test_averaged_weights():
    """Of each update, begun at the first: torch's AveragedModel."""
    parameter = Parameter("weight", (11,), Fill("constant"), "weight")
    optimizer = SGD(lay_out((("fc.weight", parameter),)), Hyper(momentum=0.9, weight_decay=0.02, ema=0.8))
    slots = {name: np.zeros(16) for name in optimizer.slots}
    found = []

    class Net(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = torch.nn.Parameter(weight.detach())

    def made(parameters):
        (weight,) = parameters
        kept = torch.optim.swa_utils.AveragedModel(
            Net(weight), multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8), use_buffers=True
        )
        sgd = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.02)

        def update(*_):
            kept.update_parameters(Net(weight))
            found.append(kept.module.weight.detach().numpy().copy())

        sgd.register_step_post_hook(update)
        return sgd

    def step(w, g, number):
        padded = [np.zeros(16), np.zeros(16)]
        padded[0][:11], padded[1][:11] = w, g
        apply(optimizer, OPS, *padded, slots, 0.1, number, 0, 16)
        w[...] = padded[0][:11]

    close(*steps(made, step))
    close(slots["ema"][:11], found[-1])
